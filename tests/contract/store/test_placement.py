"""Jobs that no live node may run: held with a visible reason, released when a node may run
them, ended after a time limit.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from builders.jobs import Clock, a_new_job, ok
from builders.pipelines import begin_run, end_of, members, settle_step, steps_policy, uses
from builders.stores import (
    LEASE,
    POLICY,
    STORE_KINDS,
    StoreFactory,
    StoreKind,
    accept,
    claim_all,
    path_of,
    settle,
    stored,
    whole_ledger,
)
from ductile.core.jobs.admission import Caps
from ductile.core.jobs.model import Hold, JobReason, JobStatus, LedgerKind, StateSubscription
from ductile.core.jobs.placement import NodeOffer
from ductile.core.scripts import EXEC_PLUGIN
from ductile.store.model.deliveries import DeliveryFilter
from ductile.store.model.jobs import JobsWithoutNode, PlacementResult
from ductile.store.notifier import JobsReady
from ductile.store.port import Store

LONGEST = timedelta(hours=1)
FETCHER = NodeOffer(name="one", plugins=frozenset({"fetch"}))
GPU = NodeOffer(name="two", plugins=frozenset({"gpu"}))


async def place(store: Store, *offers: NodeOffer, release_only: bool = False) -> PlacementResult:
    return await store.place_jobs(offers, POLICY, max_hold=LONGEST, release_only=release_only)


async def hold_of(store: Store, job_id: str) -> Hold | None:
    return (await stored(store, job_id)).hold


def counts(groups: object) -> dict[str, int]:
    """Return the number of jobs of each plugin."""
    return {group.plugin: count for group, count in groups.items()}  # type: ignore[attr-defined]


async def test_jobs_that_no_node_may_run_are_held_and_released_in_order(store: Store, clock: Clock) -> None:
    runs = await accept(store, a_new_job("fetch"))
    waits = [await accept(store, a_new_job("gpu")) for _ in range(3)]
    held_since = clock.now
    assert counts((await place(store, FETCHER)).held) == {"gpu": 3}
    assert await hold_of(store, runs) is None
    job = await stored(store, waits[0])
    assert (job.status, job.hold, job.held_since) == (JobStatus.QUEUED, Hold.NO_NODE, held_since)
    assert await store.jobs_without_node() == (
        JobsWithoutNode(plugin="gpu", node=None, jobs=3, held_since=held_since),
    )
    assert (await store.queue_counts()).waiting == 3
    assert [claim.job.id for claim in await claim_all(store)] == [runs]

    clock.advance(minutes=1)
    assert await place(store, FETCHER) == PlacementResult(held={}, released={}, ended=(), more=False)
    ready: list[JobsReady] = []
    store.notifier.subscribe(JobsReady, ready.append)
    assert counts((await place(store, GPU, release_only=True)).released) == {"gpu": 3}
    assert ready
    assert [claim.job.id for claim in await claim_all(store)] == waits
    assert (await stored(store, waits[0])).held_since is None


async def test_a_node_that_only_releases_holds_and_ends_nothing(store: Store, clock: Clock) -> None:
    held = await accept(store, a_new_job("gpu"))
    await place(store, FETCHER)
    fresh = await accept(store, a_new_job("tape"))
    clock.advance(hours=2)
    assert await place(store, FETCHER, release_only=True) == PlacementResult(
        held={}, released={}, ended=(), more=False
    )
    assert await hold_of(store, held) is Hold.NO_NODE
    assert await hold_of(store, fresh) is None


async def test_a_batch_is_limited_and_says_that_there_is_more(store: Store) -> None:
    for _ in range(3):
        await accept(store, a_new_job("gpu"))
    for expected in (True, False):
        result = await store.place_jobs((FETCHER,), POLICY, max_hold=LONGEST, limit=2)
        assert result.more is expected
    assert (await store.queue_counts()).waiting == 3
    for expected in (True, False):
        result = await store.place_jobs((GPU,), POLICY, max_hold=LONGEST, limit=2)
        assert result.more is expected
    assert len(await claim_all(store)) == 3


async def test_jobs_of_one_key_are_held_together_and_run_one_at_a_time(store: Store) -> None:
    first, second, third = [await accept(store, a_new_job("gpu", dedupe_key="key:k")) for _ in range(3)]
    assert await hold_of(store, second) is Hold.KEY
    assert counts((await place(store, FETCHER)).held) == {"gpu": 3}
    assert {await hold_of(store, job_id) for job_id in (first, second, third)} == {Hold.NO_NODE}
    await place(store, GPU)
    assert [await hold_of(store, job_id) for job_id in (first, second, third)] == [None, Hold.KEY, Hold.KEY]
    for expected in (first, second, third):
        (claim,) = await claim_all(store)
        assert claim.job.id == expected
        await settle(store, claim.job, ok())


async def test_a_suspect_that_waits_for_a_node_does_not_block_the_others(store: Store, clock: Clock) -> None:
    """Jobs that ran twice when a node died run one at a time, but not after one that cannot run."""
    gpu, fetch = [await accept(store, a_new_job(plugin)) for plugin in ("gpu", "fetch")]
    for _ in range(2):
        await claim_all(store)
        await store.recover(POLICY, on_node=True)
        clock.advance(minutes=2)
        await store.release_due()
    assert [await hold_of(store, job_id) for job_id in (gpu, fetch)] == [None, Hold.SUSPECT]
    await place(store, FETCHER)
    assert [await hold_of(store, job_id) for job_id in (gpu, fetch)] == [Hold.NO_NODE, None]
    await place(store, FETCHER, GPU)
    assert [await hold_of(store, job_id) for job_id in (gpu, fetch)] == [Hold.SUSPECT, None]


async def test_a_job_that_waited_too_long_ends_with_an_error(store: Store, clock: Clock) -> None:
    callback = StateSubscription(url="http://receiver.invalid/")
    job_id = await accept(store, a_new_job("gpu", callback=callback, dedupe_key="key:k"))
    await place(store, FETCHER)
    clock.advance(minutes=59)
    assert (await place(store, FETCHER)).ended == ()
    later = await accept(store, a_new_job("gpu"))
    await place(store, FETCHER)
    clock.advance(minutes=1)
    (ended,) = (await place(store, FETCHER)).ended
    assert (ended.id, ended.status, ended.reason) == (job_id, JobStatus.DEAD, JobReason.NO_NODE)
    job = await stored(store, job_id)
    assert (job.status, job.reason, job.hold, job.held_since) == (
        JobStatus.DEAD,
        JobReason.NO_NODE,
        None,
        None,
    )
    assert job.last_error == "no live node may run gpu, and none has come within 1h"
    assert await path_of(store, job_id) == [">queued:submitted", "queued>dead:no_node"]
    entries = [row for row in await whole_ledger(store) if row.job_id == job_id]
    assert entries[-1].kind is LedgerKind.JOB_TRANSITION
    sent = (await store.list_deliveries(DeliveryFilter(job_id=job_id), limit=9)).rows
    assert [delivery.state for delivery in sent] == ["failed", "queued"]
    assert await hold_of(store, later) is Hold.NO_NODE, "it waits since a minute only"
    await store.retry(job_id, POLICY)
    assert await hold_of(store, job_id) is None


async def test_a_run_goes_on_when_its_step_found_no_node(store: Store, clock: Clock) -> None:
    policy = steps_policy(uses("one", plugin="p"), uses("two", plugin="q"))
    run_id = await begin_run(store, policy)
    await settle_step(store, policy, "one")
    only = NodeOffer(name="one", plugins=frozenset({"p"}))
    await store.place_jobs((only,), policy, max_hold=LONGEST)
    assert (await members(store, run_id))["two"].hold is Hold.NO_NODE
    clock.advance(hours=1)
    await store.place_jobs((only,), policy, max_hold=LONGEST)
    assert await end_of(store, run_id) == (JobStatus.FAILED, JobReason.STEP_FAILED)


async def test_held_jobs_can_be_cancelled(store: Store) -> None:
    job_id = await accept(store, a_new_job("gpu", dedupe_key="key:k"))
    await place(store, FETCHER)
    await store.cancel(job_id, POLICY)
    assert (await stored(store, job_id)).reason is JobReason.CANCELLED
    assert (await stored(store, job_id)).held_since is None
    assert await store.jobs_without_node() == ()


async def test_the_only_daemon_of_a_store_releases_every_job(store: Store) -> None:
    """Here a store of several nodes was moved to a file."""
    pinned = await accept(store, a_new_job(EXEC_PLUGIN, node="two"))
    other = await accept(store, a_new_job("gpu"))
    await place(store, FETCHER)
    assert [await hold_of(store, job_id) for job_id in (pinned, other)] == [Hold.NO_NODE] * 2
    await store.place_jobs(None, POLICY, max_hold=LONGEST)
    assert [await hold_of(store, job_id) for job_id in (pinned, other)] == [None] * 2


async def test_a_job_of_one_node_waits_for_that_node(store: Store, clock: Clock) -> None:
    own, others = [await accept(store, a_new_job(EXEC_PLUGIN, node=node)) for node in ("one", "two")]
    assert (await stored(store, own)).node == "one"
    assert counts((await place(store, FETCHER)).held) == {EXEC_PLUGIN: 1}
    assert [await hold_of(store, job_id) for job_id in (own, others)] == [None, Hold.NO_NODE]
    clock.advance(hours=1)
    await place(store, FETCHER)
    error = "it belongs to the node two, which has not come back within 1h"
    assert (await stored(store, others)).last_error == error


@pytest.mark.parametrize("kind", [kind for kind in STORE_KINDS if kind.name == "postgres"])
async def test_a_node_claims_its_own_jobs_and_those_of_any_node(kind: StoreKind, tmp_path: Path) -> None:
    """A store for one daemon has no jobs of other nodes."""
    factory = StoreFactory(kind=kind, directory=tmp_path)
    store = await factory.open()
    jobs = [await accept(store, a_new_job(EXEC_PLUGIN, node=node)) for node in ("two", "one", None, "one")]

    async def claimed(node: str) -> list[str]:
        caps = Caps(workers=10, node=node)
        return [claim.job.id for claim in await store.claim(owner=node, caps=caps, limit=10, lease=LEASE)]

    assert await claimed("one") == [jobs[1], jobs[2], jobs[3]]
    assert await claimed("three") == []
    assert await claimed("two") == [jobs[0]]
    await factory.check_invariants()


async def test_the_log_keeps_the_node_of_a_job(store: Store) -> None:
    job_id = await accept(store, a_new_job(EXEC_PLUGIN, node="one"))
    (claim,) = await store.claim(owner="one", caps=Caps(workers=1, node="one"), limit=1, lease=LEASE)
    await settle(store, claim.job, ok())
    (execution,) = await store.list_executions(job_id)
    assert execution.node == "one"
