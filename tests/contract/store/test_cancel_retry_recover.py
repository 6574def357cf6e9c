"""Cancel, retry and the recovery after a crash."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from builders.jobs import Clock, a_new_job, a_route, an_id, emitted, failed, ok, some_policy, timed_out
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
from ductile.core.jobs.model import EndedEarly, Hold, JobReason, JobStatus, LedgerKind, Outcome, Requeued
from ductile.core.jobs.settlement import LogStatus
from ductile.store.model.jobs import CancelStatus, RetryResult
from ductile.store.model.maintenance import Retention
from ductile.store.model.records import JobFilter
from ductile.store.port import Store


async def test_a_queued_job_is_dead_at_once(store: Store, clock: Clock) -> None:
    job_id = await accept(store, a_new_job())
    assert (await store.cancel(job_id, POLICY)).status is CancelStatus.CANCELLED
    job = await stored(store, job_id)
    assert (job.status, job.reason, job.completed_at) == (JobStatus.DEAD, JobReason.CANCELLED, clock.now)
    assert await claim_all(store) == []
    assert await store.list_executions(job_id) == (), "it was never executed"
    assert (await path_of(store, job_id))[-1] == "queued>dead:cancelled"


async def test_a_job_that_waits_for_its_retry_can_be_cancelled(store: Store, clock: Clock) -> None:
    job_id = await accept(store, a_new_job())
    await run_next(store, failed())
    assert (await store.cancel(job_id, POLICY)).status is CancelStatus.CANCELLED
    clock.advance(hours=2)
    assert (await store.release_due()).count == 0
    assert (await stored(store, job_id)).next_retry_at is None


@pytest.mark.parametrize(
    "outcome",
    [
        ok(emitted(), state={"x": 1}, stdout="late"),
        failed(stdout="late"),
        timed_out(),
        Requeued(),
        EndedEarly(reason=JobReason.PLUGIN_REMOVED, error="the plugin echo is not active"),
    ],
    ids=["completed", "failed", "timed_out", "interrupted", "plugin_removed"],
)
async def test_a_running_job_ends_cancelled_whatever_it_answers(store: Store, outcome: Outcome) -> None:
    """The job is running until its process has ended. Its output is logged, and not applied."""
    policy = some_policy(a_route(source="echo"))
    job_id = await accept(store, a_new_job())
    running = await claim_one(store)
    assert (await store.cancel(job_id, policy)).status is CancelStatus.REQUESTED
    requested = await stored(store, job_id)
    assert requested.status is JobStatus.RUNNING
    assert requested.cancel_requested_at is not None
    settled = await settle(store, running, outcome, policy)
    assert settled.started == ()
    job = await stored(store, job_id)
    assert (job.status, job.reason) == (JobStatus.DEAD, JobReason.CANCELLED)
    assert await store.plugin_state("echo") is None
    (row,) = await store.list_executions(job_id)
    assert row.status is LogStatus.CANCELLED
    assert row.result == outcome.evidence.stdout
    assert len((await store.list_jobs(JobFilter(), limit=9)).rows) == 1


async def test_a_second_cancel_request_is_recorded_once(store: Store, clock: Clock) -> None:
    job_id = await accept(store, a_new_job())
    await claim_all(store)
    await store.cancel(job_id, POLICY)
    requested_at = (await stored(store, job_id)).cancel_requested_at
    clock.advance(seconds=9)
    assert (await store.cancel(job_id, POLICY)).status is CancelStatus.REQUESTED
    assert (await stored(store, job_id)).cancel_requested_at == requested_at
    kinds = [row.kind for row in await whole_ledger(store)]
    assert kinds.count(LedgerKind.JOB_CANCEL_REQUESTED) == 1


async def test_a_cancelled_job_is_dead_after_a_crash(store_factory: StoreFactory) -> None:
    """The request is durable, and recovery ends such jobs."""
    store = await store_factory.open()
    job_id = await accept(store, a_new_job())
    await claim_all(store)
    await store.cancel(job_id, POLICY)
    store = await store_factory.reopen()
    await store.recover(POLICY)
    assert (await stored(store, job_id)).reason is JobReason.CANCELLED


@pytest.mark.parametrize("outcome", [ok(), failed(permanent=True)], ids=["succeeded", "failed"])
async def test_an_ended_job_stays_as_it_is(store: Store, outcome: Outcome) -> None:
    await accept(store, a_new_job())
    job_id = (await run_next(store, outcome)).job_id
    before = await stored(store, job_id)
    assert (await store.cancel(job_id, POLICY)).status is CancelStatus.ALREADY_ENDED
    assert await stored(store, job_id) == before


async def test_an_unknown_job_is_neither_cancelled_nor_retried(store: Store) -> None:
    assert (await store.cancel("unknown", POLICY)).status is CancelStatus.UNKNOWN_JOB
    assert await store.retry("unknown", some_policy()) is RetryResult.UNKNOWN_JOB


# --------------------------------------------------------------------------------------------- retry


@pytest.mark.parametrize("permanent", [True, False], ids=["failed", "dead"])
async def test_a_manual_retry_has_fresh_attempts(store: Store, permanent: bool) -> None:
    """A failed or dead job is queued again with attempt 1."""
    job_id = await accept(store, a_new_job(max_attempts=1))
    await run_next(store, failed(permanent=permanent))
    assert await store.retry(job_id, some_policy()) is RetryResult.QUEUED
    job = await stored(store, job_id)
    assert (job.status, job.reason, job.hold) == (JobStatus.QUEUED, JobReason.MANUAL_RETRY, None)
    assert (job.attempt, job.completed_at, job.cancel_requested_at) == (1, None, None)
    assert (await path_of(store, job_id))[-1].endswith(">queued:manual_retry")
    await run_next(store, ok())
    assert (await stored(store, job_id)).status is JobStatus.SUCCEEDED


async def test_a_cancelled_job_can_be_retried_and_is_not_cancelled_again(store: Store) -> None:
    job_id = await accept(store, a_new_job())
    running = await claim_one(store)
    await store.cancel(job_id, POLICY)
    await settle(store, running, failed())
    assert await store.retry(job_id, some_policy()) is RetryResult.QUEUED
    await run_next(store, ok())
    assert (await stored(store, job_id)).status is JobStatus.SUCCEEDED


async def test_a_job_that_has_not_failed_is_not_retried(store: Store) -> None:
    job_id = await accept(store, a_new_job())
    assert await store.retry(job_id, some_policy()) is RetryResult.NOT_ENDED
    await claim_all(store)
    assert await store.retry(job_id, some_policy()) is RetryResult.NOT_ENDED
    running = await stored(store, job_id)
    await settle(store, running, ok())
    assert await store.retry(job_id, some_policy()) is RetryResult.SUCCEEDED


@pytest.mark.parametrize("running", [False, True], ids=["queued", "running"])
async def test_a_retry_that_was_requested_before_a_cancel_does_not_undo_it(
    store: Store, *, running: bool
) -> None:
    """Both requests wait for the writer. The job is live when the retry comes, so the retry is refused."""
    job_id = await accept(store, a_new_job())
    claims = await claim_all(store) if running else []
    retried, cancelled = await asyncio.gather(store.retry(job_id, POLICY), store.cancel(job_id, POLICY))
    for claim in claims:
        await settle(store, claim.job, ok())
    assert retried is RetryResult.NOT_ENDED
    assert cancelled.status is (CancelStatus.REQUESTED if running else CancelStatus.CANCELLED)
    job = await stored(store, job_id)
    assert (job.status, job.reason) == (JobStatus.DEAD, JobReason.CANCELLED)


async def test_a_retry_of_an_end_that_is_no_longer_the_last_changes_nothing(
    store: Store, clock: Clock
) -> None:
    """The caller has read the failed job. Meanwhile the job was retried, and cancelled with
    acknowledgement.
    """
    job_id = await accept(store, a_new_job())
    await run_next(store, failed(permanent=True))
    failed_job = await stored(store, job_id)
    clock.advance(seconds=1)
    assert await store.retry(job_id, POLICY, ended_at=failed_job.completed_at) is RetryResult.QUEUED
    await store.cancel(job_id, POLICY)
    assert (
        await store.retry(job_id, POLICY, ended_at=failed_job.completed_at) is RetryResult.CHANGED_SINCE_READ
    )
    job = await stored(store, job_id)
    assert (job.status, job.reason) == (JobStatus.DEAD, JobReason.CANCELLED)
    assert await store.retry(job_id, POLICY, ended_at=job.completed_at) is RetryResult.QUEUED


async def test_a_step_of_an_ended_run_is_not_retried_alone(store: Store) -> None:
    """Only the run can be retried."""
    await accept(store, a_new_job(run_id=an_id()))
    job_id = (await run_next(store, failed(permanent=True))).job_id
    assert await store.retry(job_id, some_policy()) is RetryResult.RUN_ENDED


async def test_after_retention_a_job_can_be_read_and_not_retried(store: Store, clock: Clock) -> None:
    await accept(store, a_new_job())
    job_id = (await run_next(store, ok())).job_id
    clock.advance(hours=25)
    await accept(store, a_new_job())
    await store.prune(Retention())
    assert await store.retry(job_id, some_policy()) is RetryResult.PRUNED
    assert (await store.cancel(job_id, POLICY)).status is CancelStatus.ALREADY_ENDED


# ------------------------------------------------------------------------------------------ recovery


async def test_orphans_go_back_with_one_attempt_spent(store: Store, clock: Clock) -> None:
    """The attempt is incremented, and the wait is a minute at most."""
    job_id = await accept(store, a_new_job())
    await claim_all(store)
    waiting = await accept(store, a_new_job())
    recovery = await store.recover(POLICY)
    assert [(job.id, job.status, job.reason, job.attempt) for job in recovery.jobs] == [
        (job_id, JobStatus.QUEUED, JobReason.RECOVERED, 2)
    ]
    job = await stored(store, job_id)
    assert (job.hold, job.suspect, job.attempt) == (Hold.RETRY, True, 2)
    assert job.next_retry_at is not None
    assert timedelta(0) < job.next_retry_at - clock.now <= timedelta(seconds=60)
    (row,) = await store.list_executions(job_id)
    assert row.status is LogStatus.ORPHANED
    assert row.duration is None  # its end was not observed
    assert (await stored(store, waiting)).attempt == 1
    assert (await path_of(store, job_id))[-1] == "running>queued:recovered"


async def test_an_exhausted_orphan_is_dead(store: Store) -> None:
    job_id = await accept(store, a_new_job(max_attempts=1))
    await claim_all(store)
    await store.recover(POLICY)
    job = await stored(store, job_id)
    assert (job.status, job.reason) == (JobStatus.DEAD, JobReason.ATTEMPTS_EXHAUSTED)
    assert (await path_of(store, job_id))[-2:] == [
        "running>failed:orphaned",
        "failed>dead:attempts_exhausted",
    ]


async def test_a_poison_job_is_bounded_by_its_attempts(store: Store, clock: Clock) -> None:
    """A job that kills the daemon each time ends dead."""
    poison = await accept(store, a_new_job(max_attempts=3))
    for _ in range(3):
        assert (await claim_one(store)).id == poison
        await store.recover(POLICY)
        clock.advance(minutes=2)
        await store.release_due()
    assert (await stored(store, poison)).status is JobStatus.DEAD
    assert len(await store.list_executions(poison)) == 3


async def test_the_jobs_of_a_lost_node_run_together_and_one_by_one_the_second_time(
    store: Store, clock: Clock
) -> None:
    """The first loss may be that of a machine. After the second loss, the jobs are suspects."""
    job_ids = {await accept(store, a_new_job()) for _ in range(3)}
    for expected in (3, 3, 1):
        claims = await claim_all(store)
        assert len(claims) == expected
        assert {claim.job.id for claim in claims} <= job_ids
        await store.recover(POLICY, on_node=True)
        clock.advance(minutes=2)
        await store.release_due()


async def test_recovering_twice_does_nothing_more(store: Store) -> None:
    await accept(store, a_new_job())
    await claim_all(store)
    await store.recover(POLICY)
    before = await whole_ledger(store)
    second = await store.recover(POLICY)
    assert (second.jobs, second.more) == ((), False)
    assert await whole_ledger(store) == before


async def test_recovery_is_swept(store: Store) -> None:
    await submit(store, *[a_new_job() for _ in range(501)])
    await claim_all(store)
    first, second = await store.recover(POLICY), await store.recover(POLICY)
    assert (len(first.jobs), first.more, len(second.jobs), second.more) == (500, True, 1, False)


async def test_the_key_of_an_orphan_goes_to_the_next(store: Store) -> None:
    first, second = [await accept(store, a_new_job(dedupe_key="key:a")) for _ in range(2)]
    await claim_all(store)
    await store.recover(POLICY)
    assert (await stored(store, first)).hold is Hold.RETRY
    assert (await claim_one(store)).id == second
