"""The fields of the payload that a pipeline requires, as far as its graph shows.

`payload.x` counts only in steps that see the caller's own payload: the payload of later steps depends on
plugins. `run.payload.x` counts in every step, because it is the caller's payload everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ductile.core.events.model import Pipeline
from ductile.core.expressions.conditions import AllOf, AnyOf, Condition, Not, PathComparison, paths_compared
from ductile.core.expressions.operators import compare
from ductile.core.expressions.paths import MISSING, Root
from ductile.core.runs.graph import BlockNode, Graph, Node, SequenceKind, UseNode
from ductile.struct import Value

_NO_PATHS: frozenset[str] = frozenset()
_PAYLOAD = f"{Root.PAYLOAD}."
_RUN_PAYLOAD = f"{Root.RUN}.{Root.PAYLOAD}."


class RequiredInputs(Value):
    """Paths into the payload, without their root: `order.total`."""

    #: Without one of these no run starts, or the run fails.
    required: frozenset[str] = _NO_PATHS
    #: All paths that are used, including the required ones.
    known: frozenset[str] = _NO_PATHS


def find_required_inputs(pipeline: Pipeline) -> RequiredInputs:
    """Return the paths that the pipeline's condition and its steps use."""
    inputs: dict[str, RequiredInputs] = {}
    run_inputs: dict[str, RequiredInputs] = {}
    # From the last step to the first: a step needs the result of the steps after and inside it.
    for node in sorted(pipeline.graph.nodes.values(), key=lambda step: step.position, reverse=True):
        inputs[node.path] = _inputs_of(node, inputs)
        run_inputs[node.path] = _run_inputs_of(node, run_inputs)
    first = _union((inputs[pipeline.graph.first], run_inputs[pipeline.graph.first]))
    if pipeline.condition is None:
        return first
    required = [*_deciding_paths(pipeline.condition, result=True)]
    known = [*paths_compared(pipeline.condition)]
    own = RequiredInputs(
        required=_below(_PAYLOAD, required) | _below(_RUN_PAYLOAD, required),
        known=_below(_PAYLOAD, known) | _below(_RUN_PAYLOAD, known),
    )
    return _union((own, first))


def first_use(graph: Graph) -> UseNode | None:
    """Return the step that always gets the caller's payload unchanged; None if there is none."""
    node = graph.nodes[graph.first]
    while isinstance(node, BlockNode) and node.condition is None:
        node = graph.nodes[node.first]
    is_plain = isinstance(node, UseNode) and node.condition is None and node.payload is None
    return node if is_plain and isinstance(node, UseNode) else None


def _inputs_of(node: Node, later: Mapping[str, RequiredInputs]) -> RequiredInputs:
    """Return the fields that a step, and all steps after it, use of the payload that enters the step.

    `later` has the inputs of every step after or inside this one.
    """
    paths = _below(_PAYLOAD, node.input_paths)
    inner = [later[steps.first] for steps in node.sequences if steps.kind is not SequenceKind.EVENT]
    own = _union((RequiredInputs(required=paths, known=paths), *inner))
    if node.condition is None:
        return own
    # A skipped step passes its payload on, so a field is required only if the next step requires it too.
    following = RequiredInputs() if node.next is None else later[node.next]
    return RequiredInputs(
        required=own.required & following.required,
        known=own.known | following.known | _below(_PAYLOAD, paths_compared(node.condition)),
    )


def _run_inputs_of(node: Node, later: Mapping[str, RequiredInputs]) -> RequiredInputs:
    """Return the fields that a step, and all steps after it, use of the run's payload.

    A step that may be skipped requires nothing by itself.
    """
    paths = _below(_RUN_PAYLOAD, node.input_paths)
    inner = [later[steps.first] for steps in node.sequences if steps.kind is not SequenceKind.EVENT]
    # The steps for an event run only if such an event is emitted.
    maybe = [later[steps.first].known for steps in node.sequences if steps.kind is SequenceKind.EVENT]
    own = _union((RequiredInputs(required=paths, known=paths.union(*maybe)), *inner))
    if node.condition is not None:
        own = RequiredInputs(known=own.known | _below(_RUN_PAYLOAD, paths_compared(node.condition)))
    return own if node.next is None else _union((own, later[node.next]))


def _union(parts: Sequence[RequiredInputs]) -> RequiredInputs:
    return RequiredInputs(
        required=_NO_PATHS.union(*(part.required for part in parts)),
        known=_NO_PATHS.union(*(part.known for part in parts)),
    )


def _deciding_paths(condition: Condition, *, result: bool) -> frozenset[str]:
    """Return the paths of which each, if missing, prevents this result of the condition."""
    match condition:
        case PathComparison(path=path, op=op, value=value):
            return _NO_PATHS if compare(MISSING, op, value) is result else frozenset((path,))
        case Not(part):
            return _deciding_paths(part, result=not result)
        case AllOf(parts) | AnyOf(parts):
            by_part = [_deciding_paths(part, result=result) for part in parts]
            needs_every_part = isinstance(condition, AllOf) is result
            if needs_every_part or not by_part:
                return _NO_PATHS.union(*by_part)
            return by_part[0].intersection(*by_part)


def _below(prefix: str, paths: Iterable[str]) -> frozenset[str]:
    return frozenset(path.removeprefix(prefix) for path in paths if path.startswith(prefix))
