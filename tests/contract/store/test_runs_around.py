"""Jobs and runs that a run starts outside of itself: routes, other pipelines, hooks; and
state webhooks of runs.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from builders.jobs import a_new_job, a_route, emitted, failed, ok, some_policy, timed_out
from builders.pipelines import (
    all_members,
    begin_run,
    claims_by_step,
    end_of,
    members,
    payload_of,
    policy_of,
    run_until_idle,
    settle_step,
    split,
    steps_policy,
    uses,
)
from builders.stores import (
    StoreFactory,
    accept,
    claim_all,
    claim_one,
    settle,
    stored,
    submit,
    whole_ledger,
)
from ductile.core.jobs.model import (
    Job,
    JobReason,
    JobStatus,
    LedgerKind,
    Outcome,
    StateSubscription,
    SubmittedBy,
)
from ductile.core.policy import Policy
from ductile.store.model.deliveries import DeliveryFilter
from ductile.store.model.jobs import CancelStatus, RetryResult
from ductile.store.model.records import JobFilter
from ductile.store.port import Store

NO = failed(permanent=True, error="no luck")


async def jobs_of(store: Store, plugin: str) -> list[Job]:
    """Return the jobs of a plugin, oldest first."""
    return list(reversed((await store.list_jobs(JobFilter(plugin=plugin), limit=200)).rows))


async def runs_of(store: Store, pipeline: str) -> list[Job]:
    return [job for job in await jobs_of(store, "pipeline") if job.command == pipeline]


# ------------------------------------------------------------------------------------- routes and other runs


async def test_an_event_of_a_step_starts_routes_and_runs_beside_its_own_run(store: Store) -> None:
    """These are descendants and no members, each one hop further. Steps inside a run add no hop."""
    policy = policy_of(
        {"name": "flow", "steps": [uses("a"), uses("b")]},
        {"name": "other", "on": "found", "steps": [uses("o", plugin="q")]},
        {"name": "elsewhere", "on": "found", "from_plugin": "q", "steps": [uses("e")]},
        routes=[{"from": "p", "event_type": "found", "to": "sink"}],
    )
    run_id = await begin_run(store, policy, hops=3, trace_id="t")
    settled = await settle_step(store, policy, "a", ok(emitted("found", {"n": 1}, key="k")))
    assert len(settled.started) == 4  # the route, the run with its step, and the next step
    (routed,), (other,) = await jobs_of(store, "sink"), await runs_of(store, "other")
    inside = await members(store, run_id)
    for started in (routed, other):
        assert (started.parent_job_id, started.run_id, started.hops) == (inside["a"].id, None, 4)
        assert (started.dedupe_key, started.submitted_by) == ("key:k", SubmittedBy.ROUTE)
        assert (started.source_event_id, started.trace_id) == (inside["b"].source_event_id, "t")
    assert (inside["b"].hops, inside["b"].dedupe_key) == (3, None)
    (step,) = await all_members(store, other.id)
    assert (step.hops, step.run_id, step.plugin) == (4, other.id, "q")
    assert await runs_of(store, "elsewhere") == []
    claims = await claims_by_step(store)
    await settle(store, claims["b"].job, ok(), policy)
    assert (await stored(store, run_id)).status is JobStatus.SUCCEEDED  # the others are still to come
    await settle(store, claims["sink"].job, ok(), policy)
    await settle(store, claims["o"].job, ok(), policy)


async def test_two_pipelines_that_start_each_other_stop_at_the_limit(store: Store) -> None:
    """The event is dropped with a recorded error."""
    policy = policy_of(
        {"name": "ping", "on": "pong", "steps": [uses("a")]},
        {"name": "pong", "on": "ping", "steps": [uses("b")]},
        service={"max_hops": 4},
    )
    await begin_run(store, policy, pipeline="ping")
    outcomes: dict[str, Outcome] = {"a": ok(emitted("ping", {})), "b": ok(emitted("pong", {}))}
    assert await run_until_idle(store, policy, outcomes) == ["a", "b", "a", "b", "a"]
    (entry,) = [row for row in await whole_ledger(store) if row.kind is LedgerKind.EVENT_DROPPED]
    assert (entry.data["event_type"], entry.data["targets"]) == ("ping", ["pipeline:pong"])
    assert "4 hops" in str(entry.data["error"])


async def test_a_pipeline_whose_own_if_is_false_does_not_start_and_says_so(store: Store) -> None:
    condition = {"path": "payload.n", "op": "lt", "value": 4}
    policy = policy_of({"name": "flow", "on": "found", "if": condition, "steps": [uses("a")]})
    await accept(store, a_new_job("source"))
    await settle(
        store, await claim_one(store), ok(emitted("found", {"n": 9}), emitted("found", {"n": 1})), policy
    )
    assert len(await runs_of(store, "flow")) == 1
    (entry,) = [row for row in await whole_ledger(store) if row.kind is LedgerKind.CONDITION_FALSE]
    assert (entry.data["pipeline"], entry.data["event_type"]) == ("flow", "found")
    assert await run_until_idle(store, policy) == ["a"]


async def test_an_events_key_makes_a_second_run_a_duplicate(store: Store) -> None:
    """The key of an event applies to the start of a run."""
    policy = policy_of({"name": "flow", "on": "found", "steps": [uses("a")]})
    for _ in range(2):
        await accept(store, a_new_job("source"))
        await settle(store, await claim_one(store), ok(emitted("found", {}, key="k")), policy)
        await run_until_idle(store, policy)
    assert len(await runs_of(store, "flow")) == 1
    assert [
        row.data["dedupe_key"] for row in await whole_ledger(store) if row.kind == "job.deduplicated"
    ] == ["k"]


async def test_a_run_started_by_an_event_inherits_baggage(store: Store) -> None:
    condition = {"path": "context.kept", "op": "eq", "value": 1}
    policy = policy_of(
        {"name": "flow", "steps": [uses("a", baggage={"kept": "payload.n"})]},
        {"name": "next", "on": "found", "if": condition, "steps": [uses("b", with_={"v": "{context.kept}"})]},
    )
    await begin_run(store, policy, {"n": 1})
    await settle_step(store, policy, "a", ok(emitted("found", {})))
    claims = await claims_by_step(store)
    assert (payload_of(claims["b"]), claims["b"].baggage) == ({"v": 1}, {"kept": 1})
    await settle(store, claims["b"].job, ok(), policy)


async def test_a_cancelled_run_starts_nothing_outside_either(store: Store) -> None:
    """A late result of a step starts no job."""
    policy = steps_policy(uses("a"), routes=[{"from": "p", "event_type": "found", "to": "sink"}])
    run_id = await begin_run(store, policy)
    job = await claim_one(store)
    await store.cancel(run_id, policy)
    await settle(store, job, ok(emitted("found")), policy)
    assert await jobs_of(store, "sink") == []


# ------------------------------------------------------------------------------------------------------ hooks


def hook_policy(*more: dict[str, Any], **config: Any) -> Policy:
    hooks = [
        {
            "name": f"on_{status}",
            "on-hook": f"job.{status}",
            "notify_on_complete": True,  # which changes nothing for what a hook started
            "steps": [uses(status, plugin="r")],
        }
        for status in ("completed", "failed", "timed_out")
    ]
    return policy_of(
        *hooks, *more, plugins={"source": {"notify_on_complete": True, "max_attempts": 1}}, **config
    )


HOOKS: list[tuple[Outcome, str, str]] = [
    (ok(), "on_completed", "succeeded"),
    (NO, "on_failed", "failed"),
    (failed(), "on_failed", "dead"),
    (timed_out(), "on_timed_out", "dead"),
]


@pytest.mark.parametrize(("outcome", "pipeline", "status"), HOOKS)
async def test_the_end_of_a_root_job_fires_exactly_one_hook(
    store: Store, outcome: Outcome, pipeline: str, status: str
) -> None:
    """A hook starts a full pipeline with every documented key in its payload."""
    policy = hook_policy()
    job_id = await accept(store, a_new_job("source", max_attempts=1, hops=2))
    await settle(store, await claim_one(store), outcome, policy)
    (run,) = await jobs_of(store, "pipeline")
    assert (run.command, run.submitted_by, run.parent_job_id, run.hops) == (
        pipeline,
        SubmittedBy.HOOK,
        job_id,
        3,
    )
    (claim,) = await claim_all(store)
    payload = payload_of(claim)
    expected = {"job_id": job_id, "plugin": "source", "command": "handle", "status": status, "attempt": 1}
    assert payload.items() >= expected.items()
    assert set(payload) == {*expected, "error", "message", "text", "duration_ms", "pipeline"}
    await settle(store, claim.job, ok(), policy)
    assert len(await jobs_of(store, "pipeline")) == 1, "a hook fed itself"


async def test_a_job_that_goes_on_fires_no_hook(store: Store) -> None:
    policy = hook_policy()
    await accept(store, a_new_job("source", max_attempts=2))
    await settle(store, await claim_one(store), timed_out(), policy)
    assert await jobs_of(store, "pipeline") == []


@pytest.mark.parametrize("job", [{"parent_job_id": "x"}, {"submitted_by": SubmittedBy.CORE}, {"plugin": "p"}])
async def test_these_jobs_fire_no_hook(store: Store, job: dict[str, Any]) -> None:
    """Hooks are for root jobs of plugins with `notify_on_complete`."""
    policy = hook_policy()
    await accept(store, a_new_job(**({"plugin": "source"} | job)))
    await settle(store, await claim_one(store), ok(), policy)
    assert await jobs_of(store, "pipeline") == []


async def test_a_run_fires_a_hook_and_its_steps_do_not(store: Store) -> None:
    policy = hook_policy(
        {"name": "flow", "notify_on_complete": True, "steps": [uses("a", plugin="source")]},
        {"name": "quiet", "steps": [uses("b", plugin="source")]},
    )
    run_id = await begin_run(store, policy)
    await begin_run(store, policy, pipeline="quiet")
    outcomes: dict[str, Outcome] = {"a": NO}
    assert await run_until_idle(store, policy, outcomes) == ["a", "b", "failed"]
    (run,) = await runs_of(store, "on_failed")
    assert run.parent_job_id == run_id
    event = await store.get_event(run.source_event_id or "")
    assert event is not None
    assert (event.source, event.payload["pipeline"], event.payload["error"]) == ("flow", "flow", "a: no luck")
    assert (await stored(store, run_id)).completed_at is not None


async def test_a_hook_listens_to_the_plugins_it_names(store: Store) -> None:
    """`from_plugin` of a hook may name a pipeline, and its `if` has the values of the hook."""
    failing = {"path": "payload.status", "op": "eq", "value": "failed"}
    policy = policy_of(
        {"name": "flow", "notify_on_complete": True, "steps": [uses("a")]},
        {"name": "of_flow", "on-hook": "job.completed", "from_plugin": "flow", "steps": [uses("b")]},
        {"name": "of_q", "on-hook": "job.completed", "from_plugin": "q", "steps": [uses("c")]},
        {"name": "never", "on-hook": "job.completed", "if": failing, "steps": [uses("d")]},
    )
    await begin_run(store, policy)
    assert await run_until_idle(store, policy) == ["a", "b"]
    (entry,) = [row for row in await whole_ledger(store) if row.kind is LedgerKind.CONDITION_FALSE]
    assert entry.data["pipeline"] == "never"


async def test_a_hook_sees_what_the_job_carried(store: Store) -> None:
    """`context` has the same values in its `if` and in its steps."""
    condition = {"path": "context.kept", "op": "eq", "value": 1}
    policy = policy_of(
        {"name": "flow", "steps": [uses("a", baggage={"kept": "payload.n"})]},
        {"name": "next", "on": "found", "notify_on_complete": True, "steps": [uses("b")]},
        {"name": "hooked", "on-hook": "job.completed", "if": condition, "steps": [uses("c")]},
    )
    await begin_run(store, policy, {"n": 1})
    assert await run_until_idle(store, policy, {"a": ok(emitted("found", {}))}) == ["a", "b", "c"]


async def test_a_hook_beyond_the_hop_limit_is_dropped_and_that_is_recorded(store: Store) -> None:
    """The recorded error is the same as for any event beyond the limit."""
    policy = hook_policy(service={"max_hops": 2})
    job_id = await accept(store, a_new_job("source", hops=2))
    await settle(store, await claim_one(store), ok(), policy)
    assert await jobs_of(store, "pipeline") == []
    (entry,) = [row for row in await whole_ledger(store) if row.kind is LedgerKind.EVENT_DROPPED]
    assert (entry.job_id, entry.data["targets"]) == (job_id, ["pipeline:on_completed"])


async def test_a_job_that_ends_twice_in_the_queue_fires_twice(store: Store) -> None:
    """Every end fires a hook, also that of a job that was never executed."""
    policy = hook_policy()
    job_id = await accept(store, a_new_job("source"))
    for count in (1, 2):
        assert (await store.cancel(job_id, policy)).status is CancelStatus.CANCELLED
        assert len(await runs_of(store, "on_failed")) == count
        assert await store.retry(job_id, policy) is RetryResult.QUEUED
    kinds = {row.kind for row in await whole_ledger(store)}
    assert LedgerKind.CHILD_CONFLICT not in kinds
    await run_until_idle(store, policy)


async def test_pipelines_that_hooks_start_through_events_stop_at_the_limit(store: Store) -> None:
    """A hook that causes itself again is limited like any other loop."""
    policy = policy_of(
        {"name": "flow", "on": "again", "notify_on_complete": True, "steps": [uses("a")]},
        {"name": "hooked", "on-hook": "job.completed", "steps": [uses("h")]},
        service={"max_hops": 5},
    )
    await begin_run(store, policy)
    steps = await run_until_idle(store, policy, {"h": ok(emitted("again", {}))})
    assert steps == ["a", "h", "a", "h", "a", "h"]


# -------------------------------------------------------------------------------------------- state webhooks


async def bodies_sent(store: Store, job_id: str) -> list[dict[str, Any]]:
    rows = (await store.list_deliveries(DeliveryFilter(job_id=job_id), limit=200)).rows
    return [json.loads(delivery.body) for delivery in reversed(rows)]


CALLBACK = StateSubscription(url="https://receiver.invalid/hook", model="m")


async def work(store: Store, policy: Policy, outcomes: dict[str, Outcome]) -> None:
    """Run all jobs as the engine does: jobs with subscribers are marked as working."""
    while claims := await claim_all(store):
        for claim in claims:
            if claim.has_subscribers:
                await store.mark_working(claim.job.id, claim.job.execution)
            await settle(store, claim.job, outcomes.get(claim.job.step_path or "", ok()), policy)


async def test_a_run_tells_its_caller_four_times(store: Store) -> None:
    """The states are queued, loading and working with the first step, and done with the last result."""
    policy = steps_policy(uses("a"), uses("b"))
    run_id = await begin_run(store, policy, callback=CALLBACK)
    last = ok(result="b", stdout='{"result": "b"}', artifacts=({"name": "f", "path": "/f"},))
    await work(store, policy, {"b": last})
    bodies = await bodies_sent(store, run_id)
    assert [(body["state"], body["previous_state"]) for body in bodies] == [
        ("queued", None),
        ("loading", "queued"),
        ("working", "loading"),
        ("done", "working"),
    ]
    assert (bodies[-1]["result"], bodies[-1]["artifacts"]) == ("b", [{"name": "f", "path": "/f"}])
    for job in await all_members(store, run_id):
        assert await bodies_sent(store, job.id) == []


@pytest.mark.parametrize("way", ["step", "unmade", "cancelled"])
async def test_a_run_that_fails_tells_its_caller(store: Store, way: str) -> None:
    step = uses("a", with_={"x": "{payload.gone}"}) if way == "unmade" else uses("a")
    policy = steps_policy(step)
    run_id = await begin_run(store, policy, callback=CALLBACK)
    if way == "cancelled":
        await store.cancel(run_id, policy)
    await work(store, policy, {"a": NO})
    states = [body["state"] for body in await bodies_sent(store, run_id)]
    expected = {
        "step": ["queued", "loading", "working", "failed"],
        "unmade": ["queued", "loading", "failed"],
        "cancelled": ["queued", "failed"],
    }
    assert states == expected[way]
    assert (await bodies_sent(store, run_id))[-1]["error"]


async def test_a_retried_run_tells_its_caller_from_the_start(store: Store) -> None:
    policy = steps_policy(uses("a"))
    run_id = await begin_run(store, policy, callback=CALLBACK)
    await work(store, policy, {"a": NO})
    await store.retry(run_id, policy)
    await work(store, policy, {})
    states = [body["state"] for body in await bodies_sent(store, run_id)]
    assert states == ["queued", "loading", "working", "failed", "queued", "loading", "working", "done"]


# ------------------------------------------------------------------------------------------ what must not be


async def test_a_run_without_live_steps_is_ended_and_reported(store_factory: StoreFactory) -> None:
    """Such a run is a defect. The next start ends it as failed, with reason `stalled`."""
    store = await store_factory.open()
    policy = steps_policy(split("s", uses("x"), uses("y")), uses("after"))
    run_id = await begin_run(store, policy)
    await store_factory.close()
    for damage in (
        "DELETE FROM job_queue",
        "DELETE FROM run_members",
        "UPDATE run_scopes SET live = 0, state = 'joined'",
        "UPDATE pipeline_runs SET jobs = 0",
    ):
        store_factory.kind.run_sql(store_factory.directory, f"{damage} WHERE run_id = '{run_id}'")
    store = await store_factory.open()
    recovery = await store.recover(policy)
    assert [(job.id, job.reason) for job in recovery.jobs] == [(run_id, JobReason.STALLED)]
    assert await end_of(store, run_id) == (JobStatus.FAILED, JobReason.STALLED)
    kinds = [row.kind for row in await whole_ledger(store) if row.job_id == run_id]
    assert LedgerKind.RUN_STALLED in kinds
    assert (await store.recover(policy)).jobs == ()


async def test_plain_routes_go_on_as_before(store: Store) -> None:
    """The jobs that a job outside of runs starts belong to no run."""
    policy = some_policy(a_route())
    await submit(store, a_new_job("source"))
    settled = await settle(store, await claim_one(store), ok(emitted()), policy)
    assert (len(settled.started), settled.ended, settled.settlement.progress) == (1, (), None)
