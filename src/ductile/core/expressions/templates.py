"""Templates: the `with` of a step, filled in from the payload and the context.

A template is stored as written and compiled when the graph is loaded. A filled template shares its parts with
the evaluation context; neither may be changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ductile.core.expressions.paths import (
    MISSING,
    PORTABLE_ROOTS,
    EvalContext,
    ExpressionFault,
    FaultPath,
    describe_nearest_object,
    fault_in_path,
    look_up,
    suggest_root,
)
from ductile.core.json import MAX_DEPTH, JsonValue, encoded_size, nests_too_deep
from ductile.struct import Value

MAX_FILLED_BYTES = 1024 * 1024
_TOO_LARGE = f"the result of `with` is larger than {MAX_FILLED_BYTES} bytes"
_TOKEN = re.compile(r"(?P<escape>\{\{|\}\})|\{(?P<path>[^{}]*)\}|(?P<brace>[{}])|(?P<text>[^{}]+)")
_EXPECTED_REFERENCE = "a reference such as {payload.x}, {context.x} or {run.payload.x}"
_BRACE_HINT = "for a brace that is only text, write it twice: {{ or }}"


class TemplateError(ValueError):
    """The template is invalid or cannot be filled in; `where` is the path of the key in `with`."""

    def __init__(self, message: str, *, where: FaultPath = ()) -> None:
        super().__init__(message)
        self.where = where


class TemplateConstant(Value, kw_only=False):
    """A value that is not text and stays as it is."""

    value: JsonValue


class TemplateReference(Value, kw_only=False):
    """A single reference: the value keeps its type."""

    path: str


class TemplateText(Value, kw_only=False):
    """Text with references; the result is text."""

    parts: tuple[str | TemplateReference, ...]


class TemplateList(Value, kw_only=False):
    items: tuple[Template, ...]


class TemplateObject(Value, kw_only=False):
    """An object. Only its values are filled in, not its keys."""

    entries: tuple[tuple[str, Template], ...]


Template: TypeAlias = TemplateConstant | TemplateReference | TemplateText | TemplateList | TemplateObject


def compile_template(value: JsonValue, where: FaultPath = ()) -> Template:
    """Compile a template. Raises TemplateError for the first fault."""
    match value:
        case dict():
            return TemplateObject(
                tuple((key, compile_template(inner, (*where, key))) for key, inner in value.items())
            )
        case list():
            return TemplateList(
                tuple(compile_template(inner, (*where, index)) for index, inner in enumerate(value))
            )
        case str():
            for fault in _faults_in_text(value, where):
                raise TemplateError(f"{fault.message}, in {_key_name(where)}", where=where)
            parts = tuple(
                TemplateReference(token["path"])
                if token["path"] is not None
                else token["text"] or token["escape"][0]
                for token in _TOKEN.finditer(value)
            )
            match parts:
                case [TemplateReference() as reference]:
                    return reference
                case _:
                    return TemplateText(parts)
        case _:
            return TemplateConstant(value)


def faults_in_template(value: JsonValue, where: FaultPath = ()) -> Iterator[ExpressionFault]:
    """Yield all faults in a template, in the order in which it is written."""
    match value:
        case dict():
            for key, inner in value.items():
                yield from faults_in_template(inner, (*where, key))
        case list():
            for index, inner in enumerate(value):
                yield from faults_in_template(inner, (*where, index))
        case str():
            yield from _faults_in_text(value, where)
        case _:
            return


def references_in(text: str) -> Iterator[str]:
    """Yield the paths that a text refers to."""
    for token in _TOKEN.finditer(text):
        if token["path"]:
            yield token["path"]


def paths_in(template: Template) -> Iterator[str]:
    """Yield the paths that a template refers to. Filling it in fails if one of them is missing."""
    yield from (path for _, path in references_by_key(template))


def references_by_key(template: Template, where: FaultPath = ()) -> Iterator[tuple[str, str]]:
    """Yield each reference with its key, as in error messages: `("with.to", "payload.email")`."""
    match template:
        case TemplateReference(path):
            yield _key_name(where), path
        case TemplateText(parts):
            yield from (
                (_key_name(where), part.path) for part in parts if isinstance(part, TemplateReference)
            )
        case TemplateList(items):
            for index, item in enumerate(items):
                yield from references_by_key(item, (*where, index))
        case TemplateObject(entries):
            for key, inner in entries:
                yield from references_by_key(inner, (*where, key))
        case TemplateConstant():
            return


def _faults_in_text(text: str, where: FaultPath) -> Iterator[ExpressionFault]:
    for token in _TOKEN.finditer(text):
        position = f"at character {token.start() + 1}"
        path, message = token["path"], None
        if token["brace"]:
            message = f"a {token['brace']} {position} has no partner"
        elif path is not None and (fault := fault_in_path(path, PORTABLE_ROOTS) if path else "is empty"):
            message = f"the reference {position} {fault}"
        if message is not None:
            found = token[0] if path else None
            hint = (suggest_root(path, PORTABLE_ROOTS) if path else None) or _BRACE_HINT
            yield ExpressionFault(
                where=where, message=message, expected=_EXPECTED_REFERENCE, found=found, hint=hint
            )


def fill(template: Template, context: EvalContext) -> JsonValue:
    """Fill in a template. Raises TemplateError if a value is missing or the result is too large."""
    filled = _TemplateFiller(context=context).fill(template, ())
    if nests_too_deep(filled):
        raise TemplateError(f"the result of `with` nests deeper than {MAX_DEPTH} levels")
    if encoded_size(filled) > MAX_FILLED_BYTES:
        raise TemplateError(_TOO_LARGE)
    return filled


@dataclass(slots=True)
class _TemplateFiller:
    """Fills in one template, and fails as soon as the result is too large.

    A hundred references to a large payload fail before they are copied.
    """

    context: EvalContext
    bytes_left: int = MAX_FILLED_BYTES

    def fill(self, template: Template, where: FaultPath) -> JsonValue:
        match template:
            case TemplateConstant(value):
                return value
            case TemplateReference():
                value = self._look_up(template, where)
                self._spend(value, where)
                return value
            case TemplateText(parts):
                texts: list[str] = []
                for part in parts:
                    value = part if isinstance(part, str) else self._look_up(part, where)
                    self._spend(value, where)
                    if not isinstance(value, str):
                        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
                    texts.append(value)
                return "".join(texts)
            case TemplateList(items):
                return [self.fill(item, (*where, index)) for index, item in enumerate(items)]
            case TemplateObject(entries):
                return {key: self.fill(inner, (*where, key)) for key, inner in entries}

    def _look_up(self, reference: TemplateReference, where: FaultPath) -> JsonValue:
        value = look_up(reference.path, self.context)
        if value is MISSING:
            message = f"there is no {reference.path}, which {_key_name(where)} refers to"
            nearest = describe_nearest_object(reference.path, self.context)
            raise TemplateError(message if nearest is None else f"{message}; {nearest}", where=where)
        return value

    def _spend(self, value: JsonValue, where: FaultPath) -> None:
        self.bytes_left -= len(value) if isinstance(value, str) else encoded_size(value)
        if self.bytes_left < 0:
            raise TemplateError(_TOO_LARGE, where=where)


def _key_name(where: FaultPath) -> str:
    """Return the key as in error messages: `with.list[0].text`."""
    return "with" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where)
