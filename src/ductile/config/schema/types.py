"""The types of value a setting can have, as annotations for the model.

A setting type decides how a scalar is parsed (`parse`), how the JSON Schema describes it (`jsonschema`) and
what the reference calls it. Python types are not enough: a size and a number are both an `int`.
"""

from __future__ import annotations

from datetime import datetime, time, timedelta
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec

from ductile.config.secrets import Secret, SecretMap
from ductile.core.schedules.windows import DailyWindow

if TYPE_CHECKING:
    from ductile.core.durations import Interval


class SettingType(StrEnum):
    """The type of a single value; the values are the words used in the reference."""

    TEXT = "text"
    WHOLE_NUMBER = "whole number"
    TRUTH = "true or false"
    DURATION = "duration"
    INTERVAL = "interval"
    SIZE = "size"
    SECRET = "secret"  # noqa: S105 - the name of a type, not a secret
    INSTANT = "instant"
    CLOCK = "time of day"
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


def about(description: str, *, default: str | None = None, at_least: int | None = None) -> msgspec.Meta:
    """Return the annotation of one setting: its meaning, and its default in words where it is computed.

    The bound is not msgspec's own, which cannot be put on a setting that may be absent.
    """
    return msgspec.Meta(description=description, extra={"default": default, "at_least": at_least})


def _typed(setting_type: SettingType) -> msgspec.Meta:
    return msgspec.Meta(extra={"type": setting_type})


Duration: TypeAlias = Annotated[timedelta, _typed(SettingType.DURATION)]
Size: TypeAlias = Annotated[int, _typed(SettingType.SIZE)]
SecretText: TypeAlias = Annotated[Secret, _typed(SettingType.SECRET)]
Instant: TypeAlias = Annotated[datetime, _typed(SettingType.INSTANT)]
Clock: TypeAlias = Annotated[time, _typed(SettingType.CLOCK)]
HoursOfDay: TypeAlias = Annotated[DailyWindow, _typed(SettingType.WINDOW)]
WeekdayName: TypeAlias = Annotated[Weekday, _typed(SettingType.WEEKDAY)]
Address: TypeAlias = Annotated[str, _typed(SettingType.ADDRESS)]
Variables: TypeAlias = Annotated[SecretMap[str], _typed(SettingType.VARIABLES)]
Object: TypeAlias = Annotated[SecretMap[Any], _typed(SettingType.OBJECT)]
Anything: TypeAlias = Annotated[Any, _typed(SettingType.ANYTHING)]
if TYPE_CHECKING:
    ScheduleInterval: TypeAlias = Interval
else:  # msgspec does not accept the union of a timedelta and a word, and needs only the setting type
    ScheduleInterval = Annotated[Any, _typed(SettingType.INTERVAL)]
