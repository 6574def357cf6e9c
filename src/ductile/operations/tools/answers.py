"""Answers of tools: small enough for an agent, and saying what was left out of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import fields

from ductile.core.json import JsonObject, JsonValue
from ductile.operations.tools.wording import in_tool_words
from ductile.struct import to_builtins

_LONG_TEXT, _SHORT_TEXT, _SHORTEST_TEXT = 1000, 200, 60
_FEW_ENTRIES = 5
_MAX_NOTES = 8
_MAX_NOTE = 90
_RESERVE = 800
#: Fields of structs with which an agent cannot do anything.
LEFT_OUT = frozenset(
    (
        "trace_id",
        "hops",
        "seq",
        "source_event_id",
        "stderr_bytes",
        "stderr_truncated",
        "fingerprint",
        "nominal_at",
        "at_start",
    )
)
#: Fields of structs with commands to type.
ADVICE = frozenset(("advice", "fix", "hint", "next", "why"))
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", re.ASCII)
_SECONDS = len("2026-01-02T03:04:05")


_NONE: frozenset[str] = frozenset()
_NOTHING: Mapping[str, frozenset[str]] = MappingProxyType({})


class _FreeObject(dict[str, Any]):
    """An object whose keys no struct defines, so that some may be left out."""


def compact(
    value: Any, omit: frozenset[str] = frozenset(), omit_below: Mapping[str, frozenset[str]] = _NOTHING
) -> Any:
    """The response as JSON, without what an agent does not need. Plugins' JSON stays as it is.

    Left out of structs are fields that are null, empty lists, objects and texts below the first level, and
    fields with a name in `omit` or `LEFT_OUT`; `omit_below` has names that are left out only below a field.
    Instants have whole seconds, and advice names tools.
    """
    return _compact(value, LEFT_OUT | omit, omit_below, top=True)


def _compact(
    value: Any, omit: frozenset[str], below: Mapping[str, frozenset[str]], *, top: bool = False
) -> Any:
    if isinstance(value, Struct):
        shown = {}
        for each in fields(value):
            found = getattr(value, each.name)
            if each.encode_name in omit or found is None or found is UNSET:
                continue
            inner = _compact(found, omit | below.get(each.encode_name, _NONE), below)
            if top or inner not in ([], {}, ""):
                shown[each.encode_name] = _shown(each.encode_name, inner)
        return shown
    if isinstance(value, list | tuple):
        return [_compact(each, omit, below) for each in value]
    if isinstance(value, dict):
        return _FreeObject({str(key): _compact(each, omit, below) for key, each in value.items()})
    return to_builtins(value)


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, str):
        if name in ADVICE:
            return in_tool_words(value)
        return f"{value[:_SECONDS]}Z" if _INSTANT.fullmatch(value) else value
    if name in ADVICE and isinstance(value, list):
        return [in_tool_words(each) if isinstance(each, str) else each for each in value]
    return value


def fit(document: JsonObject, characters: int) -> JsonObject:
    """Shorten texts and lists until the document has at most this many characters of JSON.

    What was shortened is named in `left_out`. The document is changed.
    """
    if _size(document) <= characters:
        return document
    cuts = _Cuts()
    room = characters - _RESERVE
    for text, entries in ((_LONG_TEXT, _FEW_ENTRIES), (_SHORT_TEXT, 1), (_SHORTEST_TEXT, 1)):
        if _size(document) > room:
            _cut_texts(document, text, cuts)
            _cut_containers(document, room, entries, cuts)
    document["left_out"] = cuts.notes()
    return document


class _Cuts:
    """What was cut at which path, where `*` stands for each entry of a list."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[int, int]] = {}
        self._texts: dict[str, tuple[int, int]] = {}

    def add(self, path: str, value: Any, kept: int) -> None:
        found = self._texts if isinstance(value, str) else self._entries
        _, whole = found.get(path, (0, 0))
        found[path] = (kept, max(whole, len(value)))

    def notes(self) -> list[JsonValue]:
        shown = [f"{path}: {kept} of {whole} entries" for path, (kept, whole) in self._entries.items()]
        shown += [f"{path}: {kept} of {whole} characters" for path, (kept, whole) in self._texts.items()]
        more = [f"and {len(shown) - _MAX_NOTES} more places"] if len(shown) > _MAX_NOTES else []
        return [*(each[:_MAX_NOTE] for each in shown[:_MAX_NOTES]), *more]


def _size(value: Any) -> int:
    return len(msgspec.json.encode(value))


_Put = Callable[[Any], None]
_Place: TypeAlias = tuple[str, Any, _Put]


def _places(value: Any, path: str) -> Iterator[_Place]:
    """Every value inside this one, with its path and the function that replaces it."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value))
    for key, each in pairs:
        name = "*" if isinstance(value, list) else key
        inner = f"{path}.{name}" if path else name
        yield inner, each, partial(value.__setitem__, key)
        yield from _places(each, inner)


def _cut_texts(document: JsonObject, most: int, cuts: _Cuts) -> None:
    for path, value, put in list(_places(document, "")):
        if isinstance(value, str) and len(value) > most:
            put(f"{value[: most - 1]}…")
            cuts.add(path, value, most - 1)


def _cut_containers(document: JsonObject, room: int, least: int, cuts: _Cuts) -> None:
    """Halve the largest list or free object until the document fits or all are short."""
    while _size(document) > room:
        long = [place for place in _places(document, "") if _is_long(place[1], least)]
        if not long:
            return
        path, value, put = max(long, key=lambda place: _size(place[1]))
        kept = max(least, len(value) // 2)
        put(value[:kept] if isinstance(value, list) else _FreeObject(list(value.items())[:kept]))
        cuts.add(path, value, kept)


def _is_long(value: Any, least: int) -> bool:
    return isinstance(value, list | _FreeObject) and len(value) > least
