"""The result of `system doctor`: one finding for each thing checked, its level, and a fix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated

from ductile.errors import DuctileError, Problem
from ductile.operations.response import Response
from ductile.struct import DescribedEnum, Value, about


class FindingLevel(StrEnum):
    """From harmless to serious."""

    OK = "ok"
    WARN = "warn"
    ERROR = "error"


class DoctorCheck(DescribedEnum):
    """The checks, in the order of the report."""

    CONFIG = "config", "The configuration can be loaded, and is the one in force."
    SEAL = "seal", "Its files are what was sealed."
    PERMISSIONS = "permissions", "No other user can read or change it, or the store."
    PLUGINS = "plugins", "Every configured plugin can run, and its init succeeded."
    HEALTH = (
        "health",
        "Plugins with a health command report that they are healthy. Only while the daemon runs.",
    )
    DAEMON = "daemon", "The daemon runs, and is the version that is installed."
    NODES = "nodes", "Nodes that share the store are alive, of one version, and have the same configuration."
    LISTENERS = "listeners", "The addresses to listen on are free, or the daemon's own."
    CLOCK = "clock", "The clock has not gone back, and is not years off."
    DISK = "disk", "There is room for the store to grow."
    STORE = "store", "The store is undamaged, of the right version, and on a local disk."
    BREAKERS = "breakers", "No circuit breaker keeps the scheduler from a plugin."
    SCHEDULES = "schedules", "No schedule is paused or overdue, and none has a gap in its history."
    JOBS = "jobs", "No job has failed for good within a day."
    RECEIVERS = "receivers", "Receivers of state webhooks accept their deliveries."
    NOTICES = "notices", "The receiver of failure notices (`service.on_failure`) succeeds."

    def ok(self, message: str, where: str | None = None) -> DoctorFinding:
        return DoctorFinding(check=self, level=FindingLevel.OK, message=message, where=where, fix=None)

    def warn(self, message: str, *, where: str | None = None, fix: str | None = None) -> DoctorFinding:
        return DoctorFinding(check=self, level=FindingLevel.WARN, message=message, where=where, fix=fix)

    def error(self, message: str, *, where: str | None = None, fix: str | None = None) -> DoctorFinding:
        return DoctorFinding(check=self, level=FindingLevel.ERROR, message=message, where=where, fix=fix)

    def raised(self, error: DuctileError) -> DoctorFinding:
        """Return the finding for an error that the check raised."""
        return self.error(error.message, fix=error.hint)

    def problem(self, level: FindingLevel, problem: Problem) -> DoctorFinding:
        where = "  ".join(part for part in (problem.location, problem.key) if part) or None
        expected = "" if problem.expected is None else f"; expected {problem.expected}"
        return DoctorFinding(
            check=self, level=level, message=f"{problem.message}{expected}", where=where, fix=problem.hint
        )


class DoctorFinding(Value):
    check: DoctorCheck
    level: FindingLevel
    message: str
    where: Annotated[str | None, about("A file, a key or a job.")]
    fix: Annotated[str | None, about("A command to run, or a key to set.")]


class LevelCounts(Value):
    ok: int
    warn: int
    error: int


class DoctorReport(Response):
    verdict: Annotated[FindingLevel, about("The most serious level found.")]
    counts: LevelCounts
    findings: tuple[DoctorFinding, ...]


def worst_level(findings: Iterable[DoctorFinding]) -> FindingLevel:
    return max((finding.level for finding in findings), key=list(FindingLevel).index, default=FindingLevel.OK)


def build_report(findings: Sequence[DoctorFinding]) -> DoctorReport:
    """Return the findings in the order of the checks; within a check, the most serious first."""
    checks, levels = list(DoctorCheck), list(FindingLevel)
    return DoctorReport(
        verdict=worst_level(findings),
        counts=LevelCounts(
            **{level: sum(finding.level is level for finding in findings) for level in levels}
        ),
        findings=tuple(
            sorted(findings, key=lambda finding: (checks.index(finding.check), -levels.index(finding.level)))
        ),
    )
