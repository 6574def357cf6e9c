"""Settlements: the end of an execution and all that follows from it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from builders.jobs import (
    Clock,
    a_job,
    a_new_job,
    a_route,
    emitted,
    failed,
    ok,
    some_evidence,
    some_policy,
    timed_out,
)
from builders.stores import (
    POLICY,
    accept,
    claim_all,
    claim_one,
    path_of,
    run_next,
    settle,
    stored,
    submit,
    whole_ledger,
)
from ductile.core.jobs.model import (
    Completed,
    EndedEarly,
    Failed,
    Hold,
    JobReason,
    JobStatus,
    LedgerKind,
    Orphaned,
    PluginResponse,
    Requeued,
    StateSubscription,
    SubmittedBy,
)
from ductile.core.jobs.plugin_state import MAX_STATE_BYTES
from ductile.core.jobs.settlement import MAX_EVENTS, LogStatus
from ductile.core.json import JsonObject
from ductile.core.policy import FactRule
from ductile.errors import RefusedError
from ductile.store.model.deliveries import DeliveryFilter
from ductile.store.model.jobs import Accepted, Deduplicated, EnqueueResult, NotSettled, Settled
from ductile.store.model.records import JobFilter, LogFilter
from ductile.store.port import Store
from ductile.struct import replace


async def test_success_ends_the_job_and_keeps_its_output(store: Store, clock: Clock) -> None:
    """Every execution leaves a log row with its own status, result verbatim, stderr and exit."""
    job_id = await accept(store, a_new_job(submitted_detail="token", trace_id="t"))
    job = await claim_one(store)
    clock.advance(seconds=2)
    out = ' {"status" : "ok"}\n'
    artifact: JsonObject = {"name": "a", "path": "/x"}
    await settle(store, job, ok(artifacts=(artifact,), stdout=out, stderr="warned", exit_code=3))
    ended = await stored(store, job_id)
    assert (ended.status, ended.reason) == (JobStatus.SUCCEEDED, JobReason.COMPLETED)
    assert (ended.completed_at, ended.last_error, ended.owner) == (clock.now, None, None)
    assert ended.artifacts == (artifact,)
    (row,) = await store.list_executions(job_id)
    assert (row.id, row.status, row.result, row.stderr) == (
        f"{job_id}-1",
        LogStatus.SUCCEEDED,
        out,
        "warned",
    )
    assert (row.exit_code, row.signal, row.error) == (3, None, None)
    assert (row.duration, row.started_at, row.completed_at) == (
        timedelta(milliseconds=12),
        job.started_at,
        clock.now,
    )
    assert (row.job_status, row.job_reason, row.trace_id) == (JobStatus.SUCCEEDED, JobReason.COMPLETED, "t")
    assert (await path_of(store, job_id))[-1] == "running>succeeded:completed"


async def test_a_failure_waits_for_its_retry(store: Store, clock: Clock) -> None:
    """One transaction goes through `failed` back to `queued`, with a delay and one attempt more."""
    job_id = await accept(store, a_new_job())
    await run_next(store, failed(error="boom"))
    job = await stored(store, job_id)
    assert (job.status, job.reason, job.hold) == (JobStatus.QUEUED, JobReason.RETRY, Hold.RETRY)
    assert (job.attempt, job.last_error, job.completed_at) == (2, "boom", None)
    assert job.next_retry_at is not None
    assert timedelta(seconds=10) <= job.next_retry_at - clock.now <= timedelta(seconds=20)
    assert (await path_of(store, job_id))[-2:] == ["running>failed:plugin_error", "failed>queued:retry"]
    assert await claim_all(store) == []


@pytest.mark.parametrize(
    ("outcome", "through"),
    [(failed(), "failed"), (timed_out(), "timed_out")],
    ids=["failed", "timed_out"],
)
async def test_the_last_attempt_is_the_end(store: Store, outcome: Failed, through: str) -> None:
    job_id = await accept(store, a_new_job(max_attempts=1))
    await run_next(store, outcome)
    job = await stored(store, job_id)
    assert (job.status, job.reason, job.attempt) == (JobStatus.DEAD, JobReason.ATTEMPTS_EXHAUSTED, 1)
    path = await path_of(store, job_id)
    assert [step.split(":")[0] for step in path[-2:]] == [f"running>{through}", f"{through}>dead"]
    (row,) = await store.list_executions(job_id)
    assert (row.status, row.job_status) == (LogStatus(through), JobStatus.DEAD)


async def test_a_permanent_failure_stays_failed(store: Store) -> None:
    job_id = await accept(store, a_new_job())
    await run_next(store, failed(permanent=True, error="exit 78"))
    job = await stored(store, job_id)
    assert (job.status, job.reason, job.attempt) == (JobStatus.FAILED, JobReason.PLUGIN_ERROR, 1)
    assert job.last_error == "exit 78"


async def test_an_interrupted_job_is_ready_again_and_pays_nothing(store: Store) -> None:
    """No attempt is counted, and there is a log row."""
    job_id = await accept(store, a_new_job(dedupe_key="key:a"))
    await run_next(store, Requeued(evidence=some_evidence(stdout="half", exit_code=None, signal=15)))
    job = await stored(store, job_id)
    assert (job.status, job.reason, job.hold) == (JobStatus.QUEUED, JobReason.INTERRUPTED, None)
    assert job.attempt == 1
    (row,) = await store.list_executions(job_id)
    assert (row.status, row.result, row.signal) == (LogStatus.INTERRUPTED, "half", 15)
    assert (await claim_one(store)).execution == 2


# --------------------------------------------------------------------------------------------- fence


async def test_settling_twice_changes_nothing(store: Store) -> None:
    """The second result is `already_settled`."""
    await accept(store, a_new_job())
    job = await claim_one(store)
    await settle(store, job, ok(stdout="first"))
    before = await whole_ledger(store)
    result = await store.settle(job, failed(stdout="second"), POLICY)
    assert result is NotSettled.ALREADY_SETTLED
    assert await whole_ledger(store) == before
    assert [row.result for row in await store.list_executions(job.id)] == ["first"]
    assert (await stored(store, job.id)).status is JobStatus.SUCCEEDED


async def test_a_result_is_written_although_its_caller_is_cancelled(store: Store) -> None:
    """A submitted result counts, as its process has ended."""
    await accept(store, a_new_job())
    job = await claim_one(store)
    settling = asyncio.create_task(store.settle(job, ok(stdout="kept"), POLICY))
    await asyncio.sleep(0)  # it has been called
    settling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settling
    assert await store.settle(job, ok(), POLICY) is NotSettled.ALREADY_SETTLED
    assert [row.result for row in await store.list_executions(job.id)] == ["kept"]


async def test_a_result_after_a_recovery_is_logged_and_not_applied(store: Store, clock: Clock) -> None:
    """The job has another execution; the late result is stored as superseded and changes nothing."""
    await accept(store, a_new_job())
    first = await claim_one(store)
    await store.recover(POLICY)
    clock.advance(minutes=2)
    await store.release_due()
    second = await claim_one(store)
    policy = some_policy(a_route(source="echo"))
    late = ok(emitted(), state={"x": 1}, stdout="late")
    assert await store.settle(first, late, policy) is NotSettled.SUPERSEDED
    assert (await stored(store, first.id)) == await stored(store, second.id)
    assert (await stored(store, first.id)).status is JobStatus.RUNNING
    assert await store.plugin_state("echo") is None
    assert [row.plugin for row in (await store.list_jobs(JobFilter(), limit=9)).rows] == ["echo"]
    assert [(row.execution, row.status) for row in await store.list_executions(first.id)] == [
        (1, LogStatus.ORPHANED),
        (1, LogStatus.SUPERSEDED),
    ]
    assert (await whole_ledger(store))[-1].kind is LedgerKind.JOB_RESULT_SUPERSEDED
    await settle(store, second, ok())
    assert (await stored(store, first.id)).status is JobStatus.SUCCEEDED


async def test_a_result_never_goes_to_another_job_with_its_number(store: Store) -> None:
    """Numbers may be used again after retention has removed the newest rows; ids are not."""
    await accept(store, a_new_job())
    job = await claim_one(store)
    assert await store.settle(replace(job, id="another job"), ok(), POLICY) is NotSettled.UNKNOWN_JOB
    assert (await stored(store, job.id)).status is JobStatus.RUNNING


async def test_a_late_result_that_comes_twice_is_recorded_once(store: Store) -> None:
    """The second result is `already_settled`, for a late result too."""
    await accept(store, a_new_job())
    job = await claim_one(store)
    await store.recover(POLICY)
    assert await store.settle(job, ok(), POLICY) is NotSettled.SUPERSEDED
    before = await whole_ledger(store)
    assert await store.settle(job, ok(), POLICY) is NotSettled.ALREADY_SETTLED
    assert await whole_ledger(store) == before


@pytest.mark.parametrize("execution", [0, 1, 7])
async def test_an_execution_that_never_was_leaves_no_log(store: Store, execution: int) -> None:
    """Log rows are executions; a job that was never claimed has none."""
    job = await stored(store, await accept(store, a_new_job()))
    for status in (JobStatus.QUEUED, JobStatus.RUNNING):
        unclaimed = replace(job, status=status, execution=execution)
        assert not isinstance(await store.settle(unclaimed, ok(), POLICY), Settled)
    assert await store.list_executions(job.id) == ()


async def test_an_unknown_job_is_reported(store: Store) -> None:
    assert await store.settle(a_job(id="unknown"), ok(), POLICY) is NotSettled.UNKNOWN_JOB


@pytest.mark.parametrize("recovered", [True, False], ids=["recovered", "settled"])
async def test_giving_up_an_ended_execution_changes_nothing(store: Store, recovered: bool) -> None:
    """Without a result nothing is superseded."""
    await accept(store, a_new_job())
    job = await claim_one(store)
    if recovered:
        await store.recover(POLICY)
    else:
        await settle(store, job, ok())
    for outcome in (Orphaned(), Requeued()):
        assert await store.settle(job, outcome, POLICY) is NotSettled.ALREADY_SETTLED
    assert len(await store.list_executions(job.id)) == 1


# -------------------------------------------------------------------------------- all in one transaction


async def test_everything_that_follows_is_there_together(store: Store) -> None:
    """Log, transitions, state, facts, events, children, breaker and outbox are one transaction."""
    policy = some_policy(
        a_route(to="sink"),
        a_route(to="other.poll"),
        facts={"source": (FactRule(command="poll", fact_type="seen"),)},
    )
    parent = a_new_job(
        "source",
        "poll",
        submitted_by=SubmittedBy.SCHEDULER,
        callback=StateSubscription(url="http://receiver.invalid/"),
        trace_id="trace",
        hops=2,
    )
    await accept(store, parent)
    job = await claim_one(store)
    before = (await store.ledger_range())[1]
    settled = await settle(store, job, ok(emitted(key="k "), emitted("unheard"), state={"n": 1}), policy)
    assert [type(result) for result in settled.started] == [Accepted, Accepted]
    children = [await stored(store, result.job_id) for result in settled.started]
    assert [(child.plugin, child.command) for child in children] == [("sink", "handle"), ("other", "poll")]
    for child in children:
        assert (child.parent_job_id, child.submitted_by) == (parent.id, SubmittedBy.ROUTE)
        assert (child.hops, child.trace_id, child.dedupe_key) == (3, "trace", "key:k")
        assert child.payload == {"item": 1, "result": "done"}
        assert child.status is JobStatus.QUEUED
    assert children[0].source_event_id == children[1].source_event_id is not None
    event = await store.get_event(children[0].source_event_id or "")
    assert event is not None
    assert (event.source, event.type) == ("source", "found")
    (fact,) = (await store.list_facts("source", limit=9)).rows
    assert (fact.fact_type, fact.body, fact.job_id, fact.command) == ("seen", {"n": 1}, parent.id, "poll")
    state = await store.plugin_state("source")
    assert state is not None
    assert state.state == {"n": 1}
    sent = (await store.list_deliveries(DeliveryFilter(job_id=parent.id), limit=9)).rows
    assert [delivery.state for delivery in reversed(sent)] == ["queued", "loading", "done"]
    kinds = [(row.kind, row.job_id) for row in await whole_ledger(store, after=before)]
    assert kinds == [
        (LedgerKind.JOB_TRANSITION, parent.id),
        *[(LedgerKind.JOB_TRANSITION, child.id) for child in children],
    ]


async def test_a_settlement_that_cannot_be_stored_leaves_nothing(store: Store) -> None:
    """It is stored completely or not at all; the job still runs and can be settled."""
    policy = some_policy(a_route())
    job_id = await accept(store, a_new_job("source"))
    job = await claim_one(store)
    before = await whole_ledger(store)
    unstorable = ok(emitted(payload={"fine": 1}), emitted(payload={"bad": "\ud800"}), state={"x": 1})
    with pytest.raises(RefusedError):
        await store.settle(job, unstorable, policy)
    assert await whole_ledger(store) == before
    assert (await stored(store, job_id)).status is JobStatus.RUNNING
    assert await store.plugin_state("source") is None
    assert await store.list_executions(job_id) == ()
    assert len((await store.list_jobs(JobFilter(), limit=9)).rows) == 1
    await settle(store, job, ok(), policy)


async def test_output_that_is_no_text_cannot_keep_a_job_from_ending(store: Store) -> None:
    """No output of a plugin makes the daemon fail."""
    job_id = await accept(store, a_new_job())
    await run_next(store, failed(stdout="\ud800\x00x", stderr="a\udcff\x00b"))
    (row,) = await store.list_executions(job_id)
    assert row.result is not None
    assert row.result.endswith("\x00x")
    assert (row.stderr or "")[0] == "a"


@pytest.mark.parametrize("part", ["event", "state", "artifact", "result"])
async def test_a_deep_answer_cannot_keep_a_job_from_ending(store: Store, part: str) -> None:
    """A response of any depth fails the job or is stored, and does not make the daemon fail."""
    deep: JsonObject = {}
    for _ in range(400):
        deep = {"x": deep}
    outcomes = {
        "event": ok(emitted(payload=deep)),
        "state": ok(state=deep),
        "artifact": ok(artifacts=(deep,)),
        "result": ok(emitted(), result=deep),
    }
    job_id = await accept(store, a_new_job("source"))
    await run_next(store, outcomes[part], some_policy(a_route()))
    assert (await stored(store, job_id)).status is not JobStatus.RUNNING


async def test_nul_and_odd_text_in_output_is_kept_verbatim(store: Store) -> None:
    job_id = await accept(store, a_new_job())
    text = "a\x00b \u202e 🗝️ \ufffd \r\n"
    await run_next(store, ok(stdout=text, stderr=text))
    (row,) = await store.list_executions(job_id)
    assert (row.result, row.stderr) == (text, text)
    await store.index_log()
    assert len((await store.list_log(LogFilter(query="🗝️ a"), limit=9)).rows) <= 1


async def test_children_are_deduplicated_by_the_events_key(store: Store) -> None:
    """The key of an event applies to the jobs that it starts; a duplicate is returned and recorded."""
    policy = some_policy(a_route())
    started: list[EnqueueResult] = []
    for _ in range(2):
        await accept(store, a_new_job("source"))
        source = await claim_one(store)
        settled = await settle(store, source, ok(emitted(key="k")), policy)
        started += settled.started
        for claim in await claim_all(store):
            await settle(store, claim.job, ok())
    assert [type(result) for result in started] == [Accepted, Deduplicated]
    assert started[0].job_id == started[1].job_id


@pytest.mark.parametrize(
    "outcome",
    [
        failed(),
        failed(permanent=True),
        timed_out(),
        Requeued(),
        Orphaned(),
        EndedEarly(reason=JobReason.CANCELLED, error="x"),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
async def test_nothing_is_applied_unless_the_execution_succeeded(store: Store, outcome: Failed) -> None:
    """Children exist only for a succeeded execution."""
    policy = some_policy(a_route())
    await accept(store, a_new_job("source"))
    settled = await run_next(store, outcome, policy)
    assert settled.started == ()
    assert await store.plugin_state("source") is None
    assert len((await store.list_jobs(JobFilter(), limit=9)).rows) == 1


# ------------------------------------------------------------------------------------- state and facts


async def test_state_is_merged_shallowly(store: Store) -> None:
    """Keys replace, nulls stay, nested objects are not merged."""
    updates: list[JsonObject | None] = [{"a": {"x": 1}, "b": 1}, {"a": {"y": 2}, "c": None}, {}, None]
    for state in updates:
        await accept(store, a_new_job())
        await run_next(store, ok(state=state))
    state_row = await store.plugin_state("echo")
    assert state_row is not None
    assert state_row.state == {"a": {"y": 2}, "b": 1, "c": None}


async def test_state_of_health_and_init_is_not_kept(store: Store) -> None:
    """These commands change no state, and their events start nothing."""
    policy = some_policy(a_route())
    for command in ("health", "init"):
        await accept(store, a_new_job("source", command))
        settled = await run_next(store, ok(emitted(), state={"x": 1}), policy)
        assert settled.started == ()
    assert await store.plugin_state("source") is None


async def test_oversized_state_fails_the_job_for_good(store: Store) -> None:
    """An update above 1 MiB is refused, and the job fails permanently."""
    job_id = await accept(store, a_new_job())
    await run_next(
        store, ok(emitted(), state={"x": "y" * MAX_STATE_BYTES}), some_policy(a_route(source="echo"))
    )
    job = await stored(store, job_id)
    assert (job.status, job.reason) == (JobStatus.FAILED, JobReason.STATE_TOO_LARGE)
    assert await store.plugin_state("echo") is None
    assert len((await store.list_jobs(JobFilter(), limit=9)).rows) == 1


async def test_too_many_events_fail_the_job_for_good(store: Store) -> None:
    job_id = await accept(store, a_new_job("source"))
    await run_next(store, ok(*[emitted()] * (MAX_EVENTS + 1)), some_policy(a_route()))
    assert (await stored(store, job_id)).reason is JobReason.TOO_MANY_EVENTS
    assert len((await store.list_jobs(JobFilter(), limit=9)).rows) == 1


async def test_a_thousand_events_start_a_thousand_jobs(store: Store) -> None:
    await accept(store, a_new_job("source"))
    settled = await run_next(store, ok(*[emitted()] * MAX_EVENTS), some_policy(a_route()))
    assert len(settled.started) == MAX_EVENTS


async def test_facts_are_appended_and_mirrored(store: Store) -> None:
    """Each fact is a row with a rising number, and the state is replaced, not merged."""
    policy = some_policy(facts={"source": (FactRule(command="poll", fact_type="seen"),)})
    updates: list[JsonObject] = [{"a": 1}, {"b": 2}]
    for state in updates:
        await accept(store, a_new_job("source", "poll"))
        await run_next(store, ok(state=state), policy)
    await accept(store, a_new_job("source", "handle"))
    await run_next(store, ok(state={"c": 3}), policy)
    newest, older = (await store.list_facts("source", limit=9)).rows
    assert (newest.body, older.body) == ({"b": 2}, {"a": 1})
    assert newest.seq > older.seq
    state_row = await store.plugin_state("source")
    assert state_row is not None
    assert state_row.state == {"b": 2, "c": 3}


async def test_a_fact_can_leave_the_state_alone(store: Store) -> None:
    policy = some_policy(
        facts={"source": (FactRule(command="poll", fact_type="seen", replaces_state=False),)}
    )
    await accept(store, a_new_job("source", "poll"))
    await run_next(store, ok(state={"a": 1}), policy)
    assert await store.plugin_state("source") is None
    assert len((await store.list_facts("source", limit=9)).rows) == 1


async def test_a_stale_mirror_does_not_replace_what_a_later_claim_wrote(store: Store) -> None:
    """The fact is stored, the state is not changed, and the skipped update is recorded."""
    policy = some_policy(facts={"source": (FactRule(command="poll", fact_type="seen"),)})
    for _ in range(2):
        await accept(store, a_new_job("source", "poll"))
    slow, quick = (claim.job for claim in await claim_all(store))
    await settle(store, quick, ok(state={"by": "quick"}), policy)
    await settle(store, slow, ok(state={"by": "slow"}), policy)
    state = await store.plugin_state("source")
    assert state is not None
    assert state.state == {"by": "quick"}
    assert [fact.body for fact in (await store.list_facts("source", limit=9)).rows] == [
        {"by": "slow"},
        {"by": "quick"},
    ]
    assert [row.job_id for row in await whole_ledger(store) if row.kind is LedgerKind.STATE_STALE] == [
        slow.id
    ]


async def test_a_merge_by_an_older_claim_does_not_make_the_state_older(store: Store) -> None:
    """After an older job has merged its update, the state still counts as that of the later job."""
    policy = some_policy(facts={"source": (FactRule(command="poll", fact_type="seen"),)})
    for command in ("handle", "poll", "poll"):
        await accept(store, a_new_job("source", command))
    merging, slow, quick = (claim.job for claim in await claim_all(store))
    await settle(store, quick, ok(state={"by": "quick"}), policy)
    await settle(store, merging, ok(state={"more": 1}), policy)
    await settle(store, slow, ok(state={"by": "slow"}), policy)
    state = await store.plugin_state("source")
    assert state is not None
    assert state.state == {"by": "quick", "more": 1}


async def test_big_integers_survive_in_state_facts_and_events(store: Store) -> None:
    """Integers beyond 2^53 keep every digit."""
    policy = some_policy(a_route(), facts={"source": (FactRule(command="poll", fact_type="seen"),)})
    number = 2**64 + 1
    await accept(store, a_new_job("source", "poll"))
    response = PluginResponse(
        ok=True,
        result=number,
        events=(emitted(payload={"n": number}),),
        state_updates={"n": number},
        artifacts=({"size": number},),
    )
    settled = await run_next(store, Completed(response=response), policy)
    child = await stored(store, settled.started[0].job_id)
    assert child.payload == {"n": number, "result": number}
    assert (await store.list_facts("source", limit=1)).rows[0].body == {"n": number}
    assert (await stored(store, settled.job_id)).artifacts == ({"size": number},)


async def test_an_event_beyond_the_hop_limit_is_dropped_and_recorded(store: Store) -> None:
    """Two plugins that start each other do not run for ever, and the dropped event is recorded."""
    policy = some_policy(a_route(source="echo", to="echo"), max_hops=3)
    await accept(store, a_new_job("echo"))
    started = 0
    while claims := await claim_all(store):
        for claim in claims:
            started += len((await settle(store, claim.job, ok(emitted()), policy)).started)
    assert started == 3
    (dropped,) = [row for row in await whole_ledger(store) if row.kind is LedgerKind.EVENT_DROPPED]
    assert dropped.data["targets"] == ["echo.handle"]


async def test_two_routes_to_one_target_start_it_once_and_say_so(store: Store) -> None:
    """The second start is the same child, which is recorded as a conflict."""
    policy = some_policy(a_route(), a_route())
    await accept(store, a_new_job("source"))
    settled = await run_next(store, ok(emitted()), policy)
    assert len({result.job_id for result in settled.started}) == 1
    assert [row.kind for row in await whole_ledger(store)].count(LedgerKind.CHILD_CONFLICT) == 1


async def test_jobs_settle_beside_each_other(store: Store) -> None:
    """Two executions that end at the same instant both count."""
    await submit(store, *[a_new_job() for _ in range(30)])
    jobs = [claim.job for claim in await claim_all(store)]
    await asyncio.gather(*(settle(store, job, ok(state={job.id: 1})) for job in jobs))
    state = await store.plugin_state("echo")
    assert state is not None
    assert set(state.state) == {job.id for job in jobs}
