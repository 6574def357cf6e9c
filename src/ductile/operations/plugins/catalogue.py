"""Plugins of the configuration in force: their commands, schemas and standing.

Nothing in it is a setting or a secret: where discovery is open, it needs no token.
"""

from __future__ import annotations

from typing import Annotated, Any

from ductile.config.snapshot import PluginInstance
from ductile.core.auth_scopes import auth_scope
from ductile.operations.context import OperationContext
from ductile.operations.operation import right_of
from ductile.operations.plugins.health import unhealthy_plugins
from ductile.operations.plugins.lookup import commands_of, find_plugin
from ductile.operations.request import NoFields
from ductile.operations.response import Response, from_record, milliseconds
from ductile.plugins.catalogue import PluginEntry, PluginStanding, list_entries
from ductile.protocol.manifest.model import Command, CommandType
from ductile.struct import Value, about


class PluginSummary(Value):
    name: str
    uses: Annotated[str, about("The plugin of which it is an instance.")]
    standing: Annotated[PluginStanding, about("`available`: installed, and not named under `plugins`.")]
    refused: Annotated[str | None, about("Why it cannot run.")]
    unhealthy: Annotated[bool, about("Whether its last init failed.")]
    version: str | None
    description: str | None


class ListedPlugin(PluginSummary):
    commands: dict[str, CommandType]


class Plugins(Response):
    plugins: list[ListedPlugin]


async def list_plugins(context: OperationContext, _request: NoFields) -> Plugins:
    """Every plugin that is configured or installed."""
    snapshot = context.snapshot()
    unhealthy = await unhealthy_plugins(context)
    listed = []
    for entry in list_entries(snapshot):
        commands = entry.manifest.commands if entry.manifest else {}
        listed.append(
            ListedPlugin(
                **_summary(entry, unhealthy=entry.configured and entry.name in unhealthy),
                commands={name: each.type for name, each in commands.items()},
            )
        )
    return Plugins(plugins=listed)


def _summary(entry: PluginEntry, *, unhealthy: bool) -> dict[str, Any]:
    return {
        "name": entry.name,
        "uses": entry.uses,
        "standing": entry.standing,
        "refused": entry.reason,
        "unhealthy": unhealthy,
        "version": None if entry.manifest is None else entry.manifest.version,
        "description": None if entry.manifest is None else entry.manifest.description,
    }


class CommandEvent(Value):
    type: str
    values: list[str]


class PluginCommand(Value):
    type: CommandType
    description: str
    timeout_ms: float
    input_schema: Annotated[Any, about("A JSON Schema, or null.")]
    output_schema: Annotated[Any, about("A JSON Schema, or null.")]
    idempotent: bool | None
    retry_safe: bool | None
    consumes: list[str]
    emits: list[CommandEvent]
    call: str
    scope: str


class ConfigKeys(Value):
    required: list[str]
    optional: list[str]


class PluginDetail(PluginSummary, Response):
    init_error: Annotated[str | None, about("How that init failed.")]
    parallelism: int
    validate_input: bool
    schedules: list[str]
    commands: dict[str, PluginCommand]
    config_keys: ConfigKeys


class ShowPlugin(Value):
    plugin: Annotated[str, about("The plugin's name under `plugins`.")]


async def show_plugin(context: OperationContext, request: ShowPlugin) -> PluginDetail:
    """One plugin: its manifest, and its setup here. Raises `NotFoundError`."""
    plugin = find_plugin(context.snapshot(), request.plugin)
    entry = next(each for each in list_entries(context.snapshot()) if each.instance is plugin)
    manifest = entry.manifest
    failed_init = (await unhealthy_plugins(context)).get(plugin.name)
    return PluginDetail(
        **_summary(entry, unhealthy=failed_init is not None),
        init_error=None if failed_init is None else failed_init.error,
        parallelism=plugin.parallelism,
        validate_input=plugin.validate_input,
        schedules=[schedule.id for schedule in plugin.schedules],
        commands={name: _command(plugin, each) for name, each in commands_of(plugin).items()},
        config_keys=ConfigKeys(
            required=list(manifest.required_config) if manifest else [],
            optional=list(manifest.optional_config) if manifest else [],
        ),
    )


def _command(plugin: PluginInstance, command: Command) -> PluginCommand:
    return from_record(
        PluginCommand,
        command,
        timeout_ms=milliseconds(plugin.timeout_for(command.name)),
        emits=[CommandEvent(type=event.type, values=list(event.values)) for event in command.emits],
        call=f"POST /plugin/{plugin.name}/{command.name}",
        scope=auth_scope(plugin.name, right_of(command)),
    )
