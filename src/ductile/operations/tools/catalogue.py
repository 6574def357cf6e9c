"""The tools that a caller may use: operations, commands of plugins, pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from msgspec import UNSET, UnsetType

from ductile.config.snapshot import Snapshot
from ductile.core.auth_scopes import allows
from ductile.operations.context import OperationContext
from ductile.operations.operation import PLUGIN_RW, Access, Operation, needed_for
from ductile.operations.plugins.lookup import commands_of
from ductile.operations.plugins.skills import OWN_COMMANDS, Skill, command_id, pipeline_id, skills_of
from ductile.operations.request import NoFields
from ductile.operations.response import Response
from ductile.operations.tools.job_answer import JobAnswer
from ductile.operations.tools.schemas import input_schema, output_schema, payload_schema, waits
from ductile.operations.tools.table import TOOLS, ToolRow, is_read_only, operation_of
from ductile.struct import Value, about

_MAX_DESCRIPTION = 500


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


class CommandTool(Value):
    """The command that a tool runs."""

    plugin: str
    command: str


class PipelineTool(Value):
    """The pipeline that a tool starts."""

    pipeline: str


async def list_tools(context: OperationContext, _request: NoFields) -> ToolList:
    """Every tool that the caller's scopes allow."""
    snapshot, scopes = context.snapshot(), context.source.scopes
    tools = [
        _operation_tool(name, row)
        for name, row in TOOLS.items()
        if may_ever_call(snapshot, scopes, operation_of(row))
    ]
    tools += _tools_of_configuration(snapshot, scopes)
    return ToolList(tools=tools)


def may_ever_call(snapshot: Snapshot, scopes: tuple[str, ...] | None, operation: Operation) -> bool:
    """Whether there is anything for which the scopes allow the operation: for some, one plugin is enough."""
    access = operation.access
    if scopes is None or access.required_scopes is None or access.discovery:
        return True
    subjects = (*snapshot.plugins, "")
    return any(
        allows(scopes, access.required_scopes(snapshot, {"plugin": name, "name": name})) for name in subjects
    )


def find_configured(snapshot: Snapshot, tool: str) -> CommandTool | PipelineTool | None:
    """The command or pipeline that a tool of this name runs."""
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


def _tools_of_configuration(snapshot: Snapshot, scopes: tuple[str, ...] | None) -> Iterator[ListedTool]:
    answer = output_schema((JobAnswer,))
    for skill in skills_of(snapshot):
        if scopes is None or allows(scopes, _needed(snapshot, skill)):
            yield _configured_tool(snapshot, skill, answer)


def _needed(snapshot: Snapshot, skill: Skill) -> tuple[str, ...]:
    if skill.kind == "command":
        plugin, _, command = skill.name.partition(".")
        return needed_for(snapshot, plugin, command)
    return needed_scopes(PLUGIN_RW, snapshot, {})


def needed_scopes(access: Access, snapshot: Snapshot, values: dict[str, str]) -> tuple[str, ...]:
    return () if access.required_scopes is None else access.required_scopes(snapshot, values)


def _configured_tool(snapshot: Snapshot, skill: Skill, answer: dict[str, Any]) -> ListedTool:
    retry_safe: bool | UnsetType | None = UNSET
    name = pipeline_id(skill.name)
    about_it = skill.description
    if skill.kind == "command":
        plugin, _, command = skill.name.partition(".")
        name = command_id(plugin, command)
        retry_safe = commands_of(snapshot.plugins[plugin])[command].retry_safe
        about_it = f"Runs {plugin} {command}. {about_it}"
    else:
        about_it = f"The pipeline {skill.name}. {about_it}"
    return ListedTool(
        name=name,
        description=about_it.strip()[:_MAX_DESCRIPTION],
        input_schema=payload_schema(skill.input_schema),
        output_schema=answer,
        read_only=skill.read_only,
        destructive=False if skill.read_only else retry_safe is not True,
        idempotent=skill.read_only or retry_safe is True,
        starts_job=True,
    )
