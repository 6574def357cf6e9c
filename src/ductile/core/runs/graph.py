"""The compiled graph of a pipeline: one node per step, with called pipelines inlined.

The configuration is compiled into these values. A run keeps the graph that it started with, stored as JSON,
so that a reload does not change it. Versions 2 and 3 of the stored format are what msgspec makes of the node
classes. Version 3 has the root `run` in expressions, and baggage in steps other than `uses`; a graph with
neither is written as version 2, so that its fingerprint stays what it was. Version 1, which older stores
contain, has neither a version nor the `kind` of nodes and conditions; it is read by adding them.

The code of views, drawings and required inputs uses the properties of `_Node`; the behaviour of a token at a
node is in `ductile.core.runs.advance`. A new kind of step is a new class here and a case there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any, ClassVar, TypeAlias

from ductile.core.expressions.baggage import BaggageItem
from ductile.core.expressions.conditions import Condition, paths_compared
from ductile.core.expressions.paths import Root
from ductile.core.expressions.templates import Template, compile_template, paths_in
from ductile.core.jobs.failures import RetryPolicy
from ductile.core.json import JsonObject, JsonValue
from ductile.struct import Value, convert, field, to_builtins

#: The plugin name of the jobs that represent pipeline runs. They have no process.
RUN_PLUGIN = "pipeline"
#: The most steps of a pipeline with its calls inlined.
MAX_GRAPH_STEPS = 1000


class JoinPolicy(StrEnum):
    """The condition for the step after a split to run."""

    SUCCEEDED = "succeeded"
    ALWAYS = "always"


class Shape(StrEnum):
    """The shape in which a step is drawn."""

    BOX = "box"
    FRAME = "frame"  # around the steps inside it
    FORK = "fork"  # with its branches side by side, and a join


class SequenceKind(StrEnum):
    """The role of a sequence inside a step."""

    STEPS = "steps"
    BRANCH = "branch"
    EVENT = "event"


class StepSequence(Value):
    """Steps inside a step, from `first` to the one before `end`. `name` is a branch id or an event type."""

    kind: SequenceKind
    first: str
    end: str | None
    name: str = ""


class StepPayload:
    """The `with` of a step: its source, which is stored, and the compiled template.

    Not shown by `repr`: it can contain a secret from an environment variable.
    """

    __slots__ = ("source", "template")

    def __init__(self, source: JsonValue) -> None:
        self.source = source
        self.template: Template = compile_template(source)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StepPayload) and self.source == other.source

    __hash__ = None  # type: ignore[assignment]  # the source is JSON, which has no hash


class StepRetry(Value):
    """A step's own retry policy, in seconds as it is stored."""

    max_attempts: int
    backoff_base: float
    backoff_max: float

    @property
    def policy(self) -> RetryPolicy:
        return RetryPolicy(
            max_attempts=self.max_attempts,
            backoff_base=timedelta(seconds=self.backoff_base),
            backoff_max=timedelta(seconds=self.backoff_max),
        )


class StepLabel(Value):
    """A step in a few words."""

    #: The configuration key that makes such a step.
    keyword: str
    #: The plugin command or pipeline that the step runs.
    target: str | None
    #: The text in a drawing.
    title: str


class _Node(Value, kw_only=True, tag_field="kind", omit_defaults=True):
    """The fields of every node, and what views of a graph need of it."""

    path: str
    #: Index of the step in the order in which the pipeline is written.
    position: int
    #: The step that follows; None at the end of a branch or of the pipeline.
    next: str | None
    condition: Condition | None = field(default=None, name="if")
    #: Added to the baggage of a token that enters the step.
    baggage: tuple[BaggageItem, ...] = ()

    shape: ClassVar[Shape] = Shape.BOX

    @property
    def label(self) -> StepLabel:
        raise NotImplementedError

    @property
    def sequences(self) -> tuple[StepSequence, ...]:
        """Return the steps inside the step."""
        return ()

    @property
    def input_paths(self) -> Iterator[str]:
        """Return the paths without which the step cannot be created, its condition aside."""
        return (item.source for item in self.baggage)

    @property
    def paths(self) -> Iterator[str]:
        """Yield all paths in the expressions of the step."""
        yield from self.input_paths
        if self.condition is not None:
            yield from paths_compared(self.condition)


class UseNode(_Node, kw_only=True, tag="uses"):
    """Runs a plugin's command."""

    plugin: str
    command: str
    payload: StepPayload | None = field(default=None, name="with")
    retry: StepRetry | None = None
    #: In seconds.
    timeout: float | None = None
    #: By event type: the first step that a token with such an event goes through before `next`.
    on_events: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> StepLabel:
        target = f"{self.plugin}.{self.command}"
        title = self.plugin if self.command == "handle" else target
        return StepLabel(keyword="uses", target=target, title=title)

    @property
    def sequences(self) -> tuple[StepSequence, ...]:
        return tuple(
            StepSequence(kind=SequenceKind.EVENT, name=event_type, first=first, end=self.next)
            for event_type, first in self.on_events.items()
        )

    @property
    def input_paths(self) -> Iterator[str]:
        if self.payload is not None:
            yield from paths_in(self.payload.template)
        yield from (item.source for item in self.baggage)


class BlockNode(_Node, kw_only=True, tag="block"):
    """A sequence of its own: `steps`, or the steps of a called pipeline."""

    first: str
    #: The called pipeline; None for `steps`.
    call: str | None

    shape: ClassVar[Shape] = Shape.FRAME

    @property
    def label(self) -> StepLabel:
        if self.call is None:
            return StepLabel(keyword="steps", target=None, title="steps")
        return StepLabel(keyword="call", target=self.call, title=f"call {self.call}")

    @property
    def sequences(self) -> tuple[StepSequence, ...]:
        return (StepSequence(kind=SequenceKind.STEPS, first=self.first, end=self.next),)


class SplitBranch(Value, array_like=True):
    id: str
    first: str


class SplitNode(_Node, kw_only=True, tag="split"):
    """Runs its branches side by side. `next` runs once, after all of them."""

    branches: tuple[SplitBranch, ...]
    join: JoinPolicy

    shape: ClassVar[Shape] = Shape.FORK

    @property
    def label(self) -> StepLabel:
        title = "split, join: always" if self.join is JoinPolicy.ALWAYS else "split"
        return StepLabel(keyword="split", target=None, title=title)

    @property
    def sequences(self) -> tuple[StepSequence, ...]:
        return tuple(
            StepSequence(kind=SequenceKind.BRANCH, name=branch.id, first=branch.first, end=None)
            for branch in self.branches
        )


#: The tagged union that is stored: the `kind` in JSON is the tag of the class.
Node: TypeAlias = UseNode | BlockNode | SplitNode


class Graph(Value):
    pipeline: str
    first: str
    nodes: Mapping[str, Node]
    #: A hash of all other fields: the same in every configuration with this graph.
    fingerprint: str
    #: Whether an expression of a step has the root `run`: a settlement then reads the payload of the run.
    refers_to_run: bool

    @classmethod
    def of(cls, pipeline: str, first: str, nodes: Mapping[str, Node], fingerprint: str = "") -> Graph:
        prefix = f"{Root.RUN}."
        refers = any(path.startswith(prefix) for node in nodes.values() for path in node.paths)
        return cls(pipeline=pipeline, first=first, nodes=nodes, fingerprint=fingerprint, refers_to_run=refers)

    @property
    def plugins(self) -> frozenset[str]:
        """Return the plugins that the steps run."""
        return frozenset(node.plugin for node in self.nodes.values() if isinstance(node, UseNode))

    def step(self, path: str | None) -> UseNode | None:
        """Return the `uses` step at the path; None if there is none."""
        node = None if path is None else self.nodes.get(path)
        return node if isinstance(node, UseNode) else None


FORMAT_VERSION = 3
_VERSION_WITHOUT_RUN = 2


class _StoredGraph(Value):
    version: int
    pipeline: str
    first: str
    nodes: tuple[Node, ...]


def graph_to_json(graph: Graph) -> JsonObject:
    """Return the graph as JSON, without its fingerprint, which is a hash of this."""
    # The oldest version that can express the graph.
    has_baggage = any(node.baggage for node in graph.nodes.values() if not isinstance(node, UseNode))
    stored = _StoredGraph(
        version=FORMAT_VERSION if has_baggage or graph.refers_to_run else _VERSION_WITHOUT_RUN,
        pipeline=graph.pipeline,
        first=graph.first,
        nodes=tuple(graph.nodes.values()),
    )
    # Through text: `to_builtins` keeps tuples, and callers expect lists.
    encoded: JsonObject = json.loads(json.dumps(to_builtins(stored, enc_hook=lambda payload: payload.source)))
    return encoded


def graph_from_json(stored: JsonObject, fingerprint: str) -> Graph:
    """Return the graph that `graph_to_json` wrote, in this or an earlier version.

    Raises ValueError if it is not a stored graph.
    """
    version = stored.get("version", 1)
    if version == 1:
        stored = _upgrade_graph(stored)
    elif version not in (_VERSION_WITHOUT_RUN, FORMAT_VERSION):
        raise ValueError(f"version {version} of stored graphs is not known; a newer Ductile wrote it")
    graph = convert(stored, _StoredGraph, dec_hook=lambda _type, source: StepPayload(source))
    nodes = {node.path: node for node in graph.nodes}
    return Graph.of(graph.pipeline, graph.first, nodes, fingerprint)


def _upgrade_graph(stored: Any) -> JsonObject:
    """Return a graph of version 1 as one of version 2."""
    nodes = []
    for node in stored["nodes"]:
        kind = "split" if "branches" in node else "uses" if "plugin" in node else "block"
        condition = {"if": _upgrade_condition(node["if"])} if "if" in node else {}
        nodes.append({**node, "kind": kind, **condition})
    return {**stored, "version": _VERSION_WITHOUT_RUN, "nodes": nodes}


def _upgrade_condition(stored: Any) -> Any:
    match stored:
        case {"all": list(parts), **rest}:
            return {**rest, "kind": "all", "all": [_upgrade_condition(part) for part in parts]}
        case {"any": list(parts), **rest}:
            return {**rest, "kind": "any", "any": [_upgrade_condition(part) for part in parts]}
        case {"not": part, **rest}:
            return {**rest, "kind": "not", "not": _upgrade_condition(part)}
        case dict():
            return {**stored, "kind": "comparison"}
        case _:
            return stored
