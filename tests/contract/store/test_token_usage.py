"""The access token of a job, the cost of executions, and the limits of a token."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from builders.jobs import Clock, a_new_job, a_route, emitted, failed, ok, some_policy
from builders.pipelines import a_new_run, begin_run, members, run_until_idle, steps_policy, uses
from builders.stores import StoreFactory, accept, claim_one, run_next, settle, stored, submit
from ductile.core.jobs.model import JobStatus, NewJob, Orphaned
from ductile.core.token_limits import ALL_JOBS, JobLimits, Period, PeriodUsage, TokenLimits
from ductile.errors import LimitReachedError
from ductile.store.model.jobs import Deduplicated, RetryResult, Submission, TokenCharge
from ductile.store.port import Store

AGENT = "agent"


def a_job(plugin: str = "echo", **fields: Any) -> NewJob:
    return a_new_job(plugin, token=AGENT, charged=True, **fields)


def a_charge(**limits: Any) -> TokenCharge:
    return TokenCharge(token=AGENT, limits=TokenLimits(**limits))


async def count_used(store: Store, period: Period = Period.DAY, target: str = ALL_JOBS) -> int:
    return (await store.token_usage(AGENT)).periods.get((target, period), PeriodUsage()).jobs


async def cost_spent(store: Store) -> float:
    return (await store.token_usage(AGENT)).periods.get((ALL_JOBS, Period.DAY), PeriodUsage()).cost


# ------------------------------------------------------------------------------- the token of a job


async def test_children_of_a_job_have_its_token(store: Store) -> None:
    """Routes and hooks start jobs for the token that submitted the first one."""
    policy = some_policy(a_route(source="echo"))
    await accept(store, a_new_job("echo", token=AGENT))
    settled = await run_next(store, ok(emitted("found", {})), policy)
    (child,) = settled.started
    assert (await stored(store, child.job_id)).token == AGENT


async def test_every_step_of_a_run_has_its_token(store: Store) -> None:
    policy = steps_policy(uses("a"), uses("b"))
    run_id = await begin_run(store, policy, token=AGENT)
    await run_until_idle(store, policy)
    steps = await members(store, run_id)
    assert {path: step.token for path, step in steps.items()} == {"a": AGENT, "b": AGENT}
    assert [row.token for row in await store.list_executions(run_id)] == [AGENT]


# --------------------------------------------------------------------------------------------- cost


async def test_the_cost_of_each_execution_adds_up_in_its_job(store: Store, clock: Clock) -> None:
    """A failed execution has its reported cost too."""
    job_id = await accept(store, a_new_job(token=AGENT))
    await run_next(store, failed(cost=0.25))
    clock.advance(minutes=1)
    await store.release_due()
    await run_next(store, ok(cost=0.5))
    assert (await stored(store, job_id)).cost == 0.75
    assert [row.cost for row in await store.list_executions(job_id)] == [0.25, 0.5]
    assert await cost_spent(store) == 0.75


async def test_a_job_without_reported_cost_has_none(store: Store) -> None:
    """The cost is null, not 0, which a plugin may report."""
    job_id = await accept(store, a_new_job(token=AGENT))
    await run_next(store, ok())
    assert (await stored(store, job_id)).cost is None


async def test_the_cost_of_a_run_is_counted_once(store: Store) -> None:
    policy = steps_policy(uses("a"))
    run_id = await begin_run(store, policy, token=AGENT)
    await settle(store, await claim_one(store), ok(cost=2.0), policy)
    assert (await stored(store, run_id)).status is JobStatus.SUCCEEDED
    assert await cost_spent(store) == 2.0


async def test_a_cancelled_execution_has_cost_what_it_reported(store: Store) -> None:
    await accept(store, a_new_job(token=AGENT))
    job = await claim_one(store)
    await store.cancel(job.id, some_policy())
    await store.settle(job, ok(cost=1.5), some_policy())
    assert await cost_spent(store) == 1.5


async def test_a_late_result_has_cost_what_it_reported(store: Store) -> None:
    """Its job was given up and runs again, but the money is spent."""
    await accept(store, a_new_job(token=AGENT))
    job = await claim_one(store)
    await settle(store, job, Orphaned())
    await store.settle(job, ok(cost=1.5), some_policy())
    await store.settle(job, ok(cost=1.5), some_policy())
    assert await cost_spent(store) == 1.5


# ------------------------------------------------------------------------------------------- limits


async def test_a_retried_job_counts_as_unfinished(store: Store) -> None:
    """A job from before the limits counts too. A job of another token counts only for the hour."""
    own, other = await accept(store, a_new_job(token=AGENT)), await accept(store, a_new_job(token="other"))
    for _ in (own, other):
        await run_next(store, failed(permanent=True))
    assert await store.retry(own, some_policy(), charge=a_charge(running=1)) is RetryResult.QUEUED
    assert (await store.token_usage(AGENT)).running == {ALL_JOBS: 1, "echo": 1}
    with pytest.raises(LimitReachedError, match="has 1 unfinished jobs"):
        await store.retry(other, some_policy(), charge=a_charge(running=1))
    with pytest.raises(LimitReachedError, match="has 1 unfinished jobs of echo"):
        await store.retry(other, some_policy(), charge=a_charge(targets={"echo": JobLimits(running=0)}))


async def test_a_job_over_the_limit_is_refused_with_everything_around_it(store: Store) -> None:
    """All jobs of a submission are accepted, or none; refused jobs are not counted."""
    charge = a_charge(jobs_per_hour=3)
    await submit(store, a_job(), a_job(), charge=charge)
    with pytest.raises(LimitReachedError, match="has started 2 jobs this hour; its limit jobs_per_hour is 3"):
        await submit(store, a_job(), a_job(), charge=charge)
    assert (await count_used(store, Period.HOUR), (await store.queue_counts()).depth) == (2, 2)
    await submit(store, a_job(), charge=charge)
    assert await count_used(store, Period.HOUR) == 3


async def test_the_error_tells_the_limit_and_when_it_resets(store: Store, clock: Clock) -> None:
    clock.now = datetime(2026, 5, 4, 10, 59, 30, tzinfo=UTC)
    charge = a_charge(jobs_per_hour=0)
    with pytest.raises(LimitReachedError) as raised:
        await submit(store, a_job(), charge=charge)
    assert raised.value.details == {
        "token": AGENT,
        "limit": "jobs_per_hour",
        "target": None,
        "used": 0,
        "maximum": 0,
        "resets_at": "2026-05-04T11:00:00.000000Z",
        "retry_after_seconds": 30,
    }
    assert "starts again at 2026-05-04T11:00:00.000000Z" in (raised.value.hint or "")


async def test_an_hour_and_a_day_begin_again_by_themselves(store: Store, clock: Clock) -> None:
    clock.now = datetime(2026, 5, 4, 22, 30, tzinfo=UTC)
    charge = a_charge(jobs_per_hour=2, jobs_per_day=3)
    await submit(store, a_job(), a_job(), charge=charge)
    with pytest.raises(LimitReachedError):
        await submit(store, a_job(), charge=charge)
    clock.advance(minutes=30)
    await submit(store, a_job(), charge=charge)
    clock.advance(minutes=59)
    with pytest.raises(LimitReachedError) as raised:
        await submit(store, a_job(), charge=charge)
    assert raised.value.details["limit"] == "jobs_per_day"
    clock.advance(minutes=1)
    await submit(store, a_job(), charge=charge)
    assert (await count_used(store, Period.HOUR), await count_used(store)) == (1, 1)


async def test_a_clock_that_is_set_back_gives_no_new_hour(store: Store, clock: Clock) -> None:
    clock.now = datetime(2026, 5, 4, 11, 0, tzinfo=UTC)
    charge = a_charge(jobs_per_hour=1)
    await submit(store, a_job(), charge=charge)
    clock.advance(minutes=-5)
    with pytest.raises(LimitReachedError):
        await submit(store, a_job(), charge=charge)


async def test_a_duplicate_is_not_counted(store: Store) -> None:
    """A caller that repeats a call with the same key has started one job."""
    charge = a_charge(jobs_per_day=1)
    key: dict[str, Any] = {"dedupe_key": "key:a", "dedupe_ttl": 3600.0}
    (first,) = await submit(store, a_job(**key), charge=charge)
    (second,) = await submit(store, a_job(**key), charge=charge)
    assert isinstance(second, Deduplicated)
    assert (second.job_id, await count_used(store)) == (first.job_id, 1)


async def test_concurrent_submissions_take_exactly_what_is_left(store_factory: StoreFactory) -> None:
    """On PostgreSQL they come from two store objects, as from two nodes."""
    stores = [await store_factory.open()]
    if store_factory.kind.name == "postgres":
        stores.append(await store_factory.open())
    charge = a_charge(jobs_per_day=7)
    calls = [submit(stores[number % len(stores)], a_job(), charge=charge) for number in range(20)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    refused = [result for result in results if isinstance(result, BaseException)]
    assert {type(result) for result in refused} == {LimitReachedError}
    assert (len(refused), await count_used(stores[0])) == (13, 7)


async def test_the_count_survives_a_restart(store_factory: StoreFactory) -> None:
    store = await store_factory.open()
    charge = a_charge(jobs_per_day=1)
    await submit(store, a_job(), charge=charge)
    store = await store_factory.reopen()
    with pytest.raises(LimitReachedError):
        await submit(store, a_job(), charge=charge)


async def test_unfinished_jobs_are_counted_until_they_end(store: Store) -> None:
    """Queued and running jobs count; the jobs that follow from them do not."""
    policy = some_policy(a_route(source="echo"))
    charge = a_charge(running=1)
    await submit(store, a_job(), charge=charge)
    with pytest.raises(LimitReachedError, match="has 1 unfinished jobs; its limit running is 1") as raised:
        await submit(store, a_job(), charge=charge)
    assert raised.value.details["resets_at"] is None
    await run_next(store, ok(emitted("found", {})), policy)
    await submit(store, a_job(), charge=charge)


async def test_a_run_is_one_unfinished_job(store: Store) -> None:
    policy = steps_policy(uses("a"), uses("b"))
    run = a_new_run(policy, token=AGENT, charged=True)
    charge = a_charge(running=1, targets={"pipeline:flow": JobLimits(jobs_per_day=1)})
    await store.enqueue(Submission(runs=(run,), event=run.event, policy=policy, charge=charge))
    assert (await store.token_usage(AGENT)).running == {ALL_JOBS: 1, "pipeline:flow": 1}
    await run_until_idle(store, policy)
    assert (await store.token_usage(AGENT)).running == {}
    assert await count_used(store, target="pipeline:flow") == 1


async def test_limits_of_one_plugin_leave_others_alone(store: Store) -> None:
    charge = a_charge(targets={"deploy": JobLimits(jobs_per_day=1, running=1)})
    await submit(store, a_job("deploy"), a_job("echo"), charge=charge)
    with pytest.raises(LimitReachedError, match="has started 1 jobs of deploy today"):
        await submit(store, a_job("deploy"), charge=charge)
    await submit(store, a_job("echo"), charge=charge)


async def test_no_job_starts_after_the_money_is_spent(store: Store) -> None:
    """The cost of a job is known at its end, so the job that reaches the limit still runs."""
    charge = a_charge(cost_per_day=1.0)
    for _ in range(10):
        await submit(store, a_job(), charge=charge)
        await run_next(store, ok(cost=0.1))
    with pytest.raises(LimitReachedError, match="has spent 1 today; its limit cost_per_day is 1"):
        await submit(store, a_job(), charge=charge)


async def test_a_retry_counts_as_a_job(store: Store) -> None:
    """Otherwise a token could run one job any number of times."""
    charge = a_charge(jobs_per_day=2)
    (first,) = await submit(store, a_job(), charge=charge)
    await run_next(store, failed(permanent=True))
    assert await store.retry(first.job_id, some_policy(), charge=charge) is RetryResult.QUEUED
    await run_next(store, failed(permanent=True))
    with pytest.raises(LimitReachedError):
        await store.retry(first.job_id, some_policy(), charge=charge)
    assert (await stored(store, first.job_id)).status is JobStatus.FAILED
