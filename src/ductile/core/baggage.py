"""What a step claims from its payload for every step after it (SPEC 7.5).

Baggage only grows: what was claimed once keeps its value to the end of the run, so that a later step
can rely on it whoever wrote the steps between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ductile.core.equality import same
from ductile.core.json_values import MAX_DEPTH, JsonObject, JsonValue, encoded_size, nests_too_deep
from ductile.core.references import CARRIED, MISSING, Fault, Scope, fault_in_path, find
from ductile.value import Value

MAX_BAGGAGE_BYTES = 1024 * 1024
#: What the core itself puts into the context (SPEC 3.3).
RESERVED_PREFIX = "ductile_"
_WHOLE = ("from", "namespace")
_SOURCE = "a path such as payload.x or context.x"


class BaggageError(ValueError):
    """The claim cannot be read or met; `path` is the path in the baggage that it was for."""

    def __init__(self, message: str, *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


class Claim(Value):
    """Keep what is at `source` under `target`; if `spread`, an object key by key."""

    target: tuple[str, ...]
    source: str
    spread: bool = False


def compile_baggage(written: Mapping[str, JsonValue]) -> tuple[Claim, ...]:
    """The claims of a step. BaggageError for the first fault; `faults_in_baggage` tells them all."""
    for fault in faults_in_baggage(written):
        raise BaggageError(f"{fault.message}, in baggage", path=str(fault.where[0]) if fault.where else None)
    if "from" in written:
        target = tuple(str(written["namespace"]).split("."))
        return (Claim(target=target, source=str(written["from"]), spread=True),)
    return tuple(Claim(target=tuple(path.split(".")), source=str(at)) for path, at in written.items())


def faults_in_baggage(written: Mapping[str, JsonValue]) -> Iterator[Fault]:
    """Everything wrong with the baggage of a step, in the order it is written."""
    if any(key in written for key in _WHOLE):
        yield from _faults_in_whole(written)
        return
    for path, source in written.items():
        if fault := _fault_in_target(path):
            yield Fault(where=(path,), message=f"this name {fault}", hint="choose another name")
        yield from _faults_in_source(path, source)
        for other in written:
            if path.startswith(f"{other}."):
                yield Fault(where=(path,), message="this lies within another path of the same baggage")


def _faults_in_whole(written: Mapping[str, JsonValue]) -> Iterator[Fault]:
    if set(written) != set(_WHOLE):
        yield Fault(
            where=(),
            message="`from` and `namespace` go together, and with nothing else",
            expected="both of them, or a map of names to paths",
            found=" and ".join(written),
        )
        return
    yield from _faults_in_source("from", written["from"])
    namespace = written["namespace"]
    if not isinstance(namespace, str):
        yield Fault(where=("namespace",), message="this is not a name", expected="text")
    elif fault := _fault_in_target(namespace):
        yield Fault(where=("namespace",), message=f"this name {fault}", hint="choose another name")


def _faults_in_source(key: str, source: JsonValue) -> Iterator[Fault]:
    if not isinstance(source, str):
        yield Fault(where=(key,), message="this is not a path", expected=_SOURCE)
    elif fault := fault_in_path(source, CARRIED):
        braces = source.startswith("{") and source.endswith("}")
        hint = "write the path without braces" if braces else None
        yield Fault(
            where=(key,), message=f"this path {fault}", expected=_SOURCE, found=f'"{source}"', hint=hint
        )


def _fault_in_target(path: str) -> str | None:
    if path.startswith(RESERVED_PREFIX):
        return f"begins with {RESERVED_PREFIX}, which is reserved"
    if any(not part or part != part.strip() for part in path.split(".")):
        return "has an empty part, or space around one"
    return None


def claim(claims: tuple[Claim, ...], inherited: JsonObject, scope: Scope) -> JsonObject:
    """The inherited baggage with the claims added; the inherited one is left as it is.

    BaggageError if a source is missing, if an inherited path would change, or if it grows too large.
    """
    baggage = inherited
    for wanted in claims:
        baggage = _added(baggage, wanted, _found(wanted, scope), depth=0)
    if nests_too_deep(baggage):
        raise BaggageError(f"the baggage nests deeper than {MAX_DEPTH} levels")
    if encoded_size(baggage) > MAX_BAGGAGE_BYTES:
        raise BaggageError(f"the baggage is larger than {MAX_BAGGAGE_BYTES} bytes")
    return baggage


def _found(wanted: Claim, scope: Scope) -> JsonValue:
    name = ".".join(wanted.target)
    value = find(wanted.source, scope)
    if value is MISSING:
        raise BaggageError(f"there is no {wanted.source} to keep as {name}", path=name)
    if wanted.spread and not isinstance(value, dict):
        raise BaggageError(
            f"{wanted.source} is not an object, so it has no names to keep in {name}", path=name
        )
    return value


def _added(baggage: JsonObject, wanted: Claim, value: JsonValue, *, depth: int) -> JsonObject:
    """The baggage with one claim more. Only the objects on the way to it are copied, each once."""
    key = wanted.target[depth]
    held = baggage.get(key, MISSING)
    if depth < len(wanted.target) - 1 and (held is MISSING or isinstance(held, dict)):
        inner = {} if held is MISSING else held
        return {**baggage, key: _added(inner, wanted, value, depth=depth + 1)}
    if depth == len(wanted.target) - 1:
        if held is MISSING:
            return {**baggage, key: value}
        if wanted.spread and isinstance(held, dict) and isinstance(value, dict):
            return {**baggage, key: _spread(held, value, wanted.target)}
        if same(held, value):
            return baggage
    raise _changed(wanted.target[: depth + 1])


def _spread(held: JsonObject, value: JsonObject, target: tuple[str, ...]) -> JsonObject:
    for key in value.keys() & held.keys():
        if not same(held[key], value[key]):
            raise _changed((*target, key))
    return value | held


def _changed(target: tuple[str, ...]) -> BaggageError:
    path = ".".join(target)
    return BaggageError(f"{path} is in the baggage with another value, and cannot be changed", path=path)
