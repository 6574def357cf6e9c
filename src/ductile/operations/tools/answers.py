"""Answers of tools: shortened for an agent, with the names of the places that were cut."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import fields

from ductile.core.json import JsonObject, JsonValue
from ductile.operations.tools.wording import replace_cli_commands
from ductile.struct import to_builtins

_LONG_TEXT, _SHORT_TEXT, _SHORTEST_TEXT = 1000, 200, 60
_FEW_ENTRIES = 5
#: Places that `left_out` names, and the longest text of one.
_MAX_NOTES = 8
_MAX_NOTE = 90
#: Characters that are reserved for `left_out`.
_RESERVE = 800
#: Fields of structs with which an agent cannot do anything.
OMITTED_FIELDS = frozenset(
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
#: Fields of structs with texts that name commands of the CLI.
ADVICE_FIELDS = frozenset(("advice", "fix", "hint", "next", "why"))
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", re.ASCII)
_SECONDS = len("2026-01-02T03:04:05")
_NO_NAMES: frozenset[str] = frozenset()
_NO_FIELDS: Mapping[str, frozenset[str]] = MappingProxyType({})


class _FreeObject(dict[str, Any]):
    """An object whose keys no struct defines, so that some may be left out."""


def compact(
    value: Any, omit: frozenset[str] = _NO_NAMES, omit_below: Mapping[str, frozenset[str]] = _NO_FIELDS
) -> Any:
    """Return the response as JSON without the fields that an agent does not need. Plugins' JSON is unchanged.

    Left out of structs are fields that are null, empty lists, objects and texts below the first level, and
    fields with a name in `omit` or `OMITTED_FIELDS`; `omit_below` has names that are left out
    only below a field. Instants have whole seconds, and advice names tools.
    """
    return _compact(value, OMITTED_FIELDS | omit, omit_below, top=True)


def _compact(
    value: Any, omit: frozenset[str], omit_below: Mapping[str, frozenset[str]], *, top: bool = False
) -> Any:
    """Return a value inside a response as `compact` describes; `top` is the response itself."""
    if isinstance(value, Struct):
        document = {}
        for field in fields(value):
            name, content = field.encode_name, getattr(value, field.name)
            if name in omit or content is None or content is UNSET:
                continue
            inner = _compact(content, omit | omit_below.get(name, _NO_NAMES), omit_below)
            if top or inner not in ([], {}, ""):
                document[name] = _reword_field(name, inner)
        return document
    if isinstance(value, list | tuple):
        return [_compact(item, omit, omit_below) for item in value]
    if isinstance(value, dict):
        return _FreeObject({str(key): _compact(item, omit, omit_below) for key, item in value.items()})
    return to_builtins(value)


def _reword_field(name: str, value: Any) -> Any:
    """Return the value of a field with advice in the words of tools, and instants in whole seconds."""
    if isinstance(value, str):
        if name in ADVICE_FIELDS:
            return replace_cli_commands(value)
        return f"{value[:_SECONDS]}Z" if _INSTANT.fullmatch(value) else value
    if name in ADVICE_FIELDS and isinstance(value, list):
        return [replace_cli_commands(item) if isinstance(item, str) else item for item in value]
    return value


def shorten(document: JsonObject, characters: int) -> JsonObject:
    """Shorten texts and lists in the document until it has at most this many characters of JSON.

    The shortened places are named in its field `left_out`.
    """
    if _size(document) <= characters:
        return document
    cuts = _Cuts()
    room = characters - _RESERVE
    # Each round cuts more than the one before.
    for text_length, min_entries in ((_LONG_TEXT, _FEW_ENTRIES), (_SHORT_TEXT, 1), (_SHORTEST_TEXT, 1)):
        if _size(document) <= room:
            break
        for path, value, put in list(_places(document, "")):
            if isinstance(value, str) and len(value) > text_length:
                put(f"{value[: text_length - 1]}…")
                cuts.add(path, value, text_length - 1)
        # Halve the largest list or free object until the document fits or all are short.
        while _size(document) > room:
            long = [
                (path, value, put)
                for path, value, put in _places(document, "")
                if isinstance(value, list | _FreeObject) and len(value) > min_entries
            ]
            if not long:
                break
            path, value, put = max(long, key=lambda place: _size(place[1]))
            length = max(min_entries, len(value) // 2)
            put(value[:length] if isinstance(value, list) else _FreeObject(list(value.items())[:length]))
            cuts.add(path, value, length)
    document["left_out"] = cuts.notes()
    return document


class _Cuts:
    """The cuts by path, where `*` stands for each entry of a list."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[int, int]] = {}
        self._texts: dict[str, tuple[int, int]] = {}

    def add(self, path: str, value: Any, length: int) -> None:
        """Note that the value at this path was cut to this length."""
        cuts = self._texts if isinstance(value, str) else self._entries
        _, full_length = cuts.get(path, (0, 0))
        cuts[path] = (length, max(full_length, len(value)))

    def notes(self) -> list[JsonValue]:
        """Return the cuts in words: `jobs: 5 of 40 entries`."""
        notes = [f"{path}: {length} of {full} entries" for path, (length, full) in self._entries.items()]
        notes += [f"{path}: {length} of {full} characters" for path, (length, full) in self._texts.items()]
        more = [f"and {len(notes) - _MAX_NOTES} more places"] if len(notes) > _MAX_NOTES else []
        return [*(note[:_MAX_NOTE] for note in notes[:_MAX_NOTES]), *more]


def _size(value: Any) -> int:
    """Return the length of a value as JSON."""
    return len(msgspec.json.encode(value))


def _places(value: Any, path: str) -> Iterator[tuple[str, Any, Callable[[Any], None]]]:
    """Yield every value inside this one, with its path and the function that replaces it."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value))
    for key, item in pairs:
        name = "*" if isinstance(value, list) else key
        inner = f"{path}.{name}" if path else name
        yield inner, item, partial(value.__setitem__, key)
        yield from _places(item, inner)
