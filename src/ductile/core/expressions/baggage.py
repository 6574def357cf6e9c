"""Baggage: values that a step takes from its payload for all steps after it.

Baggage only grows: a value stays the same until the end of the run, so later steps can rely on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ductile.core.expressions.operators import json_equal
from ductile.core.expressions.paths import (
    MISSING,
    PORTABLE_ROOTS,
    EvalContext,
    ExpressionFault,
    fault_in_path,
    look_up,
    suggest_root,
)
from ductile.core.json import MAX_DEPTH, JsonObject, JsonValue, encoded_size, nests_too_deep
from ductile.struct import Value

MAX_BAGGAGE_BYTES = 1024 * 1024
#: The prefix of keys that the core adds to the context.
RESERVED_PREFIX = "ductile_"
_SPREAD_KEYS = ("from", "namespace")
_EXPECTED_SOURCE = "a path such as payload.x, context.x or run.payload.x"


class BaggageError(ValueError):
    """The item is invalid or cannot be applied; `path` is its path in the baggage."""

    def __init__(self, message: str, *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


class BaggageItem(Value, array_like=True):
    """Keep the value at `source` under `target`; with `spread`, an object key by key."""

    target: tuple[str, ...]
    source: str
    spread: bool = False


def compile_baggage(written: Mapping[str, JsonValue]) -> tuple[BaggageItem, ...]:
    """Compile the `baggage` of a step. Raises BaggageError for the first fault."""
    for fault in faults_in_baggage(written):
        raise BaggageError(f"{fault.message}, in baggage", path=str(fault.where[0]) if fault.where else None)
    if "from" in written:
        target = tuple(str(written["namespace"]).split("."))
        return (BaggageItem(target=target, source=str(written["from"]), spread=True),)
    return tuple(BaggageItem(target=tuple(path.split(".")), source=str(at)) for path, at in written.items())


def faults_in_baggage(written: Mapping[str, JsonValue]) -> Iterator[ExpressionFault]:
    """Yield all faults in the baggage of a step, in the order in which it is written."""
    if any(key in written for key in _SPREAD_KEYS):
        yield from _faults_in_spread(written)
        return
    for path, source in written.items():
        yield from _faults_in_target(path, path)
        yield from _faults_in_source(path, source)
        for other in written:
            if path.startswith(f"{other}."):
                yield ExpressionFault(
                    where=(path,), message="this lies within another path of the same baggage"
                )


def _faults_in_spread(written: Mapping[str, JsonValue]) -> Iterator[ExpressionFault]:
    if set(written) != set(_SPREAD_KEYS):
        yield ExpressionFault(
            where=(),
            message="`from` and `namespace` go together, and with nothing else",
            expected="both of them, or a map of names to paths",
            found=" and ".join(written),
        )
        return
    yield from _faults_in_source("from", written["from"])
    namespace = written["namespace"]
    if not isinstance(namespace, str):
        yield ExpressionFault(where=("namespace",), message="this is not a name", expected="text")
    else:
        yield from _faults_in_target("namespace", namespace)


def _faults_in_source(key: str, source: JsonValue) -> Iterator[ExpressionFault]:
    if not isinstance(source, str):
        yield ExpressionFault(where=(key,), message="this is not a path", expected=_EXPECTED_SOURCE)
    elif fault := fault_in_path(source, PORTABLE_ROOTS):
        braces = source.startswith("{") and source.endswith("}")
        hint = "write the path without braces" if braces else suggest_root(source, PORTABLE_ROOTS)
        yield ExpressionFault(
            where=(key,),
            message=f"this path {fault}",
            expected=_EXPECTED_SOURCE,
            found=f'"{source}"',
            hint=hint,
        )


def _faults_in_target(key: str, path: str) -> Iterator[ExpressionFault]:
    if path.startswith(RESERVED_PREFIX):
        fault = f"begins with {RESERVED_PREFIX}, which is reserved"
    elif any(not part or part != part.strip() for part in path.split(".")):
        fault = "has an empty part, or space around one"
    else:
        return
    yield ExpressionFault(where=(key,), message=f"this name {fault}", hint="choose another name")


def add_baggage(items: tuple[BaggageItem, ...], inherited: JsonObject, context: EvalContext) -> JsonObject:
    """Return the inherited baggage with the items added, as a new value.

    Raises BaggageError if a source is missing, an inherited value would change, or it becomes too large.
    """
    baggage = inherited
    for item in items:
        name = ".".join(item.target)
        value = look_up(item.source, context)
        if value is MISSING:
            raise BaggageError(f"there is no {item.source} to keep as {name}", path=name)
        if item.spread and not isinstance(value, dict):
            raise BaggageError(
                f"{item.source} is not an object, so it has no names to keep in {name}", path=name
            )
        baggage = _with_item(baggage, item, value, depth=0)
    if nests_too_deep(baggage):
        raise BaggageError(f"the baggage nests deeper than {MAX_DEPTH} levels")
    if encoded_size(baggage) > MAX_BAGGAGE_BYTES:
        raise BaggageError(f"the baggage is larger than {MAX_BAGGAGE_BYTES} bytes")
    return baggage


def _with_item(baggage: JsonObject, item: BaggageItem, value: JsonValue, *, depth: int) -> JsonObject:
    """Return the baggage with one item added. Only the objects on its path are copied."""
    key = item.target[depth]
    existing = baggage.get(key, MISSING)
    if depth < len(item.target) - 1 and (existing is MISSING or isinstance(existing, dict)):
        inner = {} if existing is MISSING else existing
        return {**baggage, key: _with_item(inner, item, value, depth=depth + 1)}
    if depth == len(item.target) - 1:
        if existing is MISSING:
            return {**baggage, key: value}
        if item.spread and isinstance(existing, dict) and isinstance(value, dict):
            for name in value.keys() & existing.keys():
                if not json_equal(existing[name], value[name]):
                    raise _conflict_error((*item.target, name))
            return {**baggage, key: value | existing}
        if json_equal(existing, value):
            return baggage
    raise _conflict_error(item.target[: depth + 1])


def _conflict_error(target: tuple[str, ...]) -> BaggageError:
    path = ".".join(target)
    return BaggageError(f"{path} is in the baggage with another value, and cannot be changed", path=path)
