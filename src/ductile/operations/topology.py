"""Who emits what, and who listens: plugins, routes and pipelines as one graph (SPEC 8)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ductile.config.pipeline_settings import PipelineSettings, StepSettings
from ductile.config.snapshot import Snapshot
from ductile.core.json_values import JsonObject, JsonValue
from ductile.operations.catalogue import commands_of, standing_of
from ductile.operations.desk import Desk


async def show_topology(desk: Desk, _given: JsonObject) -> JsonObject:
    snapshot = desk.snapshot()
    return {
        "plugins": [_plugin_node(snapshot, name) for name in snapshot.plugins],
        "pipelines": [_pipeline_node(pipeline) for pipeline in snapshot.pipelines.values()],
        "events": _events(snapshot),
    }


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


def _pipeline_node(pipeline: PipelineSettings) -> JsonObject:
    return {
        "name": pipeline.name,
        "on": pipeline.on,
        "on_hook": pipeline.on_hook,
        "from_plugin": pipeline.from_plugin,
        "uses": [*sorted(set(_used(pipeline.steps)))],
        "calls": [*sorted(set(_called(pipeline.steps)))],
    }


def _steps_in(steps: Iterable[StepSettings]) -> Iterator[StepSettings]:
    for step in steps:
        yield step
        yield from _steps_in(step.steps or ())
        yield from _steps_in(step.split or ())
        for inner in step.on_events.values():
            yield from _steps_in(inner)


def _used(steps: Iterable[StepSettings]) -> Iterator[str]:
    for step in _steps_in(steps):
        if step.uses is not None:
            yield step.uses if "." in step.uses else f"{step.uses}.handle"


def _called(steps: Iterable[StepSettings]) -> Iterator[str]:
    return (step.call for step in _steps_in(steps) if step.call is not None)


def _events(snapshot: Snapshot) -> list[JsonValue]:
    """Every event type that somebody declares or waits for. What nobody emits may still come from outside."""
    emitters: dict[str, list[JsonValue]] = {}
    listeners: dict[str, list[JsonValue]] = {}
    for name, plugin in snapshot.plugins.items():
        for command in commands_of(plugin).values():
            for event in command.emits:
                emitters.setdefault(event.type, []).append(f"{name}.{command.name}")
    for route in snapshot.routes:
        target: JsonObject = {"route": f"{route.plugin}.{route.command}", "from": route.source}
        listeners.setdefault(route.event_type, []).append(target)
    for pipeline in snapshot.pipelines.values():
        if pipeline.on is not None:
            started: JsonObject = {"pipeline": pipeline.name, "from": pipeline.from_plugin}
            listeners.setdefault(pipeline.on, []).append(started)
    return [
        {"type": kind, "emitted_by": emitters.get(kind, []), "heard_by": listeners.get(kind, [])}
        for kind in sorted(emitters.keys() | listeners.keys())
    ]
