"""The types of settings, as annotations for the model, and the model as a tree of field types.

A setting type decides how a scalar is parsed (`parse`), how the JSON Schema describes it (`jsonschema`) and
what the reference calls it. Python types are not enough: a size and a number are both an `int`. No other
module reads the annotations of the model: decoder, JSON Schema and reference walk the tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, time, timedelta
from enum import Enum, IntEnum, StrEnum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
from msgspec import NODEFAULT, inspect

from ductile.config.secrets import Secret, SecretMap
from ductile.core.durations import Interval, format_duration, format_size
from ductile.core.json import JsonValue
from ductile.core.schedules.rule import DailyWindow
from ductile.struct import Value


class SettingType(StrEnum):
    """The type of a single value; the values are the words used in the reference."""

    TEXT = "text"
    WHOLE_NUMBER = "whole number"
    NUMBER = "number"
    BOOLEAN = "true or false"
    DURATION = "duration"
    INTERVAL = "interval"
    SIZE = "size"
    SECRET = "secret"  # noqa: S105 - the name of a type, not a secret
    INSTANT = "instant"
    TIME_OF_DAY = "time of day"
    WINDOW = "hours of the day"
    WEEKDAY = "weekday"
    ADDRESS = "host and port"
    VARIABLES = "map of texts"
    OBJECT = "map of any values"
    ANYTHING = "any value"


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of settings, built only by `decode`. Subclasses repeat the options: they are not inherited."""


class Weekday(IntEnum):
    """Sunday is 0, as in cron."""

    SUNDAY = 0
    MONDAY = 1
    TUESDAY = 2
    WEDNESDAY = 3
    THURSDAY = 4
    FRIDAY = 5
    SATURDAY = 6


def setting(description: str, *, default: str | None = None, at_least: int | None = None) -> msgspec.Meta:
    """Return the annotation of one setting: its meaning, and its default in words where it is computed.

    The bound is not msgspec's own, which cannot be put on a setting that may be absent.
    """
    return msgspec.Meta(description=description, extra={"default": default, "at_least": at_least})


def _with_type(setting_type: SettingType) -> msgspec.Meta:
    return msgspec.Meta(extra={"type": setting_type})


Duration: TypeAlias = Annotated[timedelta, _with_type(SettingType.DURATION)]
Size: TypeAlias = Annotated[int, _with_type(SettingType.SIZE)]
SecretText: TypeAlias = Annotated[Secret, _with_type(SettingType.SECRET)]
Instant: TypeAlias = Annotated[datetime, _with_type(SettingType.INSTANT)]
TimeOfDay: TypeAlias = Annotated[time, _with_type(SettingType.TIME_OF_DAY)]
HoursOfDay: TypeAlias = Annotated[DailyWindow, _with_type(SettingType.WINDOW)]
WeekdayName: TypeAlias = Annotated[Weekday, _with_type(SettingType.WEEKDAY)]
ListenAddress: TypeAlias = Annotated[str, _with_type(SettingType.ADDRESS)]
Variables: TypeAlias = Annotated[SecretMap[str], _with_type(SettingType.VARIABLES)]
SecretObject: TypeAlias = Annotated[SecretMap[Any], _with_type(SettingType.OBJECT)]
Anything: TypeAlias = Annotated[Any, _with_type(SettingType.ANYTHING)]
if TYPE_CHECKING:
    ScheduleInterval: TypeAlias = Interval
else:  # msgspec does not accept the union of a timedelta and a word, and needs only the setting type
    ScheduleInterval = Annotated[Any, _with_type(SettingType.INTERVAL)]


class Scalar(Value):
    """A single value. `at_least` bounds a number, and requires a duration or size to be more than zero."""

    type: SettingType
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
    """A struct of the model. `keys_of` returns its keys: sections can nest in themselves without end."""

    section: type[Section]


class OneOf(Value):
    alternatives: tuple[FieldType, ...]


FieldType: TypeAlias = Scalar | Choice | ListOf | MapOf | SectionOf | OneOf


class SettingKey(Value):
    """One setting: `name` as written in YAML, `attribute` as the struct calls it."""

    name: str
    attribute: str
    type: FieldType
    description: str
    required: bool
    default: Any
    #: The default in words, where it is computed from other settings or the machine.
    default_text: str | None


@cache
def keys_of(section: type[Section]) -> tuple[SettingKey, ...]:
    """Return every setting of a section, in the order of the model."""
    keys = []
    for field in msgspec.structs.fields(section):
        type_info = inspect.type_info(field.type)
        extra = (type_info.extra or {}) if isinstance(type_info, inspect.Metadata) else {}
        schema = (type_info.extra_json_schema or {}) if isinstance(type_info, inspect.Metadata) else {}
        default = field.default
        if default is NODEFAULT:
            default = None if field.default_factory is NODEFAULT else field.default_factory()
        keys.append(
            SettingKey(
                name=field.encode_name,
                attribute=field.name,
                type=_field_type(type_info, at_least=extra.get("at_least")),
                description=schema.get("description", ""),
                required=field.required,
                default=default,
                default_text=extra.get("default"),
            )
        )
    return tuple(keys)


def settings_under(
    section: type[Section], prefix: tuple[str, ...] = (), ancestors: tuple[type[Section], ...] = ()
) -> Iterator[tuple[tuple[str, ...], SettingKey]]:
    """Yield every setting below a section with its path; `*` stands for a name and `[]` for a position.

    A section inside itself (a step in a step) is entered once; `ancestors` are the sections entered already.
    """
    for key in keys_of(section):
        path = (*prefix, key.name)
        yield path, key
        for inner_path, inner in _sections_in(key.type, path):
            if inner is not section and inner not in ancestors:
                yield from settings_under(inner, inner_path, (*ancestors, section))


def _sections_in(
    field_type: FieldType, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], type[Section]]]:
    match field_type:
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


def written_default(key: SettingKey) -> JsonValue:
    """Return the default of a key as YAML writes it, None if there is none to write."""
    match key.default:
        case timedelta():
            return format_duration(key.default)
        case Enum():
            return str(key.default.value)
        case tuple():
            return list(key.default)
        case int() if key.type == Scalar(type=SettingType.SIZE, at_least=1):
            return format_size(key.default)
        case bool() | int() | str():
            return key.default
        case _:
            return None


def fill_in_defaults(written: JsonValue, field_type: FieldType) -> JsonValue:
    """Return the values with defaults, keys in the order of the model. Keys without a default stay absent."""
    match field_type, written:
        case SectionOf(section=section), dict():
            filled: dict[str, JsonValue] = {}
            for key in keys_of(section):
                value = written.get(key.name)
                if value is None and isinstance(key.type, SectionOf) and key.default is not None:
                    value = {}
                filled[key.name] = (
                    written_default(key) if value is None else fill_in_defaults(value, key.type)
                )
            return {name: value for name, value in filled.items() if value not in (None, [], {})}
        case MapOf(value=inner), dict():
            return {name: fill_in_defaults(value, inner) for name, value in written.items()}
        case ListOf(item=inner), list():
            return [fill_in_defaults(value, inner) for value in written]
        case _:
            return written


def _field_type(
    type_info: inspect.Type, *, at_least: int | None = None, setting_type: SettingType | None = None
) -> FieldType:
    match type_info:
        case inspect.Metadata(type=inner, extra=extra):
            marked = (extra or {}).get("type", setting_type)
            return _field_type(inner, at_least=at_least, setting_type=marked)
        case _ if setting_type is not None:
            return Scalar(type=setting_type, at_least=at_least)
        case inspect.UnionType(types=types):
            # A union with None only says that the setting may be absent.
            alternatives = tuple(
                _field_type(part, at_least=at_least)
                for part in types
                if not isinstance(part, inspect.NoneType)
            )
            return alternatives[0] if len(alternatives) == 1 else OneOf(alternatives=alternatives)
        case inspect.StructType(cls=section) if issubclass(section, Section):
            return SectionOf(section=section)
        case inspect.VarTupleType(item_type=item):
            return ListOf(item=_field_type(item, at_least=at_least))
        case inspect.DictType(value_type=value):
            return MapOf(value=_field_type(value, at_least=at_least))
        case inspect.EnumType(cls=enum):
            return Choice(words=tuple(str(member.value) for member in enum), enum=enum)
        case inspect.LiteralType(values=values):
            return Choice(words=tuple(str(value) for value in values))
        case _:
            return Scalar(type=_PLAIN_TYPES[type(type_info)], at_least=at_least)


_PLAIN_TYPES: dict[type[inspect.Type], SettingType] = {
    inspect.StrType: SettingType.TEXT,
    inspect.IntType: SettingType.WHOLE_NUMBER,
    inspect.FloatType: SettingType.NUMBER,
    inspect.BoolType: SettingType.BOOLEAN,
    inspect.AnyType: SettingType.ANYTHING,
}
