"""`pipeline test`: shows what a pipeline of the configuration on disk would do, without running a plugin."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta

from ductile.config.secrets import redact
from ductile.config.snapshot import Snapshot
from ductile.core.auth_scopes import AccessLevel, AccessResource, auth_scope
from ductile.core.json import JsonObject, JsonValue, nests_too_deep
from ductile.core.runs.expectations import ObservedStep, RunStatus, StepEnd
from ductile.core.runs.graph import Graph
from ductile.core.runs.simulation import MAX_EXECUTIONS
from ductile.errors import NotFoundError
from ductile.operations.config.plan import config_file
from ductile.operations.context import OperationContext
from ductile.operations.pipeline_test.cases import LoadedCase, read_case_values
from ductile.operations.pipeline_test.record import RunLeftOut, record_selected_runs
from ductile.operations.pipeline_test.simulate import CaseResult, run_cases
from ductile.operations.plugins.replay_verdict import quote_masked
from ductile.operations.request import refused
from ductile.operations.response import Id, Response, from_record
from ductile.operations.runs.start import known_pipeline
from ductile.store.model.records import LARGEST_PAGE
from ductile.struct import Value, about, replace

#: The most cases of one request.
MAX_CASES = 200
#: The most differences of one case that are reported.
_MAX_DIFFERENCES = 100


def _decode_cases(name: str, value: JsonValue) -> tuple[JsonValue, ...]:
    if not isinstance(value, list) or not all(isinstance(case, dict) for case in value):
        raise refused(name, f"{name} has to be a list of cases", "See docs/reference/pipeline-cases.md.")
    if len(value) > MAX_CASES:
        raise refused(name, f"{name} has {len(value)} cases; at most {MAX_CASES} are tested in one request")
    if nests_too_deep(value):
        raise refused(name, f"{name} nests too deep")
    return tuple(value)


class PipelineTest(Value):
    pipeline: Annotated[str, about("Name of the pipeline.")]
    cases: Annotated[
        tuple[JsonValue, ...],
        Meta(
            description="Test cases as in a file of cases: `name`, `start`, `steps`, `expect`, `ignore`.",
            extra={"decode": _decode_cases},
            extra_json_schema={"type": "array", "items": {"type": "object"}},
        ),
    ] = ()
    payload: Annotated[
        dict[str, Any] | None,
        about("Instead of cases: show the path of a run with this payload, whose steps all succeed."),
    ] = None
    run: Annotated[
        str | None,
        about(
            "Instead of cases: a past run, by its id, at least four of its first or last digits, or `last`. "
            "Its steps respond as they did, and what would now go differently is shown."
        ),
    ] = None
    last: Annotated[
        int | None, Meta(ge=1, le=LARGEST_PAGE, description="Instead of cases: so many of its latest runs.")
    ] = None
    plan: Annotated[
        str | None,
        about("Test the configuration as this plan would make it, instead of the files on disk."),
    ] = None


class CaseJobReport(Value):
    """One run of a step, with its input. Values under keys that look secret are masked."""

    outcome: StepEnd
    payload: dict[str, Any]
    context: dict[str, Any]
    attempts: int
    error: str | None
    emits: Annotated[list[str], about("The types of the events that it emits.")]


class CaseStepReport(Value):
    step: Annotated[str, about("Its path.")]
    does: Annotated[str | None, about("The plugin and command, or the pipeline, that it calls.")]
    outcome: StepEnd
    because: Annotated[str | None, about("The comparison that decided, or the error.")]
    jobs: list[CaseJobReport]


class CaseDifference(Value):
    path: Annotated[str, about("Such as `status` or `steps.notify.payload.total`.")]
    expected: Annotated[str | None, about("As JSON, shortened, secrets masked; null if there is none.")]
    actual: str | None
    because: Annotated[str | None, about("The comparison that decided, or the error.")]
    hint: str | None


class CaseReport(Value):
    name: str
    location: Annotated[str | None, about("`FILE:LINE`, of a case in a file.")]
    job_id: Annotated[Id | None, about("The run that it was recorded from.")]
    passed: bool
    differences: Annotated[list[CaseDifference], about("What is not as expected; at most 100.")]
    status: Annotated[RunStatus | None, about("Null if the run was not carried to its end.")]
    error: str | None
    result: Annotated[Any, about("The result of the run.")]
    steps: Annotated[list[CaseStepReport], about("Every step, in the order of the pipeline.")]
    order: Annotated[list[str], about("The paths of the jobs in the order in which they ran.")]
    would_start: Annotated[list[str], about("What its events and its end would start outside of the run.")]
    dropped_events: Annotated[list[str], about("Events that the hop limit would stop.")]
    synthetic: Annotated[list[str], about("Steps that succeeded with a synthetic response.")]
    other_input: Annotated[list[str], about("Steps whose response was recorded for another input.")]


class PipelineTestReport(Response):
    passed: Annotated[bool, about("Whether every case went as expected.")]
    counts: Annotated[dict[str, int], about("How many cases `passed` and `failed`.")]
    cases: list[CaseReport]
    left_out: Annotated[list[RunLeftOut], about("Past runs that could not be tested, and why.")]


async def run_pipeline_test(context: OperationContext, request: PipelineTest) -> PipelineTestReport:
    """Run the cases in memory, by the configuration on disk or of a plan. Nothing is run or stored.

    Without cases and runs it is a dry run of the payload. Raises `ConfigError` for cases, or a configuration
    on disk, that cannot be used, and `NotFoundError` for an unknown pipeline.
    """
    inputs = [
        name for name in ("cases", "payload", "run", "last") if getattr(request, name) not in (None, ())
    ]
    if len(inputs) > 1:
        raise refused(inputs[1], f"{' and '.join(inputs)} exclude each other", "Send one of them.")
    snapshot = await _tested_snapshot(context, request.plan)
    known_pipeline(snapshot, request.pipeline)
    left_out: list[RunLeftOut] = []
    if request.run is not None or request.last is not None:
        context.require_scope(auth_scope(AccessResource.JOBS, AccessLevel.READ))
        recorded, left_out = await record_selected_runs(context, request.pipeline, request.run, request.last)
        cases = read_recorded(request.pipeline, [(run.job_id, run.case) for run in recorded])
    elif request.cases:
        cases = read_case_values(request.pipeline, request.cases)
    else:
        cases = (payload_case(request.pipeline, request.payload or {}),)
    # In a thread: a large run takes seconds.
    results = await asyncio.to_thread(run_cases, snapshot, cases, max_executions=MAX_EXECUTIONS)
    return report_results(snapshot, results, left_out)


def read_recorded(pipeline: str, recorded: Sequence[tuple[str, JsonObject]]) -> tuple[LoadedCase, ...]:
    """Return the cases that were recorded from these runs."""
    if not recorded:
        return ()
    cases = read_case_values(pipeline, [case for _job_id, case in recorded])
    return tuple(replace(case, job_id=job_id) for case, (job_id, _case) in zip(cases, recorded, strict=True))


def payload_case(pipeline: str, payload: JsonObject) -> LoadedCase:
    """Return a case without responses and expectations."""
    (case,) = read_case_values(pipeline, [{"name": "dry run", "start": {"payload": payload}}])
    return case


async def _tested_snapshot(context: OperationContext, plan: str | None) -> Snapshot:
    """Return the configuration on disk, sealed or not; with a plan, as that would make it."""
    if plan is None:
        if context.engine is None:
            return context.snapshot()
        return await context.engine.reloader.load_unsealed()
    draft = None if context.plan_drafts is None else context.plan_drafts.find(plan)
    if draft is None:
        hint = "Plans are kept until the daemon ends. Without a plan, the files on disk are tested."
        raise NotFoundError(f"there is no plan {plan[:100]}", hint=hint)
    directory = config_file(context).parent
    overlay = {directory / name: data for name, data in draft.contents.items()}
    return await context.require_engine().reloader.load_unsealed(overlay)


# ------------------------------------------------------------------------------------------------- report


def report_results(
    snapshot: Snapshot, results: Sequence[CaseResult], left_out: Sequence[RunLeftOut] = ()
) -> PipelineTestReport:
    passed = sum(result.passed for result in results)
    return PipelineTestReport(
        passed=passed == len(results) and bool(results),
        counts={"passed": passed, "failed": len(results) - passed},
        cases=[_case_report(snapshot, result) for result in results],
        left_out=[*left_out],
    )


def _case_report(snapshot: Snapshot, result: CaseResult) -> CaseReport:
    case, observed = result.case, result.observed
    graph = known_pipeline(snapshot, case.pipeline).graph
    return CaseReport(
        name=case.name,
        location=case.location,
        job_id=case.job_id,
        passed=result.passed,
        differences=[
            from_record(
                CaseDifference,
                difference,
                path=".".join(difference.path),
                expected=quote_masked(difference.path, difference.expected),
                actual=quote_masked(difference.path, difference.actual),
            )
            for difference in result.differences[:_MAX_DIFFERENCES]
        ],
        status=None if observed is None else observed.status,
        error=None if observed is None else observed.error,
        result=None if observed is None else redact(observed.result),
        steps=[] if observed is None else _step_reports(graph, observed.steps, result.emitted),
        order=[] if observed is None else [*observed.order],
        would_start=[] if observed is None else [*observed.starts],
        dropped_events=[*result.dropped],
        synthetic=[*result.synthetic],
        other_input=[*result.other_input],
    )


def _step_reports(
    graph: Graph, steps: Mapping[str, ObservedStep], emitted: Mapping[str, tuple[tuple[str, ...], ...]]
) -> list[CaseStepReport]:
    reports = []
    for path, step in steps.items():
        jobs = []
        for job, types in zip(step.jobs, emitted.get(path, ()), strict=True):
            payload, baggage = redact(job.payload), redact(job.context)
            jobs.append(
                CaseJobReport(
                    outcome=job.outcome,
                    payload=payload if isinstance(payload, dict) else {},
                    context=baggage if isinstance(baggage, dict) else {},
                    attempts=job.attempts,
                    error=job.error,
                    emits=[*types],
                )
            )
        target = graph.nodes[path].label.target
        reports.append(
            CaseStepReport(step=path, does=target, outcome=step.outcome, because=step.cause, jobs=jobs)
        )
    return reports
