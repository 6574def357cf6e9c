"""The tools that a caller may use: operations, commands of plugins, pipelines."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from ductile.config.snapshot import Snapshot
from ductile.core.auth_scopes import allows
from ductile.core.word_search import rank_by_words
from ductile.operations.context import OperationContext
from ductile.operations.operation import Operation, needed_for, needed_for_pipeline
from ductile.operations.plugins.lookup import commands_of
from ductile.operations.plugins.skills import (
    COMMAND_PREFIX,
    OWN_COMMANDS,
    PIPELINE_PREFIX,
    Skill,
    command_id,
    pipeline_id,
    skills_of,
)
from ductile.operations.request import Cursor, bad_value
from ductile.operations.response import NextCursor, Response
from ductile.operations.tools.job_answer import JobAnswer
from ductile.operations.tools.schemas import input_schema, output_schema, payload_schema, waits
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


#: The name of a tool, and its row of the table or its skill.
_NamedTool: TypeAlias = tuple[str, ToolRow | Skill]


async def list_tools(context: OperationContext, request: ListTools) -> ToolList:
    """The tools that the caller's scopes allow: operations first, then commands and pipelines by their names.

    A cursor is the name of the last tool of a page: a tool that comes or goes meanwhile shifts no other one
    to another page. Raises `UsageError` for a cursor that is none.
    """
    snapshot, scopes = context.snapshot(), context.source.scopes
    tools: list[_NamedTool] = [
        (name, row) for name, row in TOOLS.items() if may_ever_call(snapshot, scopes, operation_of(row))
    ]
    if not request.operations:
        skills = [
            (_tool_name(skill), skill)
            for skill in skills_of(snapshot)
            if scopes is None or allows(scopes, _needed_for_skill(snapshot, skill))
        ]
        tools += sorted(skills, key=lambda tool: tool[0])
    if request.query is not None:
        tools = rank_by_words(request.query, [(tool, _searched_texts(*tool)) for tool in tools])
    elif request.cursor is not None:
        tools = _tools_after(tools, request.cursor)
    page = tools[: request.limit]
    has_more = len(page) < len(tools) and request.query is None
    answer_schema = output_schema((JobAnswer,))
    return ToolList(
        tools=[
            _operation_tool(name, source)
            if isinstance(source, ToolRow)
            else _configured_tool(snapshot, source, answer_schema)
            for name, source in page
        ],
        next_cursor=page[-1][0] if has_more else None,
    )


def _tools_after(tools: list[_NamedTool], cursor: str) -> list[_NamedTool]:
    """The tools after the one that a cursor names. Raises `UsageError` for a cursor that is none."""
    if cursor in TOOLS:
        passed = set(list(TOOLS)[: list(TOOLS).index(cursor) + 1])
        return [tool for tool in tools if tool[0] not in passed]
    if cursor.startswith((COMMAND_PREFIX, PIPELINE_PREFIX)):
        return [tool for tool in tools if tool[0] not in TOOLS and tool[0] > cursor]
    raise bad_value(
        "cursor",
        "cursor is not one of a list of tools",
        "Give the one that the page before ends with, or none for the first page.",
    )


def _searched_texts(name: str, source: ToolRow | Skill) -> tuple[str, str]:
    """The texts of a tool in which a query is searched: its name and description."""
    if isinstance(source, Skill):
        return name, source.description
    return name, source.summary or operation_of(source).summary


def may_ever_call(snapshot: Snapshot, scopes: tuple[str, ...] | None, operation: Operation) -> bool:
    """Whether the scopes allow the operation for at least one plugin or pipeline, or as a whole."""
    access = operation.access
    if scopes is None or access.required_scopes is None or access.discovery or access.any_token:
        return True
    subjects = (*snapshot.plugins, *snapshot.pipelines, "")
    return any(
        allows(scopes, access.required_scopes(snapshot, {"plugin": name, "name": name, "pipeline": name}))
        for name in subjects
    )


def find_configured(snapshot: Snapshot, tool: str) -> CommandTool | PipelineTool | None:
    """The command or pipeline that a tool of this name runs; None if there is none."""
    for plugin in snapshot.plugins.values():
        for command in commands_of(plugin) if plugin.runnable else ():
            if command not in OWN_COMMANDS and command_id(plugin.name, command) == tool:
                return CommandTool(plugin=plugin.name, command=command)
    return next(
        (PipelineTool(pipeline=name) for name in snapshot.pipelines if pipeline_id(name) == tool), None
    )


def _operation_tool(name: str, row: ToolRow) -> ListedTool:
    operation = operation_of(row)
    types = (JobAnswer,) if waits(row) else operation.response_types
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


def _needed_for_skill(snapshot: Snapshot, skill: Skill) -> tuple[str, ...]:
    """The scopes of which one is needed to run the command or pipeline."""
    if skill.kind == "command":
        plugin, _, command = skill.name.partition(".")
        return needed_for(snapshot, plugin, command)
    return needed_for_pipeline(snapshot, skill.name)


def _tool_name(skill: Skill) -> str:
    if skill.kind != "command":
        return pipeline_id(skill.name)
    plugin, _, command = skill.name.partition(".")
    return command_id(plugin, command)


def _configured_tool(snapshot: Snapshot, skill: Skill, answer_schema: dict[str, Any]) -> ListedTool:
    retry_safe: bool | None = None
    description = f"The pipeline {skill.name}. {skill.description}"
    if skill.kind == "command":
        plugin, _, command = skill.name.partition(".")
        retry_safe = commands_of(snapshot.plugins[plugin])[command].retry_safe
        description = f"Runs {plugin} {command}. {skill.description}"
    return ListedTool(
        name=_tool_name(skill),
        description=description.strip()[:_MAX_DESCRIPTION],
        input_schema=payload_schema(skill.input_schema),
        output_schema=answer_schema,
        read_only=skill.read_only,
        destructive=False if skill.read_only else retry_safe is not True,
        idempotent=skill.read_only or retry_safe is True,
        starts_job=True,
    )
