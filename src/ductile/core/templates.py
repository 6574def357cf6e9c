"""What a step's `with` makes of the payload and the context (SPEC 7.4).

A template is stored as it was written and compiled when the graph is loaded. Filling one in copies
nothing it refers to: the result shares its parts with the scope, and neither is to be changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ductile.core.json_values import MAX_DEPTH, JsonValue, encoded_size, nests_too_deep
from ductile.core.references import CARRIED, MISSING, Fault, Scope, Where, fault_in_path, find
from ductile.value import Value

MAX_FILLED_BYTES = 1024 * 1024
_TOO_LARGE = f"what `with` makes is larger than {MAX_FILLED_BYTES} bytes"
_TOKEN = re.compile(r"(?P<escape>\{\{|\}\})|\{(?P<path>[^{}]*)\}|(?P<brace>[{}])|(?P<text>[^{}]+)")
_REFERENCE = "a reference such as {payload.x} or {context.x}"
_DOUBLE_IT = "for a brace that is only text, write it twice: {{ or }}"


class TemplateError(ValueError):
    """The template cannot be read or filled in; `where` leads to the key of `with` that it was for."""

    def __init__(self, message: str, *, where: Where = ()) -> None:
        super().__init__(message)
        self.where = where


class Constant(Value, kw_only=False):
    """A value that is not a text: it stays as it is."""

    value: JsonValue


class Reference(Value, kw_only=False):
    """A lone reference: what it refers to keeps its type."""

    path: str


class Text(Value, kw_only=False):
    """Text with references in it; the result is text."""

    parts: tuple[str | Reference, ...]


class Items(Value, kw_only=False):
    items: tuple[Template, ...]


class Entries(Value, kw_only=False):
    """Keys are literal: only values are filled in."""

    entries: tuple[tuple[str, Template], ...]


Template: TypeAlias = Constant | Reference | Text | Items | Entries


def compile_template(value: JsonValue, where: Where = ()) -> Template:
    """TemplateError for the first fault; `faults_in_template` tells them all."""
    match value:
        case dict():
            return Entries(
                tuple((key, compile_template(inner, (*where, key))) for key, inner in value.items())
            )
        case list():
            return Items(tuple(compile_template(inner, (*where, at)) for at, inner in enumerate(value)))
        case str():
            for fault in _faults_in_text(value, where):
                raise TemplateError(f"{fault.message}, in {_named(where)}", where=where)
            return _compile_text(value)
        case _:
            return Constant(value)


def faults_in_template(value: JsonValue, where: Where = ()) -> Iterator[Fault]:
    """Everything wrong in a template, in the order it is written."""
    match value:
        case dict():
            for key, inner in value.items():
                yield from faults_in_template(inner, (*where, key))
        case list():
            for at, inner in enumerate(value):
                yield from faults_in_template(inner, (*where, at))
        case str():
            yield from _faults_in_text(value, where)
        case _:
            return


def references_in(text: str) -> Iterator[str]:
    """The paths that a text refers to."""
    for token in _TOKEN.finditer(text):
        if token["path"]:
            yield token["path"]


def paths_in(template: Template) -> Iterator[str]:
    """The paths that a template refers to; one that leads nowhere makes filling it in fail."""
    match template:
        case Reference(path):
            yield path
        case Text(parts):
            yield from (part.path for part in parts if isinstance(part, Reference))
        case Items(items):
            for item in items:
                yield from paths_in(item)
        case Entries(entries):
            for _, inner in entries:
                yield from paths_in(inner)
        case Constant():
            return


def places_in(template: Template, where: Where = ()) -> Iterator[tuple[str, str]]:
    """Each reference with the key that holds it, as an error names it: `("with.to", "payload.email")`."""
    match template:
        case Items(items):
            for at, item in enumerate(items):
                yield from places_in(item, (*where, at))
        case Entries(entries):
            for key, inner in entries:
                yield from places_in(inner, (*where, key))
        case _:
            yield from ((_named(where), path) for path in paths_in(template))


def escape(text: str) -> str:
    """The template that gives this text, whatever is in it."""
    return text.replace("{", "{{").replace("}", "}}")


def _compile_text(text: str) -> Text | Reference:
    parts: list[str | Reference] = []
    for token in _TOKEN.finditer(text):
        if token["path"] is not None:
            parts.append(Reference(token["path"]))
        else:
            parts.append(token["text"] or token["escape"][0])
    match parts:
        case [Reference() as alone]:
            return alone
        case _:
            return Text(tuple(parts))


def _faults_in_text(text: str, where: Where) -> Iterator[Fault]:
    for token in _TOKEN.finditer(text):
        if message := _fault_in_token(token):
            found = token[0] if token["path"] else None
            yield Fault(where=where, message=message, expected=_REFERENCE, found=found, hint=_DOUBLE_IT)


def _fault_in_token(token: re.Match[str]) -> str | None:
    place = f"at character {token.start() + 1}"
    if token["brace"]:
        return f"a {token['brace']} {place} has no partner"
    if token["path"] is None:
        return None
    fault = fault_in_path(token["path"], CARRIED) if token["path"] else "is empty"
    return f"the reference {place} {fault}" if fault else None


def fill(template: Template, scope: Scope) -> JsonValue:
    """The value that a template makes. TemplateError if a path leads nowhere or the result is too large."""
    filled = _Filling(scope=scope).fill(template, ())
    if nests_too_deep(filled):
        raise TemplateError(f"what `with` makes nests deeper than {MAX_DEPTH} levels")
    if encoded_size(filled) > MAX_FILLED_BYTES:
        raise TemplateError(_TOO_LARGE)
    return filled


@dataclass(slots=True)
class _Filling:
    """One template being filled in. What is put in is counted as it goes: a hundred references to a
    large payload must fail before they have been written out, not after.
    """

    scope: Scope
    bytes_left: int = MAX_FILLED_BYTES

    def fill(self, template: Template, where: Where) -> JsonValue:
        match template:
            case Constant(value):
                return value
            case Reference():
                value = self._look_up(template, where)
                self._spend(value, where)
                return value
            case Text(parts):
                return "".join(self._as_text(part, where) for part in parts)
            case Items(items):
                return [self.fill(item, (*where, at)) for at, item in enumerate(items)]
            case Entries(entries):
                return {key: self.fill(inner, (*where, key)) for key, inner in entries}

    def _look_up(self, reference: Reference, where: Where) -> JsonValue:
        value = find(reference.path, self.scope)
        if value is MISSING:
            raise TemplateError(f"there is no {reference.path}, which {_named(where)} refers to", where=where)
        return value

    def _as_text(self, part: str | Reference, where: Where) -> str:
        value = part if isinstance(part, str) else self._look_up(part, where)
        self._spend(value, where)
        if isinstance(value, str):
            return value
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def _spend(self, value: JsonValue, where: Where) -> None:
        self.bytes_left -= len(value) if isinstance(value, str) else encoded_size(value)
        if self.bytes_left < 0:
            raise TemplateError(_TOO_LARGE, where=where)


def _named(where: Where) -> str:
    """`with.list[0].text`: the key as an error names it."""
    return "with" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where)
