"""Claims and ends that share a transaction: each has the same result as in a transaction of its own."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from builders.jobs import a_new_job, ok
from builders.stores import POLICY, accept, claim_all, claim_one, path_of, settle, whole_ledger
from ductile.core.jobs.admission import Caps
from ductile.errors import RefusedError
from ductile.store.model.jobs import CancelStatus, NotSettled, Settled
from ductile.store.port import Priority, Store
from ductile.store.session import Session
from ductile.store.verbs.jobs.insert import submit_job


async def test_claims_that_wait_together_share_the_ready_jobs_in_their_order(store: Store) -> None:
    ids = [await accept(store, a_new_job(plugin)) for plugin in ("a", "b", "a", "c")]
    first, second, third = await asyncio.gather(*(claim_all(store, limit=limit) for limit in (2, 1, 3)))
    assert [[claim.job.id for claim in claims] for claims in (first, second, third)] == [
        ids[:2],
        ids[2:3],
        ids[3:],
    ]
    assert len({claim.job.claim_seq for claim in (*first, *second, *third)}) == 4


async def test_claims_that_wait_together_keep_their_own_owner_and_caps(store: Store) -> None:
    ids = [await accept(store, a_new_job()) for _ in range(3)]
    first, second, third = await asyncio.gather(
        claim_all(store, limit=1, owner="one"),
        claim_all(store, caps=Caps(workers=0), owner="one"),
        claim_all(store, limit=2, owner="other"),
    )
    assert second == []
    assert [(claim.job.id, claim.job.owner) for claim in (*first, *third)] == list(
        zip(ids, ("one", "other", "other"), strict=True)
    )


async def test_jobs_that_end_together_are_each_judged_by_what_is_stored(store: Store) -> None:
    """One job was cancelled after its claim, one has a successor, and one ends twice."""
    for _ in range(4):
        await accept(store, a_new_job())
    jobs = [claim.job for claim in await claim_all(store)]
    cancelled, awaited, twice, plain = jobs
    await store.cancel(cancelled.id, POLICY)
    waiting = await accept(store, a_new_job(after_job_id=awaited.id))
    ends = await asyncio.gather(*(store.settle(job, ok(), POLICY) for job in (*jobs, twice)))
    assert [isinstance(end, Settled) for end in ends] == [True, True, True, True, False]
    assert ends[4] is NotSettled.ALREADY_SETTLED
    for job in (awaited, twice, plain):
        assert await path_of(store, job.id) == [
            ">queued:submitted",
            "queued>running:claimed",
            "running>succeeded:completed",
        ]
    alone = await accept(store, a_new_job())
    (claim, last) = await claim_all(store)
    assert [claim.job.id, last.job.id] == [waiting, alone]
    await store.cancel(claim.job.id, POLICY)
    expected = await settle(store, claim.job, ok())
    assert isinstance(ends[0], Settled)
    assert ends[0].settlement.status is expected.settlement.status


async def test_a_cancel_that_waits_behind_an_end_finds_the_job_ended(store: Store) -> None:
    job_id = await accept(store, a_new_job())
    job = await claim_one(store)
    end, cancel = await asyncio.gather(store.settle(job, ok(), POLICY), store.cancel(job_id, POLICY))
    assert isinstance(end, Settled)
    assert cancel.status is CancelStatus.ALREADY_ENDED


async def test_an_end_behind_a_new_waiter_releases_it(store: Store) -> None:
    """One transaction stores the waiting job and ends the job that it waits for."""
    parent, other = [await accept(store, a_new_job()) for _ in range(2)]
    first, second = [claim.job for claim in await claim_all(store)]

    def hold(session: Session) -> None:
        submit_job(session, a_new_job(after_job_id=other), timedelta(0))

    async def hold_one() -> None:
        await store.run_write(Priority.SETTLE, hold)

    await asyncio.gather(hold_one(), *(store.settle(job, ok(), POLICY) for job in (first, second)))
    assert (first.id, second.id) == (parent, other)
    assert len(await claim_all(store)) == 1


async def test_rows_of_a_refused_write_are_not_stored_with_the_next_one(store: Store) -> None:
    """Text that no database can store is found only when the rows are sent."""

    def spoil(session: Session) -> None:
        submit_job(session, a_new_job(command="\ud800"), timedelta(0))

    with pytest.raises(RefusedError):
        await store.run_write(Priority.ENQUEUE, spoil)
    job_id = await accept(store, a_new_job())
    assert [row.job_id for row in await whole_ledger(store)] == [job_id]
    assert await path_of(store, job_id) == [">queued:submitted"]
