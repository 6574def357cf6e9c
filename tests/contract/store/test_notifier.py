"""Changes are published after the commit, before the caller resumes, and also if the caller was cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from builders.jobs import a_new_job, failed, ok
from builders.stores import LEASE, POLICY, accept, claim_one, settle
from ductile.store.model.jobs import Submission
from ductile.store.notifier import (
    Change,
    DeliveriesDue,
    JobEnded,
    JobsEnqueued,
    JobsReady,
    LedgerAppended,
    RetryScheduled,
)
from ductile.store.port import Store

PUBLISHED: tuple[type[Change], ...] = (
    JobsEnqueued,
    JobsReady,
    JobEnded,
    RetryScheduled,
    DeliveriesDue,
    LedgerAppended,
)


def record(store: Store) -> list[Change]:
    """Collect every change that the store publishes from now on."""
    changes: list[Change] = []
    for change in PUBLISHED:
        store.notifier.subscribe(change, changes.append)
    return changes


async def test_a_submission_is_published_with_its_results_before_the_caller_resumes(store: Store) -> None:
    changes = record(store)
    results = await store.enqueue(Submission(jobs=(a_new_job(),)))
    assert changes[:-1] == [JobsReady(), LedgerAppended()]
    assert changes[-1] == JobsEnqueued(results=results)


async def test_one_commit_publishes_a_change_without_content_once(store: Store) -> None:
    changes = record(store)
    await store.enqueue(Submission(jobs=tuple(a_new_job() for _ in range(5))))
    assert changes.count(JobsReady()) == 1
    assert changes.count(LedgerAppended()) == 1


async def test_a_submission_is_published_when_its_caller_was_cancelled(store: Store) -> None:
    """The job is on disk: the dispatcher must learn of it."""
    published: asyncio.Future[JobsEnqueued] = asyncio.get_running_loop().create_future()
    store.notifier.subscribe(JobsEnqueued, published.set_result)
    caller = asyncio.create_task(store.enqueue(Submission(jobs=(a_new_job(),))))
    await asyncio.sleep(0)  # the submission is handed to the writer
    caller.cancel()
    async with asyncio.timeout(60):
        assert len((await published).results) == 1
    assert caller.cancelled()


async def test_a_claim_is_committed_when_its_caller_was_cancelled(store: Store) -> None:
    job_id = await accept(store, a_new_job())
    claimed = asyncio.Event()
    store.notifier.subscribe(LedgerAppended, lambda _: claimed.set())
    caller = asyncio.create_task(store.claim_by_id([job_id], owner="me", lease=LEASE))
    await asyncio.sleep(0)  # the claim is handed to the writer
    caller.cancel()
    async with asyncio.timeout(60):
        await claimed.wait()
    assert caller.cancelled()
    assert await store.claim_by_id([job_id], owner="me", lease=LEASE) == ()


ProcessResult = Callable[[Store, str], Coroutine[Any, Any, object]]


async def _settled(store: Store, job_id: str) -> None:
    job = await claim_one(store)
    assert job.id == job_id
    await settle(store, job, ok())


async def _cancelled(store: Store, job_id: str) -> None:
    await store.cancel(job_id, POLICY)


@pytest.mark.parametrize("end", [_settled, _cancelled])
async def test_the_end_of_a_job_is_published_whatever_ended_it(store: Store, end: ProcessResult) -> None:
    job_id = await accept(store, a_new_job())
    changes = record(store)
    await end(store, job_id)
    assert [change.job_id for change in changes if isinstance(change, JobEnded)] == [job_id]


async def test_a_retry_is_published_with_its_instant(store: Store) -> None:
    await accept(store, a_new_job(max_attempts=2))
    changes = record(store)
    settled = await settle(store, await claim_one(store), failed())
    due_at = settled.settlement.next_retry_at
    assert due_at is not None
    assert RetryScheduled(due_at=due_at) in changes
    assert not [change for change in changes if isinstance(change, JobEnded)]


async def test_an_ended_subscription_is_not_called(store: Store) -> None:
    changes: list[JobsReady] = []
    unsubscribe = store.notifier.subscribe(JobsReady, changes.append)
    unsubscribe()
    await accept(store, a_new_job())
    assert changes == []


async def test_a_callback_that_raises_keeps_neither_others_nor_the_caller_waiting(store: Store) -> None:
    raised: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context["message"]))

    def fail(_change: JobsReady) -> None:
        raise RuntimeError("a defect")

    changes: list[JobsReady] = []
    store.notifier.subscribe(JobsReady, fail)
    store.notifier.subscribe(JobsReady, changes.append)
    await accept(store, a_new_job())
    assert changes == [JobsReady()]
    assert raised == ["notification callback raised"]
