"""The model as a JSON Schema (2020-12), for editors that complete and check YAML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ductile.config.schema.fields import (
    Choice,
    FieldType,
    ListOf,
    MapOf,
    OneOf,
    Scalar,
    Section,
    SectionOf,
    SettingType,
    keys_of,
)
from ductile.config.schema.model import Config

_DURATION = {
    "type": "string",
    "pattern": r"^(hourly|daily|weekly|monthly|(\d+w)?(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?)$",
    "minLength": 2,
}
_TYPES: Mapping[SettingType, dict[str, Any]] = {
    SettingType.TEXT: {"type": "string"},
    SettingType.WHOLE_NUMBER: {"type": "integer"},
    SettingType.NUMBER: {"type": "number", "minimum": 0},
    SettingType.BOOLEAN: {"type": "boolean"},
    SettingType.DURATION: _DURATION,
    SettingType.INTERVAL: _DURATION,
    SettingType.SIZE: {"type": ["string", "integer"], "pattern": r"^\d+([KkMmGg][Ii]?)?[Bb]?$"},
    SettingType.SECRET: {"type": ["string", "integer"], "writeOnly": True},
    SettingType.INSTANT: {"type": "string", "format": "date-time"},
    SettingType.TIME_OF_DAY: {"type": "string", "pattern": r"^\d?\d:\d\d$"},
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
_TAKES_TEXT = frozenset(
    (SettingType.TEXT, SettingType.SECRET, SettingType.OBJECT, SettingType.VARIABLES, SettingType.ANYTHING)
)
_REFERENCE = {"type": "string", "pattern": r"\$\{"}


def config_schema() -> dict[str, Any]:
    """Return the schema of a configuration file. It contains no configured value."""
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
    definitions[section.__name__] = {}  # ends the recursion of a section inside itself
    properties = {}
    for key in keys_of(section):
        schema = _schema(key.type, definitions)
        if not key.required and isinstance(key.type, SectionOf | MapOf):
            schema = {"anyOf": [schema, {"type": "null"}]}  # an empty heading
        properties[key.name] = schema | {"description": key.description}
    required = [key.name for key in keys_of(section) if key.required]
    definitions[section.__name__] = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        **({"required": required} if required else {}),
    }


def _schema(field_type: FieldType, definitions: dict[str, Any]) -> dict[str, Any]:
    match field_type:
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
        case Scalar(type=setting_type, at_least=at_least):
            schema = dict(_TYPES[setting_type])
            if setting_type is SettingType.WHOLE_NUMBER and at_least is not None:
                schema["minimum"] = at_least
            # A variable may supply the value; where text is allowed anyway, no alternative is needed.
            return schema if setting_type in _TAKES_TEXT else {"anyOf": [schema, _REFERENCE]}
