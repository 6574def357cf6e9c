"""The diagnosis names one true cause for every situation in which a schedule does not run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.jobs import START
from ductile.core.jobs.failures import Breaker, BreakerPolicy, BreakerState
from ductile.core.schedules.admission import (
    OVERDUE_AFTER,
    Admitted,
    FireView,
    ObservedSchedule,
    ScheduleCause,
    StartConditions,
    decide_admission,
    decide_cause,
)
from ductile.core.schedules.rule import IfRunning
from ductile.struct import replace

WITHOUT_OBSTACLE = {
    ScheduleCause.LAST_FAILED,
    ScheduleCause.LAST_SKIPPED,
    ScheduleCause.FINISHED,
    ScheduleCause.ON_TIME,
}
STANDING = {
    ScheduleCause.NOT_CONFIGURED,
    ScheduleCause.PLUGIN_DISABLED,
    ScheduleCause.PLUGIN_REFUSED,
    ScheduleCause.PAUSED,
    ScheduleCause.NO_DAEMON,
    ScheduleCause.NOT_LOADED,
    ScheduleCause.OVERDUE,
}

around = st.timedeltas(min_value=timedelta(hours=-1), max_value=timedelta(hours=1)).map(lambda d: START + d)
conditions = st.builds(
    StartConditions,
    if_running=st.sampled_from(IfRunning),
    max_polls=st.none() | st.integers(1, 2),
    breaker=st.none() | st.just(BreakerPolicy()),
)
breakers = st.builds(
    Breaker, state=st.sampled_from(BreakerState), failures=st.integers(0, 4), opened_at=around
)
views = st.builds(
    FireView,
    previous_live=st.booleans(),
    outstanding=st.integers(0, 3),
    breaker=st.none() | breakers,
    deferred=st.booleans(),
)
situations = st.builds(
    ObservedSchedule,
    now=st.just(START),
    enabled=st.booleans(),
    refused=st.booleans(),
    paused=st.booleans(),
    daemon_runs=st.booleans(),
    is_loaded=st.booleans(),
    next_at=st.none() | around,
    conditions=st.none() | conditions,
    view=views,
    last_failed=st.booleans(),
    last_skipped=st.booleans(),
)


@given(situations)
def test_a_schedule_without_obstacle_would_start(facts: ObservedSchedule) -> None:
    """If no obstacle is reported, the scheduler would start the run."""
    cause = decide_cause(facts)
    if cause in WITHOUT_OBSTACLE:
        assert facts.enabled
        assert not facts.refused
        assert not facts.paused
        assert facts.daemon_runs
        assert facts.conditions is not None
        assert isinstance(decide_admission(facts.conditions, facts.view, facts.now), Admitted)
        assert facts.next_at is None or facts.now - facts.next_at <= OVERDUE_AFTER


@given(situations)
def test_the_reason_of_a_skip_is_the_cause(facts: ObservedSchedule) -> None:
    """The ledger and the explanation use the same words."""
    cause = decide_cause(facts)
    if cause not in STANDING and facts.conditions is not None:
        verdict = decide_admission(facts.conditions, facts.view, facts.now)
        assert isinstance(verdict, Admitted) or cause.value == verdict.value


@given(situations)
def test_removing_the_cause_leads_on_to_another(facts: ObservedSchedule) -> None:
    """A cause that was removed is not named again."""
    remedies = {
        ScheduleCause.PLUGIN_DISABLED: {"enabled": True},
        ScheduleCause.PLUGIN_REFUSED: {"refused": False},
        ScheduleCause.PAUSED: {"paused": False},
        ScheduleCause.NO_DAEMON: {"daemon_runs": True},
        ScheduleCause.NOT_LOADED: {"is_loaded": True},
        ScheduleCause.OVERDUE: {"next_at": START},
        ScheduleCause.LAST_FAILED: {"last_failed": False},
        ScheduleCause.LAST_SKIPPED: {"last_skipped": False},
    }
    cause = decide_cause(facts)
    if cause in remedies:
        order = list(ScheduleCause)
        after = decide_cause(replace(facts, **remedies[cause]))  # type: ignore[arg-type]  # fields of the table above
        assert order.index(after) > order.index(cause)


FREE = FireView(previous_live=False, outstanding=0, breaker=None)
FINE = ObservedSchedule(
    now=START,
    enabled=True,
    refused=False,
    paused=False,
    daemon_runs=True,
    is_loaded=True,
    next_at=START + timedelta(hours=1),
    conditions=StartConditions(if_running=IfRunning.SKIP, max_polls=1, breaker=BreakerPolicy()),
    view=FREE,
)
OBSTACLES: dict[ScheduleCause, dict[str, Any]] = {
    ScheduleCause.NOT_CONFIGURED: {"conditions": None},
    ScheduleCause.PLUGIN_DISABLED: {"enabled": False},
    ScheduleCause.PLUGIN_REFUSED: {"refused": True},
    ScheduleCause.PAUSED: {"paused": True},
    ScheduleCause.NO_DAEMON: {"daemon_runs": False},
    ScheduleCause.NOT_LOADED: {"is_loaded": False, "next_at": None},
    ScheduleCause.OVERDUE: {"next_at": START - timedelta(minutes=3)},
    ScheduleCause.BREAKER_OPEN: {
        "view": replace(FREE, breaker=Breaker(state=BreakerState.OPEN, opened_at=START))
    },
    ScheduleCause.BREAKER_HALF_OPEN: {"view": replace(FREE, breaker=Breaker(state=BreakerState.HALF_OPEN))},
    ScheduleCause.RUNNING: {"view": replace(FREE, previous_live=True)},
    ScheduleCause.WAITING: {"view": replace(FREE, outstanding=1, deferred=True)},
    ScheduleCause.OUTSTANDING_POLLS: {"view": replace(FREE, outstanding=1)},
    ScheduleCause.LAST_FAILED: {"last_failed": True},
    ScheduleCause.LAST_SKIPPED: {"last_skipped": True},
    ScheduleCause.FINISHED: {"next_at": None},
    ScheduleCause.ON_TIME: {},
}


def test_every_cause_can_be_met() -> None:
    assert list(OBSTACLES) == list(ScheduleCause)


@pytest.mark.parametrize("cause", OBSTACLES)
def test_one_obstacle_alone_is_the_cause(cause: ScheduleCause) -> None:
    assert decide_cause(replace(FINE, **OBSTACLES[cause])) is cause


@given(st.sets(st.sampled_from([cause for cause in OBSTACLES if cause is not ScheduleCause.FINISHED])))
def test_of_several_obstacles_the_first_is_named(causes: set[ScheduleCause]) -> None:
    """The order is that in which removing the causes helps."""
    facts = FINE
    for cause in sorted(causes, key=list(ScheduleCause).index, reverse=True):
        facts = replace(facts, **OBSTACLES[cause])
    expected = min(causes, key=list(ScheduleCause).index, default=ScheduleCause.ON_TIME)
    assert decide_cause(facts) is expected
