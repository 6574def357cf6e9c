"""Rules of settlements over all outcomes and situations."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from builders.jobs import START, a_job, a_route, emitted, some_evidence, some_policy, some_rng
from ductile.core.jobs.failures import Breaker, BreakerState
from ductile.core.jobs.model import (
    EARLY_END_REASONS,
    EDGES,
    STORED_STATUSES,
    TERMINAL,
    Completed,
    EndedEarly,
    Failed,
    Job,
    JobReason,
    JobStatus,
    Orphaned,
    Outcome,
    PluginResponse,
    Requeued,
    StateSubscription,
    SubmittedBy,
    TimedOut,
)
from ductile.core.jobs.settlement import Settlement, SettleView, decide_settlement
from ductile.core.policy import FactRule

POLICY = some_policy(
    a_route(), a_route(to="other"), facts={"source": (FactRule(command="poll", fact_type="seen"),)}
)

failures = st.sampled_from(
    [JobReason.PLUGIN_ERROR, JobReason.PROTOCOL_ERROR, JobReason.BAD_EXIT, JobReason.COULD_NOT_START]
)
states: st.SearchStrategy[dict[str, Any] | None] = st.none() | st.dictionaries(
    st.text(max_size=3), st.integers()
)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(
        Completed,
        response=st.builds(
            PluginResponse,
            ok=st.just(True),
            result=st.just("r"),
            events=st.lists(
                st.sampled_from([emitted(), emitted("unheard"), emitted(key="k")]), max_size=4
            ).map(tuple),
            state_updates=states,
        ),
    ),
    st.builds(Failed, reason=failures, error=st.just("e"), permanent=st.booleans()),
    st.builds(TimedOut, error=st.just("e")),
    st.just(Requeued(evidence=some_evidence())),
    st.just(Orphaned()),
    st.builds(EndedEarly, reason=st.sampled_from(sorted(EARLY_END_REASONS)), error=st.just("e")),
)


@st.composite
def running_jobs(draw: st.DrawFn) -> Job:
    max_attempts = draw(st.integers(1, 6))
    return a_job(
        draw(st.sampled_from(["source", "echo"])),
        draw(st.sampled_from(["handle", "poll", "health", "init"])),
        max_attempts=max_attempts,
        attempt=draw(st.integers(1, max_attempts)),
        execution=draw(st.integers(1, 9)),
        hops=draw(st.integers(0, 25)),
        submitted_by=draw(st.sampled_from(SubmittedBy)),
        cancel_requested_at=draw(st.sampled_from([None, START])),
        suspect=draw(st.booleans()),
        callback=draw(st.sampled_from([None, StateSubscription(url="u")])),
        claim_seq=draw(st.integers(1, 9)),
    )


views = st.builds(
    SettleView,
    job=running_jobs(),
    state=st.dictionaries(st.text(max_size=3), st.integers(), max_size=3),
    state_claim_seq=st.integers(0, 9),
    breaker=st.none()
    | st.builds(
        Breaker,
        state=st.sampled_from(BreakerState),
        failures=st.integers(0, 5),
        probe_job_id=st.sampled_from([None, "other"]),
    ),
)


def decide(view: SettleView, outcome: Outcome) -> Settlement:
    return decide_settlement(view, outcome, POLICY, START, some_rng())


@given(views, outcomes)
def test_transitions_are_a_chain_of_edges_from_the_jobs_status(view: SettleView, outcome: Outcome) -> None:
    """No other edge is possible, and the last status is one that is stored."""
    settlement = decide(view, outcome)
    assert settlement.transitions
    status: JobStatus = view.job.status
    for edge in settlement.transitions:
        assert edge.from_status is status
        assert (edge.from_status, edge.to_status) in EDGES
        status = edge.to_status
    assert settlement.status is status
    assert status in STORED_STATUSES


@given(views, outcomes)
def test_attempts_stay_within_bounds(view: SettleView, outcome: Outcome) -> None:
    """The attempt is increased by one for a retry, never beyond the maximum, and never decreased."""
    settlement = decide(view, outcome)
    assert view.job.attempt <= settlement.attempt <= view.job.max_attempts
    raised = settlement.reason in (JobReason.RETRY, JobReason.RECOVERED)
    assert settlement.attempt - view.job.attempt == int(raised)


@given(views, outcomes)
def test_a_job_waits_if_and_only_if_it_was_put_back_for_a_retry(view: SettleView, outcome: Outcome) -> None:
    settlement = decide(view, outcome)
    waits = settlement.next_retry_at is not None
    assert waits == (settlement.reason in (JobReason.RETRY, JobReason.RECOVERED))
    if settlement.next_retry_at is not None:
        assert settlement.status is JobStatus.QUEUED
        assert START < settlement.next_retry_at <= START + timedelta(minutes=1)
    assert settlement.is_terminal == (settlement.status in TERMINAL)


@given(views, outcomes)
def test_every_execution_leaves_a_log_entry_with_its_evidence(view: SettleView, outcome: Outcome) -> None:
    settlement = decide(view, outcome)
    assert settlement.log is not None
    assert settlement.log.evidence == outcome.evidence


@given(views, outcomes)
def test_only_success_has_consequences(view: SettleView, outcome: Outcome) -> None:
    """Children, events, state and facts exist only for a succeeded execution."""
    settlement = decide(view, outcome)
    if settlement.status is not JobStatus.SUCCEEDED:
        assert (settlement.children, settlement.events, settlement.artifacts) == ((), (), ())
        assert (settlement.state, settlement.fact) == (None, None)
    assert (settlement.status is JobStatus.SUCCEEDED) == (
        isinstance(outcome, Completed) and view.job.cancel_requested_at is None
    )


@given(views, outcomes)
def test_a_cancelled_job_is_dead(view: SettleView, outcome: Outcome) -> None:
    settlement = decide(view, outcome)
    if view.job.cancel_requested_at is not None:
        assert settlement.status is JobStatus.DEAD
        if not isinstance(outcome, EndedEarly):
            assert settlement.reason is JobReason.CANCELLED


@given(views, outcomes)
def test_children_are_identified_by_execution_event_and_target(view: SettleView, outcome: Outcome) -> None:
    settlement = decide(view, outcome)
    origins = [child.origin for child in settlement.children]
    assert len(set(origins)) == len(origins)
    ids = [child.id for child in settlement.children] + [indexed.event.id for indexed in settlement.events]
    assert len(set(ids)) == len(ids)
    for child in settlement.children:
        assert child.origin is not None
        assert (child.origin.job_id, child.origin.execution) == (view.job.id, view.job.execution)
        assert child.hops == view.job.hops + 1 <= POLICY.max_hops


@given(views, outcomes)
def test_only_the_schedulers_ended_jobs_move_a_breaker(view: SettleView, outcome: Outcome) -> None:
    settlement = decide(view, outcome)
    if view.job.submitted_by is not SubmittedBy.SCHEDULER or not settlement.is_terminal:
        assert settlement.breaker is None


@given(views, outcomes)
def test_every_outcome_makes_a_state_webhook_or_none_does(view: SettleView, outcome: Outcome) -> None:
    assert (decide(view, outcome).state_change is None) == (view.job.callback is None)


@given(views, outcomes)
def test_the_same_view_and_dice_give_the_same_settlement(view: SettleView, outcome: Outcome) -> None:
    """A write request may run twice before its commit, so the decision keeps no state."""
    assert decide(view, outcome) == decide(view, outcome)


@given(views, outcomes)
def test_only_an_orphan_becomes_a_suspect_and_only_an_interruption_keeps_one(
    view: SettleView, outcome: Outcome
) -> None:
    """A job stays a suspect until it has finished once."""
    settlement = decide(view, outcome)
    assert settlement.suspect == (
        settlement.reason is JobReason.RECOVERED
        or (settlement.reason is JobReason.INTERRUPTED and view.job.suspect)
    )
