"""What whoever starts a pipeline has to give it, as far as its graph tells.

Only the steps that see the caller's own payload are asked: what comes after them depends on what plugins say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ductile.core.expressions.conditions import AllOf, AnyOf, Comparison, Condition, Not
from ductile.core.expressions.operators import compare
from ductile.core.expressions.paths import MISSING, Root
from ductile.core.expressions.templates import paths_in
from ductile.core.runs.graph import BlockNode, Graph, Node, Pipeline, SplitNode, UseNode
from ductile.struct import Value

_NOTHING: frozenset[str] = frozenset()
_PAYLOAD = f"{Root.PAYLOAD}."


class RequiredInputs(Value):
    """Paths into the payload, without their root: `order.total`."""

    #: Without one of these no run starts, or one that starts is sure to fail.
    required: frozenset[str] = _NOTHING
    #: These are looked at; among them the required ones.
    known: frozenset[str] = _NOTHING


def find_required_inputs(pipeline: Pipeline) -> RequiredInputs:
    own = _of_condition(pipeline.condition)
    steps = _of_graph(pipeline.graph)
    required = _needed(pipeline.condition, wanted=True) if pipeline.condition else _NOTHING
    return RequiredInputs(required=_below(required) | steps.required, known=own | steps.known)


def first_use(graph: Graph) -> UseNode | None:
    """The step that is given the caller's payload as it is, if there is one that always is."""
    node = graph.nodes[graph.first]
    while isinstance(node, BlockNode) and node.condition is None:
        node = graph.nodes[node.first]
    is_plain = isinstance(node, UseNode) and node.condition is None and node.payload is None
    return node if is_plain and isinstance(node, UseNode) else None


def _of_graph(graph: Graph) -> RequiredInputs:
    """From the last step to the first, so that what follows a step is known before it."""
    found: dict[str, RequiredInputs] = {}
    for node in sorted(graph.nodes.values(), key=lambda each: each.position, reverse=True):
        found[node.path] = _of_node(node, found)
    return found[graph.first]


def _of_node(node: Node, after: Mapping[str, RequiredInputs]) -> RequiredInputs:
    own = _inside(node, after)
    if node.condition is None:
        return own
    # Bypassed, it passes its payload on: only what is needed either way is needed.
    other = RequiredInputs() if node.next is None else after[node.next]
    return RequiredInputs(
        required=own.required & other.required,
        known=own.known | other.known | _of_condition(node.condition),
    )


def _inside(node: Node, after: Mapping[str, RequiredInputs]) -> RequiredInputs:
    match node:
        case UseNode():
            paths = _below(_carried(node))
            return RequiredInputs(required=paths, known=paths)
        case BlockNode(first=first):
            return after[first]
        case SplitNode(branches=branches):
            inner = [after[branch.first] for branch in branches]
            return RequiredInputs(
                required=_NOTHING.union(*(each.required for each in inner)),
                known=_NOTHING.union(*(each.known for each in inner)),
            )


def _carried(step: UseNode) -> Iterator[str]:
    if step.payload is not None:
        yield from paths_in(step.payload.template)
    yield from (claim.source for claim in step.baggage)


def _of_condition(condition: Condition | None) -> frozenset[str]:
    return _NOTHING if condition is None else _below(_compared(condition))


def _compared(condition: Condition) -> Iterator[str]:
    match condition:
        case Comparison(path=path):
            yield path
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                yield from _compared(part)
        case Not(part):
            yield from _compared(part)


def _needed(condition: Condition, *, wanted: bool) -> frozenset[str]:
    """The paths each of which, if it is missing, keeps the condition from being what is wanted."""
    match condition:
        case Comparison(path=path, op=op, value=value):
            return _NOTHING if compare(MISSING, op, value) is wanted else frozenset((path,))
        case Not(part):
            return _needed(part, wanted=not wanted)
        case AllOf(parts) | AnyOf(parts):
            each = [_needed(part, wanted=wanted) for part in parts]
            every_one_counts = isinstance(condition, AllOf) is wanted
            if every_one_counts or not each:
                return _NOTHING.union(*each)
            return each[0].intersection(*each)


def _below(paths: Iterator[str] | frozenset[str]) -> frozenset[str]:
    return frozenset(path.removeprefix(_PAYLOAD) for path in paths if path.startswith(_PAYLOAD))
