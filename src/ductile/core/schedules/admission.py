"""Decide whether a planned run may start, inside the transaction that would start it.

It depends on rows that change after planning: the previous run, outstanding polls, the circuit breaker.
"""

from __future__ import annotations

from datetime import datetime

from ductile.core.jobs.breaker import Breaker, BreakerPolicy, BreakerState
from ductile.core.schedules.planner import SkipReason
from ductile.core.schedules.rule import IfRunning
from ductile.struct import Value


class StartConditions(Value):
    """The settings that a start has to respect."""

    if_running: IfRunning
    #: The most outstanding polls; None for other commands and for catch-up runs.
    max_polls: int | None
    #: None for a run that an operator requested: the breaker only stops the scheduler.
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
    """Admit the run, or return why not. `OUTSTANDING_POLLS` means that it has to wait for other polls."""
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
    opened = breaker.opened_at
    return opened is None or not opened <= now < opened + policy.reset_after
