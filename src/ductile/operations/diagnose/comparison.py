"""Compares a failed job with the last good one: returns the differences, and what could not be compared."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from ductile.core.jobs.model import Job, JobStatus, OutputFormat
from ductile.core.jobs.settlement import LogStatus
from ductile.core.json import JsonObject
from ductile.core.json_shapes import FieldChangeKind
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.scripts import done_event
from ductile.operations.context import OperationContext
from ductile.operations.diagnose import differences as diff
from ductile.operations.diagnose.differences import Difference, MissingReference, StepChange, StepTrace
from ductile.operations.diagnose.wording import time_text
from ductile.operations.jobs.lookup import latest_execution
from ductile.operations.response import Id, from_record
from ductile.protocol.plugin_messages import DecodedResponse, decode_response, stored_result
from ductile.store.model.maintenance import ConfigRecord
from ductile.store.model.records import LogFilter, LogRow, RunRecord
from ductile.struct import Value, about, field, replace

#: Steps of a run that are compared. The cause of a bad template is among the first.
MAX_COMPARED_STEPS = 200
_NO_GRAPH = "the pipeline: the steps of one of the two runs are no longer stored"
_COMPARED_OF_RUNS = (
    "the configuration, version and files of the plugins of its steps",
    "the pipeline",
    "the payload of the run",
    "the shape of the input and output of each step before the failure",
)
_NEVER_COMPARED = (
    "files of a plugin besides its manifest and entrypoint",
    "environment variables, and the services that a plugin calls",
)


class ChangedField(Value):
    name: str = field(name="field")
    kind: FieldChangeKind = field(name="change")
    before: str | None = field(name="good")
    now: str | None


class ChangedStep(Value):
    """The first step of the run whose output has another shape than in the last good run."""

    step: str
    job_id: Id
    plugin: str
    command: str
    changes: tuple[ChangedField, ...]
    needed_by: Annotated[
        tuple[MissingReference, ...], about("References of the failed step that lead nowhere since.")
    ]


class RunComparison(Value):
    """The result. `cause`, `advice` and `first_change` are set if an output changed its shape."""

    compared_with: str | None = None
    differences: tuple[Difference, ...] = ()
    compared: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()
    cause: str | None = None
    advice: str | None = None
    first_change: ChangedStep | None = None


def config_at(configs: Sequence[ConfigRecord], at: datetime | None) -> ConfigRecord | None:
    """Return the configuration that was in force at an instant. `configs` are newest first."""
    return None if at is None else next((record for record in configs if record.loaded_at <= at), None)


async def compare_with_last_good(
    context: OperationContext, job: Job, executions: Sequence[LogRow], configs: Sequence[ConfigRecord]
) -> RunComparison:
    """Compare a pipeline run or a step with the last good run, another job with the last good job."""
    run_id = job.id if job.plugin == RUN_PLUGIN else job.run_id
    record = None if run_id is None else await context.store.get_run(run_id)
    if record is None:
        return await _compare_jobs(context, job, executions, configs)
    last_succeeded = await _last_succeeded(context, record.job)
    good = None if last_succeeded is None else await context.store.get_run(last_succeeded.job_id)
    if good is not None:
        return await _compare_runs(context, job, record, good, configs)
    if job.plugin == RUN_PLUGIN:
        return RunComparison(
            not_compared=(f"everything: no earlier run of pipeline {job.command} succeeded",)
        )
    comparison = await _compare_jobs(context, job, executions, configs)
    steps = f"the steps of the run: no earlier run of pipeline {record.job.command} succeeded"
    return replace(comparison, not_compared=(steps, *comparison.not_compared))


async def _last_succeeded(context: OperationContext, job: Job) -> LogRow | None:
    """Return the latest execution of the same command that succeeded before this job ended."""
    log_filter = LogFilter(
        plugin=job.plugin,
        command=job.command,
        status=LogStatus.SUCCEEDED,
        completed_before=job.completed_at or context.now(),
    )
    return await latest_execution(context, log_filter)


async def _compare_files(
    context: OperationContext,
    plugins: Sequence[str],
    loaded: ConfigRecord | None,
    good_at: datetime | None,
    now_at: datetime | None,
) -> tuple[list[Difference], list[str]]:
    """Return the changes of the plugins' files that no reload recorded, and what could not be compared."""
    differences, not_compared = [], []
    if loaded is not None:
        changed = await asyncio.to_thread(diff.changed_on_disk, context.snapshot(), plugins, loaded)
        for plugin, at in changed.items():
            if good_at is not None and now_at is not None and good_at < at <= now_at:
                now = f"changed on disk at {time_text(at)}, without a reload"
                differences.append(Difference(what=f"files of plugin {plugin}", good="as loaded", now=now))
            else:
                not_compared.append(
                    f"the files of {plugin} as they were then: "
                    f"those on disk (changed {time_text(at)}) are not those that were loaded"
                )
    return differences, not_compared


def _uncompared_config(before: ConfigRecord | None, now: ConfigRecord | None) -> tuple[str, ...]:
    """Return what cannot be compared of two configurations because it was not recorded."""
    if before is None or now is None:
        return ("the configuration: that of one of the two is not recorded",)
    if before.plugins is None or now.plugins is None:
        return ("versions and files of plugins: not recorded for one of the two",)
    return ()


# ------------------------------------------------------------------------------------------ job with job


async def _compare_jobs(
    context: OperationContext, job: Job, executions: Sequence[LogRow], configs: Sequence[ConfigRecord]
) -> RunComparison:
    """Compare a job with the last job of the same command that succeeded."""
    succeeded = await _last_succeeded(context, job)
    if succeeded is None:
        return RunComparison(
            not_compared=(f"everything: no earlier job of {job.plugin} {job.command} succeeded",)
        )
    rows = await context.store.list_executions(succeeded.job_id)
    good = next((row for row in rows if row.execution == succeeded.execution), succeeded)
    good_job = await context.store.get_job(good.job_id)
    last = executions[-1] if executions else None
    now_at = job.created_at if last is None else last.started_at
    before, now = config_at(configs, good.started_at), config_at(configs, now_at)
    files, uncompared_files = await _compare_files(context, (job.plugin,), now, good.started_at, now_at)
    uncompared_config = _uncompared_config(before, now)
    compared, not_compared = ["the input"], [*uncompared_files, *uncompared_config]
    if before is not None and now is not None:
        compared += [
            "the configuration",
            *(() if uncompared_config else ("version and files of the plugin",)),
        ]
    if last is None:
        not_compared.append("exit status, stderr and duration: it never ran")
    else:
        compared.append("exit status, stderr and duration")
    return RunComparison(
        compared_with=good.job_id,
        differences=(
            *diff.compare_configs(before, now, (job.plugin,)),
            *files,
            *(() if last is None else diff.compare_executions(good, last)),
            *diff.compare_inputs(None if good_job is None else good_job.payload, job.payload),
        ),
        compared=tuple(compared),
        not_compared=(*not_compared, *_NEVER_COMPARED),
    )


# ------------------------------------------------------------------------------------------ run with run


async def _compare_runs(
    context: OperationContext, job: Job, record: RunRecord, good: RunRecord, configs: Sequence[ConfigRecord]
) -> RunComparison:
    """Compare a run, up to its first failure, with the last good run of the pipeline."""
    failed = first_failed(record) if job.plugin == RUN_PLUGIN else job
    # The failure can follow from steps that ended before it; its own input and plugin are compared too.
    upstream = [
        step
        for step in record.steps
        if failed is None
        or step.id == failed.id
        or (step.completed_at is not None and step.completed_at <= failed.created_at)
    ]
    before = [await _trace_step(context, good, step) for step in good.steps[:MAX_COMPARED_STEPS]]
    now = [await _trace_step(context, record, step) for step in upstream[:MAX_COMPARED_STEPS]]
    outputs = diff.changed_outputs(before, now)
    missing = await _missing_references(context, record, failed)
    main_change = diff.first_change(outputs, missing)
    plugins = tuple(dict.fromkeys(step.plugin for step in upstream))
    good_at, now_at = (run.job.started_at or run.job.created_at for run in (good, record))
    good_config, now_config = config_at(configs, good_at), config_at(configs, now_at)
    files, uncompared_files = await _compare_files(context, plugins, now_config, good_at, now_at)
    left_out = len(upstream) - MAX_COMPARED_STEPS
    good_step_ids = (step.id for step in good.steps if step.step_path == job.step_path)
    return RunComparison(
        compared_with=good.job.id if job.plugin == RUN_PLUGIN else next(good_step_ids, good.job.id),
        differences=(
            *diff.compare_configs(good_config, now_config, plugins),
            *files,
            *(diff.compare_graphs(good.graph, record.graph) if good.graph and record.graph else ()),
            *diff.compare_inputs(good.job.payload, record.job.payload),
            *_shape_differences(outputs, diff.changed_inputs(before, now), main_change),
            *_execution_differences(good, record, failed),
        ),
        compared=_COMPARED_OF_RUNS,
        not_compared=(
            *_uncompared_config(good_config, now_config),
            *(() if good.graph and record.graph else (_NO_GRAPH,)),
            *diff.uncompared_steps(before, now, failed_step=None if failed is None else failed.step_path),
            *([f"{left_out} steps beyond the first {MAX_COMPARED_STEPS}"] if left_out > 0 else ()),
            *uncompared_files,
            "values of inputs and outputs whose type is the same",
            *_NEVER_COMPARED,
        ),
        cause=None if main_change is None else diff.describe_change(main_change, missing),
        advice=None if main_change is None else diff.change_advice(main_change, missing),
        first_change=None
        if main_change is None
        else from_record(
            ChangedStep,
            main_change.step,
            step=main_change.step.path,
            changes=tuple(from_record(ChangedField, change) for change in main_change.changes),
            needed_by=diff.explained_references(main_change, missing),
        ),
    )


def first_failed(record: RunRecord) -> Job | None:
    """Return the step that failed first: the failures after it follow from it."""
    failed = [step for step in record.steps if step.status in (JobStatus.FAILED, JobStatus.DEAD)]
    return min(failed, key=lambda step: step.completed_at or step.created_at, default=None)


async def _trace_step(context: OperationContext, record: RunRecord, step: Job) -> StepTrace:
    job = await context.store.get_job(step.id)  # with its payload, which the steps of a record do not have
    row = record.executions.get(step.id)
    return StepTrace(
        path=step.step_path or "",
        job_id=step.id,
        plugin=step.plugin,
        command=step.command,
        payload=None if job is None or row is None else job.payload,
        emitted=None if row is None or row.status is not LogStatus.SUCCEEDED else _emitted(row),
    )


def _emitted(row: LogRow) -> dict[str, tuple[JsonObject, ...]] | None:
    """Return payloads by event type; an event has the result of the response unless it has one of its own."""
    if row.output is not OutputFormat.PROTOCOL:
        done: JsonObject = {"result": stored_result(row.result, row.output), "exit_code": row.exit_code}
        return {done_event(row.plugin): (done,)}
    decoded = decode_response((row.result or "").encode(errors="surrogateescape"))
    if not isinstance(decoded, DecodedResponse):
        return None
    result: JsonObject = {"result": decoded.response.result}
    emitted: dict[str, tuple[JsonObject, ...]] = {}
    for event in decoded.response.events:
        emitted[event.type] = (*emitted.get(event.type, ()), {**result, **event.payload})
    return emitted or {"": (result,)}


async def _missing_references(
    context: OperationContext, record: RunRecord, failed: Job | None
) -> tuple[MissingReference, ...]:
    """Return the references without a value of a failed step that could not be created, and so never ran."""
    if failed is None or record.graph is None or failed.id in record.executions:
        return ()
    step, job = record.graph.step(failed.step_path), await context.store.get_job(failed.id)
    if step is None or job is None:
        return ()
    stored = (
        None if job.event_context_id is None else await context.store.get_event_context(job.event_context_id)
    )
    run_job = await context.store.get_job(record.job.id)
    run: JsonObject = {"id": record.job.id, "pipeline": record.graph.pipeline}
    run["payload"] = {} if run_job is None else run_job.payload or {}
    baggage = {} if stored is None else stored.baggage
    return diff.missing_references(step, job.payload or {}, baggage, run)


def _shape_differences(
    outputs: Sequence[StepChange], inputs: Sequence[StepChange], main_change: StepChange | None
) -> list[Difference]:
    """Return the differences in shape: the main change field by field, other outputs by name only.

    A changed input is listed only where no output changed.
    """
    differences = [] if main_change is None else [*diff.differences_of(main_change, "output")]
    differences += [
        Difference(what=f"output of step {output.step.path}", good="as it was", now="another shape")
        for output in outputs
        if output is not main_change
    ]
    for change in inputs[:1] if not outputs else ():
        differences += diff.differences_of(change, "input")
    return differences


def _execution_differences(good: RunRecord, now: RunRecord, failed: Job | None) -> list[Difference]:
    """Return the differences of the failed step's own execution, if it ran."""
    row = None if failed is None else now.executions.get(failed.id)
    if failed is None or row is None:
        return []
    good_rows = [good.executions.get(step.id) for step in good.steps if step.step_path == failed.step_path]
    good_row = next((good_row for good_row in good_rows if good_row is not None), None)
    if good_row is None:
        return []
    return [
        replace(difference, what=f"{difference.what} of step {failed.step_path}")
        for difference in diff.compare_executions(good_row, row)
    ]
