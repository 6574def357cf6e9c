"""The model seen as a tree of shapes: what the decoder, the JSON Schema and the reference walk.

Owns the one translation from the annotated structs of the model; no one else looks at annotations.
"""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import NODEFAULT, inspect

from ductile.config.schema.types import Section, SettingType
from ductile.config.secrets import SecretMap
from ductile.core.durations import format_duration, format_size
from ductile.struct import Value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ductile.core.json import JsonValue


class Scalar(Value):
    """A single value. `at_least` bounds a number, and a duration or size to be more than nothing."""

    kind: SettingType
    at_least: int | None = None


class Choice(Value):
    """One of a few words. `enum` is the type they become, or None if they stay text."""

    words: tuple[str, ...]
    enum: type[Enum] | None = None


class ListOf(Value):
    item: FieldType


class MapOf(Value):
    value: FieldType


class SectionOf(Value):
    """A struct of the model; its keys are asked for with `keys_of`, since sections may nest for ever."""

    section: type[Section]


class OneOf(Value):
    alternatives: tuple[FieldType, ...]


FieldType: TypeAlias = Scalar | Choice | ListOf | MapOf | SectionOf | OneOf


class SettingKey(Value):
    """One setting: `name` as it is written in YAML, `attribute` as it is called in the struct."""

    name: str
    attribute: str
    shape: FieldType
    description: str
    required: bool
    default: Any
    #: The default in words, where it is worked out from something else.
    default_text: str | None


@cache
def keys_of(section: type[Section]) -> tuple[SettingKey, ...]:
    """Every setting of a section, in the order of the model."""
    translated = inspect.type_info(section)
    if not isinstance(translated, inspect.StructType):
        message = f"{section.__name__} is not a section"
        raise TypeError(message)
    return tuple(_key(field) for field in translated.fields)


def settings_under(
    section: type[Section], prefix: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], SettingKey]]:
    """Every setting below a section with its path; `*` stands for a name and `[]` for a position.

    A section within itself (a step in a step) is entered once.
    """
    yield from _settings(section, prefix, ())


def _settings(
    section: type[Section], prefix: tuple[str, ...], above: tuple[type[Section], ...]
) -> Iterator[tuple[tuple[str, ...], SettingKey]]:
    for key in keys_of(section):
        path = (*prefix, key.name)
        yield path, key
        for inner_path, inner in _sections_in(key.shape, path):
            if inner is not section and inner not in above:
                yield from _settings(inner, inner_path, (*above, section))


def _sections_in(shape: FieldType, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], type[Section]]]:
    match shape:
        case SectionOf(section=section):
            yield path, section
        case ListOf(item=item):
            yield from _sections_in(item, (*path, "[]"))
        case MapOf(value=value):
            yield from _sections_in(value, (*path, "*"))
        case OneOf(alternatives=alternatives):
            for alternative in alternatives:
                yield from _sections_in(alternative, path)
        case Scalar() | Choice():
            return


def _key(field: inspect.Field) -> SettingKey:
    described = field.type if isinstance(field.type, inspect.Metadata) else None
    extra = (described.extra or {}) if described else {}
    schema = (described.extra_json_schema or {}) if described else {}
    return SettingKey(
        name=field.encode_name,
        attribute=field.name,
        shape=_shape(field.type, at_least=extra.get("at_least")),
        description=schema.get("description", ""),
        required=field.required,
        default=_default(field),
        default_text=extra.get("default"),
    )


def _default(field: inspect.Field) -> Any:
    if field.default is not NODEFAULT:
        return field.default
    return None if field.default_factory is NODEFAULT else field.default_factory()


def _shape(found: inspect.Type, *, at_least: int | None = None, kind: SettingType | None = None) -> FieldType:
    match found:
        case inspect.Metadata(type=inner, extra=extra):
            return _shape(inner, at_least=at_least, kind=(extra or {}).get("kind", kind))
        case _ if kind is not None:
            return Scalar(kind=kind, at_least=at_least)
        case inspect.UnionType(types=types):
            return _union(types, at_least)
        case inspect.StructType(cls=section) if issubclass(section, Section):
            return SectionOf(section=section)
        case inspect.VarTupleType(item_type=item):
            return ListOf(item=_shape(item, at_least=at_least))
        case inspect.DictType(value_type=value):
            return MapOf(value=_shape(value, at_least=at_least))
        case inspect.EnumType(cls=enum):
            return Choice(words=tuple(str(member.value) for member in enum), enum=enum)
        case inspect.LiteralType(values=values):
            return Choice(words=tuple(str(value) for value in values))
        case _:
            return Scalar(kind=_PLAIN_KINDS[type(found)], at_least=at_least)


def _union(types: tuple[inspect.Type, ...], at_least: int | None) -> FieldType:
    """A union with None only says that the setting may be absent."""
    shapes = tuple(
        _shape(part, at_least=at_least) for part in types if not isinstance(part, inspect.NoneType)
    )
    return shapes[0] if len(shapes) == 1 else OneOf(alternatives=shapes)


_PLAIN_KINDS: dict[type[inspect.Type], SettingType] = {
    inspect.StrType: SettingType.TEXT,
    inspect.IntType: SettingType.WHOLE_NUMBER,
    inspect.BoolType: SettingType.TRUTH,
    inspect.AnyType: SettingType.ANYTHING,
}


def written_default(key: SettingKey) -> JsonValue:
    """The default of a key as YAML would say it, None if there is none to write."""
    match key.default:
        case timedelta():
            return format_duration(key.default)
        case Enum():
            return str(key.default.value)
        case tuple():
            return list(key.default)
        case Section() | SecretMap() | dict() | msgspec.UnsetType():
            return None
        case int() if key.shape == Scalar(kind=SettingType.SIZE, at_least=1):
            return format_size(key.default)
        case bool() | int() | str():
            return key.default
        case _:
            return None
