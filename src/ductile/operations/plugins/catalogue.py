"""Plugins of the configuration in force: their commands, schemas and standing, their state and facts.

A list of plugins contains no settings and no secrets: where discovery is open, it needs no token.
"""

from __future__ import annotations

from typing import Annotated, Any

from ductile.config.secrets import redact
from ductile.core.auth_scopes import AccessLevel, AccessResource, auth_scope
from ductile.operations.context import OperationContext
from ductile.operations.jobs.queue import PluginFigures, PluginStats, plugin_figures
from ductile.operations.operation import access_level_of
from ductile.operations.plugins.health import unhealthy_plugins
from ductile.operations.plugins.lookup import OnePlugin, commands_of, find_plugin
from ductile.operations.request import Cursor, NoFields, PageLimit, Reveal
from ductile.operations.response import Id, NextCursor, Response, Timestamp, from_record, milliseconds
from ductile.plugins.catalogue import PluginEntry, PluginStanding, list_entries
from ductile.protocol.manifest.model import CommandType
from ductile.store.model.records import DEFAULT_PAGE
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
    """Return every plugin that is configured or installed."""
    snapshot = context.snapshot()
    unhealthy = await unhealthy_plugins(context)
    listed = []
    for entry in list_entries(snapshot):
        commands = entry.manifest.commands if entry.manifest else {}
        listed.append(
            from_record(
                ListedPlugin,
                entry,
                **_summary(entry, unhealthy=entry.configured and entry.name in unhealthy),
                commands={name: declared.type for name, declared in commands.items()},
            )
        )
    return Plugins(plugins=listed)


def _summary(entry: PluginEntry, *, unhealthy: bool) -> dict[str, Any]:
    """Return the fields of `PluginSummary` that are not copied from the entry."""
    return {
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
    stats: Annotated[PluginFigures | None, about("Its last 24 hours; null if nothing ran.")]


class ShowPlugin(Value):
    plugin: Annotated[str, about("The plugin's name under `plugins`.")]


async def show_plugin(context: OperationContext, request: ShowPlugin) -> PluginDetail:
    """Return one plugin: its manifest, and its setup here. Raises `NotFoundError`."""
    plugin = find_plugin(context.snapshot(), request.plugin)
    entry = next(candidate for candidate in list_entries(context.snapshot()) if candidate.instance is plugin)
    manifest = entry.manifest
    failed_init = (await unhealthy_plugins(context)).get(plugin.name)
    figures = await plugin_figures(context, PluginStats(plugin=plugin.name))
    return from_record(
        PluginDetail,
        entry,
        **_summary(entry, unhealthy=failed_init is not None),
        init_error=None if failed_init is None else failed_init.error,
        parallelism=plugin.parallelism,
        validate_input=plugin.validate_input,
        schedules=[schedule.id for schedule in plugin.schedules],
        commands={
            name: from_record(
                PluginCommand,
                command,
                timeout_ms=milliseconds(plugin.timeout_for(name)),
                emits=[from_record(CommandEvent, event) for event in command.emits],
                call=f"POST /plugin/{plugin.name}/{name}",
                scope=auth_scope(plugin.name, access_level_of(command)),
            )
            for name, command in commands_of(plugin).items()
        },
        config_keys=ConfigKeys(
            required=list(manifest.required_config) if manifest else [],
            optional=list(manifest.optional_config) if manifest else [],
        ),
        stats=figures.plugins[0] if figures.plugins else None,
    )


# -------------------------------------------------------------------------------------- stored records


class ShowPluginState(OnePlugin):
    reveal: Reveal = False


class StoredPluginState(Response):
    plugin: str
    state: Any
    updated_at: Timestamp | None


class ListPluginFacts(ShowPluginState):
    limit: PageLimit = DEFAULT_PAGE
    cursor: Cursor = None


class PluginFact(Value):
    seq: int
    fact_type: str
    command: str | None
    job_id: Id | None
    created_at: Timestamp
    fact: Any


class PluginFacts(Response):
    plugin: str
    facts: tuple[PluginFact, ...]
    next_cursor: NextCursor


def _check_reveal(context: OperationContext, request: ShowPluginState) -> None:
    """Raise `DeniedError` if secrets are requested without a right to write."""
    if request.reveal:
        rights = (
            auth_scope(subject, AccessLevel.WRITE) for subject in (AccessResource.PLUGIN, request.plugin)
        )
        context.require_scope(*rights)


async def plugin_state(context: OperationContext, request: ShowPluginState) -> StoredPluginState:
    """Return the state of a plugin, also if the plugin is no longer configured. Raises `NotFoundError`."""
    _check_reveal(context, request)
    stored = await context.store.plugin_state(request.plugin)
    if stored is None:
        find_plugin(context.snapshot(), request.plugin)
        return StoredPluginState(plugin=request.plugin, state={}, updated_at=None)
    return from_record(
        StoredPluginState, stored, state=stored.state if request.reveal else redact(stored.state)
    )


async def plugin_facts(context: OperationContext, request: ListPluginFacts) -> PluginFacts:
    """Return the facts of a plugin, newest first, also if it is no longer configured.

    Raises `NotFoundError`.
    """
    _check_reveal(context, request)
    page = await context.store.list_facts(request.plugin, limit=request.limit, cursor=request.cursor)
    if not page.rows:
        find_plugin(context.snapshot(), request.plugin)
    return PluginFacts(
        plugin=request.plugin,
        facts=tuple(
            from_record(PluginFact, row, fact=row.body if request.reveal else redact(row.body))
            for row in page.rows
        ),
        next_cursor=page.next_cursor,
    )
