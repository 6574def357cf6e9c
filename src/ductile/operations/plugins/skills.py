"""Skills for agents: every command and pipeline with the call that runs it.

Made from the configuration in force alone, without settings and secrets. The API adds its operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from msgspec import UNSET, UnsetType

from ductile.config.schema.pipelines import OnTimeout, PipelineSettings
from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.auth_scopes import auth_scope, pipeline_scope
from ductile.core.jobs.plugin_state import SYSTEM_COMMANDS
from ductile.core.json import JsonObject, JsonValue
from ductile.core.runs.required_inputs import find_required_inputs, first_use
from ductile.operations.operation import access_level_of, pipelines_started_by
from ductile.operations.plugins.lookup import commands_of
from ductile.operations.response import Response, milliseconds
from ductile.protocol.manifest.model import Command, CommandType, ExecutionMode
from ductile.protocol.manifest.schema import JsonSchema
from ductile.struct import Value, about

_ANSWER_ACCEPTED = (
    "202 with `job_id`. Ask for GET /job/{job_id} (scope own:ro) until `status` is succeeded, failed or "
    "dead; `result` is then what the plugin answered."
)
_ANSWER_ENDED = (
    "200 with `status`, `result` of the last step and the steps as `tree`, when the run has ended. "
    "If it has not after {seconds:g} s, 202 with `job_id` and `timeout_exceeded`: true, and it {then}. "
    "?async=true answers 202 at once."
)
#: Rules of every call, in the order in which a caller needs them.
CALL_RULES: dict[str, str] = {
    "authorization": "Send `Authorization: Bearer TOKEN` with every call.",
    "scopes": "`scope` is the least that a token needs for a call; plugin:rw opens every command and "
    "pipeline, * everything. 403 names what is missing.",
    "body": 'A JSON object: {"payload": {...}}, the payload as `input_schema` says; also dedupe_key, '
    "dedupe_ttl, state_webhook_url, state_webhook_events.",
    "answer": "Each skill tells its own. 202: the job is on disk and will run. 200: it is done.",
    "status": "queued, running; then for good succeeded, failed or dead. A synchronous answer also knows "
    "partial_success: some branches failed.",
    "errors": '{"error": {"code", "message", "hint", "details"}, "message"}; the hint says what to do. 429 '
    "and 503 may be repeated after the seconds in Retry-After, other errors not as they are.",
    "again": "Send the header Idempotency-Key with a call that may have to be repeated: while the job of "
    "that key waits, runs or has succeeded, the same call starts nothing, and names that job.",
    "openapi": "/openapi.json",
    "skill_file": "/skills?format=markdown",
}


#: The beginnings of the names of tools that run a command, and of those that start a pipeline.
COMMAND_PREFIX, PIPELINE_PREFIX = "run__", "start__"


class SkillCall(Value):
    method: str
    path: str


class Skill(Value):
    """Something that can be done here, and the call that does it."""

    name: str
    kind: Literal["command", "pipeline", "operation"]
    description: str
    read_only: bool
    call: SkillCall
    scope: Annotated[str, about("The least that a token needs for it.")]
    input_schema: Annotated[Any, about("The JSON Schema of the payload, or null.")]
    output_schema: Annotated[Any, about("The JSON Schema of the result, or null.")]
    answer: str
    execution_mode: ExecutionMode | UnsetType = UNSET
    timeout_ms: Annotated[
        float | UnsetType | None, about("How long the caller of a synchronous pipeline waits.")
    ] = UNSET
    query: Annotated[dict[str, str] | UnsetType, about("What may stand in the query of an operation.")] = (
        UNSET
    )
    body: Annotated[dict[str, str] | UnsetType, about("What may stand in its body.")] = UNSET


class Skills(Response):
    skills: list[Skill]
    how: dict[str, str]


def command_id(plugin: str, command: str) -> str:
    """Return the name of the tool that runs a command: `run__PLUGIN__COMMAND`, a valid function name.

    No two commands have the same: where it could be split in another way, because a name contains two
    underscores, or begins or ends with one, the length of the plugin's name is appended.
    """
    name = f"{COMMAND_PREFIX}{plugin}__{command}"
    return name if name.split("__") == ["run", plugin, command] else f"{name}__{len(plugin)}"


def pipeline_id(pipeline: str) -> str:
    """Return the name of the tool that starts a pipeline: `start__PIPELINE`."""
    return f"{PIPELINE_PREFIX}{pipeline}"


def skills_of(snapshot: Snapshot) -> Iterator[Skill]:
    """Yield every command that can run, and every pipeline."""
    for plugin in snapshot.plugins.values():
        for command in commands_of(plugin).values() if plugin.runnable else ():
            if command.name not in SYSTEM_COMMANDS:
                yield _command_skill(snapshot, plugin, command)
    for name, pipeline in snapshot.pipelines.items():
        yield _pipeline_skill(snapshot, name, pipeline)


def _command_skill(snapshot: Snapshot, plugin: PluginInstance, command: Command) -> Skill:
    """Return the skill that runs a command."""
    manifest = plugin.installed.manifest if plugin.installed else None
    synchronous = manifest is not None and manifest.execution_mode is ExecutionMode.SYNCHRONOUS
    can_wait = synchronous and not pipelines_started_by(snapshot, f"{plugin.name}.{command.name}")
    path = f"/{plugin.name}/{command.name}"
    return Skill(
        name=f"{plugin.name}.{command.name}",
        kind="command",
        description=command.description or (manifest.description if manifest else ""),
        read_only=command.type is CommandType.READ,
        call=SkillCall(method="POST", path=f"/plugin{path}"),
        scope=auth_scope(plugin.name, access_level_of(command)),
        input_schema=command.input_schema,
        output_schema=command.output_schema,
        answer=f"{_ANSWER_ACCEPTED} POST /trigger{path} waits for it and answers 200."
        if can_wait
        else _ANSWER_ACCEPTED,
    )


def _pipeline_skill(snapshot: Snapshot, name: str, pipeline: PipelineSettings) -> Skill:
    """Return the skill that starts a pipeline."""
    longest = min(pipeline.timeout, snapshot.api.max_sync_timeout)
    waits = pipeline.execution_mode is ExecutionMode.SYNCHRONOUS
    then = "is cancelled" if pipeline.on_timeout is OnTimeout.CANCEL else "goes on: ask for GET /job/{job_id}"
    return Skill(
        name=name,
        kind="pipeline",
        description=summarise_pipeline(pipeline),
        read_only=False,
        call=SkillCall(method="POST", path=f"/pipeline/{name}"),
        scope=pipeline_scope(name),
        input_schema=input_schema_of(snapshot, name),
        output_schema=None,
        answer=_ANSWER_ENDED.format(seconds=longest.total_seconds(), then=then)
        if waits
        else _ANSWER_ACCEPTED,
        execution_mode=pipeline.execution_mode,
        timeout_ms=milliseconds(longest) if waits else None,
    )


def summarise_pipeline(pipeline: PipelineSettings) -> str:
    """Return a sentence about a pipeline, made from its steps: pipelines have no description."""
    trigger = pipeline.on or pipeline.on_hook
    used = ", ".join(step.uses or step.call or step.id or "steps" for step in pipeline.steps)
    return f"Runs {used}" + (f"; also started by {trigger}" if trigger else "") + "."


def input_schema_of(snapshot: Snapshot, name: str) -> JsonSchema | None:
    """Return a JSON Schema of the payload of a pipeline, which declares none itself.

    It is made from the paths that the `if` and the first steps of the pipeline refer to; without any, it is
    the schema of the first command. None if that has no schema either.
    """
    pipeline = snapshot.policy.pipelines.by_name[name]
    needs = find_required_inputs(pipeline)
    if needs.known:
        return _object_schema({*map(_leading_keys, needs.known)}, {*map(_leading_keys, needs.required)})
    first = first_use(pipeline.graph)
    plugin = None if first is None else snapshot.plugins.get(first.plugin)
    if first is None or plugin is None or plugin.installed is None:
        return None
    command = plugin.installed.manifest.commands.get(first.command)
    return None if command is None else command.input_schema


def _leading_keys(path: str) -> tuple[str, ...]:
    """Return the keys of a path up to the first number, which may be the index of a list or a key."""
    keys = path.split(".")
    length = next((at for at, key in enumerate(keys) if at and key.isdigit()), len(keys))
    return tuple(keys[:length])


def _object_schema(known: set[tuple[str, ...]], required: set[tuple[str, ...]]) -> JsonObject:
    """Return the schema of an object with these paths of keys. The type of a path's last key is not known."""
    properties: JsonObject = {}
    for name in sorted({path[0] for path in known}):
        known_below = {path[1:] for path in known if path[0] == name and len(path) > 1}
        required_below = {path[1:] for path in required if path[0] == name and len(path) > 1}
        properties[name] = _object_schema(known_below, required_below) if known_below else {}
    names: list[JsonValue] = [*sorted({path[0] for path in required})]
    return {"type": "object", "properties": properties, **({"required": names} if names else {})}
