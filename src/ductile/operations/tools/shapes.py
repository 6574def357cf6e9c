"""Shorter responses for agents, where leaving out fields is not enough."""

from __future__ import annotations

from ductile.operations.diagnose.findings import DoctorFinding, DoctorReport, FindingLevel
from ductile.operations.pipeline_test.run import CaseReport, PipelineTestReport
from ductile.struct import replace


def problems_only(report: DoctorReport) -> DoctorReport:
    """The findings that are not well, the most serious first, equal ones as one."""
    levels = list(FindingLevel)
    groups: dict[tuple[object, ...], list[DoctorFinding]] = {}
    for each in report.findings:
        if each.level is not FindingLevel.OK:
            groups.setdefault((each.check, each.level, each.message, each.fix), []).append(each)
    found = [_merged(group) for group in groups.values()]
    return replace(report, findings=tuple(sorted(found, key=lambda each: -levels.index(each.level))))


def _merged(group: list[DoctorFinding]) -> DoctorFinding:
    first = group[0]
    more = f"{first.where or first.message}, and {len(group) - 1} more"
    return first if len(group) == 1 else replace(first, where=more)


def without_passed_steps(report: PipelineTestReport) -> PipelineTestReport:
    """Cases that passed without their steps, unless it is the only one; of others, the telling steps."""
    single = len(report.cases) == 1
    return replace(report, cases=[_short(each, keep=single) for each in report.cases])


def _short(case: CaseReport, *, keep: bool) -> CaseReport:
    if case.passed and not keep:
        return replace(case, steps=[], order=[], result=None)
    return replace(case, steps=[each for each in case.steps if each.jobs or each.because])
