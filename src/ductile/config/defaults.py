"""Defaults of the model written the way an operator would write them."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from ductile.config.kinds import Kind, Section
from ductile.config.secrets import Guarded
from ductile.config.shape import Leaf
from ductile.core.durations import format_duration, format_size

if TYPE_CHECKING:
    from ductile.config.shape import Key
    from ductile.core.json_values import JsonValue


def written_default(key: Key) -> JsonValue:
    """The default of a key as YAML would say it, None if there is none to write."""
    match key.default:
        case timedelta():
            return format_duration(key.default)
        case Enum():
            return str(key.default.value)
        case tuple():
            return list(key.default)
        case Section() | Guarded() | dict() | msgspec.UnsetType():
            return None
        case int() if key.shape == Leaf(kind=Kind.SIZE, at_least=1):
            return format_size(key.default)
        case bool() | int() | str():
            return key.default
        case _:
            return None
