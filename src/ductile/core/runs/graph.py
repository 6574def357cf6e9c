"""Pipelines as the engine follows them: one graph, calls put in place, every step known by its path.

The configuration compiles its settings into these values; a run keeps the graph it began with, as JSON
in the store, whatever becomes of the configuration meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import TypeAlias

from ductile.core.expressions.baggage import BaggageClaim
from ductile.core.expressions.conditions import Condition
from ductile.core.expressions.templates import Template
from ductile.core.jobs.retry import RetryPolicy
from ductile.core.json import JsonValue
from ductile.struct import Value, field, hide_in_repr

#: The plugin name of pipeline runs: jobs without a process of their own.
RUN_PLUGIN = "pipeline"
#: A pipeline is not larger than this once its calls are put in place.
MAX_GRAPH_STEPS = 1000


class Hook(StrEnum):
    """How a job ended, as pipelines with `on-hook` are told."""

    COMPLETED = "job.completed"
    FAILED = "job.failed"
    TIMED_OUT = "job.timed_out"


class JoinPolicy(StrEnum):
    """When the step after a split runs."""

    SUCCEEDED = "succeeded"
    ALWAYS = "always"


@hide_in_repr("written", "template")
class StepPayload(Value):
    """What makes a step's payload: as it was written, which is how it is stored, and compiled.

    It may hold a secret that a variable put there, so it is not shown.
    """

    written: JsonValue
    template: Template


class UseNode(Value):
    """Runs a plugin's command."""

    path: str
    #: Its place in the pipeline as it is written: what "last" means among the ends of a run.
    position: int
    #: Where a line goes from here; None where its branch, or the run, ends.
    next: str | None
    condition: Condition | None
    plugin: str
    command: str
    payload: StepPayload | None = None
    baggage: tuple[BaggageClaim, ...] = ()
    retry: RetryPolicy | None = None
    timeout: timedelta | None = None
    #: By event type: the first of the steps that such an event goes through before `next`.
    on_events: Mapping[str, str] = field(default_factory=dict)


class BlockNode(Value):
    """A sequence of its own: `steps`, or the steps of a called pipeline."""

    path: str
    position: int
    next: str | None
    condition: Condition | None
    first: str
    #: The pipeline that is called, if it is a call.
    call: str | None = None


class SplitBranch(Value):
    id: str
    first: str


class SplitNode(Value):
    """Runs its branches side by side; `next` runs once, after all of them."""

    path: str
    position: int
    next: str | None
    condition: Condition | None
    branches: tuple[SplitBranch, ...]
    join: JoinPolicy = JoinPolicy.SUCCEEDED


Node: TypeAlias = UseNode | BlockNode | SplitNode


class Graph(Value):
    pipeline: str
    first: str
    nodes: Mapping[str, Node]
    #: Tells this graph from every other, in whichever configuration.
    fingerprint: str

    @property
    def plugins(self) -> frozenset[str]:
        """The plugins that its steps run."""
        return frozenset(node.plugin for node in self.nodes.values() if isinstance(node, UseNode))

    def step(self, path: str | None) -> UseNode | None:
        node = None if path is None else self.nodes.get(path)
        return node if isinstance(node, UseNode) else None


class Pipeline(Value):
    """A pipeline of the configuration in force: when it starts, and the graph that a new run follows."""

    name: str
    graph: Graph
    on: str | None = None
    on_hook: Hook | None = None
    from_plugin: str | None = None
    condition: Condition | None = None
    notify_on_complete: bool = False


class PipelineTable(Value, kw_only=False):
    """Pipelines by what starts them. Built once at load, so that a lookup costs nothing at settle."""

    by_name: Mapping[str, Pipeline] = field(default_factory=dict)
    _by_event: Mapping[str, tuple[Pipeline, ...]] = field(default_factory=dict)
    _by_hook: Mapping[Hook, tuple[Pipeline, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, pipelines: Iterable[Pipeline]) -> PipelineTable:
        by_name: dict[str, Pipeline] = {}
        by_event: dict[str, tuple[Pipeline, ...]] = {}
        by_hook: dict[Hook, tuple[Pipeline, ...]] = {}
        for pipeline in pipelines:
            by_name[pipeline.name] = pipeline
            if pipeline.on is not None:
                by_event[pipeline.on] = (*by_event.get(pipeline.on, ()), pipeline)
            if pipeline.on_hook is not None:
                by_hook[pipeline.on_hook] = (*by_hook.get(pipeline.on_hook, ()), pipeline)
        return cls(by_name, by_event, by_hook)

    def started_by(self, event_type: str, source: str) -> tuple[Pipeline, ...]:
        """Those that an event of this type and source starts, in the order of the configuration."""
        found = self._by_event.get(event_type)
        return () if found is None else _from(found, source)

    @property
    def have_hooks(self) -> bool:
        return bool(self._by_hook)

    def hooked(self, hook: Hook, source: str) -> tuple[Pipeline, ...]:
        found = self._by_hook.get(hook)
        return () if found is None else _from(found, source)


def _from(pipelines: tuple[Pipeline, ...], source: str) -> tuple[Pipeline, ...]:
    return tuple(found for found in pipelines if found.from_plugin in (None, source))
