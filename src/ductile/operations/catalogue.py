"""What can be called, for agents and for people: plugins, their commands, pipelines, and their schemas.

Made from the configuration in force alone. What is shown here holds no setting and no secret: where the
catalogue is open, anybody may read it.
"""

from __future__ import annotations

from collections.abc import Iterator

from ductile.config.keypath import did_you_mean
from ductile.config.pipeline_settings import PipelineSettings
from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.json_values import JsonObject, JsonValue
from ductile.core.scopes import Right, Subject, scope
from ductile.errors import NotFoundError
from ductile.operations import parameters as read
from ductile.operations.desk import Desk
from ductile.operations.shown import milliseconds
from ductile.protocol.manifest import Command, CommandType, Manifest

#: Commands that the core runs by itself; an agent has no use for them.
_OWN_COMMANDS = frozenset({"init", "health"})


def right_of(command: Command) -> Right:
    """A command that changes nothing outside may be run by whoever may read (SPEC 8)."""
    return Right.READ if command.type is CommandType.READ else Right.WRITE


def needed_for(snapshot: Snapshot, plugin: str, command: str) -> tuple[str, ...]:
    """The scopes of which one is needed to run a command. What is not there needs the least: it is a 404."""
    instance = snapshot.plugins.get(plugin)
    if instance is None:
        return (scope(Subject.PLUGIN, Right.READ),)
    declared = instance.installed.manifest.commands.get(command) if instance.installed else None
    right = Right.READ if declared is None else right_of(declared)
    return (scope(Subject.PLUGIN, right), scope(plugin, right))


def needed_to_see(snapshot: Snapshot, plugin: str) -> tuple[str, ...]:
    """Whoever may call one plugin may also read what it takes."""
    general = scope(Subject.PLUGIN, Right.READ)
    return (general, scope(plugin, Right.READ)) if plugin in snapshot.plugins else (general,)


def needed_for_trigger(snapshot: Snapshot, plugin: str, command: str) -> tuple[str, ...]:
    """As for the plugin, unless a pipeline answers: that may do anything its steps do."""
    if pipelines_on(snapshot, f"{plugin}.{command}"):
        return (scope(Subject.PLUGIN, Right.WRITE),)
    return needed_for(snapshot, plugin, command)


def pipelines_on(snapshot: Snapshot, event_type: str) -> tuple[str, ...]:
    return tuple(name for name, pipeline in snapshot.pipelines.items() if pipeline.on == event_type)


def commands_of(plugin: PluginInstance) -> dict[str, Command]:
    return dict(plugin.installed.manifest.commands) if plugin.installed else {}


async def list_plugins(desk: Desk, _given: JsonObject) -> JsonObject:
    snapshot = desk.snapshot()
    named: list[JsonValue] = [_brief(plugin) for plugin in snapshot.plugins.values()]
    available: list[JsonValue] = [
        {"name": found.name, "standing": "available", **_of_manifest(found.manifest)}
        for found in snapshot.available.values()
    ]
    return {"plugins": [*named, *available]}


def standing_of(plugin: PluginInstance) -> str:
    if not plugin.enabled:
        return "disabled"
    return "refused" if plugin.refused else "active"


def _brief(plugin: PluginInstance) -> JsonObject:
    manifest = plugin.installed.manifest if plugin.installed else None
    about: JsonObject = {"name": plugin.name, "uses": plugin.uses, "standing": standing_of(plugin)}
    return about if manifest is None else {**about, **_of_manifest(manifest)}


def _of_manifest(manifest: Manifest) -> JsonObject:
    return {
        "version": manifest.version,
        "description": manifest.description,
        "commands": {name: str(command.type) for name, command in manifest.commands.items()},
    }


async def show_plugin(desk: Desk, given: JsonObject) -> JsonObject:
    """Everything a caller may know about one plugin: its manifest, and how it is set up here."""
    plugin = find_plugin(desk.snapshot(), read.text(given, "plugin"))
    manifest = plugin.installed.manifest if plugin.installed else None
    return {
        **_brief(plugin),
        "refused": None if plugin.refused is None else plugin.refused.reason,
        "parallelism": plugin.parallelism,
        "validate_input": plugin.validate_input,
        "schedules": [schedule.id for schedule in plugin.schedules],
        "commands": {name: _shown_command(plugin, each) for name, each in commands_of(plugin).items()},
        "config_keys": {
            "required": list(manifest.required_config) if manifest else [],
            "optional": list(manifest.optional_config) if manifest else [],
        },
    }


def find_plugin(snapshot: Snapshot, name: str) -> PluginInstance:
    plugin = snapshot.plugins.get(name)
    if plugin is None:
        raise NotFoundError(f"there is no plugin {name}", hint=did_you_mean(name, snapshot.plugins))
    return plugin


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
        "scope": scope(plugin.name, right_of(command)),
    }


async def list_skills(desk: Desk, _given: JsonObject) -> JsonObject:
    """What an agent can do here, each with the call that does it (SPEC 16)."""
    snapshot = desk.snapshot()
    return {
        "skills": [*_command_skills(snapshot), *_pipeline_skills(snapshot)],
        "how": {
            "authorization": "Send `Authorization: Bearer TOKEN` with every call.",
            "body": 'A JSON object: {"payload": {...}}; also dedupe_key, dedupe_ttl, state_webhook_url.',
            "answer": "202 with a job_id. GET /job/{job_id} tells its status and, in the end, its result.",
            "again": "Send the header Idempotency-Key with a call that may be repeated.",
            "openapi": "/openapi.json",
        },
    }


def _command_skills(snapshot: Snapshot) -> Iterator[JsonObject]:
    for plugin in snapshot.plugins.values():
        if not plugin.runnable:
            continue
        for command in commands_of(plugin).values():
            if command.name not in _OWN_COMMANDS:
                yield _command_skill(plugin, command)


def _command_skill(plugin: PluginInstance, command: Command) -> JsonObject:
    manifest = plugin.installed.manifest if plugin.installed else None
    return {
        "name": f"{plugin.name}.{command.name}",
        "kind": "command",
        "description": command.description or (manifest.description if manifest else ""),
        "read_only": command.type is CommandType.READ,
        "call": {"method": "POST", "path": f"/plugin/{plugin.name}/{command.name}"},
        "scope": scope(plugin.name, right_of(command)),
        "input_schema": command.input_schema,
        "output_schema": command.output_schema,
    }


def _pipeline_skills(snapshot: Snapshot) -> Iterator[JsonObject]:
    for name, pipeline in snapshot.pipelines.items():
        yield {
            "name": name,
            "kind": "pipeline",
            "description": describe_pipeline(pipeline),
            "read_only": False,
            "call": {"method": "POST", "path": f"/pipeline/{name}"},
            "scope": scope(Subject.PLUGIN, Right.WRITE),
            "execution_mode": pipeline.execution_mode,
            "input_schema": None,
            "output_schema": None,
        }


def describe_pipeline(pipeline: PipelineSettings) -> str:
    """In words, from what it is made of: pipelines have no description of their own."""
    trigger = pipeline.on or pipeline.on_hook
    used = ", ".join(step.uses or step.call or step.id or "steps" for step in pipeline.steps)
    return f"Runs {used}" + (f"; also started by {trigger}" if trigger else "") + "."
