"""Whether a planned run may start."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from builders.jobs import START
from ductile.core.jobs.failures import Breaker, BreakerPolicy, BreakerState
from ductile.core.schedules.admission import Admitted, FireView, StartConditions, decide_admission
from ductile.core.schedules.planner import SkipReason
from ductile.core.schedules.rule import IfRunning

POLICY = BreakerPolicy(threshold=3, reset_after=timedelta(minutes=30))


def decided(**given: Any) -> Admitted | SkipReason:
    conditions = StartConditions(
        if_running=given.get("if_running", IfRunning.SKIP),
        max_polls=given.get("max_polls", 1),
        breaker=given.get("policy", POLICY),
    )
    view = FireView(
        previous_live=given.get("previous_live", False),
        outstanding=given.get("outstanding", 0),
        breaker=given.get("breaker"),
    )
    return decide_admission(conditions, view, START)


def opened(minutes_ago: float, state: BreakerState = BreakerState.OPEN) -> Breaker:
    return Breaker(state=state, failures=3, opened_at=START - timedelta(minutes=minutes_ago))


def test_a_free_way() -> None:
    assert decided() == decided(breaker=Breaker(failures=2)) == Admitted(probe=False)


@pytest.mark.parametrize(
    ("if_running", "expected"),
    [
        (IfRunning.SKIP, SkipReason.RUNNING),
        (IfRunning.QUEUE, Admitted(probe=False)),
        (IfRunning.CANCEL, Admitted(probe=False)),
    ],
)
def test_the_previous_run_has_not_ended(if_running: IfRunning, expected: Admitted | SkipReason) -> None:
    assert decided(if_running=if_running, previous_live=True) == expected


def test_the_poll_guard() -> None:
    """All polls count, by any submitter; other commands have no limit."""
    assert decided(outstanding=1) is SkipReason.OUTSTANDING_POLLS
    assert decided(outstanding=1, if_running=IfRunning.QUEUE) is SkipReason.OUTSTANDING_POLLS
    assert decided(outstanding=1, max_polls=2) == Admitted(probe=False)
    assert decided(outstanding=9, max_polls=None) == Admitted(probe=False)


def test_an_open_breaker_stops_until_its_cooldown_is_over() -> None:
    """Then exactly one probe, and nothing else until its verdict."""
    assert decided(breaker=opened(29.9)) is SkipReason.BREAKER_OPEN
    assert decided(breaker=opened(30)) == Admitted(probe=True)
    assert decided(breaker=opened(60, BreakerState.HALF_OPEN)) is SkipReason.BREAKER_HALF_OPEN


def test_a_breaker_that_opened_in_the_future_may_try() -> None:
    """The clock was set back; an open breaker does not wait for a wrong clock."""
    assert decided(breaker=opened(-600)) == Admitted(probe=True)


def test_a_probe_still_has_to_respect_the_guards() -> None:
    assert decided(breaker=opened(31), previous_live=True) is SkipReason.RUNNING
    assert decided(breaker=opened(31), outstanding=1) is SkipReason.OUTSTANDING_POLLS


def test_the_breaker_does_not_stop_a_person() -> None:
    """It only stops the scheduler."""
    assert decided(policy=None, breaker=opened(1)) == Admitted(probe=False)
