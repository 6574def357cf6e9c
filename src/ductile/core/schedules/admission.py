"""Whether a planned run may start, asked by the store inside the transaction that would start it.

What this depends on (the previous run, outstanding polls, the breaker) changes under the planner, so
it is read and decided under the lock that the answer is written with, as `settlement` is.
"""

from __future__ import annotations

from datetime import datetime

from ductile.core.jobs.breaker import Breaker, BreakerPolicy, BreakerState
from ductile.core.schedules.planner import SkipReason
from ductile.core.schedules.rule import IfRunning
from ductile.struct import Value


class StartConditions(Value):
    """What a run of a schedule has to respect."""

    if_running: IfRunning
    #: No more polls than this may be outstanding; None for other commands and for runs made up for.
    max_polls: int | None
    #: None for a run that a person has asked for: the breaker only stops the scheduler.
    breaker: BreakerPolicy | None


class FireView(Value):
    """What surrounds a schedule at this instant."""

    #: The latest run of the schedule is queued or running.
    previous_live: bool
    #: Queued and running polls of the plugin, without those that this run replaces.
    outstanding: int
    breaker: Breaker | None
    #: An earlier occurrence of the schedule waits for the poll guard.
    deferred: bool = False


class Admitted(Value):
    #: It is the one job that a breaker lets through to try.
    probe: bool


def decide_admission(conditions: StartConditions, view: FireView, now: datetime) -> Admitted | SkipReason:
    """Let the run start, or say why not. `OUTSTANDING_POLLS` means that it has to wait for other polls."""
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
    """Whether an open breaker may try again. One that opens in the future has seen the clock set back."""
    opened = breaker.opened_at
    return opened is None or not opened <= now < opened + policy.reset_after
