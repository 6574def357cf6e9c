"""What there is to call, for agents and for people: plugins, their commands, their schemas, and who may.

Made from the configuration in force alone. What is shown here holds no setting and no secret: where the
catalogue is open, anybody may read it.
"""

from __future__ import annotations

from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.auth_scopes import AccessLevel, AccessResource, auth_scope
from ductile.core.json import JsonObject, JsonValue
from ductile.core.suggest import did_you_mean
from ductile.errors import NotFoundError
from ductile.operations import parameters as read
from ductile.operations.context import OperationContext
from ductile.operations.jobs.documents import milliseconds
from ductile.operations.plugins.health import unhealthy_plugins
from ductile.operations.plugins.names import find_plugin
from ductile.protocol.manifest.model import Command, CommandType, Manifest


def right_of(command: Command) -> AccessLevel:
    """A command that changes nothing outside may be run by whoever may read."""
    return AccessLevel.READ if command.type is CommandType.READ else AccessLevel.WRITE


def needed_for(snapshot: Snapshot, plugin: str, command: str) -> tuple[str, ...]:
    """The scopes of which one is needed to run a command. What is not there needs the least: it is a 404."""
    instance = snapshot.plugins.get(plugin)
    if instance is None:
        return (auth_scope(AccessResource.PLUGIN, AccessLevel.READ),)
    declared = instance.installed.manifest.commands.get(command) if instance.installed else None
    right = AccessLevel.READ if declared is None else right_of(declared)
    return (auth_scope(AccessResource.PLUGIN, right), auth_scope(plugin, right))


def needed_to_see(snapshot: Snapshot, plugin: str) -> tuple[str, ...]:
    """Whoever may call one plugin may also read what it takes."""
    general = auth_scope(AccessResource.PLUGIN, AccessLevel.READ)
    return (general, auth_scope(plugin, AccessLevel.READ)) if plugin in snapshot.plugins else (general,)


def needed_for_trigger(snapshot: Snapshot, plugin: str, command: str) -> tuple[str, ...]:
    """As for the plugin, unless a pipeline answers: that may do anything its steps do."""
    if pipelines_on(snapshot, f"{plugin}.{command}"):
        return (auth_scope(AccessResource.PLUGIN, AccessLevel.WRITE),)
    return needed_for(snapshot, plugin, command)


def pipelines_on(snapshot: Snapshot, event_type: str) -> tuple[str, ...]:
    return tuple(name for name, pipeline in snapshot.pipelines.items() if pipeline.on == event_type)


def commands_of(plugin: PluginInstance) -> dict[str, Command]:
    return dict(plugin.installed.manifest.commands) if plugin.installed else {}


def known_command(plugin: PluginInstance, command: str) -> str:
    commands = plugin.installed.manifest.commands if plugin.installed else ()
    if command not in commands:
        near = did_you_mean(command, commands)
        has = f"It has {', '.join(commands)}." if commands else None
        hint = f"{near} {has}" if near and has else has
        raise NotFoundError(f"{plugin.name} has no command {command}", hint=hint)
    return command


async def list_plugins(context: OperationContext, _given: JsonObject) -> JsonObject:
    snapshot = context.snapshot()
    ill = await unhealthy_plugins(context)
    named: list[JsonValue] = [
        _brief(plugin) | {"unhealthy": plugin.name in ill} for plugin in snapshot.plugins.values()
    ]
    available: list[JsonValue] = [
        {
            "name": found.name,
            "uses": found.name,
            "standing": "available",
            "refused": None,
            "unhealthy": False,
            **_of_manifest(found.manifest),
        }
        for found in snapshot.available.values()
    ]
    return {"plugins": [*named, *available]}


def standing_of(plugin: PluginInstance) -> str:
    if not plugin.enabled:
        return "disabled"
    return "refused" if plugin.refused else "active"


def _brief(plugin: PluginInstance) -> JsonObject:
    return {
        "name": plugin.name,
        "uses": plugin.uses,
        "standing": standing_of(plugin),
        "refused": None if plugin.refused is None else plugin.refused.reason,
        **_of_manifest(plugin.installed.manifest if plugin.installed else None),
    }


def _of_manifest(manifest: Manifest | None) -> JsonObject:
    """Of a plugin that was not found good there is none."""
    return {
        "version": None if manifest is None else manifest.version,
        "description": None if manifest is None else manifest.description,
        "commands": {}
        if manifest is None
        else {name: str(command.type) for name, command in manifest.commands.items()},
    }


async def show_plugin(context: OperationContext, given: JsonObject) -> JsonObject:
    """Everything a caller may know about one plugin: its manifest, and how it is set up here."""
    plugin = find_plugin(context.snapshot(), read.text(given, "plugin"))
    manifest = plugin.installed.manifest if plugin.installed else None
    mark = (await unhealthy_plugins(context)).get(plugin.name)
    return {
        **_brief(plugin),
        "unhealthy": mark is not None,
        "init_error": None if mark is None else mark.error,
        "parallelism": plugin.parallelism,
        "validate_input": plugin.validate_input,
        "schedules": [schedule.id for schedule in plugin.schedules],
        "commands": {name: _shown_command(plugin, each) for name, each in commands_of(plugin).items()},
        "config_keys": {
            "required": list(manifest.required_config) if manifest else [],
            "optional": list(manifest.optional_config) if manifest else [],
        },
    }


def _shown_command(plugin: PluginInstance, command: Command) -> JsonObject:
    return {
        "type": command.type,
        "description": command.description,
        "timeout_ms": milliseconds(plugin.timeout_for(command.name)),
        "input_schema": command.input_schema,
        "output_schema": command.output_schema,
        "idempotent": command.idempotent,
        "retry_safe": command.retry_safe,
        "consumes": list(command.consumes),
        "emits": [{"type": event.type, "values": list(event.values)} for event in command.emits],
        "call": f"POST /plugin/{plugin.name}/{command.name}",
        "scope": auth_scope(plugin.name, right_of(command)),
    }
