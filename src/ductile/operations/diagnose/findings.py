"""What a doctor says: one finding for each thing looked at, how grave it is, and what mends it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from ductile.core.json import JsonObject
from ductile.errors import DuctileError, Problem
from ductile.struct import Value


class FindingLevel(StrEnum):
    OK = "ok"
    WARN = "warn"
    ERROR = "error"


class DoctorCheck(StrEnum):
    """What is looked at, in the order in which it is told."""

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
    DoctorCheck.HEALTH: "Plugins with a health command say that they are healthy. Only while the daemon "
    "runs.",
    DoctorCheck.DAEMON: "The daemon runs, and is the version that is installed.",
    DoctorCheck.LISTENERS: "The addresses to listen on are free, or the daemon's own.",
    DoctorCheck.CLOCK: "The clock has not gone back, and is not years off.",
    DoctorCheck.DISK: "There is room for the store to grow.",
    DoctorCheck.STORE: "The store is whole, of the right version, and on a local disk.",
    DoctorCheck.BREAKERS: "No circuit breaker keeps the scheduler from a plugin.",
    DoctorCheck.SCHEDULES: "No schedule is paused or overdue, and none has a gap in its history.",
    DoctorCheck.JOBS: "No job has failed for good within a day.",
    DoctorCheck.RECEIVERS: "Receivers of state webhooks take what they are sent.",
}


class DoctorFinding(Value):
    check: DoctorCheck
    level: FindingLevel
    message: str
    #: A file, a key, a job: where to look.
    where: str | None = None
    #: A command to run or a key to set.
    fix: str | None = None


def ok(check: DoctorCheck, message: str, where: str | None = None) -> DoctorFinding:
    return DoctorFinding(check=check, level=FindingLevel.OK, message=message, where=where)


def warning(
    check: DoctorCheck, message: str, *, where: str | None = None, fix: str | None = None
) -> DoctorFinding:
    return DoctorFinding(check=check, level=FindingLevel.WARN, message=message, where=where, fix=fix)


def failure(
    check: DoctorCheck, message: str, *, where: str | None = None, fix: str | None = None
) -> DoctorFinding:
    return DoctorFinding(check=check, level=FindingLevel.ERROR, message=message, where=where, fix=fix)


def from_problem(check: DoctorCheck, level: FindingLevel, problem: Problem) -> DoctorFinding:
    where = "  ".join(part for part in (problem.place, problem.key) if part) or None
    said = [problem.message]
    if problem.expected is not None:
        said.append(f"expected {problem.expected}")
    return DoctorFinding(check=check, level=level, message="; ".join(said), where=where, fix=problem.hint)


def from_error(check: DoctorCheck, error: DuctileError) -> DoctorFinding:
    return failure(check, error.message, fix=error.hint)


def worst_level(findings: Iterable[DoctorFinding]) -> FindingLevel:
    grave = [FindingLevel.OK, FindingLevel.WARN, FindingLevel.ERROR]
    return max((finding.level for finding in findings), key=grave.index, default=FindingLevel.OK)


def build_report(findings: Sequence[DoctorFinding]) -> JsonObject:
    """In the order of the checks; within one, the gravest first."""
    order = list(DoctorCheck)
    gravity = [FindingLevel.ERROR, FindingLevel.WARN, FindingLevel.OK]
    told = sorted(findings, key=lambda each: (order.index(each.check), gravity.index(each.level)))
    return {
        "verdict": worst_level(findings).value,
        "counts": {level.value: sum(each.level is level for each in findings) for level in FindingLevel},
        "findings": [
            {
                "check": each.check.value,
                "level": each.level.value,
                "message": each.message,
                "where": each.where,
                "fix": each.fix,
            }
            for each in told
        ],
    }
