"""Run test cases: each is a run in memory, and a comparison with what the case expects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from random import Random
from time import thread_time

from ductile.config.schema.pipeline_cases import CaseStart
from ductile.config.snapshot import Snapshot
from ductile.core.events.model import NewEvent, Pipeline
from ductile.core.events.routing import EventProducer, exceeds_hops, start_refusal
from ductile.core.expressions.paths import MISSING
from ductile.core.expressions.regex import MatchBudget
from ductile.core.ids import make_id
from ductile.core.jobs.model import LedgerKind, NewJob, Outcome, SubmittedBy
from ductile.core.json import JsonObject, JsonValue
from ductile.core.runs.expectations import (
    JobRecord,
    ObservedRun,
    RunDifference,
    RunStatus,
    compare_run,
    observe_steps,
    status_of_run,
    unknown_step,
)
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.runs.simulation import (
    MAX_EXECUTIONS,
    SimulatedRun,
    SimulationSettings,
    SimulationTooLongError,
    simulate_run,
)
from ductile.core.runs.state import NewRun
from ductile.core.suggest import did_you_mean
from ductile.errors import ConfigError, Problem
from ductile.operations.pipeline_test.cases import LoadedCase
from ductile.operations.pipeline_test.responses import CaseResponder
from ductile.operations.runs.explain_event import target_of
from ductile.operations.runs.start import known_pipeline
from ductile.protocol.plugin_messages import stored_result
from ductile.struct import Value

#: Ids begin with the time. A fixed one makes every run of a case the same.
_STARTED_AT = datetime(2000, 1, 1, tzinfo=UTC)
_CONTEXT_ID = "case"


class CaseResult(Value):
    """The result of a case. `observed` is None if the run did not reach its end."""

    case: LoadedCase
    differences: tuple[RunDifference, ...]
    observed: ObservedRun | None = None
    #: Events that were not passed on because of the hop limit.
    dropped: tuple[str, ...] = ()
    synthetic: tuple[str, ...] = ()
    other_input: tuple[str, ...] = ()
    #: The types of the events that each job emitted, by step path, in the order of its jobs.
    emitted: Mapping[str, tuple[tuple[str, ...], ...]] = {}
    #: How many executions all steps had.
    executions: int = 0

    @property
    def passed(self) -> bool:
        return not self.differences


def run_cases(
    snapshot: Snapshot, cases: Sequence[LoadedCase], *, max_executions: int | None = None
) -> tuple[CaseResult, ...]:
    """Run the cases against a configuration. Blocking. Raises `NotFoundError` for an unknown pipeline.

    `max_executions` is for all of them together.
    """
    results: list[CaseResult] = []
    remaining = max_executions
    for case in cases:
        results.append(run_case(snapshot, case, MAX_EXECUTIONS if remaining is None else remaining))
        remaining = None if remaining is None else max(0, remaining - results[-1].executions)
    return tuple(results)


def refuse_unknown_pipelines(snapshot: Snapshot, cases: Sequence[LoadedCase]) -> None:
    """Raise `ConfigError` with every case whose pipeline is not configured."""
    known = snapshot.policy.pipelines.by_name
    problems = tuple(
        Problem(
            message=f"there is no pipeline {case.pipeline}",
            file=case.location,
            key="pipeline",
            hint=did_you_mean(case.pipeline, known) or f"the pipelines are {', '.join(sorted(known))}",
        )
        for case in cases
        if case.pipeline not in known
    )
    if problems:
        raise ConfigError("cases are for pipelines that are not configured", problems=problems)


def run_case(snapshot: Snapshot, case: LoadedCase, max_executions: int = MAX_EXECUTIONS) -> CaseResult:
    """Run one case. Raises `NotFoundError` for an unknown pipeline."""
    pipeline = known_pipeline(snapshot, case.pipeline)
    known_steps = tuple(path for path in pipeline.graph.nodes if pipeline.graph.step(path) is not None)
    unknown = tuple(
        unknown_step(("steps", path), path, known_steps) for path in case.steps if path not in known_steps
    )
    if (refusal := _start_refusal(snapshot, pipeline, case.start)) is not None:
        observed = ObservedRun(status=RunStatus.NOT_STARTED, error=refusal)
        differences = unknown + compare_run(case.expect, observed, case.ignore)
        return CaseResult(case=case, differences=differences, observed=observed)
    responder = CaseResponder(snapshot, pipeline.graph, case.steps)
    try:
        simulated = _simulate(snapshot, pipeline, case.start, responder, max_executions)
    except SimulationTooLongError as error:
        too_long = RunDifference(path=("status",), expected=MISSING, actual=MISSING, because=str(error))
        return CaseResult(case=case, differences=(*unknown, too_long), executions=max_executions)
    observed = _observe(pipeline, simulated)
    compared = compare_run(case.expect, observed, case.ignore)
    emitted: dict[str, tuple[tuple[str, ...], ...]] = {}
    for step in simulated.steps:
        path = step.job.step_path or ""
        emitted[path] = (*emitted.get(path, ()), tuple(event.type for event in step.events))
    other_input = dict.fromkeys(responder.other_input)
    for difference in compared:
        match difference.path:
            # A step that the case has a response for got another payload than expected.
            case ("steps", path, *rest) if "payload" in rest[:3] and path in case.steps:
                other_input[path] = None
    return CaseResult(
        case=case,
        differences=(*unknown, *responder.differences, *compared),
        observed=observed,
        dropped=tuple(
            str(entry.data["error"]) for entry in simulated.ledger if entry.kind is LedgerKind.EVENT_DROPPED
        ),
        synthetic=tuple(responder.synthetic),
        other_input=tuple(other_input),
        emitted=emitted,
        executions=sum(len(step.outcomes) for step in simulated.steps),
    )


def _start_event(pipeline: Pipeline, start: CaseStart, event_id: str) -> NewEvent:
    return NewEvent(
        id=event_id,
        type=start.type or pipeline.on or pipeline.on_hook or f"{SubmittedBy.CLI}.trigger",
        source=start.source or pipeline.from_plugin or SubmittedBy.CLI,
        payload=dict(start.payload),
        headers=None if start.headers is None else dict(start.headers),
        dedupe_key=start.dedupe_key,
    )


def _start_refusal(snapshot: Snapshot, pipeline: Pipeline, start: CaseStart) -> str | None:
    """Return why the run does not start: the pipeline's own `if`, or the hop limit."""
    policy = snapshot.policy
    producer = EventProducer(submitted_by=SubmittedBy.CLI, baggage=dict(start.context), hops=start.hops)
    if exceeds_hops(producer, policy):
        return f"the run would be hop {start.hops}; at most {policy.max_hops} are allowed (service.max_hops)"
    refusal = start_refusal(pipeline, _start_event(pipeline, start, _CONTEXT_ID), producer, policy)
    return None if refusal is None else str(refusal.get("explanation") or refusal.get("error"))


def _simulate(
    snapshot: Snapshot, pipeline: Pipeline, start: CaseStart, responder: CaseResponder, max_executions: int
) -> SimulatedRun:
    rng = Random(0)  # it makes ids, the same in every run
    event = _start_event(pipeline, start, make_id(_STARTED_AT, rng))
    job = NewJob(
        id=start.run_id or make_id(_STARTED_AT, rng),
        plugin=RUN_PLUGIN,
        command=pipeline.name,
        submitted_by=SubmittedBy.CLI,
        max_attempts=1,
        source_event_id=event.id,
        event_context_id=_CONTEXT_ID if start.context else None,
        hops=start.hops,
        trace_id=start.trace_id,
    )
    settings = SimulationSettings(
        policy=snapshot.policy,
        now=_STARTED_AT,
        rng=rng,
        respond=responder.respond,
        read_result=_read_result,
        make_budget=lambda: MatchBudget(thread_time),
        max_executions=max_executions,
    )
    return simulate_run(NewRun(job=job, graph=pipeline.graph, event=event), dict(start.context), settings)


def _read_result(outcome: Outcome) -> JsonValue:
    return stored_result(outcome.evidence.stdout, outcome.evidence.output)


def _observe(pipeline: Pipeline, simulated: SimulatedRun) -> ObservedRun:
    records = [
        JobRecord(job=step.job, payload=step.execution.payload, context=step.execution.baggage)
        for step in simulated.steps
    ]
    entries: list[JsonObject] = [
        entry.data for entry in simulated.ledger if entry.kind is LedgerKind.CONDITION_FALSE
    ]
    # Jobs and runs that this run would start outside of itself.
    started = [*simulated.jobs, *(run.job for run in simulated.runs)]
    return ObservedRun(
        status=status_of_run(simulated.job),
        error=simulated.job.last_error,
        result=simulated.result,
        steps=observe_steps(pipeline.graph, records, entries),
        order=tuple(step.job.step_path or "" for step in simulated.steps if step.outcomes),
        starts=tuple(target_of(job) for job in started),
    )
