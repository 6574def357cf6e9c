"""The result of `system doctor`: one finding for each thing checked, its level, and a fix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from ductile.errors import DuctileError, Problem
from ductile.operations.response import Response
from ductile.struct import Value


class FindingLevel(StrEnum):
    """From harmless to serious."""

    OK = "ok"
    WARN = "warn"
    ERROR = "error"


class DoctorCheck(StrEnum):
    """The checks, in the order of the report."""

    CONFIG = "config"
    SEAL = "seal"
    PERMISSIONS = "permissions"
    PLUGINS = "plugins"
    HEALTH = "health"
    DAEMON = "daemon"
    LISTENERS = "listeners"
    CLOCK = "clock"
    DISK = "disk"
    STORE = "store"
    BREAKERS = "breakers"
    SCHEDULES = "schedules"
    JOBS = "jobs"
    RECEIVERS = "receivers"


DOCTOR_CHECKS: dict[DoctorCheck, str] = {
    DoctorCheck.CONFIG: "The configuration can be loaded, and is the one in force.",
    DoctorCheck.SEAL: "Its files are what was sealed.",
    DoctorCheck.PERMISSIONS: "No other user can read or change it, or the store.",
    DoctorCheck.PLUGINS: "Every configured plugin can run, and its init succeeded.",
    DoctorCheck.HEALTH: "Plugins with a health command report that they are healthy. "
    "Only while the daemon runs.",
    DoctorCheck.DAEMON: "The daemon runs, and is the version that is installed.",
    DoctorCheck.LISTENERS: "The addresses to listen on are free, or the daemon's own.",
    DoctorCheck.CLOCK: "The clock has not gone back, and is not years off.",
    DoctorCheck.DISK: "There is room for the store to grow.",
    DoctorCheck.STORE: "The store is undamaged, of the right version, and on a local disk.",
    DoctorCheck.BREAKERS: "No circuit breaker keeps the scheduler from a plugin.",
    DoctorCheck.SCHEDULES: "No schedule is paused or overdue, and none has a gap in its history.",
    DoctorCheck.JOBS: "No job has failed for good within a day.",
    DoctorCheck.RECEIVERS: "Receivers of state webhooks accept their deliveries.",
}


class DoctorFinding(Value):
    check: DoctorCheck
    level: FindingLevel
    message: str
    where: Annotated[str | None, Meta(description="A file, a key or a job.")]
    fix: Annotated[str | None, Meta(description="A command to run, or a key to set.")]


class LevelCounts(Value):
    ok: int
    warn: int
    error: int


class DoctorReport(Response):
    verdict: Annotated[FindingLevel, Meta(description="The most serious level found.")]
    counts: LevelCounts
    findings: tuple[DoctorFinding, ...]


def ok(check: DoctorCheck, message: str, where: str | None = None) -> DoctorFinding:
    return DoctorFinding(check=check, level=FindingLevel.OK, message=message, where=where, fix=None)


def warning(
    check: DoctorCheck, message: str, *, where: str | None = None, fix: str | None = None
) -> DoctorFinding:
    return DoctorFinding(check=check, level=FindingLevel.WARN, message=message, where=where, fix=fix)


def failure(
    check: DoctorCheck, message: str, *, where: str | None = None, fix: str | None = None
) -> DoctorFinding:
    return DoctorFinding(check=check, level=FindingLevel.ERROR, message=message, where=where, fix=fix)


def from_problem(check: DoctorCheck, level: FindingLevel, problem: Problem) -> DoctorFinding:
    where = "  ".join(part for part in (problem.location, problem.key) if part) or None
    expected = "" if problem.expected is None else f"; expected {problem.expected}"
    return DoctorFinding(
        check=check, level=level, message=f"{problem.message}{expected}", where=where, fix=problem.hint
    )


def from_error(check: DoctorCheck, error: DuctileError) -> DoctorFinding:
    return failure(check, error.message, fix=error.hint)


def worst_level(findings: Iterable[DoctorFinding]) -> FindingLevel:
    return max((each.level for each in findings), key=list(FindingLevel).index, default=FindingLevel.OK)


def build_report(findings: Sequence[DoctorFinding]) -> DoctorReport:
    """The findings in the order of the checks; within a check, the most serious first."""
    checks, levels = list(DoctorCheck), list(FindingLevel)
    return DoctorReport(
        verdict=worst_level(findings),
        counts=LevelCounts(**{level: sum(each.level is level for each in findings) for level in levels}),
        findings=tuple(
            sorted(findings, key=lambda each: (checks.index(each.check), -levels.index(each.level)))
        ),
    )
