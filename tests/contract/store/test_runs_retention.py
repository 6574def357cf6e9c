"""The rows of a run are removed together with it."""

from __future__ import annotations

from builders.jobs import Clock, a_new_job, emitted, failed, ok
from builders.pipelines import (
    all_members,
    begin_run,
    claims_by_step,
    end_of,
    graph_of,
    payload_of,
    policy_of,
    run_until_idle,
    split,
    steps_policy,
    uses,
)
from builders.stores import StoreFactory, accept, claim_all, settle, stored
from ductile.core.jobs.model import JobReason, JobStatus, Outcome
from ductile.core.policy import Policy
from ductile.store.model.jobs import RetryResult
from ductile.store.model.maintenance import Retention
from ductile.store.port import Store
from ductile.store.verbs.maintenance import PRUNE_BATCH

PRUNES = True  # the rules for rows at rest allow for it

STEPS = (uses("a", baggage={"kept": "payload.n"}), split("s", uses("x"), uses("y")), uses("after"))
NO = failed(permanent=True)
#: Everything that only runs have.
TABLES = ("pipeline_runs", "pipeline_versions", "run_scopes", "run_members", "run_leaves", "event_context")


async def prune(store: Store) -> None:
    """Run sweeps until nothing is left to remove, with a newer row in every table."""
    await accept(store, a_new_job("newer"))
    for claim in await claim_all(store):
        await settle(store, claim.job, ok())
    while (await store.prune(Retention())).rows:
        pass


async def a_finished_run(store: Store, policy: Policy, outcomes: dict[str, Outcome] | None = None) -> str:
    run_id = await begin_run(store, policy, {"n": 1})
    await run_until_idle(store, policy, outcomes)
    return run_id


def count_rows(factory: StoreFactory) -> dict[str, int]:
    return {
        table: factory.kind.run_sql(factory.directory, f"SELECT count(*) FROM {table}")[0][0]  # noqa: S608 - names of ours
        for table in TABLES
    }


async def test_a_succeeded_run_goes_after_a_day_with_all_that_is_its_own(store_factory: StoreFactory) -> None:
    store, clock = await store_factory.open(), store_factory.clock
    run_id = await a_finished_run(store, steps_policy(*STEPS))
    assert all(count_rows(store_factory).values())
    clock.advance(hours=25)
    await prune(store)
    counts = count_rows(store_factory)
    assert (counts["pipeline_runs"], counts["run_scopes"], counts["run_members"], counts["run_leaves"]) == (
        0,
        0,
        0,
        0,
    )
    record = await store.get_run(run_id)
    assert record is not None
    details = await store.job_details(run_id)
    assert details is not None
    assert (details.steps, details.executions) == (record.steps, record.executions)
    assert {job.run_id for job in record.steps} == {run_id}
    assert (record.job.status, record.graph) == (JobStatus.SUCCEEDED, None)
    assert sorted(job.step_path or "" for job in record.steps) == ["a", "after", "s/x", "s/y"]
    clock.advance(days=31)
    await prune(store)
    assert set(count_rows(store_factory).values()) == {0}
    assert await store.get_run(run_id) is None
    assert await store.job_details(run_id) is None


async def test_a_large_run_goes_in_sweeps_and_after_its_steps(store: Store, clock: Clock) -> None:
    """A sweep removes few rows, and a run is kept as long as one of its steps."""
    policy = steps_policy(uses("a"), uses("b"))
    run_id = await begin_run(store, policy)
    (first,) = await claim_all(store)
    await settle(store, first.job, ok(*(emitted() for _ in range(PRUNE_BATCH + 20))), policy)
    await run_until_idle(store, policy)
    await accept(store, a_new_job("newer"))
    clock.advance(hours=25)
    sweep = await store.prune(Retention())
    assert (sweep.rows["succeeded_jobs"], sweep.more) == (PRUNE_BATCH, True)
    record = await store.get_run(run_id)
    assert record is not None
    assert record.graph is not None
    sweep = await store.prune(Retention())
    assert (sweep.rows["succeeded_jobs"], sweep.more) == (22, False)
    assert (await stored(store, run_id)).seq == 0, "it is found in the log now"


async def test_a_run_whose_step_is_the_newest_job_is_kept_whole(store: Store, clock: Clock) -> None:
    """The newest row is kept for its number; a step without its run would belong to no run."""
    policy = steps_policy(uses("a"), uses("b"))
    run_id = await a_finished_run(store, policy)
    clock.advance(hours=25)
    assert (await store.prune(Retention())).rows == {}
    await prune(store)
    assert (await stored(store, run_id)).seq == 0
    assert {job.seq for job in await all_members(store, run_id)} == {0}


async def test_a_failed_run_can_be_tried_again_as_long_as_the_log_lasts(
    store_factory: StoreFactory,
) -> None:
    """It runs with its own graph, although the configuration has changed."""
    store, clock = await store_factory.open(), store_factory.clock
    policy = steps_policy(*STEPS)
    run_id = await a_finished_run(store, policy, {"s/x": NO, "s/y": ok(emitted("e", {"y": 1}))})
    clock.advance(days=29)
    await prune(store)
    store = await store_factory.reopen()
    other = steps_policy(uses("only"))
    assert await store.retry(run_id, other) is RetryResult.QUEUED
    claims = await claims_by_step(store)
    assert claims["s/x"].baggage == {"kept": 1}
    await settle(store, claims["s/x"].job, ok(), other)
    joined = (await claims_by_step(store))["after"]
    assert payload_of(joined)["branches"][1]["payload"] == {"y": 1, "result": "done"}
    await settle(store, joined.job, ok(), other)
    assert await end_of(store, run_id) == (JobStatus.SUCCEEDED, JobReason.COMPLETED)


async def test_after_retention_a_run_cannot_be_tried_again(store: Store, clock: Clock) -> None:
    """At first only its log is left, and later nothing."""
    policy = steps_policy(uses("a"), uses("b"))
    succeeded = await a_finished_run(store, policy)
    clock.advance(hours=25)
    await prune(store)
    assert await store.retry(succeeded, policy) is RetryResult.PRUNED
    assert (await stored(store, succeeded)).status is JobStatus.SUCCEEDED


async def test_a_live_run_keeps_its_steps_however_old_they_are(store: Store, clock: Clock) -> None:
    policy = steps_policy(*STEPS)
    run_id = await begin_run(store, policy, {"n": 1})
    claims = await claims_by_step(store)
    await settle(store, claims["a"].job, ok(), policy)
    live = await claim_all(store)
    clock.advance(days=400)
    await prune(store)
    assert [job.status for job in await all_members(store, run_id)].count(JobStatus.SUCCEEDED) == 1
    for claim in live:
        await settle(store, claim.job, ok(), policy)
    joined = (await claims_by_step(store))["after"]
    assert joined.baggage == {"kept": 1}
    await settle(store, joined.job, ok(), policy)
    assert await end_of(store, run_id) == (JobStatus.SUCCEEDED, JobReason.COMPLETED)


async def test_a_run_is_kept_as_long_as_something_below_it_lives(store: Store, clock: Clock) -> None:
    """No row is removed before its live descendants, also those that are no members."""
    policy = policy_of(
        {"name": "flow", "steps": [uses("a")]}, routes=[{"from": "p", "event_type": "found", "to": "sink"}]
    )
    run_id = await begin_run(store, policy)
    (claim,) = await claim_all(store)
    await settle(store, claim.job, ok(emitted("found")), policy)
    (below,) = await claim_all(store)
    clock.advance(days=400)
    await prune(store)
    record = await store.get_run(run_id)
    assert record is not None
    assert record.graph == graph_of(uses("a"))
    await settle(store, below.job, ok(), policy)


async def test_a_graph_that_two_runs_follow_is_kept_for_the_later_one(store_factory: StoreFactory) -> None:
    store, clock = await store_factory.open(), store_factory.clock
    policy = steps_policy(uses("a"), uses("b"))
    await a_finished_run(store, policy)
    clock.advance(days=40)
    await begin_run(store, policy)
    await prune(store)
    counts = count_rows(store_factory)
    assert (counts["pipeline_runs"], counts["pipeline_versions"]) == (1, 1)
    assert await run_until_idle(store, policy) == ["b"]
