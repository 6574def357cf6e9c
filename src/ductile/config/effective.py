"""A configuration as it takes effect: what was written, and the defaults of what was not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.config.schema.fields import ListOf, MapOf, SectionOf, SettingKey, keys_of, written_default

if TYPE_CHECKING:
    from ductile.config.schema.fields import FieldType
    from ductile.core.json import JsonValue


def fill_in_defaults(shown: JsonValue, shape: FieldType) -> JsonValue:
    """Keys in the order of the model. What is absent by default stays absent."""
    match shape, shown:
        case SectionOf(section=section), dict():
            filled = {key.name: _value(key, shown.get(key.name)) for key in keys_of(section)}
            return {name: value for name, value in filled.items() if value not in (None, [], {})}
        case MapOf(value=inner), dict():
            return {name: fill_in_defaults(value, inner) for name, value in shown.items()}
        case ListOf(item=inner), list():
            return [fill_in_defaults(value, inner) for value in shown]
        case _:
            return shown


def _value(key: SettingKey, written: JsonValue) -> JsonValue:
    if written is not None:
        return fill_in_defaults(written, key.shape)
    if isinstance(key.shape, SectionOf) and key.default is not None:
        return fill_in_defaults({}, key.shape)
    return written_default(key)
