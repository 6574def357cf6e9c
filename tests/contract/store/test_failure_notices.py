"""Failures are recorded with the end of the job, and removed when the notice about them is created."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from builders.jobs import Clock, a_new_job, a_route, emitted, failed, ok, some_policy
from builders.stores import StoreFactory, accept, claim_all, claim_one, run_next, settle, stored
from ductile.core.jobs.failure_notices import NOTICE_DETAIL, NOTICE_EVENT
from ductile.core.jobs.model import Job, JobReason, JobStatus, SubmittedBy
from ductile.core.policy import FailureReceiver, Policy
from ductile.store.notifier import FailureRecorded
from ductile.store.port import Store
from ductile.struct import replace

RECEIVER = FailureReceiver(plugin="tell")
POLICY = replace(some_policy(), on_failure=RECEIVER)


async def fail_one(store: Store, policy: Policy = POLICY, **fields: str) -> str:
    job_id = await accept(store, a_new_job(**fields))
    await run_next(store, failed(permanent=True), policy)
    return job_id


async def next_notice(store: Store) -> tuple[Job, dict[str, Any]]:
    job = await claim_one(store)
    assert (job.plugin, job.command, job.submitted_by) == ("tell", "handle", SubmittedBy.HOOK)
    assert job.submitted_detail == NOTICE_DETAIL
    event = await store.get_event(job.source_event_id or "")
    assert event is not None
    assert event.type == NOTICE_EVENT
    return job, event.payload


async def test_the_first_failure_is_told_at_once_and_later_ones_together(store: Store, clock: Clock) -> None:
    first = await fail_one(store)
    assert await store.send_failure_notice(POLICY) is None
    notice, payload = await next_notice(store)
    assert payload["count"] == 1
    (failure,) = payload["failures"]
    assert failure["job_id"] == first
    await settle(store, notice, ok(), POLICY)
    sent_at = clock()
    for _ in range(12):
        clock.advance(seconds=1)
        await fail_one(store)
    assert await store.send_failure_notice(POLICY) == sent_at + timedelta(minutes=1)
    assert await claim_all(store) == []
    clock.advance(minutes=1)
    assert await store.send_failure_notice(POLICY) is None
    _, payload = await next_notice(store)
    assert (payload["count"], len(payload["failures"])) == (12, 10)
    assert payload["by_plugin"] == {"echo": {"count": 12, "reasons": {"plugin_error": 12}}}


async def test_failures_survive_a_restart_and_are_told_once(store_factory: StoreFactory) -> None:
    store = await store_factory.open()
    await fail_one(store)
    store = await store_factory.reopen()
    await store.send_failure_notice(POLICY)
    await store.send_failure_notice(POLICY)
    assert len(await claim_all(store)) == 1


async def test_a_notice_that_fails_causes_none_and_is_counted(store: Store, clock: Clock) -> None:
    await fail_one(store)
    await store.send_failure_notice(POLICY)
    notice, _ = await next_notice(store)
    await settle(store, notice, failed(permanent=True, error="no route"), POLICY)
    health = await store.notice_health()
    assert (health.failed, health.failed_job_id, health.error) == (1, notice.id, "no route")
    clock.advance(days=1)
    assert await store.send_failure_notice(POLICY) is None
    assert await claim_all(store) == []
    await fail_one(store)
    await store.send_failure_notice(POLICY)
    notice, _ = await next_notice(store)
    await settle(store, notice, ok(), POLICY)
    assert (await store.notice_health()).failed == 0


async def test_jobs_that_follow_from_a_notice_cause_none(store: Store) -> None:
    """Otherwise a route from the receiver to a broken plugin would be a loop."""
    policy = replace(some_policy(a_route("sent", source="tell", to="broken")), on_failure=RECEIVER)
    await fail_one(store, policy)
    await store.send_failure_notice(policy)
    notice, _ = await next_notice(store)
    await settle(store, notice, ok(emitted("sent")), policy)
    follower = await claim_one(store)
    assert follower.parent_job_id == notice.id
    await settle(store, follower, failed(permanent=True), policy)
    assert (await store.notice_health()).waiting == 0


async def test_requested_ends_and_retries_are_not_told(store: Store) -> None:
    job_id = await accept(store, a_new_job())
    await store.cancel(job_id, POLICY)
    await accept(store, a_new_job(max_attempts=2))
    await run_next(store, failed(), POLICY)
    await accept(store, a_new_job("gone"))
    await store.end_queued(JobReason.PLUGIN_REMOVED, POLICY, plugins=["gone"])
    assert (await store.notice_health()).waiting == 0


async def test_a_receiver_that_is_disabled_waits_and_one_that_is_removed_forgets(store: Store) -> None:
    await fail_one(store)
    closed = replace(POLICY, on_failure=replace(RECEIVER, accepts_jobs=False))
    assert await store.send_failure_notice(closed) is None
    assert (await store.notice_health()).waiting == 1
    await store.send_failure_notice(replace(POLICY, on_failure=None))
    assert (await store.notice_health()).waiting == 0


async def test_without_a_receiver_nothing_is_recorded(store: Store) -> None:
    job_id = await fail_one(store, some_policy())
    assert (await stored(store, job_id)).status is JobStatus.FAILED
    assert (await store.notice_health()).waiting == 0


async def test_a_failure_says_when_its_notice_is_due(store: Store, clock: Clock) -> None:
    recorded: list[FailureRecorded] = []
    store.notifier.subscribe(FailureRecorded, recorded.append)
    await fail_one(store)
    assert recorded[0].due_at <= clock()
    await store.send_failure_notice(POLICY)
    await run_next(store, ok(), POLICY)
    sent_at = clock()
    clock.advance(seconds=5)
    await fail_one(store)
    assert recorded[1].due_at == sent_at + timedelta(minutes=1)
