"""Record past runs as test cases: their start, the responses of their steps, and their results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from ductile.core.events.model import NewContext
from ductile.core.expressions.paths import Root
from ductile.core.jobs.model import TERMINAL, Job, JobReason, JobStatus, LedgerKind, OutputFormat
from ductile.core.jobs.settlement import LogStatus
from ductile.core.json import JsonObject, JsonValue
from ductile.core.json_differences import compare_values
from ductile.core.runs.expectations import (
    NOT_CREATED,
    JobRecord,
    ObservedRun,
    expectation_of,
    observe_steps,
    status_of_run,
)
from ductile.core.runs.graph import RUN_PLUGIN, Graph, JoinPolicy, SplitNode
from ductile.errors import ConflictError, GoneError, NotFoundError, RefusedError
from ductile.operations.context import OperationContext
from ductile.operations.jobs.lookup import resolve_run
from ductile.operations.pipeline_test.cases import FAILURE_REASONS, expectation_to_json
from ductile.operations.request import refused
from ductile.operations.response import Id, Response, timestamp
from ductile.protocol.plugin_messages import DecodedResponse, decode_response, stored_result
from ductile.store.model.jobs import StoredEvent
from ductile.store.model.records import LARGEST_PAGE, JobFilter, LogRow, RunRecord
from ductile.struct import Value, about

#: The most steps of a run that is recorded: each is read by a query of its own.
_MAX_STEPS = 1000
#: Ends of a step that say nothing about what its plugin would have responded.
_NO_RESPONSE = frozenset({JobReason.CANCELLED, JobReason.PURGED})
_VERBATIM = "Inputs and responses are as they were, without masks: look for secrets before sharing it."


class RecordRuns(Value):
    pipeline: Annotated[str, about("The pipeline.")]
    run: Annotated[
        str | None, about("The run: its id, at least four of its first or last digits, or `last`.")
    ] = None
    last: Annotated[
        int | None, Meta(ge=1, le=LARGEST_PAGE, description="So many of its latest runs, instead of one.")
    ] = None


class RunLeftOut(Value):
    job_id: Id
    reason: str


class RecordedCases(Response):
    """A file of cases, and the runs that could not be recorded."""

    pipeline: str
    description: Annotated[str, about("Where the cases come from.")]
    cases: Annotated[list[dict[str, Any]], about("As in a file of cases.")]
    runs: Annotated[list[Id], about("The run of each case.")]
    left_out: list[RunLeftOut]


class RecordedRun(Value):
    """A past run as a case, as a file writes it."""

    job_id: str
    case: JsonObject


async def record_runs(context: OperationContext, request: RecordRuns) -> RecordedCases:
    """Record past runs of a pipeline as test cases. Raises as `record_run` does, if one run is named."""
    recorded, left_out = await record_selected_runs(context, request.pipeline, request.run, request.last)
    return RecordedCases(
        pipeline=request.pipeline,
        description=f"Recorded from past runs. {_VERBATIM}",
        cases=[run.case for run in recorded],
        runs=[run.job_id for run in recorded],
        left_out=left_out,
    )


async def record_selected_runs(
    context: OperationContext, pipeline: str, run: str | None, last: int | None
) -> tuple[list[RecordedRun], list[RunLeftOut]]:
    """Return one run, or the latest ones, as cases; and of the latest, those that cannot be one."""
    if (run is None) == (last is None):
        raise refused("run", "name one run, or how many of the latest ones", "run or last")
    if run is not None:
        job = await resolve_run(context, f"last:{pipeline}" if run == "last" else run)
        if job.plugin != RUN_PLUGIN:
            hint = f"Its run is {job.run_id}." if job.run_id else None
            raise RefusedError(f"{job.id} is not a pipeline run", hint=hint)
        if job.command != pipeline:
            raise RefusedError(
                f"{job.id} is a run of {job.command}, not of {pipeline}",
                hint=f"ductile pipeline test {job.command} --run {job.id}",
            )
        return [await record_run(context, job)], []
    jobs = JobFilter(plugin=RUN_PLUGIN, command=pipeline)
    latest = (await context.store.list_jobs(jobs, limit=LARGEST_PAGE, cursor=None)).rows
    recorded: list[RecordedRun] = []
    left_out: list[RunLeftOut] = []
    for job in [job for job in latest if job.status in TERMINAL][:last]:
        try:
            recorded.append(await record_run(context, job))
        except (ConflictError, GoneError, RefusedError) as error:
            left_out.append(RunLeftOut(job_id=job.id, reason=error.message))
    if not recorded and not left_out:
        raise NotFoundError(
            f"there is no run of {pipeline} in the store", hint="Start one with `ductile pipeline run`."
        )
    return recorded, left_out


async def record_run(context: OperationContext, run: Job) -> RecordedRun:
    """Return an ended run as a case.

    Raises `ConflictError` if it has not ended, `GoneError` if retention has removed what is needed, and
    `RefusedError` if it does not say how its steps would have gone.
    """
    _refuse_unfit(run)
    record = await context.store.get_run(run.id)
    if record is None or record.graph is None:
        raise _gone(run, "its steps")
    if len(record.steps) > _MAX_STEPS:
        raise RefusedError(f"{run.id} has {len(record.steps)} steps; at most {_MAX_STEPS} can be recorded")
    await _refuse_incomplete(context, record, record.graph)
    reader = _InputReader(context, run)
    event = await reader.event(run.source_event_id)
    baggage = await reader.baggage(run.event_context_id)
    records = [await reader.step(step) for step in record.steps]
    responses = {
        step.id: response
        for step in record.steps
        if (response := _response_of(step, record.executions.get(step.id))) is not None
    }
    entries = [row.data for row in record.ledger_entries if row.kind is LedgerKind.CONDITION_FALSE]
    output = record.executions.get(record.job.id)
    observed = ObservedRun(
        status=status_of_run(record.job),
        error=record.job.last_error,
        result=None if output is None else stored_result(output.result, output.output),
        steps=observe_steps(record.graph, records, entries),
    )
    case: JsonObject = {
        "name": f"run {run.id} of {timestamp(run.created_at)}",
        "start": _start_of(record.graph, record.job, event, baggage),
        "steps": _responses_by_step(records, responses),
        "expect": expectation_to_json(expectation_of(observed)),
    }
    return RecordedRun(job_id=run.id, case=case)


def _refuse_unfit(run: Job) -> None:
    """Raise for a run that has not ended, that ended without its steps, or that began in the middle."""
    if run.status not in TERMINAL:
        raise ConflictError(
            f"{run.id} has not ended: it is {run.status}", hint=f"Wait for it: `ductile job wait {run.id}`."
        )
    if run.status is JobStatus.DEAD or run.reason is JobReason.STALLED:
        raise RefusedError(
            f"{run.id} ended as {run.reason}: what its steps would have responded is not known"
        )
    if run.rerun_of is not None and run.parent_job_id == run.rerun_of:
        raise RefusedError(
            f"{run.id} began in the middle, at {run.submitted_detail}",
            hint="Record a run from its beginning.",
        )


async def _refuse_incomplete(context: OperationContext, record: RunRecord, graph: Graph) -> None:
    """Raise for a run whose rows no longer show how it went.

    Raises `RefusedError` if a branch was retried after its join continued without it: the steps after the
    join have seen the failure, and the branch has its later response. Raises `GoneError` if entries about
    bypassed steps may be gone: the ledger is kept for a shorter time.
    """
    joins_always = any(
        isinstance(node, SplitNode) and node.join is JoinPolicy.ALWAYS for node in graph.nodes.values()
    )
    for step in record.steps if joins_always else ():
        rows = await context.store.list_transitions(step.id) if step.execution > 1 else ()
        if any(row.transition.reason is JobReason.MANUAL_RETRY for row in rows):
            raise RefusedError(
                f"{record.job.id} cannot be recorded: its step {step.step_path} was retried, and the run may "
                "have continued without it before"
            )
    if not any(node.condition is not None or node.baggage for node in graph.nodes.values()):
        return
    lowest, _highest = await context.store.ledger_range()
    oldest = await context.store.list_ledger(after=lowest - 1, limit=1)
    if not oldest or oldest[0].at > record.job.created_at:
        raise _gone(record.job, "the entries about its bypassed steps")


def _gone(run: Job, what: str) -> GoneError:
    return GoneError(
        f"{run.id} cannot be recorded: {what} are no longer kept",
        hint="Retention has removed them. Record a later run.",
    )


class _InputReader:
    """Reads the inputs of the jobs of a run. Raises `GoneError` for those that are no longer kept."""

    def __init__(self, context: OperationContext, run: Job) -> None:
        self._store, self._run = context.store, run
        self._events: dict[str, StoredEvent] = {}
        self._contexts: dict[str, NewContext] = {}

    async def event(self, event_id: str | None) -> StoredEvent:
        if event_id is not None and event_id not in self._events:
            event = await self._store.get_event(event_id)
            if event is not None:
                self._events[event_id] = event
        if event_id is None or event_id not in self._events:
            raise _gone(self._run, "its events")
        return self._events[event_id]

    async def baggage(self, context_id: str | None) -> JsonObject:
        if context_id is None:
            return {}
        if context_id not in self._contexts:
            stored = await self._store.get_event_context(context_id)
            if stored is None:
                raise _gone(self._run, "its contexts")
            self._contexts[context_id] = stored
        return self._contexts[context_id].baggage

    async def step(self, step: Job) -> JobRecord:
        """Return a step with its payload, which lists of jobs do not have."""
        if step.reason in _NO_RESPONSE:
            raise RefusedError(
                f"{self._run.id} cannot be recorded: its step {step.step_path} ended as {step.reason}, "
                "so what it would have responded is not known"
            )
        job = await self._store.get_job(step.id)
        if job is None:
            raise _gone(self._run, "its steps")
        event = await self.event(job.source_event_id)
        return JobRecord(
            job=job,
            payload=event.payload if job.payload is None else job.payload,
            context=await self.baggage(job.event_context_id),
        )


def _start_of(graph: Graph, run: Job, event: StoredEvent, baggage: JsonObject) -> JsonObject:
    """Return what a run began with. Its id and trace id are recorded only if the pipeline uses them."""
    start: JsonObject = {"payload": event.payload, "type": event.type, "source": event.source}
    if event.headers is not None:
        start["headers"] = dict(event.headers)
    if event.dedupe_key is not None:
        start["dedupe_key"] = event.dedupe_key
    if baggage:
        start["context"] = baggage
    if run.hops:
        start["hops"] = run.hops
    paths = {path for node in graph.nodes.values() for path in node.paths}
    if any(path in (f"{Root.RUN}.id", Root.RUN.value) for path in paths):
        start["run_id"] = run.id
    traced = paths & {Root.CONTEXT.value, f"{Root.CONTEXT}.ductile_trace_id"}
    if run.trace_id is not None and traced:
        start["trace_id"] = run.trace_id
    return start


def _response_of(job: Job, last: LogRow | None) -> JsonObject | None:
    """Return the response of the last execution; None for a step that has none.

    Raises `RefusedError` if the step ended without a response of its plugin.
    """
    if job.reason in NOT_CREATED or job.reason is JobReason.PLUGIN_REMOVED:
        return None
    if last is not None and last.status is LogStatus.TIMED_OUT:
        return {"timed_out": True}
    decoded = None if last is None else decode_response((last.result or "").encode(errors="surrogatepass"))
    if last is not None and last.status is LogStatus.SUCCEEDED:
        if last.output is not OutputFormat.PROTOCOL or not isinstance(decoded, DecodedResponse):
            return {"result": stored_result(last.result, last.output)}
        return {"result": decoded.response.result, **_events(decoded)}
    if last is None or last.reason not in FAILURE_REASONS:
        if last is not None and isinstance(decoded, DecodedResponse) and decoded.response.ok:
            # Its response was valid, but the run would have become too large with its events.
            return {"result": decoded.response.result, **_events(decoded)}
        raise RefusedError(
            f"{job.run_id} cannot be recorded: its step {job.step_path} ended as {job.reason} without a "
            "response of its plugin"
        )
    response: JsonObject = {"error": last.error or str(last.reason)}
    if last.reason is not JobReason.PLUGIN_ERROR:
        response["reason"] = last.reason.value
    if job.reason is not JobReason.ATTEMPTS_EXHAUSTED:
        response["retry"] = False
    if (result := stored_result(last.result, last.output)) is not None:
        response["result"] = result
    return response


def _events(decoded: DecodedResponse) -> JsonObject:
    events: list[JsonValue] = []
    for event in decoded.response.events:
        entry: JsonObject = {"type": event.type, "payload": event.payload}
        if event.dedupe_key is not None:
            entry["dedupe_key"] = event.dedupe_key
        events.append(entry)
    return {"events": events} if events else {}


def _responses_by_step(records: list[JobRecord], responses: Mapping[str, JsonObject]) -> JsonObject:
    """Return the responses of each step; one for all its runs if they are equal."""
    by_step: dict[str, list[tuple[JsonObject, JsonObject]]] = {}
    for record in records:
        if record.job.id in responses:
            pair = (record.payload, responses[record.job.id])
            by_step.setdefault(record.job.step_path or "", []).append(pair)
    steps: JsonObject = {}
    for path, pairs in by_step.items():
        first = pairs[0][1]
        if all(not compare_values(first, response) for _payload, response in pairs):
            steps[path] = first
        else:
            occurrences: list[JsonValue] = [{"for": payload, **response} for payload, response in pairs]
            steps[path] = {"occurrences": occurrences}
    return steps
