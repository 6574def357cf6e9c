"""Decide whether a planned run of a schedule may start, and diagnose a schedule that does not run.

The store decides about a start inside the transaction that would start it, because it depends on rows that
change after planning: the previous run, outstanding polls, the circuit breaker.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from ductile.core.jobs.failures import Breaker, BreakerPolicy, BreakerState
from ductile.core.schedules.planner import SkipReason
from ductile.core.schedules.rule import IfRunning
from ductile.struct import DescribedEnum, Value


class StartConditions(Value):
    """The settings that a start has to respect."""

    if_running: IfRunning
    #: The most outstanding polls; None for other commands and for catch-up runs.
    max_polls: int | None
    #: None for a run that an operator requested: the breaker stops only scheduled runs.
    breaker: BreakerPolicy | None


class FireView(Value):
    """The rows that a start depends on."""

    #: Whether the latest run of the schedule is queued or running.
    previous_live: bool
    #: Queued and running polls of the plugin, except those that this run replaces.
    outstanding: int
    breaker: Breaker | None
    #: Whether an earlier occurrence of the schedule waits for outstanding polls.
    deferred: bool = False


class Admitted(Value):
    #: Whether the run is the probe of an open breaker.
    probe: bool


def decide_admission(conditions: StartConditions, view: FireView, now: datetime) -> Admitted | SkipReason:
    """Return whether the run is admitted, or why not. After `OUTSTANDING_POLLS` it waits for other polls."""
    probe = False
    if conditions.breaker is not None and view.breaker is not None:
        match view.breaker.state:
            case BreakerState.HALF_OPEN:
                return SkipReason.BREAKER_HALF_OPEN
            case BreakerState.OPEN if not cooldown_elapsed(view.breaker, conditions.breaker, now):
                return SkipReason.BREAKER_OPEN
            case BreakerState.OPEN:
                probe = True
            case BreakerState.CLOSED:
                pass
    if view.previous_live and conditions.if_running is IfRunning.SKIP:
        return SkipReason.RUNNING
    if view.deferred:
        return SkipReason.WAITING
    if conditions.max_polls is not None and view.outstanding >= conditions.max_polls:
        return SkipReason.OUTSTANDING_POLLS
    return Admitted(probe=probe)


def cooldown_elapsed(breaker: Breaker, policy: BreakerPolicy, now: datetime) -> bool:
    """Return whether an open breaker may try again. It also may if the clock was set back since it opened."""
    opened_at = breaker.opened_at
    return opened_at is None or not opened_at <= now < opened_at + policy.reset_after


#: A schedule with a longer delay is overdue: no daemon handles it.
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
    FINISHED = "over", "It has no further occurrences."
    ON_TIME = "on_time", "Nothing is wrong: it runs when it is due."


class ObservedSchedule(Value):
    """A schedule as it was found. Without `conditions` it is not in the configuration."""

    now: datetime
    enabled: bool
    refused: bool
    paused: bool
    daemon_runs: bool
    #: Whether the store has an entry: a daemon has loaded it.
    is_loaded: bool
    next_at: datetime | None
    conditions: StartConditions | None
    view: FireView
    last_failed: bool = False
    last_skipped: bool = False


def decide_cause(observed: ObservedSchedule) -> ScheduleCause:
    """Return the cause to remove first: resuming a schedule does not help while its plugin is disabled."""
    if observed.conditions is None:
        return ScheduleCause.NOT_CONFIGURED
    start = decide_admission(observed.conditions, observed.view, observed.now)
    # A reason not to start is a cause with the same value.
    obstacle = ScheduleCause.ON_TIME if isinstance(start, Admitted) else ScheduleCause(start.value)
    is_overdue = observed.next_at is not None and observed.now - observed.next_at > OVERDUE_AFTER
    causes = (
        (not observed.enabled, ScheduleCause.PLUGIN_DISABLED),
        (observed.refused, ScheduleCause.PLUGIN_REFUSED),
        (observed.paused, ScheduleCause.PAUSED),
        (not observed.daemon_runs, ScheduleCause.NO_DAEMON),
        (not observed.is_loaded, ScheduleCause.NOT_LOADED),
        (is_overdue, ScheduleCause.OVERDUE),
        (obstacle is not ScheduleCause.ON_TIME, obstacle),
        (observed.last_failed, ScheduleCause.LAST_FAILED),
        (observed.last_skipped, ScheduleCause.LAST_SKIPPED),
        (observed.next_at is None, ScheduleCause.FINISHED),
    )
    return next((cause for applies, cause in causes if applies), ScheduleCause.ON_TIME)
