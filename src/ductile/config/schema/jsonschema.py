"""The model as a JSON Schema (2020-12), for editors that complete and check YAML while it is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ductile.config.schema.fields import (
    Choice,
    FieldType,
    ListOf,
    MapOf,
    OneOf,
    Scalar,
    SectionOf,
    SettingKey,
    keys_of,
)
from ductile.config.schema.model import Config
from ductile.config.schema.types import SettingType

if TYPE_CHECKING:
    from ductile.config.schema.types import Section

_KINDS: Mapping[SettingType, dict[str, Any]] = {
    SettingType.TEXT: {"type": "string"},
    SettingType.WHOLE_NUMBER: {"type": "integer"},
    SettingType.TRUTH: {"type": "boolean"},
    SettingType.DURATION: {
        "type": "string",
        "pattern": r"^(hourly|daily|weekly|monthly|(\d+w)?(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?)$",
        "minLength": 2,
    },
    SettingType.SIZE: {"type": ["string", "integer"], "pattern": r"^\d+([KkMmGg][Ii]?)?[Bb]?$"},
    SettingType.SECRET: {"type": ["string", "integer"], "writeOnly": True},
    SettingType.INSTANT: {"type": "string", "format": "date-time"},
    SettingType.CLOCK: {"type": "string", "pattern": r"^\d?\d:\d\d$"},
    SettingType.WINDOW: {"type": "string", "pattern": r"^\d?\d:\d\d\s*-\s*\d?\d:\d\d$"},
    SettingType.WEEKDAY: {"type": ["string", "integer"]},
    SettingType.ADDRESS: {"type": "string", "pattern": r":\d+$"},
    SettingType.VARIABLES: {
        "type": "object",
        "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
    },
    SettingType.OBJECT: {"type": "object"},
    SettingType.ANYTHING: {},
}
_REFERENCE = {"type": "string", "pattern": r"\$\{"}


def config_schema() -> dict[str, Any]:
    """The schema of a configuration file. It describes keys and never holds a value of anyone's."""
    definitions: dict[str, Any] = {}
    _define(Config, definitions)
    root = definitions.pop(Config.__name__)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Ductile configuration",
        **root,
        "$defs": dict(sorted(definitions.items())),
    }


def _define(section: type[Section], definitions: dict[str, Any]) -> None:
    if section.__name__ in definitions:
        return
    definitions[section.__name__] = {}  # taken, so that a section within itself ends here
    keys = keys_of(section)
    required = [key.name for key in keys if key.required]
    definitions[section.__name__] = {
        "type": "object",
        "properties": {key.name: _property(key, definitions) for key in keys},
        "additionalProperties": False,
        **({"required": required} if required else {}),
    }


def _property(key: SettingKey, definitions: dict[str, Any]) -> dict[str, Any]:
    described = {"description": key.description}
    shape = _schema(key.shape, definitions)
    if key.required or not isinstance(key.shape, SectionOf | MapOf):
        return shape | described
    return {"anyOf": [shape, {"type": "null"}]} | described  # a heading with nothing under it


def _schema(shape: FieldType, definitions: dict[str, Any]) -> dict[str, Any]:
    match shape:
        case SectionOf(section=section):
            _define(section, definitions)
            return {"$ref": f"#/$defs/{section.__name__}"}
        case ListOf(item=item):
            return {"type": "array", "items": _schema(item, definitions)}
        case MapOf(value=value):
            return {"type": "object", "additionalProperties": _schema(value, definitions)}
        case OneOf(alternatives=alternatives):
            return {"anyOf": [_schema(alternative, definitions) for alternative in alternatives]}
        case Choice(words=words):
            return {"anyOf": [{"enum": list(words)}, _REFERENCE]}
        case Scalar():
            return _leaf(shape)


def _leaf(leaf: Scalar) -> dict[str, Any]:
    kind = SettingType.DURATION if leaf.kind is SettingType.INTERVAL else leaf.kind
    schema = dict(_KINDS[kind])
    if leaf.kind is SettingType.WHOLE_NUMBER and leaf.at_least is not None:
        schema["minimum"] = leaf.at_least
    if kind in {
        SettingType.TEXT,
        SettingType.SECRET,
        SettingType.OBJECT,
        SettingType.VARIABLES,
        SettingType.ANYTHING,
    }:
        return schema
    return {"anyOf": [schema, _REFERENCE]}  # a variable supplies the value when it is loaded
