"""Requests: the fields of a request struct, and decoding them from the named values that a surface collected.

A value of the wrong JSON type is refused (422); a text that cannot be understood is a usage error (400).
Both errors name the field and what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, tzinfo
from enum import StrEnum
from functools import cache, partial
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Meta
from msgspec.structs import fields

from ductile.core.durations import QuantityError, parse_duration
from ductile.core.instants import InstantError, parse_instant
from ductile.core.json import JsonObject, JsonValue
from ductile.errors import RefusedError, UsageError
from ductile.store.model.records import LARGEST_PAGE
from ductile.struct import Value, about

RequestType = TypeVar("RequestType", bound=Value)
EnumType = TypeVar("EnumType", bound=StrEnum)
#: Returns the value of a field from its name and its JSON value. An error names the field.
Decode = Callable[[str, JsonValue], Any]

#: A space before the offset of a time zone, where URL decoding has replaced a `+`.
_SPACE_FROM_PLUS = re.compile(r"(?<=\d) (?=\d\d:?\d\d$)", re.ASCII)
_MAX_QUOTED = 100
_FLAGS = {"true": True, "1": True, "yes": True, "": True, "false": False, "0": False, "no": False}
_MAX_DIGITS = 18


#: Fields that several requests have.
DryRun: TypeAlias = Annotated[bool, about("Show what would be done, and do nothing.")]
Reveal: TypeAlias = Annotated[
    bool, about("Show values that look like secrets; over HTTP with a right to write.")
]
PageLimit: TypeAlias = Annotated[int, Meta(ge=1, le=LARGEST_PAGE, description="At most this many.")]
Cursor: TypeAlias = Annotated[str | None, about("Continue after the previous page: its `next_cursor`.")]


class NoFields(Value):
    """A request without fields."""


class FieldSource(StrEnum):
    """The part of an HTTP request that a field is read from.

    A field with `LOCAL` is in no HTTP request: only the CLI and other operations set it.
    """

    PATH = "path"
    QUERY = "query"
    BODY = "body"
    HEADER = "header"
    LOCAL = "local"


def in_query(description: str, **extra: Any) -> Meta:
    """Describe a field that is read from the query although the method is POST."""
    return Meta(description=description, extra={"source": FieldSource.QUERY, **extra})


def in_header(header: str, description: str) -> Meta:
    """Describe a field that is read from a header."""
    return Meta(description=description, extra={"source": FieldSource.HEADER, "header": header})


def in_local_call(description: str) -> Meta:
    """Describe a field that no HTTP request has: the CLI and other operations set it."""
    return Meta(description=description, extra={"source": FieldSource.LOCAL})


class RequestField(Value):
    #: The name that callers write: `from`.
    name: str
    #: The name that the struct has: `created_from`.
    attribute: str
    decode: Decode
    #: JSON Schema of the value.
    schema: JsonObject
    description: str
    required: bool
    default: Any
    #: None if the route decides.
    source: FieldSource | None
    header: str | None
    #: Whether the value is an instant, which may be relative to now.
    instant: bool = False

    def parse_text(self, text: str) -> JsonValue:
        """Return the JSON value of a text in a query. Raises `UsageError`."""
        kind = self.schema.get("type")
        match kind[0] if isinstance(kind, list) else kind:
            case "integer":
                digits = text.removeprefix("-")
                if not (digits.isascii() and digits.isdigit()) or len(digits) > _MAX_DIGITS:
                    raise UsageError(f"{self.name} has to be a whole number")
                return int(text)
            case "boolean":
                if text.lower() not in _FLAGS:
                    raise UsageError(f"{self.name} has to be true or false")
                return _FLAGS[text.lower()]
            case _:
                return text


@cache
def request_fields(request_type: type[Value]) -> Mapping[str, RequestField]:
    """Return the fields of a request struct by their names on the wire, in the order of the struct."""
    hints = get_type_hints(request_type, include_extras=True)
    described = {}
    for field in fields(request_type):
        types, metas = _unwrap(hints[field.name])
        extra = {key: value for meta in metas for key, value in (meta.extra or {}).items()}
        decode, schema = _codec(types[0], metas, extra)
        if NoneType in types and isinstance(schema.get("type"), str):
            schema = {**schema, "type": [schema["type"], "null"]}
        default = field.default_factory() if field.default_factory is not NODEFAULT else field.default
        described[field.encode_name] = RequestField(
            name=field.encode_name,
            attribute=field.name,
            decode=decode,
            schema=schema,
            description=next((meta.description for meta in metas if meta.description), ""),
            required=field.required,
            default=None if default is NODEFAULT else default,
            source=extra.get("source"),
            header=extra.get("header"),
            instant=types[0] is datetime,
        )
    return MappingProxyType(described)


def decode_request(
    request_type: type[RequestType], values: JsonObject, now_and_zone: Callable[[], tuple[datetime, tzinfo]]
) -> RequestType:
    """Build the request from named values. Unknown names are ignored: surfaces refuse them.

    `now_and_zone` returns now and the time zone, for times such as `yesterday`. Only these times call it.
    Raises `RefusedError` for a missing field or a wrong JSON type, `UsageError` for a text that cannot be
    understood.
    """
    known = request_fields(request_type)
    arguments = {}
    for name, value in values.items():
        field = known.get(name)
        if field is not None and (value is not None or field.schema.get("type") == "boolean"):
            if field.instant:
                now, zone = now_and_zone()
                arguments[field.attribute] = decode_instant(name, value, now=now, zone=zone)
            else:
                arguments[field.attribute] = field.decode(name, value)
    try:
        return request_type(**arguments)
    except TypeError:
        for field in known.values():
            if field.required and field.attribute not in arguments:
                raise refused(field.name, f"{field.name} is missing") from None
        raise


def refused(name: str, message: str, hint: str | None = None) -> RefusedError:
    """Return the error for a field whose value is refused."""
    return RefusedError(message, hint=hint, details={"field": name})


def bad_value(name: str, message: str, hint: str | None = None) -> UsageError:
    """Return the error for a field whose text cannot be understood."""
    return UsageError(message, hint=hint, details={"field": name})


def _unwrap(hint: Any) -> tuple[list[Any], list[Meta]]:
    """Return the types of a union without `Annotated`, None last, and all annotations, outermost first."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        types, metas = _unwrap(inner)
        return types, [*(note for note in notes if isinstance(note, Meta)), *metas]
    if get_origin(hint) in (Union, UnionType):
        parts = [_unwrap(part) for part in get_args(hint)]
        types = [kind for kinds, _ in parts for kind in kinds]
        return sorted(types, key=lambda kind: kind is NoneType), [
            meta for _, metas in parts for meta in metas
        ]
    return [hint], []


def _codec(kind: Any, metas: list[Meta], extra: dict[Any, Any]) -> tuple[Decode, JsonObject]:
    """Return the function that decodes a value of this type, and the JSON Schema of such a value."""
    schema: JsonObject
    decode: Decode
    if kind is bool:
        decode, schema = decode_flag, {"type": "boolean"}
    elif kind is int:
        minimum = int(next((meta.ge for meta in metas if meta.ge is not None), 0))
        maximum = int(next((meta.le for meta in metas if meta.le is not None), 1 << 62))
        decode, schema = (
            partial(_decode_number, minimum, maximum),
            {"type": "integer", "minimum": minimum, "maximum": maximum},
        )
    elif kind is datetime:
        decode, schema = decode_text, {"type": "string"}  # `decode_request` decodes instants itself
    elif kind is timedelta:
        decode, schema = decode_duration, {"type": "string"}
    elif isinstance(kind, type) and issubclass(kind, StrEnum):
        aliases = extra.get("aliases", {})
        decode = partial(decode_enum, kind, aliases)
        schema = {"type": "string", "enum": [*map(str, kind), *aliases]}
    elif kind is dict or get_origin(kind) is dict:
        decode, schema = decode_object, {"type": "object"}
    else:
        decode, schema = decode_text, {"type": "string"}
    for meta in metas:
        schema |= meta.extra_json_schema or {}
    return extra.get("decode", decode), schema


def decode_text(name: str, value: JsonValue) -> str:
    if not isinstance(value, str):
        raise refused(name, f"{name} has to be text")
    return value


def decode_flag(name: str, value: JsonValue) -> bool:
    if not isinstance(value, bool):
        raise refused(name, f"{name} has to be true or false")
    return value


def _decode_number(minimum: int, maximum: int, name: str, value: JsonValue) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        raise bad_value(name, f"{name} has to be a whole number from {minimum} to {maximum}")
    return value


def decode_texts(example: str, name: str, value: JsonValue) -> tuple[str, ...]:
    """Return the texts of a list. The error ends with `example`: `keys, such as plugins.echo.timeout`."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise refused(name, f"{name} has to be a list of {example}")
    return tuple(str(item) for item in value)


def decode_object(name: str, value: JsonValue) -> JsonObject:
    if not isinstance(value, dict):
        raise refused(name, f"{name} has to be a JSON object")
    return value


def decode_enum(
    words: type[EnumType], aliases: Mapping[str, EnumType], name: str, value: JsonValue
) -> EnumType:
    """Return the member of an enum for its word or an alias. Raises `UsageError` for another text."""
    text = decode_text(name, value)
    if text in aliases:
        return aliases[text]
    try:
        return words(text)
    except ValueError:
        known = ", ".join([*words, *aliases])
        raise bad_value(name, f"{name}: unknown value {text[:_MAX_QUOTED]!r}", f"one of {known}") from None


def decode_enums(words: type[EnumType], name: str, value: JsonValue) -> frozenset[EnumType]:
    """Return several words of an enum, which are separated by commas."""
    listed = (word.strip() for word in decode_text(name, value).split(","))
    return frozenset(decode_enum(words, {}, name, word) for word in listed if word)


def decode_duration(name: str, value: JsonValue) -> timedelta:
    """Return a duration such as `5m`."""
    try:
        return parse_duration(decode_text(name, value))
    except QuantityError as error:
        raise bad_value(name, f"{name}: {error}", f"expected {error.expected}") from None


def decode_instant(name: str, value: JsonValue, *, now: datetime, zone: tzinfo) -> datetime:
    """Return an instant that `parse_instant` understands."""
    text = decode_text(name, value)
    try:
        return parse_instant(text, now=now, zone=zone)
    except InstantError as error:
        hint = f"write {error.expected}"
        if _SPACE_FROM_PLUS.search(text):
            hint = f"in an address a + is written %2B: {_SPACE_FROM_PLUS.sub('%2B', text)}"
        raise bad_value(name, f"{name}: {text[:_MAX_QUOTED]!r} is not a time", hint) from None
