"""Pipeline runs in the store: tokens, splits, joins and ends."""

from __future__ import annotations

import asyncio
import time
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
    graph_of,
    members,
    payload_of,
    policy_of,
    run_until_idle,
    settle_step,
    split,
    steps_policy,
    uses,
)
from builders.stores import StoreFactory, claim_all, path_of, settle, stored, submit, whole_ledger
from ductile.core.jobs.model import JobReason, JobStatus, LedgerKind, NewJob, Outcome, Requeued
from ductile.core.json import MAX_DEPTH
from ductile.store.model.jobs import Accepted, Deduplicated, NotSettled
from ductile.store.model.maintenance import ConfigOrigin
from ductile.store.port import Store

N_LOW = {"path": "payload.n", "op": "lt", "value": 4}
#: A pattern that takes for ever on a text that almost matches: only so can a checked `if` fail.
ENDLESS = {"path": "payload.text", "op": "regex", "value": "(a|a|aa)+b"}


# ----------------------------------------------------------------------------------------------- the run


async def test_a_run_is_a_job_that_lives_as_its_steps_do(store: Store) -> None:
    """The run is queued until its first step is claimed, and running until its last step has ended."""
    policy = steps_policy(uses("a"), uses("b"))
    run_id = await begin_run(store, policy, {"n": 1})
    assert (await stored(store, run_id)).status is JobStatus.QUEUED
    claims = await claims_by_step(store)
    assert payload_of(claims["a"]) == {"n": 1}
    assert (claims["a"].pipeline, claims["a"].job.parent_job_id) == ("flow", run_id)
    assert (await stored(store, run_id)).status is JobStatus.RUNNING
    first = await settle(store, claims["a"].job, ok(emitted("found", {"n": 2})), policy)
    assert len(first.started) == 1
    claims = await claims_by_step(store)
    assert payload_of(claims["b"]) == {"n": 2, "result": "done"}
    assert claims["b"].job.parent_job_id == (await members(store, run_id))["a"].id
    last = await settle(store, claims["b"].job, ok(stdout='{"result": "the last"}'), policy)
    assert [(job.id, job.status) for job in last.ended] == [(run_id, JobStatus.SUCCEEDED)]
    assert await path_of(store, run_id) == [
        ">queued:submitted",
        "queued>running:claimed",
        "running>succeeded:completed",
    ]
    (execution,) = await store.list_executions(run_id)
    assert execution.result == '{"result": "the last"}'


async def test_a_step_without_events_hands_on_its_result(store: Store) -> None:
    """A synthetic event starts the next step; it is not published."""
    policy = policy_of(
        {"name": "flow", "steps": [uses("a"), uses("b")]},
        {"name": "other", "on": "ductile.step.succeeded", "steps": [uses("c")]},
    )
    run_id = await begin_run(store, policy)
    await settle_step(store, policy, "a", ok(result={"deep": [1]}))
    claims = await claims_by_step(store)
    assert list(claims) == ["b"]
    assert payload_of(claims["b"]) == {"result": {"deep": [1]}}
    assert claims["b"].event is not None
    assert claims["b"].event.type == "ductile.step.succeeded"
    await settle(store, claims["b"].job, ok(), policy)
    assert await end_of(store, run_id) == (JobStatus.SUCCEEDED, JobReason.COMPLETED)


async def test_several_events_start_one_successor_each(store: Store) -> None:
    """The run ends with the last of them, in whichever order they end."""
    policy = steps_policy(uses("a"), uses("b"))
    run_id = await begin_run(store, policy)
    await settle_step(store, policy, "a", ok(*(emitted("x", {"n": n}) for n in range(3))))
    claims = await claim_all(store)
    assert sorted(payload_of(claim)["n"] for claim in claims) == [0, 1, 2]
    for claim in reversed(claims):
        assert (await stored(store, run_id)).status is JobStatus.RUNNING
        stdout = f'{{"result": {payload_of(claim)["n"]}}}'
        await settle(store, claim.job, ok(stdout=stdout), policy)
    assert await end_of(store, run_id) == (JobStatus.SUCCEEDED, JobReason.COMPLETED)
    # The last in the order of events, not of ends.
    assert (await store.list_executions(run_id))[0].result == '{"result": 2}'


async def test_events_of_a_listed_type_take_their_own_way_first(store: Store) -> None:
    """After that, they go on to the next step like other events."""
    policy = steps_policy(uses("a", on_events={"odd": [uses("x"), uses("y")]}), uses("b"))
    await begin_run(store, policy)
    await settle_step(store, policy, "a", ok(emitted("odd", {"n": 1}), emitted("even", {"n": 2})))
    claims = await claims_by_step(store)
    assert sorted(claims) == ["a/odd/x", "b"]
    await settle(store, claims["b"].job, ok(), policy)
    await settle(store, claims["a/odd/x"].job, ok(), policy)
    assert await run_until_idle(store, policy) == ["a/odd/y", "b"]


async def test_a_call_comes_back(store: Store) -> None:
    """Later steps follow. The `if` of the pipeline and the `if` of the step both count."""
    inner = {"name": "inner", "if": N_LOW, "steps": [uses("in")]}
    outer = {"name": "flow", "steps": [{"id": "c", "call": "inner"}, uses("after")]}
    policy = policy_of(inner, outer)
    await begin_run(store, policy, {"n": 1})
    assert await run_until_idle(store, policy) == ["c/in", "after"]
    await begin_run(store, policy, {"n": 9})
    assert await run_until_idle(store, policy) == ["after"]


async def test_steps_have_no_dedupe_key_and_their_run_has(store: Store) -> None:
    """Inside a run, events with the same key start one step each."""
    policy = steps_policy(uses("a"), uses("b"))
    run = a_new_run(policy, dedupe_key="key:k")
    await enqueue_run(store, policy, run)
    await settle_step(store, policy, "a", ok(emitted(key="same"), emitted(key="same")))
    assert await run_until_idle(store, policy) == ["b", "b"]
    assert {job.dedupe_key for job in await all_members(store, run.job.id)} == {None}


async def test_a_run_of_nothing_but_bypasses_succeeds_at_once(store: Store) -> None:
    """No line has failed. The result is null, as no job ran."""
    policy = steps_policy(uses("a", if_=N_LOW), split("s", uses("x"), uses("y"), if_=N_LOW))
    run_id = await begin_run(store, policy, {"n": 9})
    assert await claim_all(store) == []
    assert await end_of(store, run_id) == (JobStatus.SUCCEEDED, JobReason.COMPLETED)
    assert (await store.list_executions(run_id))[0].result is None


async def test_a_failed_step_ends_its_run(store: Store) -> None:
    """No line has succeeded, so the run is failed, with the error and the name of the step."""
    policy = steps_policy(uses("a"), uses("b"), uses("c"))
    run_id = await begin_run(store, policy)
    await settle_step(store, policy, "a")
    await settle_step(store, policy, "b", failed(permanent=True, error="no luck"))
    job = await stored(store, run_id)
    assert (job.status, job.reason, job.last_error) == (JobStatus.FAILED, JobReason.STEP_FAILED, "b: no luck")
    assert sorted(await members(store, run_id)) == ["a", "b"]


async def test_one_line_that_fails_among_several_is_a_partial_success(store: Store) -> None:
    policy = steps_policy(uses("a"), uses("b"))
    run_id = await begin_run(store, policy)
    await settle_step(store, policy, "a", ok(emitted("x", {"n": 1}), emitted("x", {"n": 2})))
    first, second = await claim_all(store)
    await settle(store, first.job, failed(permanent=True), policy)
    await settle(store, second.job, ok(), policy)
    assert await end_of(store, run_id) == (JobStatus.FAILED, JobReason.PARTIAL_SUCCESS)


async def test_a_step_that_waits_for_its_retry_keeps_the_run_alive(store: Store, clock: Clock) -> None:
    policy = steps_policy(uses("a", retry={"max_attempts": 2, "backoff_base": "3s", "backoff_max": "3s"}))
    run_id = await begin_run(store, policy)
    await settle_step(store, policy, "a", failed())
    step = (await members(store, run_id))["a"]
    assert (step.status, step.attempt, step.max_attempts) == (JobStatus.QUEUED, 2, 2)
    assert step.next_retry_at == clock.now + timedelta(seconds=3)  # the step's own policy, not the plugin's
    assert (await stored(store, run_id)).status is JobStatus.RUNNING
    clock.advance(seconds=3)
    await store.release_due()
    await settle_step(store, policy, "a", failed())
    assert (await members(store, run_id))["a"].reason is JobReason.ATTEMPTS_EXHAUSTED
    assert await end_of(store, run_id) == (JobStatus.FAILED, JobReason.STEP_FAILED)


async def test_an_interrupted_step_changes_nothing_in_its_run(store: Store) -> None:
    policy = steps_policy(uses("a"))
    run_id = await begin_run(store, policy)
    await settle_step(store, policy, "a", Requeued())
    assert (await stored(store, run_id)).status is JobStatus.RUNNING
    await settle_step(store, policy, "a")
    assert await end_of(store, run_id) == (JobStatus.SUCCEEDED, JobReason.COMPLETED)


# ------------------------------------------------------------------------------------------- split and join


async def test_a_join_runs_once_with_what_every_branch_made(store: Store) -> None:
    """A branch has its id, status, last payload and all payloads, in the order of events."""
    policy = steps_policy(
        split("s", uses("x"), {"id": "y", "steps": [uses("y1"), uses("y2")]}), uses("after")
    )
    run_id = await begin_run(store, policy, {"n": 1})
    claims = await claims_by_step(store)
    assert sorted(claims) == ["s/x", "s/y/y1"]
    assert [payload_of(claim) for claim in claims.values()] == [{"n": 1}, {"n": 1}]
    await settle(store, claims["s/y/y1"].job, ok(emitted("e", {"y": 1}), emitted("e", {"y": 2})), policy)
    second, third = await claim_all(store)
    await settle(store, third.job, ok(emitted("e", {"z": 2})), policy)
    await settle(store, second.job, ok(emitted("e", {"z": 1})), policy)
    assert await claim_all(store) == []
    await settle(store, claims["s/x"].job, ok(), policy)
    joined = (await claims_by_step(store))["after"]
    payloads = [{"z": 1, "result": "done"}, {"z": 2, "result": "done"}]
    assert payload_of(joined) == {
        "branches": [
            {
                "id": "x",
                "status": "succeeded",
                "payload": {"result": "done"},
                "payloads": [{"result": "done"}],
            },
            {"id": "y", "status": "succeeded", "payload": payloads[-1], "payloads": payloads},
        ]
    }
    assert joined.job.parent_job_id == run_id
    await settle(store, joined.job, ok(), policy)
    assert await end_of(store, run_id) == (JobStatus.SUCCEEDED, JobReason.COMPLETED)


async def test_a_join_runs_once_for_each_entry_into_the_split(store: Store) -> None:
    """Two events enter the split here."""
    policy = steps_policy(uses("a"), split("s", uses("x"), uses("y")), uses("after"))
    run_id = await begin_run(store, policy)
    await settle_step(store, policy, "a", ok(emitted("e", {"n": 1}), emitted("e", {"n": 2})))
    claims = await claim_all(store)
    assert len(claims) == 4
    for claim in sorted(claims, key=lambda claim: claim.job.step_path or "", reverse=True):
        event = emitted("e", {"from": payload_of(claim)["n"]})
        await settle(store, claim.job, ok(event), policy)
    joined = await claim_all(store)
    branch_numbers = [
        [branch["payload"]["from"] for branch in payload_of(claim)["branches"]] for claim in joined
    ]
    assert sorted(branch_numbers) == [[1, 1], [2, 2]]
    for claim in joined:
        await settle(store, claim.job, ok(), policy)
    assert await end_of(store, run_id) == (JobStatus.SUCCEEDED, JobReason.COMPLETED)


@pytest.mark.parametrize("count", [2, 5])
async def test_branches_that_end_at_the_same_instant_join_once(store: Store, count: int) -> None:
    """The store joins them, not the engine."""
    policy = steps_policy(split("s", *(uses(f"b{n}") for n in range(count))), uses("after"))
    await begin_run(store, policy)
    claims = await claim_all(store)
    await asyncio.gather(*(settle(store, claim.job, ok(), policy) for claim in claims))
    assert await run_until_idle(store, policy) == ["after"]


async def test_the_answer_of_a_run_is_that_of_its_last_end_as_it_is_written(store: Store) -> None:
    """The last end is that of the last step by path, then of the last event, whichever came last in time."""

    def outcome_of(result: str) -> Outcome:
        return ok(stdout=f'{{"result": "{result}"}}')

    policy = steps_policy(split("s", uses("x"), uses("y")))
    run_id = await begin_run(store, policy)
    claims = await claims_by_step(store)
    await settle(store, claims["s/y"].job, outcome_of("y"), policy)
    await settle(store, claims["s/x"].job, outcome_of("x"), policy)
    assert (await store.list_executions(run_id))[0].result == '{"result": "y"}'
    policy = steps_policy(uses("a", on_events={"odd": [uses("h")]}))
    run_id = await begin_run(store, policy)
    # The second event ends where the first step ends; the first one goes further.
    first = ok(emitted("odd", {"n": 1}), emitted("even", {"n": 2}), stdout='{"result": "a"}')
    await settle_step(store, policy, "a", first)
    await settle_step(store, policy, "a/odd/h", outcome_of("h"))
    assert (await store.list_executions(run_id))[0].result == '{"result": "h"}'


async def test_a_split_at_the_end_ends_the_run(store: Store) -> None:
    policy = steps_policy(split("s", uses("x"), split("t", uses("y"), uses("z"))))
    run_id = await begin_run(store, policy)
    assert sorted(await run_until_idle(store, policy)) == ["s/t/y", "s/t/z", "s/x"]
    assert await end_of(store, run_id) == (JobStatus.SUCCEEDED, JobReason.COMPLETED)


async def test_a_failed_branch_breaks_its_split_when_all_branches_have_ended(store: Store) -> None:
    """Later steps do not run. The other branch has succeeded, so the run is a partial success."""
    policy = steps_policy(split("s", uses("x"), uses("y")), uses("after"))
    run_id = await begin_run(store, policy)
    claims = await claims_by_step(store)
    await settle(store, claims["s/x"].job, failed(permanent=True), policy)
    assert (await stored(store, run_id)).status is JobStatus.RUNNING
    await settle(store, claims["s/y"].job, ok(stdout='{"result": "y"}'), policy)
    assert await end_of(store, run_id) == (JobStatus.FAILED, JobReason.PARTIAL_SUCCESS)
    assert (await store.list_executions(run_id))[0].result == '{"result": "y"}'
    assert sorted(await members(store, run_id)) == ["s/x", "s/y"]


@pytest.mark.parametrize("after", [(), (uses("after"),)], ids=["at the end", "before a step"])
@pytest.mark.parametrize("given_up", [True, False])
async def test_a_late_result_of_a_branch_changes_nothing_in_its_split(
    store: Store, clock: Clock, given_up: bool, after: tuple[Any, ...]
) -> None:
    """The split was joined or broken without it, so its events start nothing."""
    policy = steps_policy(split("s", uses("x"), uses("y")), *after)
    run_id = await begin_run(store, policy)
    late = (await claims_by_step(store))["s/x"].job
    if given_up:
        await store.recover(policy)
        clock.advance(minutes=5)
        await store.release_due()
        await run_until_idle(store, policy)
    else:
        await settle(store, late, ok(), policy)
        claim = await stored(store, (await members(store, run_id))["s/y"].id)
        await settle(store, claim, ok(), policy)
    ended = await all_members(store, run_id)
    result = await store.settle(late, ok(emitted("e"), emitted("e"), stdout="late"), policy)
    assert result is (NotSettled.SUPERSEDED if given_up else NotSettled.ALREADY_SETTLED)
    assert await all_members(store, run_id) == ended


async def test_every_branch_failed_is_no_partial_success(store: Store) -> None:
    policy = steps_policy(split("s", uses("x"), uses("y")), uses("after"))
    run_id = await begin_run(store, policy)
    outcomes: dict[str, Outcome] = {"s/x": failed(permanent=True), "s/y": failed(permanent=True)}
    assert sorted(await run_until_idle(store, policy, outcomes)) == ["s/x", "s/y"]
    assert await end_of(store, run_id) == (JobStatus.FAILED, JobReason.STEP_FAILED)


async def test_a_join_that_always_runs_gets_the_failures(store: Store) -> None:
    policy = steps_policy(split("s", uses("x"), uses("y"), join="always"), uses("after"))
    run_id = await begin_run(store, policy)
    claims = await claims_by_step(store)
    await settle(store, claims["s/y"].job, ok(), policy)
    await settle(store, claims["s/x"].job, failed(permanent=True, error="no"), policy)
    joined = (await claims_by_step(store))["after"]
    branch = payload_of(joined)["branches"][0]
    assert branch == {"id": "x", "status": "failed", "payload": None, "payloads": [], "error": "no"}
    await settle(store, joined.job, ok(), policy)
    assert await end_of(store, run_id) == (JobStatus.FAILED, JobReason.PARTIAL_SUCCESS)


async def test_an_inner_split_that_breaks_is_a_failed_branch_of_the_outer(store: Store) -> None:
    inner = split("t", uses("x"), uses("y"))
    policy = steps_policy(split("s", inner, uses("z"), join="always"), uses("after"))
    await begin_run(store, policy)
    outcomes: dict[str, Outcome] = {"s/t/x": failed(permanent=True, error="no")}
    claims = await claims_by_step(store)
    for step, claim in claims.items():
        await settle(store, claim.job, outcomes.get(step, ok()), policy)
    joined = (await claims_by_step(store))["after"]
    assert [branch["status"] for branch in payload_of(joined)["branches"]] == ["failed", "succeeded"]


# ------------------------------------------------------------------------------ bypasses, and what goes wrong


async def test_a_bypass_is_an_entry_in_the_ledger_and_hands_the_payload_on(store: Store) -> None:
    """The entry has the reason with an explanation. There is no job."""
    policy = steps_policy(uses("a", if_=N_LOW), uses("b"))
    run_id = await begin_run(store, policy, {"n": 9})
    claims = await claims_by_step(store)
    assert list(claims) == ["b"]
    assert payload_of(claims["b"]) == {"n": 9}
    (entry,) = [row for row in await whole_ledger(store) if row.kind is LedgerKind.CONDITION_FALSE]
    assert (entry.job_id, entry.run_id) == (run_id, run_id)
    assert entry.data["step"] == "a"
    assert "payload.n lt 4 is false (found 9)" in str(entry.data["explanation"])
    await settle(store, claims["b"].job, ok(), policy)


async def test_a_bypassed_branch_is_skipped_and_counts_as_a_success(store: Store) -> None:
    policy = steps_policy(split("s", uses("x", if_=N_LOW), uses("y")), uses("after"))
    run_id = await begin_run(store, policy, {"n": 9})
    await settle_step(store, policy, "s/y")
    joined = (await claims_by_step(store))["after"]
    first = payload_of(joined)["branches"][0]
    assert first == {"id": "x", "status": "skipped", "payload": {"n": 9}, "payloads": [{"n": 9}]}
    await settle(store, joined.job, ok(), policy)
    assert await end_of(store, run_id) == (JobStatus.SUCCEEDED, JobReason.COMPLETED)


FAULTS: list[tuple[dict[str, Any], JobReason]] = [
    ({"with_": {"x": "{payload.gone}"}}, JobReason.BAD_TEMPLATE),
    ({"baggage": {"kept": "payload.gone"}}, JobReason.BAD_BAGGAGE),
    ({"if_": ENDLESS}, JobReason.BAD_CONDITION),
]


@pytest.mark.parametrize(("fault", "reason"), FAULTS, ids=[reason for _, reason in FAULTS])
async def test_a_step_that_cannot_be_made_fails_and_never_its_producer(
    store: Store, fault: dict[str, Any], reason: JobReason
) -> None:
    """An error ends that step; its producer has succeeded."""
    policy = steps_policy(uses("a"), uses("b", **fault), uses("c"))
    run_id = await begin_run(store, policy)
    settled = await settle_step(store, policy, "a", ok(emitted("e", {"text": "a" * 60})))
    assert [(job.plugin, job.reason) for job in settled.ended] == [
        ("p", reason),
        ("pipeline", JobReason.STEP_FAILED),
    ]
    steps = await members(store, run_id)
    assert steps["a"].status is JobStatus.SUCCEEDED
    assert (steps["b"].status, steps["b"].reason, steps["b"].execution) == (JobStatus.FAILED, reason, 0)
    assert await path_of(store, steps["b"].id) == [">queued:submitted", f"queued>failed:{reason}"]
    job = await stored(store, run_id)
    assert job.last_error == f"b: {steps['b'].last_error}"


async def test_a_first_step_that_cannot_be_made_ends_the_run_where_it_began(store: Store) -> None:
    policy = steps_policy(uses("a", with_={"x": "{payload.gone}"}))
    run_id = await begin_run(store, policy)
    assert await end_of(store, run_id) == (JobStatus.FAILED, JobReason.STEP_FAILED)


async def test_an_if_of_a_split_that_cannot_be_judged_fails_its_line_and_says_why(store: Store) -> None:
    policy = steps_policy(uses("a"), split("s", uses("x"), if_=ENDLESS), uses("b"))
    run_id = await begin_run(store, policy)
    await settle_step(store, policy, "a", ok(emitted("e", {"text": "a" * 60})))
    job = await stored(store, run_id)
    assert (job.status, job.reason) == (JobStatus.FAILED, JobReason.STEP_FAILED)
    assert (job.last_error or "").startswith("s: the condition on payload.text cannot be evaluated")
    (entry,) = [row for row in await whole_ledger(store) if row.kind is LedgerKind.CONDITION_FALSE]
    assert entry.data["step"] == "s"


async def test_baggage_lasts_and_cannot_be_changed(store: Store) -> None:
    """Later steps have it. A change fails the step, and the error names the path."""
    policy = steps_policy(
        uses("a", baggage={"kept": "payload.n"}), uses("b"), uses("c", baggage={"kept": "payload.m"})
    )
    run_id = await begin_run(store, policy, {"n": 1})
    await settle_step(store, policy, "a")
    claims = await claims_by_step(store)
    assert claims["b"].baggage == {"kept": 1}
    await settle(store, claims["b"].job, ok(emitted("e", {"m": 2})), policy)
    step = (await members(store, run_id))["c"]
    assert step.reason is JobReason.BAD_BAGGAGE
    assert "kept" in (step.last_error or "")


async def test_baggage_from_before_a_split_is_there_after_it(store: Store) -> None:
    """Claimed baggage lasts to the end of the run."""
    policy = steps_policy(
        uses("a", baggage={"kept": "payload.n"}), split("s", uses("x"), uses("y")), uses("after")
    )
    await begin_run(store, policy, {"n": 1})
    await settle_step(store, policy, "a")
    for claim in await claim_all(store):
        assert claim.baggage == {"kept": 1}
        await settle(store, claim.job, ok(), policy)
    joined = (await claims_by_step(store))["after"]
    assert joined.baggage == {"kept": 1}
    await settle(store, joined.job, ok(), policy)


async def test_baggage_of_a_branch_does_not_leave_it(store: Store) -> None:
    """Two branches may claim different values under one name; the join has the baggage of the split."""
    claim_baggage: dict[str, Any] = {"baggage": {"kept": "payload.n"}}
    branch = {"id": "x", "steps": [uses("x1"), uses("x2", **claim_baggage)]}
    policy = steps_policy(
        split("s", branch, uses("y", **claim_baggage)), uses("after", baggage={"late": "context.kept"})
    )
    run_id = await begin_run(store, policy, {"n": 1})
    claims = await claims_by_step(store)
    await settle(store, claims["s/x/x1"].job, ok(emitted("e", {"n": 2})), policy)
    await settle(store, claims["s/y"].job, ok(), policy)
    claims = await claims_by_step(store)
    assert claims["s/x/x2"].baggage == {"kept": 2}
    await settle(store, claims["s/x/x2"].job, ok(), policy)
    assert (await members(store, run_id))["after"].reason is JobReason.BAD_BAGGAGE


# -------------------------------------------------------------------------------------------------- bounds


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


async def test_branches_that_made_something_too_deep_break_their_split(store: Store) -> None:
    """Each payload is within the limit and the joined one is not; the error of the run says this."""
    policy = steps_policy(split("s", uses("x"), uses("y")), uses("after"))
    run_id = await begin_run(store, policy)
    claims = await claims_by_step(store)
    await settle(store, claims["s/x"].job, ok(emitted("e", {"deep": nested(MAX_DEPTH - 1)})), policy)
    await settle(store, claims["s/y"].job, ok(), policy)
    job = await stored(store, run_id)
    assert (job.status, job.reason) == (JobStatus.FAILED, JobReason.PARTIAL_SUCCESS)
    assert job.last_error == f"s: the joined result of s is nested more than {MAX_DEPTH} levels deep"


async def test_a_template_that_makes_something_too_deep_fails_its_step(store: Store) -> None:
    policy = steps_policy(uses("a"), uses("b", with_={"in": {"it": "{payload}"}}))
    run_id = await begin_run(store, policy)
    await settle_step(store, policy, "a", ok(emitted("e", {"deep": nested(MAX_DEPTH - 1)})))
    step = (await members(store, run_id))["b"]
    assert (step.status, step.reason) == (JobStatus.FAILED, JobReason.BAD_TEMPLATE)
    assert f"deeper than {MAX_DEPTH} levels" in (step.last_error or "")


async def test_more_than_a_thousand_events_are_a_permanent_failure(store: Store) -> None:
    policy = steps_policy(uses("a"), uses("b"))
    run_id = await begin_run(store, policy)
    await settle_step(store, policy, "a", ok(*(emitted() for _ in range(1001))))
    step = (await members(store, run_id))["a"]
    assert (step.status, step.reason) == (JobStatus.FAILED, JobReason.TOO_MANY_EVENTS)
    assert await end_of(store, run_id) == (JobStatus.FAILED, JobReason.STEP_FAILED)


async def test_more_than_ten_thousand_steps_are_a_permanent_failure_of_the_one_that_asks(
    store: Store,
) -> None:
    """The error has the number, and none of the steps is created."""
    branches = [uses(f"b{number}") for number in range(11)]
    policy = steps_policy(uses("a"), split("s", *branches))
    run_id = await begin_run(store, policy)
    await settle_step(store, policy, "a", ok(*(emitted() for _ in range(1000))))
    step = (await members(store, run_id))["a"]
    assert (step.status, step.reason) == (JobStatus.FAILED, JobReason.RUN_TOO_LARGE)
    assert "11001 steps; at most 10000" in (step.last_error or "")


# ------------------------------------------------------------------------------------------------- versions


async def test_a_run_keeps_the_graph_it_began_with(store_factory: StoreFactory) -> None:
    """A reload and a restart do not change it."""
    store = await store_factory.open()
    before = steps_policy(uses("a"), uses("b", plugin="q"))
    after = steps_policy(uses("a"), uses("c", plugin="r"))
    run_id = await begin_run(store, before)
    await store.record_config("h", ConfigOrigin.RELOAD, {})
    store = await store_factory.reopen()
    await settle_step(store, after, "a")
    await settle_step(store, after, "b")
    record = await store.get_run(run_id)
    assert record is not None
    assert record.graph == graph_of(uses("a"), uses("b", plugin="q"))
    assert record.job.status is JobStatus.SUCCEEDED


async def test_a_plugin_that_is_gone_ends_its_step_and_the_run_goes_on(store: Store) -> None:
    """The step is dead with reason `plugin_removed`; the run continues as after any failed step."""
    policy = steps_policy(split("s", uses("x", plugin="q"), uses("y"), join="always"), uses("after"))
    run_id = await begin_run(store, policy)
    result = await store.end_queued(JobReason.PLUGIN_REMOVED, policy, plugins=["q"])
    assert [(job.plugin, job.status) for job in result.jobs] == [("q", JobStatus.DEAD)]
    assert await run_until_idle(store, policy) == ["s/y", "after"]
    assert await end_of(store, run_id) == (JobStatus.FAILED, JobReason.PARTIAL_SUCCESS)


async def test_a_purge_ends_runs_through_their_steps(store: Store) -> None:
    """`queue purge` ends jobs, and the run without live steps ends too."""
    policy = steps_policy(uses("a"), uses("b"))
    run_id = await begin_run(store, policy)
    result = await store.end_queued(JobReason.PURGED, policy)
    assert [(job.plugin, job.status) for job in result.jobs] == [
        ("p", JobStatus.DEAD),
        ("pipeline", JobStatus.FAILED),
    ]
    assert await end_of(store, run_id) == (JobStatus.FAILED, JobReason.STEP_FAILED)


# -------------------------------------------------------------------------------------------- deduplication


async def test_a_second_run_with_a_live_twin_waits_for_it(store: Store) -> None:
    """The name of the pipeline and the key identify a run."""
    policy = policy_of(
        {"name": "flow", "steps": [uses("a"), uses("b")]}, {"name": "other", "steps": [uses("o")]}
    )
    first = await begin_run(store, policy, dedupe_key="k")
    await begin_run(store, policy, dedupe_key="k")
    other = await begin_run(store, policy, pipeline="other", dedupe_key="k")
    claims = await claim_all(store)
    assert [claim.job.run_id for claim in claims] == [first, other]
    for claim in claims:
        await settle(store, claim.job, ok(), policy)
    await settle_step(store, policy, "b")
    assert await run_until_idle(store, policy) == ["a", "b"]


async def test_a_success_within_its_window_makes_a_run_a_duplicate(store: Store, clock: Clock) -> None:
    """Nothing of the duplicate is stored."""
    policy = steps_policy(uses("a", baggage={"kept": "payload.n"}))
    first = await begin_run(store, policy, {"n": 1}, dedupe_key="k")
    assert await run_until_idle(store, policy) == ["a"]
    duplicate = a_new_run(policy, {"n": 1}, dedupe_key="k")
    result = await enqueue_run(store, policy, duplicate)
    assert isinstance(result, Deduplicated)
    assert (result.job_id, result.dedupe_key) == (first, "k")
    assert await store.get_job(duplicate.job.id) is None
    clock.advance(hours=25)
    await begin_run(store, policy, {"n": 1}, dedupe_key="k")
    assert await run_until_idle(store, policy) == ["a"]


async def test_a_live_run_counts_as_a_duplicate_on_request(store: Store) -> None:
    policy = steps_policy(uses("a"))
    first = await begin_run(store, policy, dedupe_key="k")
    result = await enqueue_run(store, policy, a_new_run(policy, dedupe_key="k", dedupe_ttl=60.0))
    assert isinstance(result, Deduplicated)
    assert (result.job_id, result.dedupe_key) == (first, "k")
    await run_until_idle(store, policy)


async def test_a_run_that_gives_up_waiting_does_not_let_the_next_one_in(store: Store) -> None:
    """Of three runs with one key, the second is cancelled while it waits for the first."""
    policy = steps_policy(uses("a"))
    first = await begin_run(store, policy, dedupe_key="k")
    second = await begin_run(store, policy, dedupe_key="k")
    third = await begin_run(store, policy, dedupe_key="k")
    (claim,) = await claim_all(store)
    assert claim.job.run_id == first
    await store.cancel(second, policy)
    assert await claim_all(store) == [], "the third runs beside the first"
    await settle(store, claim.job, ok(), policy)
    (claim,) = await claim_all(store)
    assert claim.job.run_id == third
    await settle(store, claim.job, ok(), policy)


async def test_a_run_that_is_tried_again_and_a_new_one_do_not_run_together(store: Store) -> None:
    """The newest run waits for the one before it."""
    policy = steps_policy(uses("a"))
    first = await begin_run(store, policy, dedupe_key="k")
    await settle_step(store, policy, "a", failed(permanent=True))
    second = await begin_run(store, policy, dedupe_key="k")
    (claim,) = await claim_all(store)
    assert claim.job.run_id == second
    await store.retry(first, policy)
    third = await begin_run(store, policy, dedupe_key="k")
    assert await claim_all(store) == []
    await settle(store, claim.job, failed(permanent=True), policy)
    (claim,) = await claim_all(store)
    assert claim.job.run_id == first
    await settle(store, claim.job, failed(permanent=True), policy)
    (claim,) = await claim_all(store)
    assert claim.job.run_id == third
    await settle(store, claim.job, ok(), policy)


async def test_steps_made_at_the_start_are_returned_to_the_caller(store: Store) -> None:
    """Ready steps wake the dispatcher; a run itself is never ready."""
    policy = steps_policy(split("s", uses("x"), uses("y")))
    run = a_new_run(policy)
    result = await enqueue_run(store, policy, run)
    assert isinstance(result, Accepted)
    assert {member.job_id for member in result.steps} == {
        job.id for job in await all_members(store, run.job.id)
    }
    await run_until_idle(store, policy)


async def test_jobs_and_runs_are_accepted_together(store: Store) -> None:
    """The jobs and runs of an event are stored in one transaction, with results in order."""
    policy = steps_policy(uses("a"))
    run = a_new_run(policy)
    job = NewJob(id=an_id(), plugin="q", command="handle", submitted_by=run.job.submitted_by, max_attempts=1)
    results = await submit(store, job, runs=(run,), policy=policy, event=run.event)
    assert [result.job_id for result in results] == [job.id, run.job.id]
    assert sorted(await run_until_idle(store, policy)) == ["a", "q"]


# ---------------------------------------------------------------------------------- conditions and time


def endless(number: int) -> dict[str, Any]:
    """Return a condition with a new pattern that takes for ever, so that no result is cached."""
    return {"path": "payload.text", "op": "regex", "value": f"(a|aa)+{number}"}


async def test_one_slow_condition_is_an_error_of_its_step_alone(store: Store) -> None:
    """The conditions before and after it are evaluated, although all share one budget of time."""
    fits = {"path": "payload.text", "op": "regex", "value": "a+!"}
    policy = steps_policy(
        split(
            "all",
            uses("before", if_=fits),
            *(uses(f"slow{number}", if_=endless(number)) for number in range(3)),
            uses("after", if_=fits),
        )
    )
    run_id = await begin_run(store, policy, {"text": "a" * 60 + "!"})
    steps = await members(store, run_id)
    assert {path: job.reason for path, job in steps.items()} == {
        "all/before": JobReason.SUBMITTED,
        "all/slow0": JobReason.BAD_CONDITION,
        "all/slow1": JobReason.BAD_CONDITION,
        "all/slow2": JobReason.BAD_CONDITION,
        "all/after": JobReason.SUBMITTED,
    }
    assert "took too long" in (steps["all/slow0"].last_error or "")


async def test_all_conditions_of_a_transaction_share_one_budget(store: Store) -> None:
    """Twenty endless conditions take no longer than one is allowed to."""
    slow = {"any": [endless(number) for number in range(20)]}
    policy = steps_policy(split("all", *(uses(f"s{number}", if_=slow) for number in range(20))))
    run = a_new_run(policy, {"text": "a" * 60 + "!"})
    started_at = time.process_time()
    await enqueue_run(store, policy, run)
    assert time.process_time() - started_at < 1.0  # without the common budget it was 2 s
    assert {job.reason for job in await all_members(store, run.job.id)} == {JobReason.BAD_CONDITION}
