"""A write that has returned is on disk, and stored instants never go back."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from builders.jobs import Clock, a_new_job, a_route, emitted, failed, ok, some_policy
from builders.stores import (
    POLICY,
    StoreFactory,
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
from ductile.core.jobs.model import JobStatus, StateSubscription, SubmittedBy
from ductile.core.policy import FactRule
from ductile.store.model.maintenance import ConfigOrigin
from ductile.store.model.records import JobFilter, LogFilter
from ductile.store.port import Store


async def test_reads_see_every_write_that_returned(store: Store) -> None:
    """A job can be read as soon as it is accepted."""
    for _ in range(20):
        job_id = await accept(store, a_new_job())
        assert (await stored(store, job_id)).status is JobStatus.QUEUED
        job = await claim_one(store)
        assert (await stored(store, job_id)).status is JobStatus.RUNNING
        await settle(store, job, ok())
        assert (await stored(store, job_id)).status is JobStatus.SUCCEEDED


async def test_a_reopened_store_keeps_everything(store_factory: StoreFactory) -> None:
    store = await store_factory.open()
    policy = some_policy(a_route(), facts={"source": (FactRule(command="poll", fact_type="seen"),)})
    reported = a_new_job(
        "source",
        "poll",
        callback=StateSubscription(url="http://receiver.invalid/"),
        submitted_by=SubmittedBy.SCHEDULER,
    )
    await accept(store, reported)
    await run_next(store, ok(emitted(), state={"n": 1}), policy)
    await claim_all(store)
    await accept(store, a_new_job())
    await run_next(store, failed())
    await store.record_config("h", ConfigOrigin.START, {"a": 1})
    await store.index_log()

    async def read_everything(store: Store) -> list[object]:
        jobs = (await store.list_jobs(JobFilter(), limit=200)).rows
        return [
            store.store_id,
            [await stored(store, job.id) for job in jobs],
            [await store.list_transitions(job.id) for job in jobs],
            [await store.list_executions(job.id) for job in jobs],
            [await store.get_event(job.source_event_id) for job in jobs if job.source_event_id],
            (await store.list_log(LogFilter(query="ok"), limit=9)).rows,
            await store.plugin_state("source"),
            (await store.list_facts("source", limit=9)).rows,
            (await store.list_deliveries(limit=9)).rows,
            await store.list_breakers(),
            await store.config_history(limit=9),
            await store.queue_counts(),
            await whole_ledger(store),
        ]

    before = await read_everything(store)
    after = await read_everything(await store_factory.reopen())
    assert after == before


async def test_two_stores_have_two_ids(store_factory: StoreFactory) -> None:
    """The id of the store identifies processes that outlive their daemon."""
    store = await store_factory.open()
    directory = store_factory.directory / "other"
    directory.mkdir()
    other = await store_factory.kind.open(directory, store_factory.clock, 99)
    assert store.store_id != other.store_id
    await other.close()


async def test_stored_instants_never_go_back(store_factory: StoreFactory) -> None:
    """Each is the later one of the clock and the last stored instant, also after a restart."""
    store, clock = await store_factory.open(), store_factory.clock
    job_id = await accept(store, a_new_job())
    latest = clock.now
    clock.advance(hours=-5)
    await claim_all(store)
    store = await store_factory.reopen()
    clock.advance(hours=-5)
    await settle(store, await stored(store, job_id), ok())
    job = await stored(store, job_id)
    assert (job.created_at, job.started_at, job.completed_at) == (latest, latest, latest)
    assert {row.at for row in await whole_ledger(store)} == {latest}
    clock.now = latest + timedelta(seconds=1)
    later = await accept(store, a_new_job())
    assert (await stored(store, later)).created_at == clock.now


async def test_due_times_follow_the_clock_and_not_recorded_timestamps(store: Store, clock: Clock) -> None:
    """Retries are planned by the present clock, so a clock that was set back does not stop them."""
    await accept(store, a_new_job())
    clock.advance(hours=-5)
    await run_next(store, failed())
    clock.advance(minutes=1)
    assert (await store.release_due()).count == 1


async def test_order_holds_across_a_restart(store_factory: StoreFactory) -> None:
    store = await store_factory.open()
    first = await accept(store, a_new_job("b"))
    store = await store_factory.reopen()
    second = await accept(store, a_new_job("a"))
    assert [claim.job.id for claim in await claim_all(store)] == [first, second]


async def test_a_running_job_is_still_running_after_a_restart_until_it_is_recovered(
    store_factory: StoreFactory,
) -> None:
    """Only `recover` changes running jobs, not the opening of the store."""
    store = await store_factory.open()
    job_id = await accept(store, a_new_job())
    await claim_all(store)
    store = await store_factory.reopen()
    assert (await stored(store, job_id)).status is JobStatus.RUNNING
    await store.recover(POLICY)
    assert (await path_of(store, job_id))[-1] == "running>queued:recovered"


async def test_a_large_output_is_kept_whole(store: Store) -> None:
    """The limit is 10 MiB of stdout."""
    text = "é" * (5 * 1024 * 1024)
    await accept(store, a_new_job())
    settled = await run_next(store, ok(stdout=text))
    (row,) = await store.list_executions(settled.job_id)
    assert row.result == text


async def test_many_callers_at_once_are_all_served(store: Store) -> None:
    jobs = [a_new_job() for _ in range(300)]
    await asyncio.gather(*(submit(store, job) for job in jobs))
    claims = await claim_all(store)
    await asyncio.gather(*(settle(store, claim.job, ok()) for claim in claims))
    assert (await store.queue_counts()).depth == 0
    assert len({claim.job.id for claim in claims}) == len(jobs)
