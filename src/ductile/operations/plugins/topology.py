"""The topology: what emits which events, and which routes and pipelines take them.

Plugins that cannot run are not listed as emitters; routes to them have the standing of their plugin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

from msgspec import UNSET, UnsetType

from ductile.config.names import parse_target
from ductile.config.schema.pipelines import PipelineSettings, StepSettings
from ductile.config.snapshot import PublishTarget, Snapshot
from ductile.core.events.model import Hook
from ductile.operations.context import OperationContext
from ductile.operations.plugins.lookup import commands_of
from ductile.operations.request import NoFields
from ductile.operations.response import Response, from_record
from ductile.operations.webhooks.manage import target_fields
from ductile.plugins.catalogue import PluginStanding, standing_of
from ductile.struct import Value, about, field


class TopologySchedule(Value):
    id: str
    command: str


class TopologyCommand(Value):
    consumes: list[str]
    emits: list[str]


class TopologyPlugin(Value):
    name: str
    standing: PluginStanding
    schedules: list[TopologySchedule]
    commands: dict[str, TopologyCommand]


class TopologyPipeline(Value):
    name: str
    on: str | None
    on_hook: Hook | None
    from_plugin: str | None
    uses: list[str]
    calls: list[str]
    cannot_run: Annotated[list[str], about("Steps that end dead: their plugin is disabled or refused.")]


class TopologyWebhook(Value):
    name: str
    path: str
    plugin: str | None
    command: str | None
    standing: PluginStanding | None
    pipeline: str | None
    event: str | None


class TopologyListener(Value):
    """A route, with the standing of its plugin, or a pipeline."""

    source: Annotated[str | None, about("Only from this source.")] = field(name="from")
    route: str | UnsetType = UNSET
    standing: PluginStanding | UnsetType = UNSET
    pipeline: str | UnsetType = UNSET


class TopologyEvent(Value):
    type: str
    emitted_by: list[str]
    heard_by: list[TopologyListener]


class TopologyHook(Value):
    hook: Hook
    emitted_by: list[str]
    heard_by: list[TopologyListener]


class Topology(Response):
    plugins: list[TopologyPlugin]
    pipelines: list[TopologyPipeline]
    webhooks: list[TopologyWebhook]
    events: list[TopologyEvent]
    hooks: list[TopologyHook]


async def show_topology(context: OperationContext, _request: NoFields) -> Topology:
    """Return the topology of the configuration in force."""
    return topology_of(context.snapshot())


def topology_of(snapshot: Snapshot) -> Topology:
    """Return the topology of a configuration."""
    plugins = []
    for plugin in snapshot.plugins.values():
        commands = {
            name: from_record(TopologyCommand, command, emits=[event.type for event in command.emits])
            for name, command in commands_of(plugin).items()
        }
        schedules = [from_record(TopologySchedule, schedule) for schedule in plugin.schedules]
        standing = standing_of(plugin)
        plugins.append(
            TopologyPlugin(name=plugin.name, standing=standing, schedules=schedules, commands=commands)
        )
    pipelines = []
    for pipeline in snapshot.pipelines.values():
        steps = [*_steps_in(pipeline.steps)]
        calls = sorted({step.call for step in steps if step.call is not None})
        uses = sorted({".".join(parse_target(step.uses)) for step in steps if step.uses is not None})
        cannot_run = [
            use
            for use in uses
            if standing_of(snapshot.plugins[parse_target(use)[0]]) is not PluginStanding.ACTIVE
        ]
        pipelines.append(
            from_record(TopologyPipeline, pipeline, uses=uses, calls=calls, cannot_run=cannot_run)
        )
    webhooks = []
    for endpoint in snapshot.webhooks:
        target = target_fields(endpoint.target)
        name = target["plugin"]
        target_standing = None if name is None else standing_of(snapshot.plugins[name])
        webhooks.append(from_record(TopologyWebhook, endpoint, **target, standing=target_standing))
    return Topology(
        plugins=plugins,
        pipelines=pipelines,
        webhooks=webhooks,
        events=_events(snapshot),
        hooks=_hooks(snapshot),
    )


def _steps_in(steps: Iterable[StepSettings]) -> Iterator[StepSettings]:
    """Yield the steps and all steps inside them, at any depth."""
    for step in steps:
        yield step
        yield from _steps_in(step.steps or ())
        yield from _steps_in(step.split or ())
        for inner in step.on_events.values():
            yield from _steps_in(inner)


def _events(snapshot: Snapshot) -> list[TopologyEvent]:
    """Return every event type that a plugin or webhook declares, or a route or pipeline takes.

    `POST /event` may publish any of them.
    """
    emitters: dict[str, list[str]] = {}
    listeners: dict[str, list[TopologyListener]] = {}
    for name, plugin in snapshot.plugins.items():
        for command in commands_of(plugin).values() if plugin.runnable else ():
            for event in command.emits:
                emitters.setdefault(event.type, []).append(f"{name}.{command.name}")
    for endpoint in snapshot.webhooks:
        if isinstance(endpoint.target, PublishTarget):
            emitters.setdefault(endpoint.target.event_type, []).append(f"webhook:{endpoint.name}")
    for route in snapshot.routes:
        standing = standing_of(snapshot.plugins[route.plugin])
        listener = TopologyListener(source=route.source, route=route.target, standing=standing)
        listeners.setdefault(route.event_type, []).append(listener)
    for pipeline in snapshot.pipelines.values():
        if pipeline.on is not None:
            listeners.setdefault(pipeline.on, []).append(_listener(pipeline))
    return [
        TopologyEvent(type=kind, emitted_by=emitters.get(kind, []), heard_by=listeners.get(kind, []))
        for kind in sorted(emitters.keys() | listeners.keys())
    ]


def _hooks(snapshot: Snapshot) -> list[TopologyHook]:
    """Return the hooks that a plugin or pipeline emits or a pipeline takes.

    Hooks are no events: they cannot be published, and routes do not take them.
    """
    sources = [
        *(name for name, plugin in snapshot.plugins.items() if plugin.runnable and plugin.notify_on_complete),
        *(f"pipeline:{name}" for name, pipeline in snapshot.pipelines.items() if pipeline.notify_on_complete),
    ]
    hooks = []
    for hook in Hook:
        listeners = [
            _listener(pipeline) for pipeline in snapshot.pipelines.values() if pipeline.on_hook is hook
        ]
        if sources or listeners:
            hooks.append(TopologyHook(hook=hook, emitted_by=sources, heard_by=listeners))
    return hooks


def _listener(pipeline: PipelineSettings) -> TopologyListener:
    return TopologyListener(pipeline=pipeline.name, source=pipeline.from_plugin)
