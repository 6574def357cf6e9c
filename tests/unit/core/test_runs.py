"""Decisions about how a run advances. `tests/contract/store` tests them with a store."""

from __future__ import annotations

from typing import Any

import pytest

from builders.jobs import START, a_job, an_event, emitted, failed, ok, some_rng
from builders.pipelines import a_new_run, split, steps_policy, uses
from ductile.core.events.model import IndexedEvent
from ductile.core.jobs.model import Job, JobReason, JobStatus, LedgerKind, RunEnded
from ductile.core.jobs.settlement import SettleView, decide_settlement
from ductile.core.json import JsonObject
from ductile.core.policy import Policy
from ductile.core.runs.advance import MAX_JOINED_BYTES
from ductile.core.runs.graph import Graph
from ductile.core.runs.progress import (
    advance_run,
    fail_token,
    last_job,
    start_first_steps,
    summarise_run,
)
from ductile.core.runs.state import (
    MAX_RUN_JOBS,
    FinalTokenResult,
    JoinScope,
    JoinScopeState,
    JoinScopeView,
    RunInfo,
    RunProgress,
    RunView,
    TokenPosition,
    TokenResult,
    TokenStatus,
)
from ductile.struct import replace

ROOT = TokenPosition(scope_id="root", branch=0, sort_key="")


def flow_graph(policy: Policy) -> Graph:
    return policy.pipelines.by_name["flow"].graph


def a_view(policy: Policy, *scopes: JoinScopeView, position: TokenPosition = ROOT, **fields: Any) -> RunView:
    values: dict[str, Any] = {"jobs": 1, "cancelled": False, "baggage": {}} | fields
    root = JoinScopeView(scope=JoinScope(id="root", live=1))
    info = RunInfo(id="run", graph=flow_graph(policy), hops=2, trace_id="t", payload={"first": 1})
    return RunView(info=info, position=position, scopes=(*scopes, root), **values)


def a_step(path: str, **fields: Any) -> Job:
    return a_job("p", run_id="run", step_path=path, **fields)


def a_split_view(policy: Policy, branch: int, *final_results: TokenResult, **fields: Any) -> RunView:
    """Return the view of a step in the last live branch of the split `s`; the other branches ended with
    `ends`.
    """
    scope = JoinScope(
        id="inner", live=1, split="s", parent=ROOT, state=fields.pop("state", JoinScopeState.OPEN)
    )
    view = JoinScopeView(scope=scope, results=final_results, baggage={"kept": 1})
    return a_view(
        policy, view, position=TokenPosition(scope_id="inner", branch=branch, sort_key=""), **fields
    )


def an_end(branch: int, status: TokenStatus = TokenStatus.SUCCEEDED, **fields: Any) -> TokenResult:
    defaults: dict[str, Any] = {"payload": {"from": branch}, "job_id": f"job{branch}"}
    position = TokenPosition(scope_id="inner", branch=branch, sort_key="")
    return TokenResult(
        position=position, step_position=0, step_path="s", status=status, **(defaults | fields)
    )


def advance(view: RunView, job: Job, policy: Policy, *payloads: JsonObject) -> RunProgress:
    emitted = [
        IndexedEvent(event=an_event("e", payload=payload), index=index)
        for index, payload in enumerate(payloads)
    ]
    return advance_run(view, job, emitted, "done", policy, START, some_rng())


def test_a_run_begins_with_its_first_steps() -> None:
    policy = steps_policy(split("s", uses("x"), uses("y")))
    run = a_new_run(policy, {"n": 1})
    info = RunInfo(
        id=run.job.id, graph=run.graph, hops=4, trace_id=None, payload={"n": 1}, after_job_id="earlier"
    )
    progress = start_first_steps(run, info, {}, policy, START, some_rng())
    assert [step.job.step_path for step in progress.steps] == ["s/x", "s/y"]
    assert {step.job.after_job_id for step in progress.steps} == {"earlier"}
    assert {step.job.hops for step in progress.steps} == {4}
    root, inner = progress.opened_scopes
    assert (root.split, root.live, inner.split, inner.live) == (None, 1, "s", 2)
    assert inner.parent is not None
    assert inner.parent.scope_id == root.id
    assert not progress.ended


def test_a_step_continues_with_one_token_per_event_in_order() -> None:
    policy = steps_policy(uses("a"), uses("b"))
    progress = advance(a_view(policy), a_step("a"), policy, {"n": 0}, {"n": 1}, {"n": 2})
    assert progress.live_counts == (("root", 3),)
    assert [step.position.sort_key for step in progress.steps] == [".0000", ".0001", ".0002"]
    assert len({step.job.origin for step in progress.steps}) == 3
    origin = progress.steps[1].job.origin
    assert origin is not None
    assert (origin.event_index, origin.target) == (1, "run/b")


def test_the_order_of_tokens_is_the_order_of_their_text() -> None:
    """Positions are compared as text, as in the store."""
    policy = steps_policy(uses("a"), uses("b"))
    payloads: list[JsonObject] = [{"n": number} for number in range(1000)]
    progress = advance(a_view(policy), a_step("a"), policy, *payloads)
    orders = [step.position.sort_key for step in progress.steps]
    assert orders == sorted(orders)


def test_synthetic_events_are_stored_only_if_a_job_refers_to_them() -> None:
    policy = steps_policy(uses("a"), uses("b"))
    progress = advance(a_view(policy), a_step("a"), policy)
    (event,) = progress.events
    assert progress.steps[0].job.source_event_id == event.id
    assert advance(a_view(policy), a_step("b"), policy).events == ()


def test_the_last_token_ends_the_run() -> None:
    policy = steps_policy(uses("a"))
    progress = advance(a_view(policy), a_step("a"), policy)
    assert (progress.ended, progress.live_counts) == (True, (("root", 0),))
    (result,) = progress.results
    assert (result.step_path, result.status) == ("a", TokenStatus.SUCCEEDED)


def test_the_last_branch_joins() -> None:
    policy = steps_policy(split("s", uses("x"), uses("y")), uses("after"))
    job = a_step("s/y")
    progress = advance(a_split_view(policy, 1, an_end(0)), job, policy, {"y": 1})
    assert progress.closed_scopes == (("inner", JoinScopeState.JOINED),)
    (step,) = progress.steps
    assert (step.job.step_path, step.position, step.job.parent_job_id) == ("after", ROOT, "run")
    joined = next(event for event in progress.events if event.id == step.job.source_event_id)
    assert [branch["payload"] for branch in joined.payload["branches"]] == [{"from": 0}, {"y": 1}]  # type: ignore[union-attr,index,call-overload]  # the payload of the test
    assert not progress.ended


def test_a_join_that_went_on_before_does_not_go_on_again() -> None:
    policy = steps_policy(split("s", uses("x"), uses("y"), join="always"), uses("after"))
    progress = advance(a_split_view(policy, 1, an_end(0), state=JoinScopeState.JOINED), a_step("s/y"), policy)
    assert (progress.steps, progress.closed_scopes, progress.ended) == ((), (), True)
    assert dict(progress.live_counts) == {"inner": 0, "root": 0}


def test_the_joined_payload_is_bounded() -> None:
    """The limit is that of a plugin response; the error of the split says why it broke."""
    policy = steps_policy(split("s", uses("x"), uses("y")), uses("after"))
    large = an_end(0, payload={"text": "x" * (MAX_JOINED_BYTES // 2)})
    progress = advance(a_split_view(policy, 1, large), a_step("s/y"), policy)
    assert progress.steps == ()
    assert progress.closed_scopes == (("inner", JoinScopeState.BROKEN),)
    assert f"larger than {MAX_JOINED_BYTES} bytes" in (progress.results[-1].error or "")


def test_a_cancelled_run_makes_nothing() -> None:
    """Not even the step after a split with `join: always` is created."""
    policy = steps_policy(split("s", uses("x"), uses("y"), join="always"), uses("after"))
    view = a_split_view(policy, 1, an_end(0), cancelled=True)
    for progress in (
        advance(view, a_step("s/y"), policy, {"n": 1}),
        fail_token(view, a_step("s/y"), "cancelled", policy, START, some_rng()),
    ):
        assert (progress.steps, progress.ended) == ((), True)


def test_a_full_run_is_not_made_larger_by_a_step_that_fails() -> None:
    """The limit is 10,000 jobs; the token that would continue ends, and the run reports the reason."""
    policy = steps_policy(split("s", uses("x"), uses("y"), join="always"), uses("after"))
    view = a_split_view(policy, 1, an_end(0), jobs=MAX_RUN_JOBS)
    settlement = decide_settlement(
        SettleView(job=a_step("s/y"), state={}, run=view), failed(permanent=True), policy, START, some_rng()
    )
    progress = settlement.progress
    assert progress is not None
    assert (progress.steps, progress.ended) == ((), True)
    last = progress.results[-1]
    assert (last.step_path, last.status) == ("after", TokenStatus.FAILED)
    assert str(MAX_RUN_JOBS) in (last.error or "")
    assert [entry.kind for entry in progress.ledger] == [LedgerKind.CONDITION_FALSE]


@pytest.mark.parametrize(("jobs", "reason"), [(9_998, JobReason.COMPLETED), (9_999, JobReason.RUN_TOO_LARGE)])
def test_the_step_that_would_make_a_run_too_large_fails(jobs: int, reason: JobReason) -> None:
    policy = steps_policy(uses("a"), uses("b"))
    view = SettleView(job=a_step("a"), state={}, run=a_view(policy, jobs=jobs))
    settlement = decide_settlement(view, ok(emitted(), emitted()), policy, START, some_rng())
    assert settlement.reason is reason
    assert settlement.progress is not None
    assert settlement.progress.ended == (reason is JobReason.RUN_TOO_LARGE)


def test_a_step_that_goes_back_to_the_queue_leaves_its_run_alone() -> None:
    policy = steps_policy(uses("a"))
    view = SettleView(job=a_step("a"), state={}, run=a_view(policy))
    settlement = decide_settlement(view, failed(), policy, START, some_rng())
    assert (settlement.status, settlement.progress) == (JobStatus.QUEUED, None)


# ------------------------------------------------------------------------------------------- how a run ends


def final_results(*words: str) -> list[FinalTokenResult]:
    """Return results of the statuses `ok`, `no` or `skipped`; one in brackets is of a split that went on."""
    statuses = {"ok": TokenStatus.SUCCEEDED, "no": TokenStatus.FAILED, "skipped": TokenStatus.SKIPPED}
    return [
        FinalTokenResult(
            status=statuses[word.strip("()")],
            decides_result=not word.startswith("("),
            job_id=f"job{number}",
            step_path=f"step{number}",
            error="why" if "no" in word else None,
        )
        for number, word in enumerate(words)
    ]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), JobReason.COMPLETED),
        (("ok",), JobReason.COMPLETED),
        (("ok", "skipped"), JobReason.COMPLETED),
        (("no",), JobReason.STEP_FAILED),
        (("no", "no"), JobReason.STEP_FAILED),
        (("no", "(no)"), JobReason.STEP_FAILED),
        (("ok", "no"), JobReason.PARTIAL_SUCCESS),
        (("skipped", "no"), JobReason.PARTIAL_SUCCESS),
        (("(no)", "ok"), JobReason.PARTIAL_SUCCESS),
    ],
)
def test_a_run_ends_as_its_tokens_did(words: tuple[str, ...], reason: JobReason) -> None:
    """A run completes without failures, succeeds partly with some, and fails if no token succeeded."""
    ended = summarise_run(final_results(*words))
    assert ended.reason is reason
    assert ended.succeeded == (reason is JobReason.COMPLETED)


def test_the_error_of_a_run_names_every_step_that_failed() -> None:
    expected = RunEnded(reason=JobReason.PARTIAL_SUCCESS, error="step1: why; step2: why")
    assert summarise_run(final_results("ok", "no", "no")) == expected
    other_error = replace(final_results("no")[0], error="again")
    assert summarise_run([*final_results("no"), other_error]).error == "step0: why"
    without_error = [replace(final_results("no")[0], error=None)]
    assert summarise_run(without_error).error == "step0 failed"


def test_a_split_is_not_named_beside_the_branches_that_failed_it() -> None:
    left, right, split = final_results("no", "no", "no")
    failed = [
        replace(split, step_path="both", error="why"),
        replace(left, step_path="both/left", error="why"),
        replace(right, step_path="both/right", error="x" * 1000),
    ]
    assert summarise_run(failed).error == f"both/left: why; both/right: {'x' * 300}…"
    assert summarise_run(failed[2:]).error == f"both/right: {'x' * 1000}"
    assert summarise_run(failed[:1]).error == "both: why"


def test_the_answer_of_a_run_is_that_of_its_last_end() -> None:
    assert last_job(final_results("ok", "ok", "(no)")) == "job1"
    without_job = [replace(end, job_id=None) for end in final_results("ok")]
    assert last_job([*final_results("ok"), *without_job]) == "job0"
    assert last_job(without_job) is None
