"""A compiled graph as it was written: sequences of steps, with the sequences inside each step.

The graph has only the step that follows each step. Text views and drawings show the nesting, and start here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ductile.core.expressions.conditions import (
    MASK,
    AllOf,
    AnyOf,
    Comparison,
    Condition,
    Not,
    is_secret_path,
    quote_redacted,
)
from ductile.core.expressions.operators import Operator
from ductile.core.runs.graph import Graph, Node, SequenceKind
from ductile.struct import Value

#: A longer condition is cut.
MAX_CONDITION_LENGTH = 60


class StepGroup(Value):
    """The steps of one sequence inside a step. `name` is a branch id or an event type."""

    kind: SequenceKind
    steps: tuple[TreeStep, ...]
    name: str = ""


class TreeStep(Value):
    node: Node
    #: The `if` of the step, shortened.
    condition: str | None = None
    groups: tuple[StepGroup, ...] = ()

    @property
    def id(self) -> str:
        """The last part of the path: the step's id, or its number."""
        return self.node.path.rpartition("/")[2]


def build_tree(graph: Graph, is_secret: Callable[[str], bool]) -> tuple[TreeStep, ...]:
    """Return the steps of a pipeline in the order in which they are written.

    `is_secret` decides by the name of a key whether a condition's value is masked.
    """

    def sequence(first: str, end: str | None) -> tuple[TreeStep, ...]:
        steps: list[TreeStep] = []
        path: str | None = first
        while path is not None and path != end:
            node = graph.nodes[path]
            groups = tuple(
                StepGroup(kind=inner.kind, name=inner.name, steps=sequence(inner.first, inner.end))
                for inner in node.sequences
            )
            condition = None if node.condition is None else summarise_condition(node.condition, is_secret)
            steps.append(TreeStep(node=node, condition=condition, groups=groups))
            path = node.next
        return tuple(steps)

    return sequence(graph.first, None)


def iter_steps(steps: Sequence[TreeStep]) -> Iterator[TreeStep]:
    """Yield every step at any depth, each before the steps inside it."""
    for step in steps:
        yield step
        for group in step.groups:
            yield from iter_steps(group.steps)


def summarise_condition(condition: Condition, is_secret: Callable[[str], bool]) -> str:
    """Return a condition as one short line: `payload.total gte 100 and not payload.test exists`."""
    text = _describe(condition, is_secret)
    return text if len(text) <= MAX_CONDITION_LENGTH else f"{text[: MAX_CONDITION_LENGTH - 1]}…"


def _describe(condition: Condition, is_secret: Callable[[str], bool]) -> str:
    match condition:
        case Comparison(path=path, op=op, value=True) if op is Operator.EXISTS:
            return f"{path} {op}"
        case Comparison(path=path, op=op, value=value):
            hidden = op is not Operator.EXISTS and is_secret_path(path, is_secret)
            return f"{path} {op} {MASK if hidden else quote_redacted(value, is_secret)}"
        case AllOf(parts):
            return " and ".join(_grouped(part, is_secret) for part in parts)
        case AnyOf(parts):
            return " or ".join(_grouped(part, is_secret) for part in parts)
        case Not(part):
            return f"not {_grouped(part, is_secret)}"


def _grouped(condition: Condition, is_secret: Callable[[str], bool]) -> str:
    text = _describe(condition, is_secret)
    return text if isinstance(condition, Comparison | Not) else f"({text})"
