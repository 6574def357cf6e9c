"""What a doctor says: one finding for each thing looked at, how grave it is, and what mends it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from ductile.core.json_values import JsonObject
from ductile.errors import DuctileError, Problem
from ductile.value import Value


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    ERROR = "error"


class Check(StrEnum):
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


CHECKS: dict[Check, str] = {
    Check.CONFIG: "The configuration can be loaded, and is the one in force.",
    Check.SEAL: "Its files are what was sealed.",
    Check.PERMISSIONS: "No other user can read or change it, or the store.",
    Check.PLUGINS: "Every configured plugin can run, and its init succeeded.",
    Check.HEALTH: "Plugins with a health command say that they are healthy. Only while the daemon runs.",
    Check.DAEMON: "The daemon runs, and is the version that is installed.",
    Check.LISTENERS: "The addresses to listen on are free, or the daemon's own.",
    Check.CLOCK: "The clock has not gone back, and is not years off.",
    Check.DISK: "There is room for the store to grow.",
    Check.STORE: "The store is whole, of the right version, and on a local disk.",
    Check.BREAKERS: "No circuit breaker keeps the scheduler from a plugin.",
    Check.SCHEDULES: "No schedule is paused or overdue, and none has a gap in its history.",
    Check.JOBS: "No job has failed for good within a day.",
    Check.RECEIVERS: "Receivers of state webhooks take what they are sent.",
}


class Finding(Value):
    check: Check
    level: Level
    message: str
    #: A file, a key, a job: where to look.
    where: str | None = None
    #: A command to run or a key to set.
    fix: str | None = None


def fine(check: Check, message: str, where: str | None = None) -> Finding:
    return Finding(check=check, level=Level.OK, message=message, where=where)


def doubtful(check: Check, message: str, *, where: str | None = None, fix: str | None = None) -> Finding:
    return Finding(check=check, level=Level.WARN, message=message, where=where, fix=fix)


def wrong(check: Check, message: str, *, where: str | None = None, fix: str | None = None) -> Finding:
    return Finding(check=check, level=Level.ERROR, message=message, where=where, fix=fix)


def of_problem(check: Check, level: Level, problem: Problem) -> Finding:
    where = "  ".join(part for part in (problem.place, problem.key) if part) or None
    said = [problem.message]
    if problem.expected is not None:
        said.append(f"expected {problem.expected}")
    return Finding(check=check, level=level, message="; ".join(said), where=where, fix=problem.hint)


def of_error(check: Check, error: DuctileError) -> Finding:
    return wrong(check, error.message, fix=error.hint)


def worst(findings: Iterable[Finding]) -> Level:
    grave = [Level.OK, Level.WARN, Level.ERROR]
    return max((finding.level for finding in findings), key=grave.index, default=Level.OK)


def shown(findings: Sequence[Finding]) -> JsonObject:
    """In the order of the checks; within one, the gravest first."""
    order = list(Check)
    gravity = [Level.ERROR, Level.WARN, Level.OK]
    told = sorted(findings, key=lambda each: (order.index(each.check), gravity.index(each.level)))
    return {
        "verdict": worst(findings).value,
        "counts": {level.value: sum(each.level is level for each in findings) for level in Level},
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
