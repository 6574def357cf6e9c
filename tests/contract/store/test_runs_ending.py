"""Cancelling, recovering and retrying runs."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from builders.jobs import Clock, an_id, emitted, failed, ok
from builders.pipelines import (
    a_new_run,
    all_members,
    begin_run,
    claims_by_step,
    end_of,
    enqueue_run,
    members,
    payload_of,
    policy_of,
    run_until_idle,
    settle_step,
    split,
    steps_policy,
    uses,
)
from builders.stores import StoreFactory, claim_all, path_of, settle, stored
from ductile.core.jobs.model import JobReason, JobStatus, Outcome, Requeued
from ductile.core.policy import Policy
from ductile.core.timestamps import format_timestamp
from ductile.store.model.jobs import Accepted, CancelStatus, RetryResult
from ductile.store.port import Priority, Store
from ductile.struct import replace

DEAD = (JobStatus.DEAD, JobReason.CANCELLED)
SUCCEEDED = (JobStatus.SUCCEEDED, JobReason.COMPLETED)
PARTIAL = (JobStatus.FAILED, JobReason.PARTIAL_SUCCESS)
NO = failed(permanent=True)


# ------------------------------------------------------------------------------------------------- cancelling


async def test_a_run_without_a_first_step_is_dead_at_once(store: Store) -> None:
    """Nothing was claimed, so there is no transition to running."""
    policy = steps_policy(split("s", uses("x"), uses("y")))
    run_id = await begin_run(store, policy)
    result = await store.cancel(run_id, policy)
    assert (result.status, result.stopping, result.more) == (CancelStatus.CANCELLED, (), False)
    assert [job.status for job in result.ended] == [JobStatus.DEAD] * 3
    assert await end_of(store, run_id) == DEAD
    assert await path_of(store, run_id) == [">queued:submitted", "queued>dead:cancelled"]
    assert await claim_all(store) == []


async def test_a_cancelled_run_waits_for_what_runs_and_starts_nothing(store: Store) -> None:
    """Queued steps are dead at once, and running ones when their process has ended."""
    policy = steps_policy(split("s", uses("x"), uses("y", plugin="q"), join="always"), uses("after"))
    run_id = await begin_run(store, policy)
    (claim,) = await claim_all(store, limit=1)
    result = await store.cancel(run_id, policy)
    assert (result.status, result.stopping) == (CancelStatus.REQUESTED, (claim.job.id,))
    assert [job.plugin for job in result.ended] == ["q"]
    assert (await stored(store, run_id)).status is JobStatus.RUNNING
    settled = await settle(store, claim.job, ok(emitted()), policy)
    assert settled.settlement.reason is JobReason.CANCELLED
    assert await claim_all(store) == []
    assert await end_of(store, run_id) == DEAD
    assert {job.status for job in await all_members(store, run_id)} == {JobStatus.DEAD}
    second = await store.cancel(run_id, policy)
    assert second.status is CancelStatus.ALREADY_ENDED


async def test_a_step_is_cancelled_by_itself_and_its_run_goes_on(store: Store) -> None:
    policy = steps_policy(split("s", uses("x"), uses("y"), join="always"), uses("after"))
    run_id = await begin_run(store, policy)
    await store.cancel((await members(store, run_id))["s/x"].id, policy)
    assert await run_until_idle(store, policy) == ["s/y", "after"]
    assert await end_of(store, run_id) == PARTIAL


async def test_a_large_run_is_cancelled_in_sweeps(store_factory: StoreFactory) -> None:
    """A sweep has at most 500 rows; a crash between two sweeps changes nothing."""
    store = await store_factory.open()
    policy = steps_policy(uses("a"), uses("b"))
    run_id = await begin_run(store, policy)
    await settle_step(store, policy, "a", ok(*(emitted() for _ in range(700))))
    first = await store.cancel(run_id, policy)
    assert (len(first.ended), first.more, first.status) == (500, True, CancelStatus.REQUESTED)
    store = await store_factory.reopen()
    recovery = await store.recover(policy)
    assert (len(recovery.jobs), recovery.more) == (201, False)
    assert await end_of(store, run_id) == DEAD


async def test_a_deadline_cancels_a_run(store: Store, clock: Clock) -> None:
    """The deadline is stored with the run, so it also holds after a restart. It cancels once."""
    policy = steps_policy(uses("a"), uses("b"))
    due = clock.now + timedelta(seconds=30)
    runs = [replace(a_new_run(policy), deadline_at=due + timedelta(seconds=wait)) for wait in (0, 0, 60)]
    for run in runs:
        await enqueue_run(store, policy, run)
    early = await store.cancel_overdue(policy)
    assert (early.cancelled, early.next_due_at) == ((), due)
    (claim,) = await claim_all(store, limit=1)
    clock.advance(seconds=30)
    overdue = await store.cancel_overdue(policy)
    assert [cancelled.status for cancelled in overdue.cancelled] == [
        CancelStatus.REQUESTED,
        CancelStatus.CANCELLED,
    ]
    assert overdue.cancelled[0].stopping == (claim.job.id,)
    assert overdue.next_due_at == due + timedelta(seconds=60)
    assert (await store.cancel_overdue(policy)).cancelled == ()
    await settle(store, claim.job, Requeued(), policy)
    assert await end_of(store, runs[0].job.id) == DEAD
    await run_until_idle(store, policy)
    assert await end_of(store, runs[2].job.id) == SUCCEEDED
    assert (await store.cancel_overdue(policy)).next_due_at is None


async def test_a_clock_set_back_gives_a_run_no_more_time(store: Store, clock: Clock) -> None:
    """After a jump of the clock the remaining time of a run is shortened like other waiting times."""
    policy = steps_policy(uses("a"))
    wait = timedelta(seconds=30)
    await enqueue_run(store, policy, replace(a_new_run(policy), deadline_at=clock.now + wait))
    assert await store.shorten_waits() == 0
    clock.advance(hours=-3)
    assert await store.shorten_waits() == 1
    due_at = (await store.cancel_overdue(policy)).next_due_at
    assert due_at is not None
    assert abs(due_at - clock.now - wait) <= timedelta(milliseconds=1)
    assert await store.shorten_waits() == 0


# -------------------------------------------------------------------------------------------------- recovery


async def test_a_run_is_neither_put_back_nor_charged_after_a_crash(store_factory: StoreFactory) -> None:
    """Only its steps have processes and attempts."""
    store = await store_factory.open()
    policy = steps_policy(split("s", uses("x"), uses("y")), uses("after"))
    run_id = await begin_run(store, policy)
    await claim_all(store, limit=1)
    store = await store_factory.reopen()
    recovery = await store.recover(policy)
    assert [(job.plugin, job.reason) for job in recovery.jobs] == [("p", JobReason.RECOVERED)]
    run = await stored(store, run_id)
    assert (run.status, run.attempt, run.execution) == (JobStatus.RUNNING, 1, 1)
    store_factory.clock.advance(minutes=2)
    await store.release_due()
    assert sorted(await run_until_idle(store, policy)) == ["after", "s/x", "s/y"]
    assert await end_of(store, run_id) == SUCCEEDED


async def test_a_step_whose_attempts_a_crash_uses_up_ends_its_line(store_factory: StoreFactory) -> None:
    store = await store_factory.open()
    policy = steps_policy(uses("a", retry={"max_attempts": 1}))
    run_id = await begin_run(store, policy)
    await claim_all(store)
    store = await store_factory.reopen()
    recovery = await store.recover(policy)
    assert [job.status for job in recovery.jobs] == [JobStatus.DEAD, JobStatus.FAILED]
    assert await end_of(store, run_id) == (JobStatus.FAILED, JobReason.STEP_FAILED)


async def test_recovery_finishes_a_cancel(store_factory: StoreFactory) -> None:
    """Recovery ends cancelled jobs as dead."""
    store = await store_factory.open()
    policy = steps_policy(split("s", uses("x"), uses("y")), uses("after"))
    run_id = await begin_run(store, policy)
    await claim_all(store)
    await store.cancel(run_id, policy)
    store = await store_factory.reopen()
    assert not (await store.recover(policy)).more
    assert await end_of(store, run_id) == DEAD


# --------------------------------------------------------------------------------------------- trying again


async def test_a_failed_run_is_tried_again_in_its_place(store: Store) -> None:
    """It keeps its id, and its succeeded steps do not run again."""
    policy = steps_policy(uses("a"), uses("b"), uses("c"))
    run_id = await begin_run(store, policy)
    await settle_step(store, policy, "a")
    await settle_step(store, policy, "b", NO)
    assert await store.retry(run_id, policy) is RetryResult.QUEUED
    assert await end_of(store, run_id) == (JobStatus.QUEUED, JobReason.MANUAL_RETRY)
    assert (await members(store, run_id))["b"].attempt == 1
    assert await run_until_idle(store, policy) == ["b", "c"]
    assert await end_of(store, run_id) == SUCCEEDED
    assert [row.execution for row in await store.list_executions(run_id)] == [1, 2]


async def test_a_step_of_an_ended_run_is_not_tried_again_by_itself(store: Store) -> None:
    """Only the run can be retried."""
    policy = steps_policy(uses("a"))
    run_id = await begin_run(store, policy)
    await settle_step(store, policy, "a", NO)
    step = (await members(store, run_id))["a"]
    assert await store.retry(step.id, policy) is RetryResult.RUN_ENDED


async def test_a_step_of_a_live_run_is_tried_again_by_itself(store: Store) -> None:
    """Its line is live again, and so is the split that its failure had broken."""
    line = {"id": "l", "split": [split("s", uses("x"), uses("y")), uses("z", plugin="q")]}
    policy = steps_policy(line, uses("after"))
    run_id = await begin_run(store, policy)
    claims = await claims_by_step(store)
    await settle(store, claims["l/s/x"].job, NO, policy)
    await settle(store, claims["l/s/y"].job, ok(), policy)
    assert await store.retry(claims["l/s/x"].job.id, policy) is RetryResult.QUEUED
    await settle_step(store, policy, "l/s/x")
    await settle(store, claims["l/z"].job, ok(), policy)
    joined = (await claims_by_step(store))["after"]
    assert [branch["status"] for branch in payload_of(joined)["branches"]] == ["succeeded"] * 2
    await settle(store, joined.job, ok(), policy)
    assert await end_of(store, run_id) == SUCCEEDED


async def test_a_broken_split_is_whole_again_after_a_retry(store: Store) -> None:
    """Both failed branches are live, and the join runs once, after both have succeeded."""
    policy = steps_policy(split("s", uses("x"), uses("y"), uses("z")), uses("after"))
    run_id = await begin_run(store, policy)
    outcomes: dict[str, Outcome] = {"s/x": NO, "s/y": NO}
    await run_until_idle(store, policy, outcomes)
    assert await end_of(store, run_id) == PARTIAL
    await store.retry(run_id, policy)
    assert await run_until_idle(store, policy) == ["s/x", "s/y", "after"]
    assert await end_of(store, run_id) == SUCCEEDED


async def test_a_retry_that_fails_again_breaks_the_split_again(store: Store) -> None:
    policy = steps_policy(split("s", uses("x"), uses("y")), uses("after"))
    run_id = await begin_run(store, policy)
    await run_until_idle(store, policy, {"s/x": NO})
    for _ in range(2):
        await store.retry(run_id, policy)
        assert await run_until_idle(store, policy, {"s/x": NO}) == ["s/x"]
        assert await end_of(store, run_id) == PARTIAL
    await store.retry(run_id, policy)
    assert await run_until_idle(store, policy) == ["s/x", "after"]
    assert await end_of(store, run_id) == SUCCEEDED


async def test_a_join_that_ran_does_not_run_again(store: Store) -> None:
    """The branch is retried after its join has run without it, and the run ends."""
    outer = split("o", split("s", uses("x"), uses("y"), join="always"), uses("z"))
    policy = steps_policy(outer, uses("after"))
    run_id = await begin_run(store, policy)
    await run_until_idle(store, policy, {"o/s/x": NO})
    assert await end_of(store, run_id) == PARTIAL
    await store.retry(run_id, policy)
    assert await run_until_idle(store, policy) == ["o/s/x"]
    assert await end_of(store, run_id) == SUCCEEDED


async def test_a_branch_and_what_came_after_its_join_can_both_be_tried_again(store: Store) -> None:
    policy = steps_policy(split("s", uses("x"), uses("y"), join="always"), uses("after"), uses("end"))
    run_id = await begin_run(store, policy)
    await run_until_idle(store, policy, {"s/x": NO, "after": NO})
    await store.retry(run_id, policy)
    assert sorted(await run_until_idle(store, policy)) == ["after", "end", "s/x"]
    assert await end_of(store, run_id) == SUCCEEDED


async def test_a_cancelled_run_is_taken_up_where_it_was(store: Store) -> None:
    policy = steps_policy(uses("a"), split("s", uses("x"), uses("y")), uses("after"))
    run_id = await begin_run(store, policy)
    await settle_step(store, policy, "a")
    claims = await claims_by_step(store)
    await settle(store, claims["s/x"].job, ok(), policy)
    await store.cancel(run_id, policy)
    await settle(store, claims["s/y"].job, ok(), policy)
    assert await end_of(store, run_id) == DEAD
    await store.retry(run_id, policy)
    assert await run_until_idle(store, policy) == ["s/y", "after"]
    assert await end_of(store, run_id) == SUCCEEDED


@pytest.mark.parametrize("crashes", [False, True], ids=["alive", "killed"])
async def test_a_step_of_a_run_that_is_being_cancelled_is_not_retried(
    store_factory: StoreFactory, *, crashes: bool
) -> None:
    """The cancel was acknowledged: nothing of the run starts again, also after a crash."""
    store = await store_factory.open()
    policy = steps_policy(split("s", uses("x"), uses("y"), uses("z")), uses("after"))
    run_id = await begin_run(store, policy)
    failing, running = await claim_all(store, limit=2)
    await settle(store, failing.job, NO, policy)
    assert (await store.cancel(run_id, policy)).status is CancelStatus.REQUESTED
    for step in await all_members(store, run_id):
        expected = RetryResult.NOT_ENDED if step.id == running.job.id else RetryResult.RUN_CANCELLED
        assert await store.retry(step.id, policy) is expected
    if crashes:
        store = await store_factory.reopen()
        await store.recover(policy)
    else:
        await settle(store, running.job, ok(emitted()), policy)
    assert await claim_all(store) == []
    assert await end_of(store, run_id) == DEAD


async def test_a_step_that_succeeded_while_its_run_was_cancelled_goes_on_after_a_retry(
    store_factory: StoreFactory,
) -> None:
    """A settlement in a cancelled run creates no jobs. The retry of the run creates them."""
    store = await store_factory.open()
    policy = steps_policy(split("s", uses("x"), uses("y")), uses("after"))
    run_id = await begin_run(store, policy)
    claims = await claims_by_step(store)
    run = await stored(store, run_id)
    # Only the run carries the request, as in stores where a step could be retried meanwhile.
    await store.run_write(
        Priority.SETTLE,
        lambda session: session.execute("request_cancel", seq=run.seq, at=format_timestamp(run.created_at)),
    )
    await settle(store, claims["s/x"].job, ok(emitted("e", {"n": 1}), emitted("e", {"n": 2})), policy)
    await store.cancel(run_id, policy)
    await settle(store, claims["s/y"].job, ok(), policy)
    assert await end_of(store, run_id) == DEAD
    await store.retry(run_id, policy)
    await settle_step(store, policy, "s/y")
    joined = (await claims_by_step(store))["after"]
    branch = payload_of(joined)["branches"][0]
    assert (branch["status"], [payload["n"] for payload in branch["payloads"]]) == ("succeeded", [1, 2])
    await settle(store, joined.job, ok(), policy)
    assert await end_of(store, run_id) == SUCCEEDED


async def test_a_step_that_cannot_be_made_cannot_be_tried_again(store: Store) -> None:
    """Its input stays the same, so it would fail in the same way."""
    policy = steps_policy(split("s", uses("x", with_={"v": "{payload.gone}"}), uses("y")), uses("after"))
    run_id = await begin_run(store, policy)
    unmade = (await members(store, run_id))["s/x"].id
    assert await store.retry(unmade, policy) is RetryResult.NOT_RETRYABLE
    await run_until_idle(store, policy)
    assert await store.retry(run_id, policy) is RetryResult.NOT_RETRYABLE


@pytest.mark.parametrize("step", ["live", "succeeded"])
async def test_runs_that_cannot_be_tried_again(store: Store, step: str) -> None:
    policy = steps_policy(uses("a"))
    run_id = await begin_run(store, policy)
    if step == "succeeded":
        await run_until_idle(store, policy)
    expected = RetryResult.SUCCEEDED if step == "succeeded" else RetryResult.NOT_ENDED
    assert await store.retry(run_id, policy) is expected


async def test_a_retried_run_waits_for_its_live_twin(store: Store) -> None:
    policy = steps_policy(uses("a"))
    first = await begin_run(store, policy, dedupe_key="k")
    await settle_step(store, policy, "a", NO)
    second = await begin_run(store, policy, dedupe_key="k")
    await store.retry(first, policy)
    (claim,) = await claim_all(store)
    assert claim.job.run_id == second
    # The one that waits is cancelled and tried again while the other still runs.
    await store.cancel(first, policy)
    await store.retry(first, policy)
    assert await claim_all(store) == []
    await settle(store, claim.job, NO, policy)
    assert await run_until_idle(store, policy) == ["a"]
    assert await end_of(store, first) == SUCCEEDED


@pytest.mark.parametrize("way", ["its step fails", "no node may run its step"])
async def test_a_run_does_not_wait_again_for_a_twin_that_waits_for_it(
    store: Store, clock: Clock, way: str
) -> None:
    """Otherwise each would wait for the other for ever."""
    policy = steps_policy(uses("a"))
    first = await begin_run(store, policy, dedupe_key="k")
    second = await begin_run(store, policy, dedupe_key="k")
    await settle_step(store, policy, "a", NO)
    if way == "its step fails":
        await settle_step(store, policy, "a", failed())
    else:
        await store.place_jobs((), policy, max_hold=timedelta(hours=1))
    assert await store.retry(first, policy) is RetryResult.QUEUED
    clock.advance(minutes=2)
    await store.release_due()
    await store.place_jobs(None, policy, max_hold=timedelta(hours=1))
    (claim,) = await claim_all(store)
    assert claim.job.run_id == second
    await settle(store, claim.job, ok(), policy)
    assert await end_of(store, second) == SUCCEEDED
    assert await run_until_idle(store, policy) == ["a"]
    assert await end_of(store, first) == SUCCEEDED


async def test_a_retried_step_does_not_wait_for_a_twin_that_waits_for_its_run(store: Store) -> None:
    policy = steps_policy(split("s", uses("x"), uses("y", plugin="q")))
    first = await begin_run(store, policy, dedupe_key="k")
    second = await begin_run(store, policy, dedupe_key="k")
    step = (await members(store, second))["s/x"]
    await store.cancel(step.id, policy)
    for claim in await claim_all(store):
        assert claim.job.run_id == first
        await settle(store, claim.job, NO, policy)
    assert await store.retry(first, policy) is RetryResult.QUEUED
    assert await store.retry(step.id, policy) is RetryResult.QUEUED
    claims = await claim_all(store)
    assert {claim.job.run_id for claim in claims} == {second}
    for claim in claims:
        await settle(store, claim.job, ok(), policy)
    assert await end_of(store, second) == SUCCEEDED
    assert sorted(await run_until_idle(store, policy)) == ["s/x", "s/y"]
    assert await end_of(store, first) == SUCCEEDED


async def test_a_run_does_not_inherit_a_wait_for_a_twin_that_waits_for_it(store: Store) -> None:
    """The second run is cancelled, and one of its steps ended while it waited for the first."""
    policy = steps_policy(split("s", uses("x"), uses("y", plugin="q")))
    first, second, third = [await begin_run(store, policy, dedupe_key="k") for _ in range(3)]
    await store.cancel((await members(store, second))["s/x"].id, policy)
    for claim in await claim_all(store):
        assert claim.job.run_id == first
        await settle(store, claim.job, NO, policy)
    assert await store.retry(first, policy) is RetryResult.QUEUED
    await store.cancel(second, policy)
    claims = await claim_all(store)
    assert {claim.job.run_id for claim in claims} == {third}
    for claim in claims:
        await settle(store, claim.job, NO, policy)
    assert sorted(await run_until_idle(store, policy)) == ["s/x", "s/y"]
    assert await end_of(store, first) == SUCCEEDED


async def test_a_retried_step_waits_as_long_as_its_run(store: Store) -> None:
    policy = steps_policy(split("s", uses("x"), uses("y", plugin="q")))
    first = await begin_run(store, policy, dedupe_key="k")
    second = await begin_run(store, policy, dedupe_key="k")
    step = (await members(store, second))["s/x"]
    await store.cancel(step.id, policy)
    assert await store.retry(step.id, policy) is RetryResult.QUEUED
    claims = await claim_all(store)
    assert {claim.job.run_id for claim in claims} == {first}
    for claim in claims:
        await settle(store, claim.job, ok(), policy)
    assert sorted(await run_until_idle(store, policy)) == ["s/x", "s/y"]
    assert await end_of(store, second) == SUCCEEDED


async def test_retry_and_the_end_of_a_run_can_meet(store: Store) -> None:
    """In every order, no token is lost or doubled."""
    for _ in range(5):
        policy = steps_policy(split("s", uses("x"), uses("y")), uses("after"))
        run_id = await begin_run(store, policy)
        claims = await claims_by_step(store)
        await settle(store, claims["s/x"].job, NO, policy)
        await asyncio.gather(
            store.retry(claims["s/x"].job.id, policy),
            settle(store, claims["s/y"].job, ok(), policy),
            store.retry(run_id, policy),
            store.cancel(run_id, policy),
        )
        await run_until_idle(store, policy)
        assert (await stored(store, run_id)).status in (JobStatus.DEAD, JobStatus.FAILED, JobStatus.SUCCEEDED)


# --------------------------------------------------------------------------------------- again, from a step


async def rerun(store: Store, policy: Policy, run_id: str, step: str) -> str:
    """Start a new run at a step, and return its id."""
    run = a_new_run(policy, source_event_id=None)
    result = await store.rerun(run_id, step, run, policy)
    assert isinstance(result, Accepted), result
    return result.job_id


async def test_a_new_run_begins_at_a_step_with_what_that_was_given(store: Store) -> None:
    policy = steps_policy(uses("a", baggage={"kept": "payload.n"}), uses("b"), uses("c"))
    first = await begin_run(store, policy, {"n": 1})
    await settle_step(store, policy, "a", ok(emitted("e", {"m": 2})))
    await settle_step(store, policy, "b", NO)
    rerun_id = await rerun(store, policy, first, "b")
    claims = await claims_by_step(store)
    assert (payload_of(claims["b"]), claims["b"].baggage) == ({"m": 2, "result": "done"}, {"kept": 1})
    await settle(store, claims["b"].job, ok(), policy)
    assert await run_until_idle(store, policy) == ["c"]
    assert await end_of(store, rerun_id) == SUCCEEDED
    assert await end_of(store, first) == (JobStatus.FAILED, JobReason.STEP_FAILED)


async def test_a_step_that_claims_baggage_claims_it_anew(store: Store) -> None:
    """The step has its former input, without the baggage that it claimed itself."""
    policy = steps_policy(uses("a"), uses("b", baggage={"kept": "payload.n"}), uses("c"))
    first = await begin_run(store, policy)
    await settle_step(store, policy, "a", ok(emitted("e", {"n": 1})))
    await settle_step(store, policy, "b", NO)
    changed = steps_policy(uses("a"), uses("b", baggage={"kept": "payload.result"}), uses("c"))
    await rerun(store, changed, first, "b")
    claims = await claims_by_step(store)
    assert claims["b"].baggage == {"kept": "done"}
    await settle(store, claims["b"].job, ok(), changed)
    await run_until_idle(store, changed)


async def test_a_run_taken_up_inside_splits_keeps_what_other_branches_made(store: Store) -> None:
    inner = split("t", uses("x"), {"id": "y", "steps": [uses("y1"), uses("y2")]})
    policy = steps_policy(split("s", inner, uses("z")), uses("after"))
    first = await begin_run(store, policy)
    outcomes: dict[str, Outcome] = {
        "s/t/x": ok(emitted("e", {"x": 1})),
        "s/t/y/y2": NO,
        "s/z": ok(emitted("e", {"z": 1})),
    }
    await run_until_idle(store, policy, outcomes)
    assert await end_of(store, first) == PARTIAL
    rerun_id = await rerun(store, policy, first, "s/t/y/y2")
    await settle_step(store, policy, "s/t/y/y2", ok(emitted("e", {"y": 2})))
    joined = (await claims_by_step(store))["after"]
    t, z = payload_of(joined)["branches"]
    assert z["payload"] == {"z": 1, "result": "done"}
    assert [branch["payload"] for branch in t["payload"]["branches"]] == [
        {"x": 1, "result": "done"},
        {"y": 2, "result": "done"},
    ]
    await settle(store, joined.job, ok(), policy)
    assert await end_of(store, rerun_id) == SUCCEEDED


async def test_only_the_lines_that_failed_are_taken_up(store: Store) -> None:
    """A step that ran for several events runs again only for those that failed."""
    policy = steps_policy(split("s", {"id": "x", "steps": [uses("a"), uses("b")]}), uses("after"))
    first = await begin_run(store, policy)
    await settle_step(store, policy, "s/x/a", ok(*(emitted("e", {"n": n}) for n in range(3))))
    for claim in await claim_all(store):
        fails = payload_of(claim)["n"] == 1
        event = emitted("e", {"made": payload_of(claim)["n"]})
        await settle(store, claim.job, NO if fails else ok(event), policy)
    rerun_id = await rerun(store, policy, first, "s/x/b")
    await settle_step(store, policy, "s/x/b", ok(emitted("e", {"made": 1})))
    joined = (await claims_by_step(store))["after"]
    assert [payload["made"] for payload in payload_of(joined)["branches"][0]["payloads"]] == [0, 1, 2]
    await settle(store, joined.job, ok(), policy)
    assert await end_of(store, rerun_id) == SUCCEEDED


async def test_a_run_taken_up_before_a_join_that_always_runs_joins_anew(store: Store) -> None:
    policy = steps_policy(split("s", uses("x"), uses("y"), join="always"), uses("after"))
    first = await begin_run(store, policy)
    await run_until_idle(store, policy, {"s/x": NO})
    rerun_id = await rerun(store, policy, first, "s/x")
    assert await run_until_idle(store, policy) == ["s/x", "after"]
    assert await end_of(store, rerun_id) == SUCCEEDED


ANSWERS: list[tuple[str, Any, RetryResult]] = [
    ("nowhere", None, RetryResult.UNKNOWN_STEP),
    ("s/x", uses("s"), RetryResult.UNKNOWN_STEP),
    ("s/x", {"id": "s", "steps": [uses("x")]}, RetryResult.CHANGED),
    ("s/x", split("s", uses("x")), RetryResult.CHANGED),
]


@pytest.mark.parametrize(("step", "changed", "expected"), ANSWERS)
async def test_these_runs_cannot_be_retried(
    store: Store, step: str, changed: Any, expected: RetryResult
) -> None:
    """A refused retry writes nothing."""
    before = split("s", uses("x"), uses("y"))
    policy = steps_policy(before)
    run_id = await begin_run(store, policy)
    assert await store.rerun(run_id, "s/x", a_new_run(policy), policy) is RetryResult.NOT_ENDED
    await run_until_idle(store, policy, {"s/x": NO})
    after = steps_policy(before if changed is None else changed)
    run = a_new_run(after)
    assert await store.rerun(run_id, step, run, after) is expected
    assert await store.get_job(run.job.id) is None
    assert await store.rerun(an_id(), step, run, after) is RetryResult.UNKNOWN_JOB


async def test_a_dry_retry_answers_as_the_real_one(store: Store) -> None:
    """The runs and steps here failed for good, could not be created, or have not ended."""
    unmade = uses("b", with_={"x": "{payload.missing}"})
    policy = policy_of(
        {"name": "broken", "steps": [uses("a")]},
        {"name": "unmade", "steps": [uses("a"), unmade]},
        {"name": "live", "steps": [uses("a")]},
    )
    for name, outcome in (("broken", failed(permanent=True)), ("unmade", ok()), ("live", None)):
        run_id = await begin_run(store, policy, pipeline=name)
        for claim in await claim_all(store):
            if outcome is not None and claim.job.run_id == run_id:
                await settle(store, claim.job, outcome, policy)
        graph = policy.pipelines.by_name[name].graph
        assert await store.check_rerun(run_id, "nowhere", graph) in (
            RetryResult.UNKNOWN_STEP,
            RetryResult.NOT_ENDED,
        )
        for job_id in (*(job.id for job in await all_members(store, run_id)), run_id, an_id()):
            expected = await store.check_retry(job_id)
            assert await store.retry(job_id, policy) is expected
