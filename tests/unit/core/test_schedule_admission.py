"""The decision whether a planned run may start."""

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


def decide(**situation: Any) -> Admitted | SkipReason:
    conditions = StartConditions(
        if_running=situation.get("if_running", IfRunning.SKIP),
        max_polls=situation.get("max_polls", 1),
        breaker=situation.get("policy", POLICY),
    )
    view = FireView(
        previous_live=situation.get("previous_live", False),
        outstanding=situation.get("outstanding", 0),
        breaker=situation.get("breaker"),
    )
    return decide_admission(conditions, view, START)


def open_breaker(minutes_ago: float, state: BreakerState = BreakerState.OPEN) -> Breaker:
    return Breaker(state=state, failures=3, opened_at=START - timedelta(minutes=minutes_ago))


def test_a_run_without_obstacle_is_admitted() -> None:
    assert decide() == decide(breaker=Breaker(failures=2)) == Admitted(probe=False)


@pytest.mark.parametrize(
    ("if_running", "expected"),
    [
        (IfRunning.SKIP, SkipReason.RUNNING),
        (IfRunning.QUEUE, Admitted(probe=False)),
        (IfRunning.CANCEL, Admitted(probe=False)),
    ],
)
def test_the_previous_run_has_not_ended(if_running: IfRunning, expected: Admitted | SkipReason) -> None:
    assert decide(if_running=if_running, previous_live=True) == expected


def test_the_poll_guard() -> None:
    """Polls of every submitter count; other commands have no limit."""
    assert decide(outstanding=1) is SkipReason.OUTSTANDING_POLLS
    assert decide(outstanding=1, if_running=IfRunning.QUEUE) is SkipReason.OUTSTANDING_POLLS
    assert decide(outstanding=1, max_polls=2) == Admitted(probe=False)
    assert decide(outstanding=9, max_polls=None) == Admitted(probe=False)


def test_an_open_breaker_stops_until_its_cooldown_is_over() -> None:
    """After the cooldown exactly one probe runs, and nothing else until it has ended."""
    assert decide(breaker=open_breaker(29.9)) is SkipReason.BREAKER_OPEN
    assert decide(breaker=open_breaker(30)) == Admitted(probe=True)
    assert decide(breaker=open_breaker(60, BreakerState.HALF_OPEN)) is SkipReason.BREAKER_HALF_OPEN


def test_a_breaker_that_opened_in_the_future_may_try() -> None:
    """An open breaker does not wait for a clock that was set back."""
    assert decide(breaker=open_breaker(-600)) == Admitted(probe=True)


def test_a_probe_still_has_to_respect_the_guards() -> None:
    assert decide(breaker=open_breaker(31), previous_live=True) is SkipReason.RUNNING
    assert decide(breaker=open_breaker(31), outstanding=1) is SkipReason.OUTSTANDING_POLLS


def test_the_breaker_does_not_stop_a_person() -> None:
    """The breaker stops only the scheduler."""
    assert decide(policy=None, breaker=open_breaker(1)) == Admitted(probe=False)
