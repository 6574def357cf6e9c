"""Events, the contexts that carry baggage from job to job, and the tables of what an event starts.

The tables of routes and pipelines are built once at load, because every settlement uses them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TypeVar

from ductile.core.expressions.conditions import Condition
from ductile.core.jobs.model import StateSubscription
from ductile.core.json import JsonObject
from ductile.core.runs.graph import Graph
from ductile.struct import Value, field


class NewEvent(Value):
    """An event to store, once for all the jobs that it starts."""

    id: str
    type: str
    source: str
    payload: JsonObject
    #: Only events of webhooks have headers.
    headers: Mapping[str, str] | None = None
    dedupe_key: str | None = None


def visible_event(event: NewEvent) -> JsonObject:
    """Return the event as conditions see it under `event`."""
    visible: JsonObject = {"type": event.type, "source": event.source, "event_id": event.id}
    if event.headers is not None:
        visible["headers"] = dict(event.headers)
    return visible


class IndexedEvent(Value):
    """An event with its index among the events of its producer."""

    event: NewEvent
    index: int = 0


class NewContext(Value):
    """One link in the chain of contexts; `baggage` is the whole baggage up to here."""

    id: str
    baggage: JsonObject
    parent_id: str | None = None
    run_id: str | None = None
    pipeline: str | None = None
    step_path: str | None = None
    hops: int = 0


Key = TypeVar("Key")
Target = TypeVar("Target")


class Hook(StrEnum):
    """The end of a job that starts pipelines with `on-hook`."""

    COMPLETED = "job.completed"
    FAILED = "job.failed"
    TIMED_OUT = "job.timed_out"


class EventRoute(Value):
    source: str
    event_type: str
    plugin: str
    command: str = "handle"

    @property
    def target(self) -> str:
        """Return the part of the route in the identity of the jobs that it creates."""
        return f"{self.plugin}.{self.command}"


class EventRouteTable(Value, kw_only=False):
    """Routes by (source, event type), which match exactly."""

    _by_event: Mapping[tuple[str, str], tuple[EventRoute, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, routes: Iterable[EventRoute]) -> EventRouteTable:
        return cls(_grouped(((route.source, route.event_type), route) for route in routes))

    def matching(self, source: str, event_type: str) -> tuple[EventRoute, ...]:
        return self._by_event.get((source, event_type), ())


class Pipeline(Value):
    """A configured pipeline: its trigger, and the graph of its new runs."""

    name: str
    graph: Graph
    on: str | None = None
    on_hook: Hook | None = None
    from_plugin: str | None = None
    condition: Condition | None = None
    notify_on_complete: bool = False
    #: Gets the states of its runs.
    state_webhook: StateSubscription | None = None


class PipelineTable(Value, kw_only=False):
    """Pipelines by name and by trigger."""

    by_name: Mapping[str, Pipeline] = field(default_factory=dict)
    _by_event: Mapping[str, tuple[Pipeline, ...]] = field(default_factory=dict)
    _by_hook: Mapping[Hook, tuple[Pipeline, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, pipelines: Iterable[Pipeline]) -> PipelineTable:
        listed = tuple(pipelines)
        return cls(
            {pipeline.name: pipeline for pipeline in listed},
            _grouped((pipeline.on, pipeline) for pipeline in listed if pipeline.on is not None),
            _grouped((pipeline.on_hook, pipeline) for pipeline in listed if pipeline.on_hook is not None),
        )

    def started_by(self, event_type: str, source: str) -> tuple[Pipeline, ...]:
        """Return the pipelines that the event starts."""
        return _from_source(self._by_event.get(event_type, ()), source)

    @property
    def has_hooks(self) -> bool:
        return bool(self._by_hook)

    def started_by_hook(self, hook: Hook, source: str) -> tuple[Pipeline, ...]:
        """Return the pipelines that the hook starts."""
        return _from_source(self._by_hook.get(hook, ()), source)


def _from_source(pipelines: tuple[Pipeline, ...], source: str) -> tuple[Pipeline, ...]:
    return tuple(pipeline for pipeline in pipelines if pipeline.from_plugin in (None, source))


def _grouped(pairs: Iterable[tuple[Key, Target]]) -> dict[Key, tuple[Target, ...]]:
    groups: dict[Key, tuple[Target, ...]] = {}
    for key, target in pairs:
        groups[key] = (*groups.get(key, ()), target)
    return groups
