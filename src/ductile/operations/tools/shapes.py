"""Shorter responses for agents, where leaving out fields is not enough."""

from __future__ import annotations

from ductile.operations.diagnose.findings import DoctorFinding, DoctorReport, FindingLevel
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
