"""A job that ended badly against the last good one: what differs, and what was not compared."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime

from ductile.core.jobs.model import Job, JobStatus
from ductile.core.jobs.settlement import LogStatus
from ductile.core.json import JsonObject, JsonValue
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.operations.context import OperationContext
from ductile.operations.diagnose.differences import (
    Difference,
    compare_configs,
    compare_inputs,
    compare_plugin,
    compare_runs,
)
from ductile.operations.diagnose.plugin_files import FilesOnDisk, compare_files, files_on_disk
from ductile.operations.diagnose.step_changes import (
    MissingReference,
    StepChange,
    StepTrace,
    change_advice,
    changed_inputs,
    changed_outputs,
    compare_graphs,
    describe_change,
    differences_of,
    explained_references,
    first_change,
    missing_references,
    steps_without_output,
    unmatched_steps,
)
from ductile.protocol.plugin_messages import DecodedResponse, decode_response
from ductile.store.model.maintenance import ConfigRecord
from ductile.store.model.records import LogFilter, LogRow, RunRecord
from ductile.struct import Value, replace

#: Steps of a run that are compared. What a bad template follows from is among the first.
MAX_COMPARED_STEPS = 200
_SAME_TYPE = "values of inputs and outputs whose type is the same"
_NEVER_COMPARED = (
    "files of a plugin besides its manifest and entrypoint",
    "environment variables, and the services that a plugin calls",
)


class RunComparison(Value):
    """What `job explain` tells of it. `cause` and `advice` are there if an output changed shape."""

    compared_with: str | None = None
    differences: tuple[Difference, ...] = ()
    compared: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()
    cause: str | None = None
    advice: str | None = None
    first_change: JsonObject | None = None


def config_at(configs: Sequence[ConfigRecord], at: datetime | None) -> ConfigRecord | None:
    """The configuration that was in force then."""
    if at is None:
        return None
    return next((record for record in configs if record.loaded_at <= at), None)


async def compare_with_last_good(
    context: OperationContext, job: Job, executions: Sequence[LogRow], configs: Sequence[ConfigRecord]
) -> RunComparison:
    """Of a run, or a step of one: its run with the last good run of the pipeline; else job with job."""
    run_id = job.id if job.plugin == RUN_PLUGIN else job.run_id
    record = None if run_id is None else await context.store.run(run_id)
    if record is None:
        return await _compare_jobs(context, job, executions, configs)
    good = await _last_good_run(context, record.job)
    if good is not None:
        return await _compare_runs(context, job, record, good, configs)
    nothing = f"the steps of the run: no earlier run of pipeline {record.job.command} succeeded"
    if job.plugin == RUN_PLUGIN:
        return RunComparison(not_compared=(f"anything: no earlier run of pipeline {job.command} succeeded",))
    found = await _compare_jobs(context, job, executions, configs)
    return replace(found, not_compared=(nothing, *found.not_compared))


# ----------------------------------------------------------------------------------------- one with one


async def _compare_jobs(
    context: OperationContext, job: Job, executions: Sequence[LogRow], configs: Sequence[ConfigRecord]
) -> RunComparison:
    good = await _last_good_execution(context, job)
    if good is None:
        return RunComparison(
            not_compared=(f"anything: no earlier job of {job.plugin} {job.command} succeeded",)
        )
    last = executions[-1] if executions else None
    began = job.created_at if last is None else last.started_at
    before, now = config_at(configs, good.started_at), config_at(configs, began)
    good_job = await context.store.job(good.job_id)
    on_disk = await _files(context, (job.plugin,))
    files = compare_files(on_disk, now, good_at=good.started_at, now_at=began)
    compared, missing = ["the input"], [*files.unknown]
    if before is None or now is None:
        missing.append("the configuration: that of one of the two is not recorded")
    elif before.plugins is None or now.plugins is None:
        compared.append("the configuration")
        missing.append("version and files of the plugin: not recorded for one of the two")
    else:
        compared += ["the configuration", "version and files of the plugin"]
    if last is None:
        missing.append("exit status, stderr and duration: it never ran")
    else:
        compared.append("exit status, stderr and duration")
    return RunComparison(
        compared_with=good.job_id,
        differences=(
            *compare_configs(before, now, job.plugin),
            *files.differences,
            *(() if last is None else compare_runs(good, last)),
            *compare_inputs(None if good_job is None else good_job.payload, job.payload),
        ),
        compared=tuple(compared),
        not_compared=(*missing, *_NEVER_COMPARED),
    )


async def _last_good_execution(context: OperationContext, job: Job) -> LogRow | None:
    """The latest execution of the same command that succeeded before this job ended, with its output."""
    row = await _last_succeeded(context, job)
    if row is None:
        return None
    outputs = await context.store.executions(row.job_id)
    return next((one for one in outputs if one.execution == row.execution), row)


async def _last_succeeded(context: OperationContext, job: Job) -> LogRow | None:
    where = LogFilter(
        plugin=job.plugin,
        command=job.command,
        status=LogStatus.SUCCEEDED,
        completed_before=job.completed_at or context.now(),
    )
    rows = (await context.store.log(where, limit=1)).rows
    return rows[0] if rows else None


# ----------------------------------------------------------------------------------------- step by step


async def _last_good_run(context: OperationContext, run: Job) -> RunRecord | None:
    row = await _last_succeeded(context, run)
    return None if row is None else await context.store.run(row.job_id)


async def _compare_runs(
    context: OperationContext, job: Job, record: RunRecord, good: RunRecord, configs: Sequence[ConfigRecord]
) -> RunComparison:
    failed = _first_failed(record) if job.plugin == RUN_PLUGIN else job
    upstream = [one for one in record.members if failed is None or _came_before(one, failed)]
    before = [await _trace(context, good, one) for one in good.members[:MAX_COMPARED_STEPS]]
    now = [await _trace(context, record, one) for one in upstream[:MAX_COMPARED_STEPS]]
    outputs = changed_outputs(before, now)
    needs = await _needs(context, record, failed)
    chosen = first_change(outputs, needs)
    plugins = tuple(dict.fromkeys(one.plugin for one in upstream))
    good_at, now_at = _began(good), _began(record)
    config = config_at(configs, good_at), config_at(configs, now_at)
    files = compare_files(await _files(context, plugins), config[1], good_at=good_at, now_at=now_at)
    return RunComparison(
        compared_with=_counterpart(good, job),
        differences=(
            *_config_differences(config[0], config[1], plugins),
            *files.differences,
            *(compare_graphs(good.graph, record.graph) if good.graph and record.graph else ()),
            *compare_inputs(good.job.payload, record.job.payload),
            *_shape_differences(outputs, changed_inputs(before, now), chosen),
            *_execution_differences(good, record, failed),
        ),
        compared=(
            "the configuration, version and files of the plugins of its steps",
            "the pipeline",
            "the payload of the run",
            "the shape of the input and output of each step before the failure",
        ),
        not_compared=(
            *_gaps(good, record, config[0], config[1]),
            *_step_gaps(before, now, failed, left_out=max(0, len(upstream) - MAX_COMPARED_STEPS)),
            *files.unknown,
            _SAME_TYPE,
            *_NEVER_COMPARED,
        ),
        cause=None if chosen is None else describe_change(chosen, needs),
        advice=None if chosen is None else change_advice(chosen, needs),
        first_change=None if chosen is None else _shown_change(chosen, needs),
    )


def _first_failed(record: RunRecord) -> Job | None:
    bad = [one for one in record.members if one.status in (JobStatus.FAILED, JobStatus.DEAD)]
    return min(bad, key=lambda one: one.completed_at or one.created_at, default=None)


def _came_before(member: Job, failed: Job) -> bool:
    """Whether the failure can follow from it. The failed step counts: its input and plugin are compared."""
    if member.id == failed.id:
        return True
    return member.completed_at is not None and member.completed_at <= failed.created_at


def _counterpart(good: RunRecord, job: Job) -> str:
    same = (one.id for one in good.members if one.step_path == job.step_path)
    return good.job.id if job.plugin == RUN_PLUGIN else next(same, good.job.id)


def _began(record: RunRecord) -> datetime:
    return record.job.started_at or record.job.created_at


async def _trace(context: OperationContext, record: RunRecord, member: Job) -> StepTrace:
    whole = await context.store.job(member.id)
    row = record.executions.get(member.id)
    return StepTrace(
        path=member.step_path or "",
        job_id=member.id,
        plugin=member.plugin,
        command=member.command,
        given=None if whole is None or row is None else whole.payload,
        emitted=None if row is None or row.status is not LogStatus.SUCCEEDED else _emitted(row.result),
    )


def _emitted(printed: str | None) -> dict[str, tuple[JsonObject, ...]] | None:
    """By type what the steps after it saw; an event carries the result unless it has one of its own."""
    answer = decode_response((printed or "").encode(errors="surrogateescape"))
    if not isinstance(answer, DecodedResponse):
        return None
    result: JsonObject = {"result": answer.response.result}
    found: dict[str, tuple[JsonObject, ...]] = {}
    for event in answer.response.events:
        found[event.type] = (*found.get(event.type, ()), {**result, **event.payload})
    return found or {"": (result,)}


async def _needs(
    context: OperationContext, record: RunRecord, failed: Job | None
) -> tuple[MissingReference, ...]:
    """What the failed step refers to and did not find."""
    step = None if failed is None or record.graph is None else record.graph.step(failed.step_path)
    whole = None if failed is None else await context.store.job(failed.id)
    if step is None or whole is None or failed is None or failed.id in record.executions:
        return ()
    found = None if whole.event_context_id is None else await context.store.context(whole.event_context_id)
    return missing_references(step, whole.payload or {}, {} if found is None else found.baggage)


def _config_differences(
    good: ConfigRecord | None, now: ConfigRecord | None, plugins: Sequence[str]
) -> list[Difference]:
    if good is None or now is None or good.hash == now.hash:
        return []
    found = [each for plugin in plugins for each in compare_plugin(good, now, plugin)]
    if not found:
        found.append(Difference(what="configuration, of none of its plugins", good=good.hash, now=now.hash))
    return found


def _shape_differences(
    outputs: Sequence[StepChange], inputs: Sequence[StepChange], chosen: StepChange | None
) -> list[Difference]:
    """The first change in full. What follows from it is told by name only, and inputs only where no output
    before them explains them.
    """
    found = [] if chosen is None else [*differences_of(chosen, "output")]
    found += [
        Difference(what=f"output of step {one.step.path}", good="as it was", now="another shape")
        for one in outputs
        if one is not chosen
    ]
    for change in inputs[:1] if not outputs else ():
        found += differences_of(change, "input")
    return found


def _execution_differences(good: RunRecord, now: RunRecord, failed: Job | None) -> list[Difference]:
    """How the failed step itself ran, if it did."""
    row = None if failed is None else now.executions.get(failed.id)
    if failed is None or row is None:
        return []
    same = [one for one in good.members if one.step_path == failed.step_path and one.id in good.executions]
    if not same:
        return []
    return [
        replace(each, what=f"{each.what} of step {failed.step_path}")
        for each in compare_runs(good.executions[same[0].id], row)
    ]


def _gaps(
    good: RunRecord, now: RunRecord, before: ConfigRecord | None, after: ConfigRecord | None
) -> list[str]:
    gaps = []
    if before is None or after is None:
        gaps.append("the configuration: that of one of the two runs is not recorded")
    elif before.plugins is None or after.plugins is None:
        gaps.append("versions and files of plugins: not recorded for one of the two runs")
    if good.graph is None or now.graph is None:
        gaps.append("the pipeline: the steps of one of the two runs are no longer kept")
    return gaps


def _step_gaps(
    before: Sequence[StepTrace], now: Sequence[StepTrace], failed: Job | None, *, left_out: int
) -> list[str]:
    gaps = []
    if new := unmatched_steps(before, now):
        gaps.append(f"steps that the good run did not run: {', '.join(new)}")
    own = None if failed is None else failed.step_path
    if lost := [path for path in steps_without_output(now) if path != own and path not in new]:
        gaps.append(f"the output of steps whose answer is not kept: {', '.join(lost)}")
    if left_out:
        gaps.append(f"{left_out} steps beyond the first {MAX_COMPARED_STEPS}")
    return gaps


def _shown_change(change: StepChange, needs: Sequence[MissingReference]) -> JsonObject:
    changes: list[JsonValue] = [
        {"field": field.name, "change": field.kind.value, "good": field.before, "now": field.now}
        for field in change.changes
    ]
    needed: list[JsonValue] = [
        {"step": need.step, "place": need.place, "reference": need.reference}
        for need in explained_references(change, needs)
    ]
    return {
        "step": change.step.path,
        "job_id": change.step.job_id,
        "plugin": change.step.plugin,
        "command": change.step.command,
        "changes": changes,
        "needed_by": needed,
    }


async def _files(context: OperationContext, plugins: Sequence[str]) -> tuple[FilesOnDisk, ...]:
    return await asyncio.to_thread(files_on_disk, context.snapshot(), plugins)
