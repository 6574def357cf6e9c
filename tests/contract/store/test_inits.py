"""`init` runs once for each version of a plugin and its configuration."""

from __future__ import annotations

import asyncio

import pytest

from builders.jobs import Clock, a_new_job, failed, ok
from builders.stores import POLICY, StoreFactory, accept, claim_all, run_next, stored
from ductile.core.jobs.model import JobReason, JobStatus, NewJob, Requeued, SubmittedBy
from ductile.errors import RefusedError
from ductile.store.model.jobs import InitKey, InitStatus, NewInit
from ductile.store.model.maintenance import ConfigOrigin
from ductile.store.port import Store
from ductile.struct import replace

KEY = InitKey(plugin="p", fingerprint="f", config_hash="c")


def an_init() -> NewJob:
    return a_new_job("p", "init", submitted_by=SubmittedBy.CORE, max_attempts=1, payload=None)


async def test_a_version_is_initialised_once(store: Store) -> None:
    job = an_init()
    begun = await store.begin_init(KEY, job)
    assert (begun.status, begun.job_id) == (InitStatus.PENDING, job.id)
    assert (await store.begin_init(KEY, an_init())).job_id == job.id, "it is under way"
    await run_next(store, ok())
    finished = await store.begin_init(KEY, an_init())
    assert (finished.status, finished.job_id, finished.error) == (InitStatus.SUCCEEDED, job.id, None)
    assert await claim_all(store) == []


@pytest.mark.parametrize("field", ["plugin", "fingerprint", "config_hash"])
async def test_a_change_initialises_again(store: Store, field: str) -> None:
    await store.begin_init(KEY, an_init())
    await run_next(store, ok())
    job = an_init()
    assert (await store.begin_init(replace(KEY, **{field: "new"}), job)).job_id == job.id


async def test_a_failure_is_kept_and_not_repeated(store: Store) -> None:
    """A failed init marks the plugin and is not retried."""
    job = an_init()
    await store.begin_init(KEY, job)
    await run_next(store, failed(error="no token"))
    assert (await stored(store, job.id)).status is JobStatus.DEAD
    result = await store.begin_init(KEY, an_init())
    assert (result.status, result.error) == (InitStatus.FAILED, "no token")
    assert await claim_all(store) == []


async def test_an_init_that_a_crash_cut_short_is_begun_again_three_times_at_most(
    store_factory: StoreFactory,
) -> None:
    """An unfinished init runs again at the next start."""
    for _ in range(3):
        store = await store_factory.reopen()
        job = an_init()
        assert (await store.begin_init(KEY, job)).job_id == job.id
        await claim_all(store)
        await store.recover(POLICY)
    store = await store_factory.reopen()
    result = await store.begin_init(KEY, an_init())
    assert result.status is InitStatus.FAILED
    assert result.error
    assert await claim_all(store) == []


async def test_an_interrupted_init_goes_on_as_the_same_job(store: Store) -> None:
    job = an_init()
    await store.begin_init(KEY, job)
    await run_next(store, Requeued())
    assert (await store.begin_init(KEY, an_init())).job_id == job.id
    await run_next(store, ok())
    assert (await store.begin_init(KEY, an_init())).status is InitStatus.SUCCEEDED


async def test_a_purged_init_is_begun_again(store: Store) -> None:
    await store.begin_init(KEY, an_init())
    await store.end_queued(JobReason.PURGED, POLICY)
    job = an_init()
    assert (await store.begin_init(KEY, job)).job_id == job.id


async def test_an_init_that_was_run_by_hand_is_not_the_cores(store: Store) -> None:
    await store.begin_init(KEY, an_init())
    await run_next(store, ok())
    by_hand = a_new_job("p", "init", submitted_by=SubmittedBy.CLI, max_attempts=1)
    await accept(store, by_hand)
    await run_next(store, failed())
    assert (await store.begin_init(KEY, an_init())).status is InitStatus.SUCCEEDED


@pytest.mark.parametrize("reason", [JobReason.PLUGIN_REMOVED, JobReason.PURGED])
async def test_an_init_that_was_ended_before_it_ran_says_nothing(store: Store, reason: JobReason) -> None:
    """Only a failure of the plugin itself marks it. An init that was ended while queued is run again."""
    await store.begin_init(KEY, an_init())
    await store.end_queued(reason, POLICY)
    second = an_init()
    assert (await store.begin_init(KEY, second)).job_id == second.id


async def test_a_configuration_is_recorded_with_its_inits(store: Store) -> None:
    """Each init has a result; a finished one does not run again."""
    await store.begin_init(KEY, an_init())
    await run_next(store, ok())
    fresh = an_init()
    inits = (
        NewInit(key=KEY, job=an_init()),
        NewInit(key=replace(KEY, plugin="q"), job=replace(fresh, plugin="q")),
    )
    finished, begun = await store.record_config("h", ConfigOrigin.RELOAD, {}, inits)
    assert (finished.status, begun.status, begun.job_id) == (
        InitStatus.SUCCEEDED,
        InitStatus.PENDING,
        fresh.id,
    )
    assert [row.hash for row in await store.config_history(limit=9)] == ["h"]


async def test_a_configuration_whose_inits_cannot_be_stored_is_not_recorded(store: Store) -> None:
    """The configuration and its inits are stored together or not at all."""
    unfit = replace(an_init(), plugin="q", payload={"text": "\ud800"})
    inits = (NewInit(key=KEY, job=an_init()), NewInit(key=replace(KEY, plugin="q"), job=unfit))
    with pytest.raises(RefusedError):
        await store.record_config("h", ConfigOrigin.RELOAD, {}, inits)
    assert await store.config_history(limit=9) == ()
    assert await claim_all(store) == []


async def test_a_claim_requested_before_a_configuration_does_not_get_its_inits(store: Store) -> None:
    """The claim belongs to the previous configuration, in which the plugin may not exist."""
    await accept(store, a_new_job("q"))
    claiming = asyncio.ensure_future(claim_all(store))
    await asyncio.sleep(0)
    init = NewInit(key=KEY, job=an_init())
    recording = asyncio.ensure_future(store.record_config("hash", ConfigOrigin.RELOAD, {}, (init,)))
    (claim,) = await claiming
    assert claim.job.plugin == "q"
    (result,) = await recording
    assert result.status is InitStatus.PENDING
    assert [claim.job.id for claim in await claim_all(store)] == [init.job.id]


async def test_every_record_can_be_read(store: Store, clock: Clock) -> None:
    """There is the result for each version; a later success of the same job counts."""
    first, second = an_init(), an_init()
    await store.begin_init(KEY, first)
    await run_next(store, failed(error="no token"))
    await store.begin_init(replace(KEY, config_hash="d"), second)
    records = {record.key.config_hash: record for record in await store.list_inits()}
    assert (records["c"].status, records["c"].job_id, records["c"].error) == (
        InitStatus.FAILED,
        first.id,
        "no token",
    )
    assert (records["d"].status, records["d"].job_id) == (InitStatus.PENDING, second.id)
    await run_next(store, ok())
    await store.retry(first.id, POLICY)
    clock.advance(minutes=1)
    await run_next(store, ok())
    assert {record.status for record in await store.list_inits()} == {InitStatus.SUCCEEDED}
    assert max(record.updated_at for record in await store.list_inits()) == clock.now
