"""Who emits what, and who listens: plugins, webhooks, routes, pipelines and hooks as one graph.

What cannot run emits nothing and is not named as if it did; what listens all the same is marked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ductile.config.names import parse_target
from ductile.config.schema.pipelines import PipelineSettings, StepSettings
from ductile.config.snapshot import EventTarget, PipelineTarget, PluginTarget, Snapshot, WebhookEndpoint
from ductile.core.events.routing import Hook
from ductile.core.json import JsonObject, JsonValue
from ductile.operations.context import OperationContext
from ductile.operations.plugins.catalogue import commands_of, standing_of


async def show_topology(context: OperationContext, _given: JsonObject) -> JsonObject:
    return topology_of(context.snapshot())


def topology_of(snapshot: Snapshot) -> JsonObject:
    return {
        "plugins": [_plugin_node(snapshot, name) for name in snapshot.plugins],
        "pipelines": [_pipeline_node(snapshot, pipeline) for pipeline in snapshot.pipelines.values()],
        "webhooks": [_webhook_node(snapshot, endpoint) for endpoint in snapshot.webhooks],
        "events": _events(snapshot),
        "hooks": _hooks(snapshot),
    }


# ----------------------------------------------------------------------------------------------- nodes


def _plugin_node(snapshot: Snapshot, name: str) -> JsonObject:
    plugin = snapshot.plugins[name]
    return {
        "name": name,
        "standing": standing_of(plugin),
        "schedules": [{"id": each.id, "command": each.command} for each in plugin.schedules],
        "commands": {
            command.name: {
                "consumes": list(command.consumes),
                "emits": [event.type for event in command.emits],
            }
            for command in commands_of(plugin).values()
        },
    }


def _pipeline_node(snapshot: Snapshot, pipeline: PipelineSettings) -> JsonObject:
    uses = sorted({f"{plugin}.{command}" for plugin, command in _used(pipeline.steps)})
    return {
        "name": pipeline.name,
        "on": pipeline.on,
        "on_hook": pipeline.on_hook,
        "from_plugin": pipeline.from_plugin,
        "uses": [*uses],
        "calls": [*sorted(set(_called(pipeline.steps)))],
        # Steps that end dead, whatever the run does: their plugin is disabled or refused.
        "cannot_run": [each for each in uses if _standing(snapshot, parse_target(each)[0]) != "active"],
    }


def _steps_in(steps: Iterable[StepSettings]) -> Iterator[StepSettings]:
    for step in steps:
        yield step
        yield from _steps_in(step.steps or ())
        yield from _steps_in(step.split or ())
        for inner in step.on_events.values():
            yield from _steps_in(inner)


def _used(steps: Iterable[StepSettings]) -> Iterator[tuple[str, str]]:
    return (parse_target(step.uses) for step in _steps_in(steps) if step.uses is not None)


def _called(steps: Iterable[StepSettings]) -> Iterator[str]:
    return (step.call for step in _steps_in(steps) if step.call is not None)


def _standing(snapshot: Snapshot, plugin: str) -> str:
    """Of a plugin that something names; the configuration is refused if there is none of that name."""
    return standing_of(snapshot.plugins[plugin])


def _webhook_node(snapshot: Snapshot, endpoint: WebhookEndpoint) -> JsonObject:
    """What a call of it starts. What it gives a plugin or a pipeline is heard by nobody else."""
    plugin, command, pipeline, event = None, None, None, None
    match endpoint.target:
        case PluginTarget():
            plugin, command = endpoint.target.plugin, endpoint.target.command
        case PipelineTarget():
            pipeline = endpoint.target.pipeline
        case EventTarget():
            event = endpoint.target.event_type
    return {
        "name": endpoint.name,
        "path": endpoint.path,
        "plugin": plugin,
        "command": command,
        "standing": None if plugin is None else _standing(snapshot, plugin),
        "pipeline": pipeline,
        "event": event,
    }


# ----------------------------------------------------------------------------------------------- edges


def _events(snapshot: Snapshot) -> list[JsonValue]:
    """Every event type that somebody declares or waits for. `POST /event` may publish any of them."""
    emitters: dict[str, list[JsonValue]] = {}
    listeners: dict[str, list[JsonValue]] = {}
    for name, plugin in snapshot.plugins.items():
        for command in commands_of(plugin).values() if plugin.runnable else ():
            for event in command.emits:
                emitters.setdefault(event.type, []).append(f"{name}.{command.name}")
    for endpoint in snapshot.webhooks:
        if isinstance(endpoint.target, EventTarget):
            emitters.setdefault(endpoint.target.event_type, []).append(f"webhook:{endpoint.name}")
    for route in snapshot.routes:
        standing = _standing(snapshot, route.plugin)
        target: JsonObject = {"route": route.target, "from": route.source, "standing": standing}
        listeners.setdefault(route.event_type, []).append(target)
    for pipeline in snapshot.pipelines.values():
        if pipeline.on is not None:
            listeners.setdefault(pipeline.on, []).append(_started(pipeline))
    return [
        {"type": kind, "emitted_by": emitters.get(kind, []), "heard_by": listeners.get(kind, [])}
        for kind in sorted(emitters.keys() | listeners.keys())
    ]


def _hooks(snapshot: Snapshot) -> list[JsonValue]:
    """Whose end is told to whom. Not among the events: nobody can publish one, and routes do not hear it."""
    sources: list[JsonValue] = [
        *(name for name, each in snapshot.plugins.items() if each.runnable and each.notify_on_complete),
        *(f"pipeline:{name}" for name, each in snapshot.pipelines.items() if each.notify_on_complete),
    ]
    heard: dict[Hook, list[JsonValue]] = {
        hook: [_started(each) for each in snapshot.pipelines.values() if each.on_hook is hook]
        for hook in Hook
    }
    return [
        {"hook": hook, "emitted_by": sources, "heard_by": heard[hook]}
        for hook in Hook
        if sources or heard[hook]
    ]


def _started(pipeline: PipelineSettings) -> JsonObject:
    return {"pipeline": pipeline.name, "from": pipeline.from_plugin}
