"""Past runs become test cases; a run whose record would be wrong is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from builders.jobs import Clock, emitted, failed, ok
from builders.pipelines import a_new_run, begin_run, enqueue_run, snapshot_of, split, uses
from builders.stores import SQLITE, StoreFactory, claim_all, settle
from ductile.config.snapshot import Snapshot
from ductile.core.jobs.model import Outcome
from ductile.errors import ConflictError, GoneError, RefusedError
from ductile.operations.context import OperationContext
from ductile.operations.pipeline_test.cases import read_case_values
from ductile.operations.pipeline_test.record import RecordRuns, record_runs
from ductile.operations.pipeline_test.simulate import run_case
from ductile.store.model.jobs import Accepted
from ductile.store.model.maintenance import Retention
from ductile.store.port import Store

ALWAYS = split("both", uses("left"), uses("right", "q"), join="always")
FLOW = {"name": "flow", "on": "go", "steps": [uses("first"), ALWAYS, uses("last", "r")]}
DONE = ok(
    emitted("x", {"n": 1}),
    result=5,
    stdout='{"status": "ok", "result": 5, "events": [{"type": "x", "payload": {"n": 1}}]}',
)
FAILS: Mapping[str, Outcome] = {
    "both/left": failed(permanent=True, stdout='{"status": "error", "result": 3}')
}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    factory = StoreFactory(kind=SQLITE, directory=tmp_path, clock=Clock())
    yield await factory.open()
    await factory.close()


def a_snapshot(*steps: Mapping[str, Any]) -> Snapshot:
    return snapshot_of(FLOW if not steps else {"name": "flow", "on": "go", "steps": list(steps)})


async def settle_all(store: Store, snapshot: Snapshot, outcomes: Mapping[str, Outcome]) -> None:
    while claims := await claim_all(store):
        for claim in claims:
            await settle(store, claim.job, outcomes.get(claim.job.step_path or "", DONE), snapshot.policy)


async def a_run(store: Store, snapshot: Snapshot, outcomes: Mapping[str, Outcome] | None = None) -> str:
    run_id = await begin_run(store, snapshot.policy, {"who": "Ada"})
    await settle_all(store, snapshot, outcomes or {})
    return run_id


async def record(store: Store, snapshot: Snapshot, run: str | None = None, **last: int) -> Any:
    context = OperationContext(store=store, snapshot=lambda: snapshot, now=Clock(), rng=Random(1))
    return await record_runs(context, RecordRuns(pipeline="flow", run=run, **last))


async def test_a_run_is_recorded_with_its_responses_and_inputs(store: Store) -> None:
    snapshot = a_snapshot()
    run_id = await a_run(store, snapshot, FAILS)
    recording = await record(store, snapshot, run_id)
    (case,) = recording.cases
    assert case["start"] == {"payload": {"who": "Ada"}, "type": "go", "source": "api"}
    assert case["steps"]["first"] == {"result": 5, "events": [{"type": "x", "payload": {"n": 1}}]}
    assert case["steps"]["both/left"] == {"error": "it broke", "retry": False, "result": 3}
    assert case["expect"]["status"] == "partial_success"
    assert case["expect"]["steps"]["both/left"] == {
        "outcome": "failed",
        "payload": {"n": 1, "result": 5},
        "context": {},
    }
    (parsed_case,) = read_case_values("flow", recording.cases)
    assert run_case(snapshot, parsed_case).passed


async def test_ids_and_baggage_are_kept_where_steps_refer_to_them(store: Store) -> None:
    snapshot = a_snapshot(
        uses("first", with_={"run": "{run.id}", "trace": "{context.ductile_trace_id}"}),
        uses("last", baggage={"kept": "payload.n"}),
    )
    run = a_new_run(snapshot.policy, {"n": 2}, trace_id="00f0", hops=2)
    assert isinstance(await enqueue_run(store, snapshot.policy, run), Accepted)
    await settle_all(store, snapshot, {})
    recording = await record(store, snapshot, run.job.id)
    start = recording.cases[0]["start"]
    assert (start["run_id"], start["trace_id"], start["hops"]) == (run.job.id, "00f0", 2)
    assert recording.cases[0]["expect"]["steps"]["last"]["context"] == {"kept": 1}
    (parsed_case,) = read_case_values("flow", recording.cases)
    assert run_case(snapshot, parsed_case).passed


async def test_a_run_that_goes_on_is_refused(store: Store) -> None:
    snapshot = a_snapshot()
    run_id = await begin_run(store, snapshot.policy)
    with pytest.raises(ConflictError, match="has not ended"):
        await record(store, snapshot, run_id)


async def test_a_cancelled_run_or_step_is_refused(store: Store) -> None:
    snapshot = a_snapshot()
    cancelled_run = await begin_run(store, snapshot.policy)
    await store.cancel(cancelled_run, snapshot.policy)
    with pytest.raises(RefusedError, match="ended as cancelled"):
        await record(store, snapshot, cancelled_run)
    partly_cancelled = await begin_run(store, snapshot.policy)
    (first,) = await claim_all(store)
    await settle(store, first.job, DONE, snapshot.policy)
    left_claim, right_claim = await claim_all(store)
    await store.cancel(left_claim.job.id, snapshot.policy)
    await settle(store, left_claim.job, DONE, snapshot.policy)
    await settle(store, right_claim.job, DONE, snapshot.policy)
    await settle_all(store, snapshot, {})
    with pytest.raises(RefusedError, match="its step both/left ended as cancelled"):
        await record(store, snapshot, partly_cancelled)
    recording = await record(store, snapshot, last=5)
    assert (recording.cases, len(recording.left_out)) == ([], 2)


async def test_a_branch_that_was_retried_after_its_join_is_refused(store: Store) -> None:
    snapshot = a_snapshot()
    run_id = await a_run(store, snapshot, FAILS)
    await store.retry(run_id, snapshot.policy)
    await settle_all(store, snapshot, {})
    with pytest.raises(RefusedError, match="both/left was retried"):
        await record(store, snapshot, run_id)
    # Without such a join, the last responses describe the run.
    plain = a_snapshot(uses("first"), uses("last", "r"))
    run_id = await a_run(store, plain, {"first": failed(permanent=True, stdout=None)})
    await store.retry(run_id, plain.policy)
    await settle_all(store, plain, {})
    (parsed_case,) = read_case_values("flow", (await record(store, plain, run_id)).cases)
    assert run_case(plain, parsed_case).passed


async def test_a_run_from_the_middle_is_refused(store: Store) -> None:
    snapshot = a_snapshot()
    original = await a_run(store, snapshot, FAILS)
    run = a_new_run(
        snapshot.policy, {"who": "Ada"}, parent_job_id=original, rerun_of=original, submitted_detail="last"
    )
    result = await store.rerun(original, "last", run, snapshot.policy)
    assert isinstance(result, Accepted)
    await settle_all(store, snapshot, {})
    with pytest.raises(RefusedError, match="began in the middle"):
        await record(store, snapshot, run.job.id)


async def test_what_retention_has_removed_is_refused(tmp_path: Path) -> None:
    clock = Clock()
    factory = StoreFactory(kind=SQLITE, directory=tmp_path, clock=clock)
    store = await factory.open()
    try:
        snapshot = a_snapshot()
        run_id = await a_run(store, snapshot)
        clock.advance(days=1)
        await a_run(store, snapshot)  # the newest rows are never removed
        while (await store.prune(Retention(succeeded_jobs=timedelta(hours=1)))).rows:
            pass
        with pytest.raises(GoneError, match="no longer kept"):
            await record(store, snapshot, run_id)
    finally:
        await factory.close()


async def test_a_run_whose_bypasses_are_forgotten_is_refused(tmp_path: Path) -> None:
    """The ledger is kept for a shorter time than failed runs; without it a bypassed step looks unreached."""
    clock = Clock()
    factory = StoreFactory(kind=SQLITE, directory=tmp_path, clock=clock)
    store = await factory.open()
    try:
        large = {"path": "payload.n", "op": "gt", "value": 5}
        snapshot = a_snapshot(uses("first"), uses("large", if_=large), uses("last", "r"))
        run_id = await a_run(store, snapshot, {"last": FAILS["both/left"]})
        (case,) = (await record(store, snapshot, run_id)).cases
        assert case["expect"]["steps"]["large"] == {"outcome": "bypassed"}
        clock.advance(days=8)
        await a_run(store, snapshot)
        while (await store.prune(Retention())).rows:
            pass
        with pytest.raises(GoneError, match="bypassed steps are no longer kept"):
            await record(store, snapshot, run_id)
    finally:
        await factory.close()
