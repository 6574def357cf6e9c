"""Diagnose a schedule: the one cause that has to be dealt with first.

Obstacles are checked in the order in which removing them helps: resuming a schedule does not help while its
plugin is disabled. Whether the next run could start is decided by `admission`, as in the store.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from ductile.core.schedules.admission import Admitted, FireView, StartConditions, decide_admission
from ductile.core.schedules.planner import SkipReason
from ductile.struct import DescribedEnum, Value

#: With more delay the daemon does not handle the schedule.
OVERDUE_AFTER = timedelta(minutes=2)


class ScheduleCause(DescribedEnum):
    NOT_CONFIGURED = "not_configured", "The configuration no longer has this schedule."
    PLUGIN_DISABLED = "plugin_disabled", "The plugin is disabled."
    PLUGIN_REFUSED = "plugin_refused", "The plugin cannot run."
    PAUSED = "paused", "The schedule is paused."
    NO_DAEMON = "no_daemon", "No daemon is running, and only a daemon runs what is scheduled."
    NOT_LOADED = "not_loaded", "The daemon has not loaded this schedule."
    OVERDUE = "overdue", "It was due, and the daemon has not started it."
    BREAKER_OPEN = "breaker_open", "The circuit breaker is open after too many failures."
    BREAKER_HALF_OPEN = "breaker_half_open", "The circuit breaker waits for the result of its probe."
    RUNNING = "running", "The previous run has not ended (`if_running: skip`)."
    WAITING = "waiting", "Its run is due and waits until other polls of the plugin have ended."
    OUTSTANDING_POLLS = (
        "outstanding_polls",
        (
            "As many polls as `max_outstanding_polls` are queued or running: "
            "a run that falls due now waits for one of them to end."
        ),
    )
    LAST_FAILED = "last_failed", "It runs, and its last run failed."
    LAST_SKIPPED = "last_skipped", "It works normally; the last due run was skipped."
    OVER = "over", "It has nothing more to run: its time has come and gone."
    ON_TIME = "on_time", "Nothing is wrong: it runs when it is due."


_OBSTACLES = {
    SkipReason.BREAKER_OPEN: ScheduleCause.BREAKER_OPEN,
    SkipReason.BREAKER_HALF_OPEN: ScheduleCause.BREAKER_HALF_OPEN,
    SkipReason.RUNNING: ScheduleCause.RUNNING,
    SkipReason.WAITING: ScheduleCause.WAITING,
    SkipReason.OUTSTANDING_POLLS: ScheduleCause.OUTSTANDING_POLLS,
}


class ScheduleFacts(Value):
    """The known facts of a schedule. Without `conditions` it is not in the configuration."""

    now: datetime
    enabled: bool
    refused: bool
    paused: bool
    daemon_runs: bool
    #: Whether the store has an entry: a daemon has loaded it.
    known: bool
    next_at: datetime | None
    conditions: StartConditions | None
    view: FireView
    last_failed: bool = False
    last_skipped: bool = False


def decide_cause(facts: ScheduleFacts) -> ScheduleCause:
    if facts.conditions is None:
        return ScheduleCause.NOT_CONFIGURED
    if (standing := _standing_obstacle(facts)) is not None:
        return standing
    start = decide_admission(facts.conditions, facts.view, facts.now)
    if not isinstance(start, Admitted):
        return _OBSTACLES[start]
    if facts.last_failed:
        return ScheduleCause.LAST_FAILED
    if facts.last_skipped:
        return ScheduleCause.LAST_SKIPPED
    return ScheduleCause.OVER if facts.next_at is None else ScheduleCause.ON_TIME


def _standing_obstacle(facts: ScheduleFacts) -> ScheduleCause | None:
    """Return the obstacle that does not depend on other runs; None if there is none."""
    if not facts.enabled:
        return ScheduleCause.PLUGIN_DISABLED
    if facts.refused:
        return ScheduleCause.PLUGIN_REFUSED
    if facts.paused:
        return ScheduleCause.PAUSED
    if not facts.daemon_runs:
        return ScheduleCause.NO_DAEMON
    if not facts.known:
        return ScheduleCause.NOT_LOADED
    if facts.next_at is not None and facts.now - facts.next_at > OVERDUE_AFTER:
        return ScheduleCause.OVERDUE
    return None
