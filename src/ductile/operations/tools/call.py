"""Calling a tool: checks the arguments and the caller's scope, runs the operation, shortens its response."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Annotated, Any

from msgspec import UNSET, UnsetType

from ductile.core.jobs.model import SubmittedBy
from ductile.core.jobs.plugin_state import SYSTEM_COMMANDS
from ductile.core.json import JsonObject, JsonValue
from ductile.core.suggest import did_you_mean
from ductile.errors import DuctileError, NotFoundError, RefusedError
from ductile.operations.context import OperationContext
from ductile.operations.operation import Operation, within_reach
from ductile.operations.plugins.lookup import commands_of
from ductile.operations.plugins.skills import command_id, pipeline_id
from ductile.operations.request import refused
from ductile.operations.response import Response
from ductile.operations.table import OPERATIONS
from ductile.operations.tools.answers import compact, shorten
from ductile.operations.tools.catalogue import CommandTool, find_configured_tool, may_ever_call
from ductile.operations.tools.job_answer import AwaitedJob, WaitOptions, decode_wait, wait_and_answer
from ductile.operations.tools.progress import WaitProgress
from ductile.operations.tools.schemas import tool_fields, waits_for_job
from ductile.operations.tools.table import (
    ANSWER_CHARACTERS,
    DEFAULT_ROWS,
    MAX_ROWS,
    TOOLS,
    ToolRow,
    is_read_only,
    operation_of,
)
from ductile.operations.tools.task import SHORT_WAIT, JobTask
from ductile.operations.tools.wording import reword_error
from ductile.struct import Value, about, replace

_MAX_QUOTED = 100
_SUBMISSION_FIELDS = ("payload", "wait", "dedupe_key")
#: The running operations. The event loop itself holds tasks by weak references only.
_running: set[asyncio.Task[Response]] = set()


class CallTool(Value):
    tool: Annotated[str, about("The tool's name, as in the list of tools.")]
    arguments: Annotated[dict[str, Any] | None, about("Its arguments, as its schema says.")] = None
    as_task: Annotated[
        bool, about("Of a tool that waits for a job: wait for a moment only, and answer with its `task` too.")
    ] = False
    progress_after: Annotated[
        int | None,
        about(
            "Of a tool that waits for a job: answer with `progress` as soon as the job is further than this; "
            "with 0, after a moment. To go on waiting, call `job_wait` with `wait_left` as its `wait` and "
            "`done` as this. Has no effect without the right to read the job."
        ),
    ] = None


class ToolAnswer(Response):
    tool: str
    answer: Annotated[
        dict[str, Any],
        about(
            "As the tool's output schema says, without fields that are null; `left_out` names what is cut."
        ),
    ]
    task: Annotated[JobTask | UnsetType, about("With `as_task`, of a tool that waits for a job.")] = UNSET
    progress: Annotated[
        WaitProgress | UnsetType,
        about("With `progress_after`, if the job has not ended and time to wait is left."),
    ] = UNSET


async def call_tool(context: OperationContext, request: CallTool) -> ToolAnswer:
    """Call a tool. Raises `NotFoundError` for an unknown tool, and the errors of its operation."""
    arguments = request.arguments or {}
    context = replace(context, source=replace(context.source, submitted_by=SubmittedBy.MCP, waits=False))
    row = TOOLS.get(request.tool)
    result: Response | AwaitedJob
    try:
        if row is None:
            result, characters = await _run_configured(context, request, arguments), ANSWER_CHARACTERS
        else:
            result, characters = await _run_operation(context, row, request, arguments), row.characters
    except DuctileError as error:
        raise reword_error(error) from error.__cause__
    if not isinstance(result, AwaitedJob):
        answer = compact(result) if row is None else compact(result, row.omit, row.omit_below)
        return ToolAnswer(tool=request.tool, answer=shorten(answer, characters))
    return ToolAnswer(
        tool=request.tool,
        answer=shorten(compact(result.answer), characters),
        task=result.as_task(context) if request.as_task else UNSET,
        progress=result.progress or UNSET,
    )


def _decode_waiting(context: OperationContext, request: CallTool, arguments: JsonObject) -> WaitOptions:
    """Return how long the call waits for its job, and whether progress ends the waiting."""
    wait = decode_wait(arguments.get("wait"))
    if request.as_task:
        return WaitOptions(wait=min(wait, SHORT_WAIT))
    # A caller that may not call `job_wait` cannot go on waiting.
    can_continue = may_ever_call(context.snapshot(), context.source.scopes, operation_of(TOOLS["job_wait"]))
    return WaitOptions(wait=wait, progress_after=request.progress_after if can_continue else None)


async def _run_operation(
    context: OperationContext, row: ToolRow, request: CallTool, arguments: JsonObject
) -> Response | AwaitedJob:
    """Run a tool of the table."""
    fields, operation = tool_fields(row), operation_of(row)
    known = (*fields, "wait") if waits_for_job(row) else tuple(fields)
    required = [name for name, field in fields.items() if field.required or name in row.required]
    _check_names(arguments, known, required)
    values: JsonObject = {name: value for name, value in arguments.items() if name != "wait"}
    if "limit" in fields and is_read_only(row):
        limit = values.get("limit", DEFAULT_ROWS)
        values["limit"] = min(limit, MAX_ROWS) if isinstance(limit, int) else limit
    waiting = (
        _decode_waiting(context, request, arguments) if waits_for_job(row) else WaitOptions(wait=timedelta())
    )
    _check_scope(context, operation, values)
    if row.operation == "job.wait":
        job_id = values.get("job_id")
        if not isinstance(job_id, str):
            raise refused("job_id", "job_id has to be text")
        return await wait_and_answer(within_reach(context, operation.access), job_id, waiting)
    if row.starts_job:
        return await _start(context, operation, values, waiting)
    response = await _run_to_its_end(operation, context, {**values, **row.fixed})
    return response if row.shape is None else row.shape(response)


async def _run_configured(context: OperationContext, request: CallTool, arguments: JsonObject) -> AwaitedJob:
    """Run a tool that is a command or a pipeline. Raises `NotFoundError` if there is none of this name."""
    snapshot = context.snapshot()
    tool = find_configured_tool(snapshot, request.tool)
    if tool is None:
        known = [*TOOLS, *map(pipeline_id, snapshot.pipelines)]
        for plugin in snapshot.plugins.values():
            commands = [command for command in commands_of(plugin) if command not in SYSTEM_COMMANDS]
            known += [command_id(plugin.name, command) for command in commands]
        hint = did_you_mean(request.tool, known) or "List the tools again."
        raise NotFoundError(f"there is no tool {request.tool[:_MAX_QUOTED]}", hint=hint)
    _check_names(arguments, _SUBMISSION_FIELDS, [])
    values: JsonObject = {name: value for name, value in arguments.items() if name != "wait"}
    if isinstance(tool, CommandTool):
        operation = OPERATIONS["plugin.run"]
        values |= {"plugin": tool.plugin, "command": tool.command}
    else:
        operation = OPERATIONS["pipeline.run"]
        values["pipeline"] = tool.pipeline
    waiting = _decode_waiting(context, request, arguments)
    _check_scope(context, operation, values)
    return await _start(context, operation, values, waiting)


async def _start(
    context: OperationContext, operation: Operation, values: JsonObject, waiting: WaitOptions
) -> AwaitedJob:
    """Run an operation that starts a job, then wait for the job."""
    started = await _run_to_its_end(operation, context, values)
    job_id = getattr(started, "job_id", None)
    if not isinstance(job_id, str):  # a schedule whose run was skipped
        raise RefusedError("nothing was started", details=compact(started))
    deduplicated = getattr(started, "deduplicated", False) is True
    return await wait_and_answer(context.for_started_jobs(), job_id, waiting, deduplicated=deduplicated)


async def _run_to_its_end(operation: Operation, context: OperationContext, values: JsonObject) -> Response:
    """Run an operation. A caller that disconnects meanwhile leaves no change half done."""
    task = asyncio.create_task(operation.run(context, values), name=operation.name)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return await asyncio.shield(task)


def _check_names(arguments: JsonObject, known: tuple[str, ...], required: list[str]) -> None:
    """Raise `RefusedError` for an unknown argument or a missing one."""
    for name in arguments:
        if name not in known:
            listed = f"Known: {', '.join(known)}." if known else "This tool has none."
            raise refused(
                name[:_MAX_QUOTED],
                f"there is no argument {name[:_MAX_QUOTED]}",
                did_you_mean(name, known) or listed,
            )
    for name in required:
        if arguments.get(name) is None:
            raise refused(name, f"{name} is missing", f"Required: {', '.join(required)}.")


def _check_scope(context: OperationContext, operation: Operation, values: dict[str, JsonValue]) -> None:
    """Raise `DeniedError` if the caller's token may not run the operation with these values."""
    access = operation.access
    if access.required_scopes is None or access.discovery or access.any_token:
        return
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    path = {"plugin": "", "name": "", "pipeline": "", **texts}
    context.require_scope(*access.required_scopes(context.snapshot(), path))
