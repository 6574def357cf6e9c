"""A compiled graph seen as it was written: steps in sequences, with what lies inside each of them.

The graph knows only where a line goes next. For people the nesting is what matters; whoever shows a
pipeline, as text or as a picture, starts from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum

from ductile.core.expressions.conditions import AllOf, AnyOf, Comparison, Condition, Not
from ductile.core.expressions.operators import Operator
from ductile.core.expressions.redacted_quote import MASK, quote_redacted
from ductile.core.runs.graph import BlockNode, Graph, JoinPolicy, Node, SplitNode, UseNode
from ductile.struct import Value

#: A condition that is longer is cut; the whole of it is in the configuration.
LONGEST_CONDITION = 60


class GroupKind(StrEnum):
    """What a part of a step is to it."""

    STEPS = "steps"
    BRANCH = "branch"
    EVENT = "event"


class StepGroup(Value):
    """Steps inside a step, one after the other. `name` is the branch's id or the event's type."""

    kind: GroupKind
    items: tuple[TreeStep, ...]
    name: str = ""


class TreeStep(Value):
    node: Node
    #: Its `if` in short.
    condition: str | None = None
    parts: tuple[StepGroup, ...] = ()

    @property
    def id(self) -> str:
        """The last word of the path: the step's id, or its number."""
        return self.node.path.rpartition("/")[2]

    @property
    def title(self) -> str:
        """What the step does, in a word or two."""
        match self.node:
            case UseNode(plugin=plugin, command=command):
                return plugin if command == "handle" else f"{plugin}.{command}"
            case BlockNode(call=None):
                return "steps"
            case BlockNode(call=call):
                return f"call {call}"
            case SplitNode(join=JoinPolicy.ALWAYS):
                return "split, join: always"
            case SplitNode():
                return "split"


def build_tree(graph: Graph, is_secret: Callable[[str], bool]) -> tuple[TreeStep, ...]:
    """The steps of a pipeline in the order in which they are written.

    `is_secret` tells by its name whether what a condition compares with must not be shown.
    """
    return _TreeBuilder(graph, is_secret).sequence(graph.first, None)


def iter_steps(items: Sequence[TreeStep]) -> Iterator[TreeStep]:
    """Every step, at whatever depth, each before what lies inside it."""
    for item in items:
        yield item
        for part in item.parts:
            yield from iter_steps(part.items)


class _TreeBuilder:
    def __init__(self, graph: Graph, is_secret: Callable[[str], bool]) -> None:
        self._nodes = graph.nodes
        self._is_secret = is_secret

    def sequence(self, first: str, end: str | None) -> tuple[TreeStep, ...]:
        """From one step to the one before `end`, which is where the sequence around it goes on."""
        items: list[TreeStep] = []
        at: str | None = first
        while at is not None and at != end:
            node = self._nodes[at]
            told = None if node.condition is None else summarise_condition(node.condition, self._is_secret)
            items.append(TreeStep(node=node, condition=told, parts=self._parts(node)))
            at = node.next
        return tuple(items)

    def _parts(self, node: Node) -> tuple[StepGroup, ...]:
        match node:
            case UseNode():
                return tuple(
                    StepGroup(kind=GroupKind.EVENT, name=event_type, items=self.sequence(first, node.next))
                    for event_type, first in node.on_events.items()
                )
            case BlockNode():
                return (StepGroup(kind=GroupKind.STEPS, items=self.sequence(node.first, node.next)),)
            case SplitNode():
                return tuple(
                    StepGroup(kind=GroupKind.BRANCH, name=branch.id, items=self.sequence(branch.first, None))
                    for branch in node.branches
                )


def summarise_condition(condition: Condition, is_secret: Callable[[str], bool]) -> str:
    """A condition as one short line: `payload.total gte 100 and not payload.test exists`."""
    text = _told(condition, is_secret)
    return text if len(text) <= LONGEST_CONDITION else f"{text[: LONGEST_CONDITION - 1]}…"


def _told(condition: Condition, is_secret: Callable[[str], bool]) -> str:
    match condition:
        case Comparison(path=path, op=op, value=True) if op is Operator.EXISTS:
            return f"{path} {op}"
        case Comparison(path=path, op=op, value=value):
            hidden = op is not Operator.EXISTS and any(is_secret(key) for key in path.split("."))
            return f"{path} {op} {MASK if hidden else quote_redacted(value, is_secret)}"
        case AllOf(parts):
            return " and ".join(_grouped(part, is_secret) for part in parts)
        case AnyOf(parts):
            return " or ".join(_grouped(part, is_secret) for part in parts)
        case Not(part):
            return f"not {_grouped(part, is_secret)}"


def _grouped(condition: Condition, is_secret: Callable[[str], bool]) -> str:
    told = _told(condition, is_secret)
    return told if isinstance(condition, Comparison | Not) else f"({told})"
