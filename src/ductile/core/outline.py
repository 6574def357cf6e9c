"""A compiled graph seen as it was written: steps in sequences, with what lies inside each of them.

The graph knows only where a line goes next. For people the nesting is what matters; whoever shows a
pipeline, as text or as a picture, starts from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum

from ductile.core.comparisons import Operator
from ductile.core.conditions import AllOf, AnyOf, Comparison, Condition, Not
from ductile.core.pipelines import Block, Graph, Join, Node, Split, Use
from ductile.core.shown_values import MASK, quote
from ductile.value import Value

#: A condition that is longer is cut; the whole of it is in the configuration.
LONGEST_CONDITION = 60


class Inside(StrEnum):
    """What a part of a step is to it."""

    STEPS = "steps"
    BRANCH = "branch"
    EVENT = "event"


class Part(Value):
    """Steps inside a step, one after the other. `name` is the branch's id or the event's type."""

    kind: Inside
    items: tuple[Item, ...]
    name: str = ""


class Item(Value):
    node: Node
    #: Its `if` in short.
    condition: str | None = None
    parts: tuple[Part, ...] = ()

    @property
    def id(self) -> str:
        """The last word of the path: the step's id, or its number."""
        return self.node.path.rpartition("/")[2]

    @property
    def title(self) -> str:
        """What the step does, in a word or two."""
        match self.node:
            case Use(plugin=plugin, command=command):
                return plugin if command == "handle" else f"{plugin}.{command}"
            case Block(call=None):
                return "steps"
            case Block(call=call):
                return f"call {call}"
            case Split(join=Join.ALWAYS):
                return "split, join: always"
            case Split():
                return "split"


def outline(graph: Graph, is_secret: Callable[[str], bool]) -> tuple[Item, ...]:
    """The steps of a pipeline in the order in which they are written.

    `is_secret` tells by its name whether what a condition compares with must not be shown.
    """
    return _Reader(graph, is_secret).sequence(graph.first, None)


def walk(items: Sequence[Item]) -> Iterator[Item]:
    """Every step, at whatever depth, each before what lies inside it."""
    for item in items:
        yield item
        for part in item.parts:
            yield from walk(part.items)


class _Reader:
    def __init__(self, graph: Graph, is_secret: Callable[[str], bool]) -> None:
        self._nodes = graph.nodes
        self._is_secret = is_secret

    def sequence(self, first: str, end: str | None) -> tuple[Item, ...]:
        """From one step to the one before `end`, which is where the sequence around it goes on."""
        items: list[Item] = []
        at: str | None = first
        while at is not None and at != end:
            node = self._nodes[at]
            told = None if node.condition is None else shown_condition(node.condition, self._is_secret)
            items.append(Item(node=node, condition=told, parts=self._parts(node)))
            at = node.next
        return tuple(items)

    def _parts(self, node: Node) -> tuple[Part, ...]:
        match node:
            case Use():
                return tuple(
                    Part(kind=Inside.EVENT, name=event_type, items=self.sequence(first, node.next))
                    for event_type, first in node.on_events.items()
                )
            case Block():
                return (Part(kind=Inside.STEPS, items=self.sequence(node.first, node.next)),)
            case Split():
                return tuple(
                    Part(kind=Inside.BRANCH, name=branch.id, items=self.sequence(branch.first, None))
                    for branch in node.branches
                )


def shown_condition(condition: Condition, is_secret: Callable[[str], bool]) -> str:
    """A condition as one short line: `payload.total gte 100 and not payload.test exists`."""
    text = _told(condition, is_secret)
    return text if len(text) <= LONGEST_CONDITION else f"{text[: LONGEST_CONDITION - 1]}…"


def _told(condition: Condition, is_secret: Callable[[str], bool]) -> str:
    match condition:
        case Comparison(path=path, op=op, value=True) if op is Operator.EXISTS:
            return f"{path} {op}"
        case Comparison(path=path, op=op, value=value):
            hidden = op is not Operator.EXISTS and any(is_secret(key) for key in path.split("."))
            return f"{path} {op} {MASK if hidden else quote(value, is_secret)}"
        case AllOf(parts):
            return " and ".join(_grouped(part, is_secret) for part in parts)
        case AnyOf(parts):
            return " or ".join(_grouped(part, is_secret) for part in parts)
        case Not(part):
            return f"not {_grouped(part, is_secret)}"


def _grouped(condition: Condition, is_secret: Callable[[str], bool]) -> str:
    told = _told(condition, is_secret)
    return told if isinstance(condition, Comparison | Not) else f"({told})"
