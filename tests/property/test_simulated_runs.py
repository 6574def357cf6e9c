"""A simulated run has the same result as the same run in a store.

For random pipelines, responses, retries, routes and hooks, the statuses, reasons, errors, inputs, results,
bypasses and starts of `simulate_run` are those of the real store. If the store runs the steps one after the
other, their order and the artifacts are equal too. The stored run passes as a recorded test case.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, given, note, settings
from hypothesis import strategies as st

from builders.jobs import START, Clock, emitted, failed, ok
from builders.pipelines import a_new_run, enqueue_run, payload_of, snapshot_of
from builders.stores import SQLITE, StoreFactory, claim_all
from builders.written_pipelines import EVENT_TYPES, IN_MEMORY, written_pipelines
from ductile.config.snapshot import Snapshot
from ductile.core.jobs.model import TERMINAL, Job, LedgerKind, Outcome, TimedOut
from ductile.core.json import JsonObject
from ductile.core.policy import Policy
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.runs.simulation import (
    SimulatedExecution,
    SimulatedRun,
    SimulationSettings,
    SimulationTooLongError,
    simulate_run,
)
from ductile.core.runs.state import NewRun
from ductile.operations.context import OperationContext
from ductile.operations.pipeline_test.cases import read_case_values
from ductile.operations.pipeline_test.record import RecordRuns, record_runs
from ductile.operations.pipeline_test.simulate import CaseResult, run_case
from ductile.protocol.plugin_messages import stored_result
from ductile.store.model.jobs import Accepted, Settled
from ductile.store.model.records import JobFilter, LedgerRow
from ductile.store.port import Store

MOST_STEPS = 60
#: Without jitter, so that retries are due in the same order in both.
RETRY = {"max_attempts": 3, "backoff_base": "1s", "backoff_max": "1s"}
PLUGINS = {"steady": {"retry": RETRY}, "weak": {"retry": RETRY}, "sink": {}}
OUTSIDE: dict[str, Any] = {
    "routes": [{"from": "steady", "event_type": "a", "to": "sink"}],
}
#: The outcome of the default timeout of `handle`.
TIMED_OUT = TimedOut(error="still running at its deadline, after 120 s")
LISTENERS: list[dict[str, Any]] = [
    {
        "name": "listens",
        "on": "b",
        "if": {"path": "payload.n", "op": "lt", "value": 6},
        "steps": [{"uses": "sink"}],
    },
    {"name": "hooked", "on-hook": "job.completed", "steps": [{"uses": "sink"}]},
    {"name": "alarm", "on-hook": "job.failed", "from_plugin": "flow", "steps": [{"uses": "sink"}]},
]
BYPASS_FIELDS = ("step", "explanation", "error", "event_type", "pipeline", "targets")


def respond(job: Job, payload: JsonObject) -> Outcome:
    """Return the outcome of an execution: random, but the same for the same step, payload and attempt."""
    if job.plugin == "sink":
        return ok()
    parts = (job.plugin, job.step_path or "", json.dumps(payload, sort_keys=True))
    rng = Random(hashlib.sha256("\0".join(parts).encode()).digest())
    result: JsonObject = {"of": job.step_path, "n": rng.randrange(9)}
    count = rng.choice([0, 0, 1, 1, 1, 2, 3])
    events = [
        emitted(rng.choice(EVENT_TYPES), {"n": rng.randrange(8)} if rng.random() < 0.8 else {"result": "own"})
        for _ in range(count)
    ]
    artifacts: list[Any] = (
        [{"name": "report.csv", "path": f"{rng.randrange(4)}"}] if rng.random() < 0.3 else []
    )
    bad_attempts = rng.choice([0, 0, 0, 1, 2, 3]) if job.plugin == "steady" else 3
    if job.attempt <= bad_attempts:
        return TIMED_OUT if rng.random() < 0.3 else failed(stdout=None)
    if rng.random() < 0.12:
        return failed(permanent=True, stdout=json.dumps({"status": "error", "result": "partly"}))
    response = {
        "status": "ok",
        "result": result,
        "events": [
            {"type": emitted_event.type, "payload": emitted_event.payload} for emitted_event in events
        ],
        "artifacts": artifacts,
    }
    return ok(*events, result=result, artifacts=tuple(artifacts), stdout=json.dumps(response))


def describe_step(job: Job, payload: JsonObject, baggage: JsonObject) -> tuple[str, ...]:
    """Return the properties of a step that are equal in memory and in the store."""
    return (
        job.step_path or "",
        job.status,
        job.reason,
        str(job.attempt),
        job.last_error or "",
        json.dumps(payload, sort_keys=True),
        json.dumps(baggage, sort_keys=True),
    )


@dataclass(slots=True)
class Observed:
    """The result of a run."""

    end: tuple[Any, ...] = ()
    steps: Counter[tuple[str, ...]] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    starts: Counter[str] = field(default_factory=Counter)
    #: Only comparable if steps run one after the other.
    order: list[str] = field(default_factory=list)
    artifacts: str = ""


def note_text(data: JsonObject) -> str:
    return json.dumps({key: data[key] for key in BYPASS_FIELDS if key in data}, sort_keys=True)


# ------------------------------------------------------------------------------------------ in the store


@dataclass(slots=True)
class StoreRun:
    store: Store
    clock: Clock
    policy: Policy
    rng: Random
    one_by_one: bool
    inputs: dict[str, tuple[JsonObject, JsonObject]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)

    async def run(self, run: NewRun) -> Observed:
        assert isinstance(await enqueue_run(self.store, self.policy, run), Accepted)
        for _ in range(MOST_STEPS * 50):
            claims = await claim_all(self.store, limit=1 if self.one_by_one else self.rng.randint(1, 5))
            if not claims and (await self.store.queue_counts()).depth == 0:
                break
            if not claims:
                self.clock.advance(seconds=1)
                await self.store.release_due()
            if not self.one_by_one:
                self.rng.shuffle(claims)
            for claim in claims:
                payload = payload_of(claim)
                if claim.job.run_id == run.job.id and claim.job.id not in self.inputs:
                    self.inputs[claim.job.id] = (payload, claim.baggage)
                    self.order.append(claim.job.step_path or "")
                result = await self.store.settle(claim.job, respond(claim.job, payload), self.policy)
                assert isinstance(result, Settled)
        return await self._observe(run)

    async def _observe(self, run: NewRun) -> Observed:
        record = await self.store.get_run(run.job.id)
        assert record is not None
        assert record.job.status in TERMINAL
        *_, last = await self.store.list_executions(run.job.id)
        observed = Observed(
            end=(record.job.status, record.job.reason, record.job.last_error, stored_result(last.result)),
            order=self.order,
            artifacts=json.dumps(record.job.artifacts),
        )
        for job in record.steps:
            if job.id in self.inputs:
                observed.steps[describe_step(job, *self.inputs[job.id])] += 1
            else:
                observed.steps[describe_step(job, {}, {})] += 1
        kinds = (LedgerKind.CONDITION_FALSE, LedgerKind.EVENT_DROPPED)
        members = {job.id for job in record.steps} | {run.job.id}
        rows = await self._ledger()
        observed.notes.update(
            note_text(row.data) for row in rows if row.kind in kinds and row.job_id in members
        )
        started = [*(await self._jobs("sink")), *(await self._jobs(RUN_PLUGIN))]
        for job in started:
            if job.parent_job_id in members and job.run_id is None:
                observed.starts[f"{job.plugin}.{job.command}"] += 1
        return observed

    async def _ledger(self) -> list[LedgerRow]:
        rows: list[LedgerRow] = []
        while True:
            page = await self.store.list_ledger(after=rows[-1].seq if rows else 0, limit=1000)
            if not page:
                return rows
            rows += page

    async def _jobs(self, plugin: str) -> list[Job]:
        rows: list[Job] = []
        cursor = None
        while True:
            page = await self.store.list_jobs(JobFilter(plugin=plugin), limit=200, cursor=cursor)
            rows += page.rows
            cursor = page.next_cursor
            if cursor is None:
                return rows


# ---------------------------------------------------------------------------------------------- in memory


def in_memory(policy: Policy, run: NewRun) -> tuple[Observed, SimulatedRun]:
    def respond_to(execution: SimulatedExecution) -> Outcome:
        return respond(execution.job, execution.payload)

    def read_result(outcome: Outcome) -> Any:
        return stored_result(outcome.evidence.stdout, outcome.evidence.output)

    simulated = simulate_run(
        run,
        {},
        SimulationSettings(
            policy=policy, now=START, rng=Random(5), respond=respond_to, read_result=read_result
        ),
    )
    job = simulated.job
    observed = Observed(
        end=(job.status, job.reason, job.last_error, simulated.result),
        order=[step.job.step_path or "" for step in simulated.steps if step.outcomes],
        artifacts=json.dumps(job.artifacts),
    )
    for step in simulated.steps:
        step_inputs = (step.execution.payload, step.execution.baggage) if step.outcomes else ({}, {})
        observed.steps[describe_step(step.job, *step_inputs)] += 1
    observed.notes.update(note_text(entry.data) for entry in simulated.ledger)
    observed.starts.update(f"{started.plugin}.{started.command}" for started in simulated.jobs)
    observed.starts.update(f"{started.job.plugin}.{started.job.command}" for started in simulated.runs)
    return observed, simulated


async def record_and_test(store: Store, snapshot: Snapshot, run_id: str) -> CaseResult:
    """Record the stored run as a test case, and run it against its pipeline."""
    context = OperationContext(store=store, snapshot=lambda: snapshot, now=Clock(), rng=Random(6))
    recorded = await record_runs(context, RecordRuns(pipeline="flow", run=run_id))
    assert (recorded.runs, recorded.left_out) == ([run_id], [])
    (case,) = read_case_values("flow", recorded.cases)
    return run_case(snapshot, case)


async def check(pipelines: list[dict[str, Any]], payload: JsonObject, hops: int, seed: int) -> None:
    rng = Random(seed)
    snapshot = snapshot_of(*pipelines, *LISTENERS, plugins=PLUGINS, **OUTSIDE)
    policy = snapshot.policy
    run = a_new_run(policy, payload, hops=hops)
    expected, simulated = in_memory(policy, run)
    note(f"the run ends {simulated.job.reason}: {simulated.job.last_error}")
    if len(simulated.steps) > MOST_STEPS:
        return
    event(f"the run ends {simulated.job.reason}")
    for name, is_present in (
        ("bypasses or errors", expected.notes),
        ("starts", expected.starts),
        ("retries", any(len(step.outcomes) > 1 for step in simulated.steps)),
        ("artifacts", simulated.job.artifacts),
    ):
        if is_present:
            event(name)
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory:
        factory = StoreFactory(kind=SQLITE, directory=Path(directory), clock=Clock())
        try:
            real = StoreRun(await factory.open(), factory.clock, policy, rng, one_by_one=rng.random() < 0.5)
            stored_run = await real.run(run)
            recorded = await record_and_test(real.store, snapshot, run.job.id)
        finally:
            await factory.close()
    assert stored_run.end == expected.end
    assert stored_run.steps == expected.steps
    assert stored_run.notes == expected.notes
    assert stored_run.starts == expected.starts
    assert recorded.differences == ()
    assert recorded.synthetic == recorded.other_input == ()
    if real.one_by_one:
        assert stored_run.order == expected.order
        assert stored_run.artifacts == expected.artifacts


FORM = settings(
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
SIZES = {
    "pipelines": written_pipelines(),
    "notifies": st.booleans(),
    "payload": st.sampled_from([{"n": 1}, {"n": 5}, {}]),
    "hops": st.sampled_from([0, 0, 19, 20]),
    "seed": st.integers(0, 1 << 32),
}


def compare(
    pipelines: list[dict[str, Any]], payload: JsonObject, hops: int, seed: int, *, notifies: bool
) -> None:
    note(json.dumps(pipelines))
    flow = next(pipeline for pipeline in pipelines if pipeline["name"] == "flow")
    flow["notify_on_complete"] = notifies
    try:
        asyncio.run(check(pipelines, payload, hops, seed))
    except SimulationTooLongError:
        event("too long")


@settings(FORM, max_examples=120)
@given(**SIZES)
def test_a_run_in_memory_is_the_run_in_the_store(
    pipelines: list[dict[str, Any]], payload: JsonObject, hops: int, seed: int, notifies: bool
) -> None:
    compare(pipelines, payload, hops, seed, notifies=notifies)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(FORM, max_examples=3000)
@given(**SIZES)
def test_thousands_of_runs_in_memory_are_those_in_the_store(
    pipelines: list[dict[str, Any]], payload: JsonObject, hops: int, seed: int, notifies: bool
) -> None:
    """This is the nightly form."""
    compare(pipelines, payload, hops, seed, notifies=notifies)
