"""Decisions about the end of an execution, case by case."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from builders.jobs import (
    START,
    a_job,
    a_route,
    emitted,
    failed,
    ok,
    some_evidence,
    some_policy,
    some_rng,
    timed_out,
)
from ductile.core.jobs.failures import Breaker, BreakerState, RetryPolicy
from ductile.core.jobs.model import (
    EndedEarly,
    Job,
    JobReason,
    JobStatus,
    LedgerKind,
    Origin,
    Orphaned,
    Outcome,
    Requeued,
    StateSubscription,
    StepNotStarted,
    SubmittedBy,
)
from ductile.core.jobs.plugin_state import MAX_STATE_BYTES
from ductile.core.jobs.settlement import (
    MAX_EVENTS,
    LogStatus,
    Settlement,
    SettleView,
    WebhookState,
    decide_settlement,
)
from ductile.core.json import JsonObject, encoded_size
from ductile.core.policy import FactRule, PluginPolicy, Policy

CALLBACK = StateSubscription(url="http://receiver.invalid/")


def settle(job: Job, outcome: Outcome, policy: Policy | None = None, **view: Any) -> Settlement:
    values: dict[str, Any] = {"job": job, "state": {}}
    return decide_settlement(
        SettleView(**(values | view)), outcome, policy or some_policy(), START, some_rng()
    )


def test_success_is_one_edge_and_keeps_the_attempt() -> None:
    settlement = settle(a_job(attempt=3), ok())
    assert [(edge.from_status, edge.to_status) for edge in settlement.transitions] == [
        (JobStatus.RUNNING, JobStatus.SUCCEEDED)
    ]
    assert (settlement.attempt, settlement.last_error, settlement.next_retry_at) == (3, None, None)
    assert settlement.log is not None
    assert settlement.log.status is LogStatus.SUCCEEDED


def test_evidence_is_kept_verbatim_whatever_it_means() -> None:
    """The log row of every execution has output, exit code and signal."""
    evidence = some_evidence(stdout="not json", stderr="x", exit_code=None, signal=9)
    for outcome in (Requeued(evidence=evidence), Orphaned(evidence=evidence)):
        log = settle(a_job(), outcome).log
        assert log is not None
        assert log.evidence is evidence


# -------------------------------------------------------------------------------------------- events


def test_children_carry_what_led_to_them() -> None:
    """A child has the parent, event, hops, trace and dedupe key, and an identity."""
    job = a_job("source", hops=4, trace_id="t", execution=2, event_context_id="c")
    settlement = settle(job, ok(emitted("other"), emitted(key=" k ")), some_policy(a_route(to="sink.poll")))
    (child,) = settlement.children
    event = settlement.events[1].event
    assert (child.plugin, child.command, child.submitted_by) == ("sink", "poll", SubmittedBy.ROUTE)
    assert (child.parent_job_id, child.source_event_id) == (job.id, event.id)
    assert (child.hops, child.trace_id, child.event_context_id) == (5, "t", "c")
    assert child.dedupe_key == "key:k"
    assert child.origin == Origin(job_id=job.id, execution=2, event_index=1, target="sink.poll")
    assert child.payload is None, "the payload is its event's, stored once"


def test_all_matching_routes_fire_in_the_order_of_the_configuration() -> None:
    policy = some_policy(
        a_route(to="b"), a_route(to="a"), a_route("else", to="c"), a_route(source="x", to="d")
    )
    settlement = settle(a_job("source"), ok(emitted(), emitted()), policy)
    assert [(child.plugin, child.origin.event_index) for child in settlement.children if child.origin] == [
        ("b", 0),
        ("a", 0),
        ("b", 1),
        ("a", 1),
    ]


def test_an_event_gets_the_result_unless_it_brings_its_own() -> None:
    settlement = settle(a_job(), ok(emitted(payload={"a": 1}), emitted(payload={"result": None}), result=[7]))
    assert [indexed.event.payload for indexed in settlement.events] == [
        {"a": 1, "result": [7]},
        {"result": None},
    ]


def test_an_event_without_a_listener_is_kept() -> None:
    settlement = settle(a_job(), ok(emitted()))
    assert len(settlement.events) == 1
    assert settlement.children == ()
    assert settlement.ledger == ()


@pytest.mark.parametrize(("hops", "children"), [(18, 1), (19, 1), (20, 0), (21, 0)])
def test_events_beyond_the_hop_limit_are_dropped_with_a_record(hops: int, children: int) -> None:
    """A child may have as many hops as the limit."""
    settlement = settle(a_job("source", hops=hops), ok(emitted()), some_policy(a_route()))
    assert len(settlement.children) == children
    assert [entry.kind for entry in settlement.ledger] == [LedgerKind.EVENT_DROPPED] * (1 - children)


def test_at_the_hop_limit_an_event_without_a_listener_is_not_a_drop() -> None:
    assert settle(a_job("source", hops=99), ok(emitted("unheard")), some_policy(a_route())).ledger == ()


@pytest.mark.parametrize("command", ["health", "init"])
def test_commands_of_the_core_route_nothing_and_keep_no_state(command: str) -> None:
    """The commands `health` and `init` create no jobs and keep no state."""
    settlement = settle(
        a_job("source", command), ok(emitted(), state={"x": 1}), some_policy(a_route()), state={"y": 1}
    )
    assert (settlement.events, settlement.children, settlement.state) == ((), (), None)
    assert settlement.status is JobStatus.SUCCEEDED


@pytest.mark.parametrize(
    ("count", "status"), [(MAX_EVENTS, JobStatus.SUCCEEDED), (MAX_EVENTS + 1, JobStatus.FAILED)]
)
def test_at_most_a_thousand_events(count: int, status: JobStatus) -> None:
    """A larger number of events is a permanent failure with its own reason."""
    settlement = settle(a_job(), ok(*[emitted()] * count))
    assert settlement.status is status
    if status is JobStatus.FAILED:
        assert settlement.reason is JobReason.TOO_MANY_EVENTS
        assert str(count) in (settlement.last_error or "")
        assert settlement.events == ()


# ------------------------------------------------------------------------------------- state and facts


def test_state_is_merged_by_key() -> None:
    settlement = settle(a_job(), ok(state={"a": {"y": 1}, "n": None}), state={"a": {"x": 1}, "b": 2})
    assert settlement.state == {"a": {"y": 1}, "b": 2, "n": None}
    assert settlement.fact is None


@pytest.mark.parametrize("updates", [None, {}])
def test_no_updates_change_nothing(updates: dict[str, Any] | None) -> None:
    """Empty `state_updates` changes nothing, with a fact rule too."""
    policy = some_policy(facts={"echo": (FactRule(command="handle", fact_type="t"),)})
    settlement = settle(a_job(), ok(state=updates), policy, state={"a": 1})
    assert (settlement.state, settlement.fact) == (None, None)


def test_a_fact_replaces_the_state() -> None:
    policy = some_policy(facts={"echo": (FactRule(command="handle", fact_type="t"),)})
    settlement = settle(a_job(), ok(state={"a": 1}), policy, state={"b": 1})
    assert settlement.state == {"a": 1}
    assert settlement.fact is not None
    assert (settlement.fact.fact_type, settlement.fact.body) == ("t", {"a": 1})


@pytest.mark.parametrize("written_by", [9, 10, 11])
def test_a_mirror_replaces_only_what_an_earlier_claim_wrote(written_by: int) -> None:
    """The fact is kept in every case; state that was not replaced is reported."""
    policy = some_policy(facts={"echo": (FactRule(command="handle", fact_type="t"),)})
    settlement = settle(a_job(claim_seq=10), ok(state={"a": 1}), policy, state_claim_seq=written_by)
    assert settlement.fact is not None
    stale = written_by > 10
    assert settlement.state == (None if stale else {"a": 1})
    assert [entry.kind for entry in settlement.ledger] == [LedgerKind.STATE_STALE] * stale


@pytest.mark.parametrize("excess", [0, 1])
def test_one_mebibyte_of_state_and_not_a_byte_more(excess: int) -> None:
    """The limit counts the merged state as UTF-8."""
    before = {"old": "é"}
    free_bytes = MAX_STATE_BYTES - encoded_size({**before, "new": ""})
    settlement = settle(a_job(), ok(emitted(), state={"new": "x" * (free_bytes + excess)}), state=before)
    assert settlement.status is (JobStatus.FAILED if excess else JobStatus.SUCCEEDED)
    if excess:
        assert settlement.reason is JobReason.STATE_TOO_LARGE
        assert (settlement.state, settlement.fact, settlement.events) == (None, None, ())
        assert str(MAX_STATE_BYTES) in (settlement.last_error or "")


def test_a_fact_is_measured_alone() -> None:
    policy = some_policy(facts={"echo": (FactRule(command="handle", fact_type="t"),)})
    large: JsonObject = {"x": "y" * (MAX_STATE_BYTES - 100)}
    assert settle(a_job(), ok(state=large), policy, state=large).status is JobStatus.SUCCEEDED


# ---------------------------------------------------------------------------- recovery, interruption


@pytest.mark.parametrize("base", [1, 10, 3600])
def test_an_orphan_waits_its_delay_but_a_minute_at_most(base: int) -> None:
    """The delay is the retry delay, at most 60 s; the job is a suspect from then on."""
    policy = RetryPolicy(backoff_base=timedelta(seconds=base), backoff_max=timedelta(hours=1))
    settlement = settle(a_job(), Orphaned(), Policy(plugins={"echo": PluginPolicy(retry=policy)}))
    assert (settlement.status, settlement.reason) == (JobStatus.QUEUED, JobReason.RECOVERED)
    assert (settlement.attempt, settlement.suspect) == (2, True)
    assert settlement.next_retry_at is not None
    assert settlement.next_retry_at - START <= timedelta(seconds=min(60, 2 * base))
    assert settlement.log is not None
    assert settlement.log.status is LogStatus.ORPHANED


@pytest.mark.parametrize(
    ("suspect", "was_orphaned", "at_once"), [(False, False, True), (False, True, False), (True, False, False)]
)
def test_the_job_of_a_lost_node_runs_elsewhere_at_once_and_is_a_suspect_the_second_time(
    *, suspect: bool, was_orphaned: bool, at_once: bool
) -> None:
    settlement = settle(a_job(suspect=suspect), Orphaned(on_node=True), was_orphaned=was_orphaned)
    assert (settlement.next_retry_at == START, settlement.suspect) == (at_once, not at_once)
    assert (settlement.status, settlement.attempt) == (JobStatus.QUEUED, 2)


def test_an_exhausted_orphan_is_dead_through_failed() -> None:
    settlement = settle(a_job(attempt=4), Orphaned())
    assert [(edge.to_status, edge.reason) for edge in settlement.transitions] == [
        (JobStatus.FAILED, JobReason.ORPHANED),
        (JobStatus.DEAD, JobReason.ATTEMPTS_EXHAUSTED),
    ]
    assert not settlement.suspect


@pytest.mark.parametrize("suspect", [True, False])
def test_an_interruption_costs_nothing_and_changes_no_suspicion(suspect: bool) -> None:
    """This holds in the last attempt too."""
    settlement = settle(a_job(attempt=4, suspect=suspect, last_error="before"), Requeued())
    assert (settlement.status, settlement.attempt) == (JobStatus.QUEUED, 4)
    assert settlement.next_retry_at is None
    assert (settlement.suspect, settlement.last_error) == (suspect, "before")


@pytest.mark.parametrize(
    "outcome", [ok(emitted(), state={"a": 1}), failed(), timed_out(), Requeued(), Orphaned()]
)
def test_a_cancelled_job_ends_cancelled_and_applies_nothing(outcome: Outcome) -> None:
    job = a_job("source", cancel_requested_at=START, callback=CALLBACK)
    settlement = settle(job, outcome, some_policy(a_route()))
    assert (settlement.status, settlement.reason) == (JobStatus.DEAD, JobReason.CANCELLED)
    assert (settlement.events, settlement.children, settlement.state) == ((), (), None)
    assert settlement.log is not None
    assert (settlement.log.status, settlement.log.evidence) == (LogStatus.CANCELLED, outcome.evidence)
    assert settlement.state_change is not None
    assert settlement.state_change.state is WebhookState.FAILED


def test_a_cancelled_job_ends_cancelled_though_its_plugin_was_removed() -> None:
    """An acknowledged cancel counts, whatever else ends the job."""
    ended = EndedEarly(reason=JobReason.PLUGIN_REMOVED, error="gone")
    assert settle(a_job(cancel_requested_at=START), ended).reason is JobReason.CANCELLED


@pytest.mark.parametrize("reason", [JobReason.CANCELLED, JobReason.PLUGIN_REMOVED, JobReason.PURGED])
def test_a_queued_job_is_ended_without_a_log_row(reason: JobReason) -> None:
    """Log rows are written only for executions."""
    settlement = settle(a_job(status=JobStatus.QUEUED), EndedEarly(reason=reason, error="x"))
    assert (settlement.status, settlement.log) == (JobStatus.DEAD, None)


@pytest.mark.parametrize(
    "reason", sorted(set(JobReason) - {JobReason.CANCELLED, JobReason.PLUGIN_REMOVED, JobReason.PURGED})
)
def test_nothing_else_ends_a_job_before_its_time(reason: JobReason) -> None:
    with pytest.raises(ValueError, match=reason):
        EndedEarly(reason=reason, error="x")


def test_a_step_that_could_not_be_made_fails_without_running() -> None:
    """A bad template leads from queued to failed."""
    outcome = StepNotStarted(reason=JobReason.BAD_TEMPLATE, error="payload.x is missing")
    settlement = settle(a_job(status=JobStatus.QUEUED), outcome)
    assert [(edge.from_status, edge.to_status) for edge in settlement.transitions] == [
        (JobStatus.QUEUED, JobStatus.FAILED)
    ]
    assert (settlement.log, settlement.last_error) == (None, "payload.x is missing")


# --------------------------------------------------------------------------------- callbacks, breakers


@pytest.mark.parametrize(
    ("outcome", "attempt", "state"),
    [
        (ok(), 1, WebhookState.DONE),
        (failed(), 1, WebhookState.QUEUED),
        (failed(), 4, WebhookState.FAILED),
        (failed(permanent=True), 1, WebhookState.FAILED),
        (timed_out(), 1, WebhookState.QUEUED),
        (Requeued(), 1, WebhookState.QUEUED),
        (Orphaned(), 1, WebhookState.QUEUED),
        (EndedEarly(reason=JobReason.PURGED, error="x"), 1, WebhookState.FAILED),
    ],
)
def test_the_caller_gets_a_state_webhook(outcome: Outcome, attempt: int, state: WebhookState) -> None:
    """Result and artifacts are sent only with `done`, the error only with `failed`."""
    event = settle(a_job(attempt=attempt, callback=CALLBACK), outcome).state_change
    assert event is not None
    assert event.state is state
    assert (event.error is not None) == (state is WebhookState.FAILED)
    assert (event.artifacts is not None) == (state is WebhookState.DONE)
    assert (event.result is not None) == (state is WebhookState.DONE)
    assert settle(a_job(attempt=attempt), outcome).state_change is None


@pytest.mark.parametrize(
    ("outcome", "attempt", "failures"),
    [
        (failed(permanent=True), 1, 1),
        (failed(), 4, 1),
        (timed_out(), 4, 1),
        (Orphaned(), 4, 1),
        (failed(), 1, 0),
        (EndedEarly(reason=JobReason.CANCELLED, error="x"), 1, 0),
        (Requeued(), 1, 0),
    ],
)
def test_only_failed_jobs_of_the_scheduler_count(outcome: Outcome, attempt: int, failures: int) -> None:
    """Succeeded, failed and dead by exhausted attempts count."""
    job = a_job(submitted_by=SubmittedBy.SCHEDULER, attempt=attempt)
    after = settle(job, outcome).breaker or Breaker()
    assert after.failures == failures
    for source in set(SubmittedBy) - {SubmittedBy.SCHEDULER}:
        assert settle(a_job(submitted_by=source, attempt=attempt), outcome).breaker is None


def test_a_success_closes_the_breaker() -> None:
    job = a_job(submitted_by=SubmittedBy.SCHEDULER)
    open_breaker = Breaker(state=BreakerState.OPEN, failures=5, opened_at=START)
    after = settle(job, ok(), breaker=open_breaker).breaker
    assert after is not None
    assert (after.state, after.failures, after.opened_at) == (BreakerState.CLOSED, 0, None)


def test_a_queued_job_cannot_succeed() -> None:
    """The store prevents such a settlement; a mistake there must not be a silent success."""
    with pytest.raises(ValueError, match="cannot go from queued to succeeded"):
        settle(a_job(status=JobStatus.QUEUED), ok())
