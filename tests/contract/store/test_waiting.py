"""Holds: which job a job waits for, and the change that releases it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from builders.jobs import Clock, a_new_job, an_id, failed, ok
from builders.stores import POLICY, accept, claim_all, claim_one, run_next, settle, stored, submit
from ductile.core.jobs.failures import RetryPolicy
from ductile.core.jobs.model import Hold, JobReason, JobStatus, Requeued
from ductile.core.policy import PluginPolicy, Policy
from ductile.store.model.jobs import Accepted
from ductile.store.port import Store


def waiting_always(span: timedelta) -> Policy:
    """Return a policy with which every retry waits for exactly this span."""
    even = PluginPolicy(retry=RetryPolicy(backoff_base=span, backoff_max=span))
    return Policy(plugins={"echo": even, "other": even})


EVEN = waiting_always(timedelta(seconds=30))


async def test_a_retry_is_released_when_it_is_due_and_not_before(store: Store, clock: Clock) -> None:
    job_id = await accept(store, a_new_job())
    await run_next(store, failed())
    due = (await stored(store, job_id)).next_retry_at
    assert due is not None
    clock.now = due - timedelta(microseconds=1)
    early = await store.release_due()
    assert (early.count, early.next_due_at) == (0, due)
    clock.now = due
    assert (await store.release_due()).count == 1
    job = await stored(store, job_id)
    assert (job.hold, job.next_retry_at) == (None, None)
    assert (await store.release_due()).next_due_at is None


async def test_next_due_is_the_earliest_of_all(store: Store) -> None:
    ids = [await accept(store, a_new_job()) for _ in range(4)]
    for _ in ids:
        await run_next(store, failed())
    times = [(await stored(store, job_id)).next_retry_at for job_id in ids]
    assert (await store.release_due()).next_due_at == min(time for time in times if time)


async def test_no_wait_outlasts_the_span_it_was_drawn_from(store: Store, clock: Clock) -> None:
    """After the clock was set back, waits are shortened to their original span."""
    ids = [await accept(store, a_new_job()) for _ in range(3)]
    spans = []
    for job_id in ids:
        await run_next(store, failed())
        due = (await stored(store, job_id)).next_retry_at
        assert due is not None
        spans.append(due - clock.now)
    assert await store.shorten_waits() == 0, "nothing is wrong yet"
    clock.advance(days=-2)
    assert await store.shorten_waits() == len(ids)
    for job_id, span in zip(ids, spans, strict=True):
        due = (await stored(store, job_id)).next_retry_at
        assert due is not None
        assert abs(due - clock.now - span) <= timedelta(milliseconds=1)
    assert await store.shorten_waits() == 0
    clock.advance(minutes=1)
    assert (await store.release_due()).count == len(ids)


@pytest.mark.parametrize("wait", [timedelta(0), timedelta(microseconds=50), timedelta(days=3650)])
async def test_any_span_can_be_clamped(store: Store, clock: Clock, wait: timedelta) -> None:
    job_id = await accept(store, a_new_job())
    await run_next(store, failed(), waiting_always(wait))
    clock.advance(days=-30)
    assert await store.shorten_waits() == 1
    due = (await stored(store, job_id)).next_retry_at
    assert due is not None
    assert abs(due - clock.now - wait) <= timedelta(milliseconds=1)


# ---------------------------------------------------------------------------------------------- keys


async def test_the_next_of_a_key_goes_when_a_ready_holder_is_cancelled(store: Store) -> None:
    first, second = [await accept(store, a_new_job(dedupe_key="key:a")) for _ in range(2)]
    await store.cancel(first, POLICY)
    assert (await claim_one(store)).id == second


async def test_a_cancelled_follower_leaves_the_others_waiting(store: Store) -> None:
    first, second, third = [await accept(store, a_new_job(dedupe_key="key:a")) for _ in range(3)]
    await store.cancel(second, POLICY)
    assert (await claim_one(store)).id == first
    assert (await stored(store, third)).hold is Hold.KEY


async def test_an_interrupted_holder_keeps_its_key(store: Store) -> None:
    first, second = [await accept(store, a_new_job(dedupe_key="key:a")) for _ in range(2)]
    await run_next(store, Requeued())
    assert (await stored(store, second)).hold is Hold.KEY
    assert [claim.job.id for claim in await claim_all(store)] == [first]


async def test_a_manual_retry_waits_for_its_key(store: Store) -> None:
    first = await accept(store, a_new_job(dedupe_key="key:a"))
    await run_next(store, failed(permanent=True))
    second = await accept(store, a_new_job(dedupe_key="key:a"))
    await store.retry(first, POLICY)
    assert (await stored(store, first)).hold is Hold.KEY
    assert (await run_next(store, ok())).job_id == second
    assert (await claim_one(store)).id == first


# -------------------------------------------------------------------------------------- predecessors


async def test_a_successor_waits_until_its_predecessor_has_ended(store: Store, clock: Clock) -> None:
    """`if_running: cancel` enqueues the new job with a hold until the old one has ended."""
    old = await accept(store, a_new_job())
    running = await claim_one(store)
    (new,) = await submit(store, a_new_job(after_job_id=old))
    assert isinstance(new, Accepted)
    assert not new.ready
    assert (await stored(store, new.job_id)).hold is Hold.PREDECESSOR
    await store.cancel(old, POLICY)
    assert await claim_all(store) == []
    await settle(store, running, failed())
    assert (await stored(store, old)).status is JobStatus.DEAD
    clock.advance(seconds=1)
    assert (await claim_one(store)).id == new.job_id


async def test_a_predecessor_that_waits_for_its_retry_has_not_ended(store: Store, clock: Clock) -> None:
    old = await accept(store, a_new_job(max_attempts=2))
    new = await accept(store, a_new_job(after_job_id=old))
    await run_next(store, failed())
    assert (await stored(store, new)).hold is Hold.PREDECESSOR
    clock.advance(minutes=1)
    await store.release_due()
    await run_next(store, failed())
    assert (await claim_one(store)).id == new


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "unknown"])
async def test_no_job_waits_for_one_that_has_ended_or_never_was(store: Store, ended: bool) -> None:
    old = an_id()
    if ended:
        old = await accept(store, a_new_job())
        await run_next(store, ok())
    (new,) = await submit(store, a_new_job(after_job_id=old))
    assert isinstance(new, Accepted)
    assert new.ready


async def test_a_successor_with_a_taken_key_waits_on(store: Store) -> None:
    old = await accept(store, a_new_job())
    new = await accept(store, a_new_job(after_job_id=old, dedupe_key="key:a"))
    holder = await accept(store, a_new_job(dedupe_key="key:a"))
    assert (await run_next(store, ok())).job_id == old
    assert (await stored(store, new)).hold is Hold.KEY
    assert (await run_next(store, ok())).job_id == holder
    assert (await claim_one(store)).id == new


# ------------------------------------------------------------------------------------------ suspects


async def crash(store: Store, clock: Clock, *jobs: str) -> None:
    """Recover all running jobs, and wait for their retry time."""
    moved = await store.recover(EVEN)
    assert {job.id for job in moved.jobs} == set(jobs)
    clock.advance(seconds=61)
    await store.release_due()


async def test_suspects_of_a_crash_start_one_at_a_time(store: Store, clock: Clock) -> None:
    """Each has to finish once. Jobs that did not run at the crash do not wait."""
    ids = [await accept(store, a_new_job()) for _ in range(3)]
    await claim_all(store)
    await crash(store, clock, *ids)
    innocent = await accept(store, a_new_job("other"))
    claimed_ids = []
    for _ in ids:
        claims = await claim_all(store)
        suspects = [claim.job for claim in claims if claim.job.id != innocent]
        assert len(suspects) == 1
        claimed_ids += [job.id for job in suspects]
        for claim in claims:
            await settle(store, claim.job, ok())
    assert claimed_ids == ids
    assert await claim_all(store) == []


async def test_a_suspect_that_failed_is_none_any_more(store: Store, clock: Clock) -> None:
    """It has finished once, so its retry is like any other."""
    ids = [await accept(store, a_new_job()) for _ in range(2)]
    await claim_all(store)
    await crash(store, clock, *ids)
    await run_next(store, failed())
    clock.advance(minutes=2)
    await store.release_due()
    assert {claim.job.id for claim in await claim_all(store)} == set(ids)


async def test_a_suspect_that_was_interrupted_is_still_one(store: Store, clock: Clock) -> None:
    """It has not finished, so the next suspect waits."""
    first, second = [await accept(store, a_new_job()) for _ in range(2)]
    await claim_all(store)
    await crash(store, clock, first, second)
    await run_next(store, Requeued())
    assert [claim.job.id for claim in await claim_all(store)] == [first]


async def test_a_cancelled_suspect_lets_the_next_go(store: Store, clock: Clock) -> None:
    first, second = [await accept(store, a_new_job()) for _ in range(2)]
    await claim_all(store)
    await crash(store, clock, first, second)
    await store.cancel(first, POLICY)
    assert (await claim_one(store)).id == second


async def test_a_suspect_with_a_taken_key_does_not_hold_up_other_suspects(store: Store, clock: Clock) -> None:
    """A job that waits for its key does not start soon: the next suspect must not wait for it."""
    first = await accept(store, a_new_job())
    keyed = await accept(store, a_new_job(dedupe_key="key:a"))
    third = await accept(store, a_new_job())
    await claim_all(store)
    await crash(store, clock, first, keyed, third)
    holder = await accept(store, a_new_job(dedupe_key="key:a"))
    active, _ = (claim.job for claim in await claim_all(store))
    assert active.id == first
    await settle(store, active, ok())
    assert (await stored(store, holder)).status is JobStatus.RUNNING
    assert (await stored(store, keyed)).hold is Hold.KEY
    assert [claim.job.id for claim in await claim_all(store)] == [third]


async def test_a_follower_goes_when_the_one_before_it_is_held_otherwise(store: Store, clock: Clock) -> None:
    """No job waits for a key without a holder, whatever happens to the first waiting job."""
    blocker = await accept(store, a_new_job("other"))
    suspect = await accept(store, a_new_job(dedupe_key="key:a"))
    await claim_all(store)
    await store.recover(EVEN)
    holder = await accept(store, a_new_job(dedupe_key="key:a"))
    follower = await accept(store, a_new_job(dedupe_key="key:a"))
    clock.advance(seconds=61)
    await store.release_due()
    assert (await stored(store, suspect)).hold is Hold.KEY
    running = {claim.job.id: claim.job for claim in await claim_all(store)}
    assert set(running) == {blocker, holder}
    await settle(store, running[holder], ok())
    await store.cancel(suspect, POLICY)
    assert (await claim_one(store)).id == follower


# ------------------------------------------------------------------------------------- ending queued


async def test_queued_jobs_of_plugins_are_ended(store: Store) -> None:
    """Queued jobs of a removed plugin are dead with reason `plugin_removed`; running ones are not changed."""
    running = await accept(store, a_new_job("gone"))
    await claim_all(store)
    gone_id = await accept(store, a_new_job("gone"))
    kept_id = await accept(store, a_new_job("kept"))
    result = await store.end_queued(JobReason.PLUGIN_REMOVED, POLICY, plugins=["gone"])
    assert [(job.id, job.status, job.reason) for job in result.jobs] == [
        (gone_id, JobStatus.DEAD, JobReason.PLUGIN_REMOVED)
    ]
    assert not result.more
    assert (await stored(store, running)).status is JobStatus.RUNNING
    assert (await stored(store, kept_id)).status is JobStatus.QUEUED


@pytest.mark.parametrize(
    ("plugins", "keep", "expected"),
    [
        (["a"], True, {"a"}),
        ([], True, set()),
        ([], False, {"a", "b"}),
        (None, False, set()),
        (["a", "b", "c"], True, {"a", "b"}),
    ],
)
async def test_keep_inverts_the_list_of_plugins(
    store: Store, plugins: list[str] | None, keep: bool, expected: set[str]
) -> None:
    ids = {plugin: await accept(store, a_new_job(plugin)) for plugin in ("a", "b")}
    await store.end_queued(JobReason.PURGED, POLICY, plugins=plugins, keep=keep)
    queued = {
        plugin for plugin, job_id in ids.items() if (await stored(store, job_id)).status is JobStatus.QUEUED
    }
    assert queued == expected


async def test_ending_all_ends_waiting_jobs_too(store: Store, clock: Clock) -> None:
    await accept(store, a_new_job())
    await run_next(store, failed())
    old = await accept(store, a_new_job(dedupe_key="key:a"))
    await accept(store, a_new_job(dedupe_key="key:a"))
    await accept(store, a_new_job(after_job_id=old))
    result = await store.end_queued(JobReason.PURGED, POLICY)
    assert len(result.jobs) == 4
    assert (await store.queue_counts()).depth == 0
    clock.advance(hours=1)
    assert (await store.release_due()).count == 0
    assert await claim_all(store) == []


async def test_large_queues_are_ended_in_sweeps(store: Store) -> None:
    """A transaction ends 500 jobs at most; `more` says that another one is needed."""
    await submit(store, *[a_new_job() for _ in range(501)])
    first = await store.end_queued(JobReason.PURGED, POLICY)
    assert (len(first.jobs), first.more) == (500, True)
    second = await store.end_queued(JobReason.PURGED, POLICY)
    assert (len(second.jobs), second.more) == (1, False)


async def test_five_hundred_and_more_successors_all_move_on(store: Store) -> None:
    """The end of a job releases all jobs that wait for it."""
    old = await accept(store, a_new_job("other"))
    await submit(store, *[a_new_job(after_job_id=old) for _ in range(501)])
    await run_next(store, ok())
    assert (await store.queue_counts()).ready == 501
