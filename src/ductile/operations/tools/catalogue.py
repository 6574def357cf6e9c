"""The tools that a caller may use: operations, commands of plugins, pipelines."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from ductile.config.snapshot import Snapshot
from ductile.core.auth_scopes import allows
from ductile.core.jobs.plugin_state import SYSTEM_COMMANDS
from ductile.core.word_search import rank_by_words
from ductile.operations.context import OperationContext
from ductile.operations.operation import Operation, scopes_for_command, scopes_for_pipeline
from ductile.operations.plugins.lookup import commands_of
from ductile.operations.plugins.skills import (
    COMMAND_PREFIX,
    PIPELINE_PREFIX,
    Skill,
    command_id,
    pipeline_id,
    skills_of,
)
from ductile.operations.request import Cursor, bad_value
from ductile.operations.response import NextCursor, Response
from ductile.operations.tools.job_answer import JobAnswer
from ductile.operations.tools.schemas import input_schema, output_schema, payload_schema, waits_for_job
from ductile.operations.tools.table import TOOLS, ToolRow, is_read_only, operation_of
from ductile.struct import Value, about

_MAX_DESCRIPTION = 500


class ListTools(Value):
    query: Annotated[
        str | None,
        about("Only tools whose name or description has one of these words, the best match first."),
    ] = None
    operations: Annotated[
        bool, about("Only the operations of Ductile, without commands of plugins and without pipelines.")
    ] = False
    cursor: Cursor = None
    limit: Annotated[
        int | None, Meta(ge=1, le=1000, description="At most this many; all if it is not given.")
    ] = None


class ListedTool(Value):
    """A tool, as the Model Context Protocol describes one."""

    name: str
    description: str
    input_schema: Annotated[dict[str, Any], about("The JSON Schema of its arguments.")]
    output_schema: Annotated[dict[str, Any], about("The JSON Schema of its answer.")]
    read_only: Annotated[bool, about("Whether it changes nothing.")]
    destructive: Annotated[bool, about("Whether it may end or replace something for good.")]
    idempotent: Annotated[bool, about("Whether a second call with the same arguments changes nothing more.")]
    starts_job: Annotated[bool, about("Whether it starts a job, and waits for its end for a time.")]


class ToolList(Response):
    tools: list[ListedTool]
    next_cursor: NextCursor


class CommandTool(Value):
    """The command that a tool runs."""

    plugin: str
    command: str


class PipelineTool(Value):
    """The pipeline that a tool starts."""

    pipeline: str


class _NamedTool(Value):
    """A tool before its schemas are made."""

    name: str
    #: The text that is searched besides the name.
    description: str
    definition: ToolRow | Skill


async def list_tools(context: OperationContext, request: ListTools) -> ToolList:
    """Return the tools that the caller's scopes allow: operations first, then commands and pipelines by their
    names.

    A cursor is the name of the last tool of a page: a tool that is added or removed meanwhile moves no other
    tool to another page. Raises `UsageError` for any other cursor.
    """
    snapshot = context.snapshot()
    tools = _allowed_tools(snapshot, context.source.scopes, configured=not request.operations)
    cursor = request.cursor
    if request.query is not None:
        tools = rank_by_words(request.query, [(tool, (tool.name, tool.description)) for tool in tools])
    elif cursor is not None and cursor in TOOLS:  # in the order of the table; others by name
        passed = set(list(TOOLS)[: list(TOOLS).index(cursor) + 1])
        tools = [tool for tool in tools if tool.name not in passed]
    elif cursor is not None and cursor.startswith((COMMAND_PREFIX, PIPELINE_PREFIX)):
        tools = [tool for tool in tools if tool.name not in TOOLS and tool.name > cursor]
    elif cursor is not None:
        raise bad_value(
            "cursor",
            "cursor is not one of a list of tools",
            "Give the one that the page before ends with, or none for the first page.",
        )
    page = tools[: request.limit]
    has_more = len(page) < len(tools) and request.query is None
    answer_schema = output_schema((JobAnswer,))
    return ToolList(
        tools=[
            _operation_tool(tool.name, tool.definition)
            if isinstance(tool.definition, ToolRow)
            else _configured_tool(snapshot, tool.name, tool.definition, answer_schema)
            for tool in page
        ],
        next_cursor=page[-1].name if has_more else None,
    )


def _allowed_tools(
    snapshot: Snapshot, scopes: tuple[str, ...] | None, *, configured: bool
) -> list[_NamedTool]:
    """Return the tools that these scopes allow: operations first, then, if `configured`, commands and
    pipelines.
    """
    tools = [
        _NamedTool(name=name, description=row.summary or operation_of(row).summary, definition=row)
        for name, row in TOOLS.items()
        if may_ever_call(snapshot, scopes, operation_of(row))
    ]
    if not configured:
        return tools
    skills = []
    for skill in skills_of(snapshot):
        if skill.kind == "command":
            plugin, _, command = skill.name.partition(".")
            name, needed = command_id(plugin, command), scopes_for_command(snapshot, plugin, command)
        else:
            name, needed = pipeline_id(skill.name), scopes_for_pipeline(snapshot, skill.name)
        if scopes is None or allows(scopes, needed):
            skills.append(_NamedTool(name=name, description=skill.description, definition=skill))
    return [*tools, *sorted(skills, key=lambda tool: tool.name)]


def may_ever_call(snapshot: Snapshot, scopes: tuple[str, ...] | None, operation: Operation) -> bool:
    """Return whether the scopes allow the operation for at least one plugin or pipeline, or as a whole."""
    access = operation.access
    if scopes is None or access.required_scopes is None or access.discovery or access.any_token:
        return True
    subjects = (*snapshot.plugins, *snapshot.pipelines, "")
    return any(
        allows(scopes, access.required_scopes(snapshot, {"plugin": name, "name": name, "pipeline": name}))
        for name in subjects
    )


def find_configured_tool(snapshot: Snapshot, tool: str) -> CommandTool | PipelineTool | None:
    """Return the command or pipeline that a tool of this name runs; None if there is none."""
    for plugin in snapshot.plugins.values():
        for command in commands_of(plugin) if plugin.runnable else ():
            if command not in SYSTEM_COMMANDS and command_id(plugin.name, command) == tool:
                return CommandTool(plugin=plugin.name, command=command)
    return next(
        (PipelineTool(pipeline=name) for name in snapshot.pipelines if pipeline_id(name) == tool), None
    )


def _operation_tool(name: str, row: ToolRow) -> ListedTool:
    """Return a tool of the table with its schemas."""
    operation = operation_of(row)
    types = (JobAnswer,) if waits_for_job(row) else operation.response_types
    return ListedTool(
        name=name,
        description=f"{row.summary or operation.summary}.",
        input_schema=input_schema(row),
        output_schema=output_schema(types),
        read_only=is_read_only(row),
        destructive=row.destructive,
        idempotent=row.idempotent or is_read_only(row),
        starts_job=row.starts_job,
    )


def _configured_tool(
    snapshot: Snapshot, name: str, skill: Skill, answer_schema: dict[str, Any]
) -> ListedTool:
    """Return the tool for a command or a pipeline, with its schemas."""
    retry_safe: bool | None = None
    description = f"The pipeline {skill.name}. {skill.description}"
    if skill.kind == "command":
        plugin, _, command = skill.name.partition(".")
        retry_safe = commands_of(snapshot.plugins[plugin])[command].retry_safe
        description = f"Runs {plugin} {command}. {skill.description}"
    return ListedTool(
        name=name,
        description=description.strip()[:_MAX_DESCRIPTION],
        input_schema=payload_schema(skill.input_schema),
        output_schema=answer_schema,
        read_only=skill.read_only,
        destructive=False if skill.read_only else retry_safe is not True,
        idempotent=skill.read_only or retry_safe is True,
        starts_job=True,
    )
