"""Retention: which rows are kept, for how long, and in which order they are removed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from builders.jobs import Clock, a_new_job, a_route, an_event, an_id, emitted, failed, ok, some_policy
from builders.pipelines import begin_run, run_until_idle, steps_policy, uses
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
from ductile.core.events.model import NewContext
from ductile.core.jobs.model import Job, JobStatus, StateSubscription, SubmittedBy
from ductile.core.policy import FactRule
from ductile.core.webhooks.deliveries import DeliveryAttempt
from ductile.store.model.deliveries import DeliveryCapacity, DeliveryReport
from ductile.store.model.maintenance import ConfigOrigin, Retention
from ductile.store.model.records import LogFilter
from ductile.store.port import Store
from ductile.store.verbs.maintenance import PRUNE_BATCH

PRUNES = True  # the rules for rows at rest allow for it

#: Columns of a queue row that the log does not keep: they have no use after the end of the job.
FORGOTTEN = {"seq", "hops", "claim_seq", "owner", "lease_until", "suspect", "callback", "cancel_requested_at"}


async def prune(store: Store, **retention: Any) -> dict[str, int]:
    """Run sweeps until nothing is left to remove, and return the number of removed rows by kind."""
    totals: dict[str, int] = {}
    while (sweep := await store.prune(Retention(**retention))).rows:
        for kind, count in sweep.rows.items():
            totals[kind] = totals.get(kind, 0) + count
    return totals


async def add_newer_rows(store: Store) -> None:
    """Add a newer row to each table: the newest row is never removed."""
    await accept(store, a_new_job("newer"))
    for claim in await claim_all(store):
        await settle(store, claim.job, ok())


async def test_a_succeeded_job_is_found_in_the_log_with_every_field(store: Store, clock: Clock) -> None:
    """The job is in the queue for a day. After that it can be read by id, with its payload."""
    context = NewContext(id=an_id(), baggage={})
    new = a_new_job(
        payload={"keep": "me"},
        submitted_detail="token",
        dedupe_key="key:a",
        parent_job_id=an_id(),
        event_context_id=context.id,
        trace_id="t",
        rerun_of=an_id(),
        token="agent",
    )
    await submit(store, new, contexts=(context,))
    await run_next(store, failed())
    clock.advance(minutes=1)
    await store.release_due()
    await run_next(store, ok(artifacts=({"name": "a"},)))
    before = await stored(store, new.id)
    path = await path_of(store, new.id)
    await add_newer_rows(store)
    clock.advance(hours=24, seconds=1)
    assert (await prune(store))["succeeded_jobs"] == 1
    after = await stored(store, new.id)
    for name in Job.__struct_fields__:
        if name not in FORGOTTEN:
            assert getattr(after, name) == getattr(before, name), name
    assert await path_of(store, new.id) == path
    assert [row.execution for row in await store.list_executions(new.id)] == [1, 2]
    assert await store.get_event_context(context.id) is not None


async def test_a_payload_of_an_event_is_found_too(store: Store, clock: Clock) -> None:
    event = an_event()
    new = a_new_job(payload=None, source_event_id=event.id)
    await submit(store, new, event=event)
    await run_next(store, ok())
    await add_newer_rows(store)
    clock.advance(days=2)
    await prune(store)
    assert (await stored(store, new.id)).payload == event.payload


async def test_rows_are_kept_until_their_time(store: Store, clock: Clock) -> None:
    await accept(store, a_new_job())
    job_id = (await run_next(store, ok())).job_id
    await add_newer_rows(store)
    clock.advance(hours=24)
    assert "succeeded_jobs" not in await prune(store)
    assert (await stored(store, job_id)).seq > 0


@pytest.mark.parametrize(("permanent", "status"), [(True, JobStatus.FAILED), (False, JobStatus.DEAD)])
async def test_failed_and_dead_are_kept_as_long_as_the_log(
    store: Store, clock: Clock, permanent: bool, status: JobStatus
) -> None:
    """A job that is dead on Friday can be retried on Monday."""
    await accept(store, a_new_job(max_attempts=1))
    job_id = (await run_next(store, failed(permanent=permanent))).job_id
    await add_newer_rows(store)
    clock.advance(days=29)
    await prune(store)
    assert (await stored(store, job_id)).status is status
    clock.advance(days=2)
    await add_newer_rows(store)
    await prune(store)
    assert await store.get_job(job_id) is None
    assert await store.list_transitions(job_id) == ()


async def test_live_jobs_are_never_removed(store: Store, clock: Clock) -> None:
    ready, running, waiting = [await accept(store, a_new_job(name)) for name in ("a", "b", "c")]
    claims = {claim.job.id: claim.job for claim in await claim_all(store)}
    await settle(store, claims[waiting], failed())
    await store.recover(POLICY)
    await add_newer_rows(store)
    clock.advance(days=400)
    await prune(store)
    for job_id in (ready, running, waiting):
        assert (await stored(store, job_id)).status is JobStatus.QUEUED


async def test_no_job_goes_before_its_live_descendants(store: Store, clock: Clock) -> None:
    """A live descendant at any depth keeps its ancestors."""
    policy = some_policy(a_route(source="echo", to="echo"))
    root = await accept(store, a_new_job())
    for _ in range(2):
        await run_next(store, ok(emitted()), policy)
    live = await claim_one(store)
    await accept(store, a_new_job("newer"))
    clock.advance(days=3)
    await prune(store)
    assert len([job for job in await store.job_tree(root, limit=100) if job.seq > 0]) == 3
    await settle(store, live, ok())
    clock.advance(days=3)
    await prune(store)
    assert [job.seq for job in await store.job_tree(root, limit=100)] == [0, 0, 0], (
        "the tree is read from the log now"
    )


async def test_jobs_with_live_descendants_do_not_keep_others_from_going(store: Store, clock: Clock) -> None:
    """A whole sweep of old jobs that must stay does not stop the removal of others."""
    policy = some_policy(a_route())
    await submit(store, *[a_new_job("source") for _ in range(500)])
    for claim in await claim_all(store):
        await settle(store, claim.job, ok(emitted()), policy)
    clock.advance(seconds=1)
    await accept(store, a_new_job("other"))
    claims = await claim_all(store, limit=1000)
    other = next(claim.job for claim in claims if claim.job.plugin == "other")
    await settle(store, other, ok())
    await accept(store, a_new_job("newer"))
    clock.advance(days=3)
    await prune(store)
    assert (await stored(store, other.id)).seq == 0


async def test_the_log_goes_after_thirty_days_with_its_text_and_transitions(
    store: Store, clock: Clock
) -> None:
    await accept(store, a_new_job())
    job_id = (await run_next(store, ok(stdout="needle"))).job_id
    await store.index_log()
    await add_newer_rows(store)
    clock.advance(days=30, seconds=1)
    await add_newer_rows(store)
    await prune(store)
    assert await store.list_executions(job_id) == ()
    assert await store.list_transitions(job_id) == ()
    assert (await store.list_log(LogFilter(query="needle"), limit=9)).rows == ()


async def test_later_rows_can_be_found_after_a_prune(store: Store, clock: Clock) -> None:
    await accept(store, a_new_job())
    await run_next(store, ok(stdout="old"))
    await store.index_log()
    await add_newer_rows(store)
    clock.advance(days=31)
    await prune(store)
    await accept(store, a_new_job())
    await run_next(store, ok(stdout="fresh"))
    await store.index_log()
    assert len((await store.list_log(LogFilter(query="fresh"), limit=9)).rows) == 1


async def test_the_newest_rows_stay_so_that_numbers_do_not_come_back(store: Store, clock: Clock) -> None:
    await accept(store, a_new_job())
    job_id = (await run_next(store, ok())).job_id
    highest = (await store.ledger_range())[1]
    clock.advance(days=400)
    await prune(store)
    assert (await stored(store, job_id)).seq > 0
    assert await store.ledger_range() == (highest, highest)
    (row,) = await store.list_executions(job_id)
    await accept(store, a_new_job())
    later = (await run_next(store, ok())).job_id
    assert (await store.list_executions(later))[0].seq > row.seq
    assert (await store.list_ledger(after=highest, limit=1))[0].seq > highest


async def test_facts_are_kept_unless_a_time_is_set(store: Store, clock: Clock) -> None:
    policy = some_policy(facts={"source": (FactRule(command="poll", fact_type="seen"),)})
    for _ in range(2):
        await accept(store, a_new_job("source", "poll"))
        await run_next(store, ok(state={"n": 1}), policy)
        clock.advance(days=100)
    await prune(store)
    assert len((await store.list_facts("source", limit=9)).rows) == 2
    await prune(store, facts=timedelta(days=150))
    assert len((await store.list_facts("source", limit=9)).rows) == 1


async def test_the_ledger_has_a_week_and_a_row_cap(store: Store, clock: Clock) -> None:
    for _ in range(3):
        await accept(store, a_new_job())
    clock.advance(days=8)
    await accept(store, a_new_job())
    await prune(store)
    assert len(await whole_ledger(store)) == 1
    for _ in range(5):
        await accept(store, a_new_job())
    await prune(store, ledger_rows=2)
    assert len(await whole_ledger(store)) == 2


async def test_events_live_as_long_as_a_row_refers_to_them(store: Store, clock: Clock) -> None:
    referenced, unreferenced = an_event(), an_event()
    await submit(store, a_new_job(source_event_id=referenced.id), event=referenced)
    await submit(store, event=unreferenced)
    clock.advance(days=31)
    await prune(store)
    assert await store.get_event(referenced.id) is not None
    assert await store.get_event(unreferenced.id) is None


async def test_a_context_goes_with_its_jobs(store: Store, clock: Clock) -> None:
    context = NewContext(id=an_id(), baggage={})
    await submit(store, a_new_job(event_context_id=context.id), contexts=(context,))
    await run_next(store, ok())
    clock.advance(days=31)
    await add_newer_rows(store)
    await prune(store)
    await prune(store)
    assert await store.get_event_context(context.id) is None


async def test_breaker_transitions_have_ninety_days(store: Store, clock: Clock) -> None:
    for _ in range(3):
        await accept(store, a_new_job("p", "poll", submitted_by=SubmittedBy.SCHEDULER, max_attempts=1))
        await run_next(store, failed())
    clock.advance(days=90)
    await prune(store)
    assert len(await store.breaker_history("p", limit=9)) == 1
    clock.advance(seconds=1)
    await prune(store)
    assert await store.breaker_history("p", limit=9) == ()


async def test_a_configuration_is_kept_as_long_as_the_log_of_its_jobs(store: Store, clock: Clock) -> None:
    """An old configuration that was in force until yesterday explains failures."""
    for name in ("first", "second", "third"):
        await store.record_config(name, ConfigOrigin.RELOAD, {})
        clock.advance(days=29)
    await prune(store)
    assert [row.hash for row in await store.config_history(limit=9)] == ["third", "second"]
    clock.advance(days=300)
    await prune(store)
    assert [row.hash for row in await store.config_history(limit=9)] == ["third"], "it is in force"


async def test_pruning_is_swept(store: Store, clock: Clock) -> None:
    """A claim waits for one sweep at most, which removes few rows of a kind."""
    await submit(store, *[a_new_job() for _ in range(PRUNE_BATCH + 1)])
    for claim in await claim_all(store):
        await settle(store, claim.job, ok())
    await add_newer_rows(store)
    clock.advance(days=2)
    first = await store.prune(Retention())
    assert (first.rows["succeeded_jobs"], first.more) == (PRUNE_BATCH, True)
    second = await store.prune(Retention())
    assert (second.rows["succeeded_jobs"], second.more) == (1, False)


async def test_an_empty_store_has_nothing_to_remove(store: Store) -> None:
    sweep = await store.prune(Retention())
    assert (sweep.rows, sweep.more) == ({}, False)


async def test_delivered_states_are_kept_for_a_week(store: Store, clock: Clock) -> None:
    """Pending deliveries are kept."""
    await accept(store, a_new_job(callback=StateSubscription(url="http://receiver.invalid/")))
    await accept(store, a_new_job(callback=StateSubscription(url="http://receiver.invalid/")))
    capacity = DeliveryCapacity(total=9, per_receiver=9)
    claimed = await store.claim_deliveries(capacity, retry_at=clock.now + timedelta(days=99))
    delivered, pending = claimed.deliveries
    await store.report_delivery(DeliveryReport(id=delivered.id, attempt=DeliveryAttempt(http_status=200)))
    clock.advance(days=7)
    await store.prune(Retention())
    assert len((await store.list_deliveries(limit=9)).rows) == 2
    clock.advance(seconds=1)
    await store.prune(Retention())
    assert [row.id for row in (await store.list_deliveries(limit=9)).rows] == [pending.id]


async def test_due_rows_can_be_counted_and_are_then_removed(store: Store, clock: Clock) -> None:
    """The counts are by kind: jobs, a run with its steps, and the log."""
    policy = steps_policy(uses("a"), uses("b"))
    await begin_run(store, policy)
    await run_until_idle(store, policy)
    await accept(store, a_new_job())
    await run_next(store, failed(permanent=True))
    await add_newer_rows(store)
    assert await store.count_prunable(Retention()) == {}
    clock.advance(days=2)
    assert await store.count_prunable(Retention()) == {"succeeded_jobs": 3}
    clock.advance(days=31)
    await add_newer_rows(store)
    due = await store.count_prunable(Retention())
    assert (due["succeeded_jobs"], due["failed_jobs"]) == (4, 1)
    removed = await prune(store)
    assert {kind: removed[kind] for kind in due} == due
    assert await store.count_prunable(Retention()) == {}
