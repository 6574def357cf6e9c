"""The kinds of value a setting can have, as annotations for the model.

A kind says how a scalar is read (`readers`), how it is described to an editor (`schema`) and what
the reference calls it. Types alone do not tell: a duration and a wait until service start are both a
`timedelta`, a size is an `int`.
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
    """A leaf of the model; the values are the words used in the reference."""

    TEXT = "text"
    WHOLE_NUMBER = "whole number"
    TRUTH = "true or false"
    DURATION = "duration"
    INTERVAL = "interval"
    SIZE = "size"
    SECRET = "secret"  # noqa: S105 - the name of a kind, not a secret
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
    """The annotation of one setting: what it means, and its default where that is worked out later.

    The bound is ours and not msgspec's, which puts none on a setting that may also be absent.
    """
    return msgspec.Meta(description=description, extra={"default": default, "at_least": at_least})


def _marked(kind: SettingType) -> msgspec.Meta:
    return msgspec.Meta(extra={"kind": kind})


Duration: TypeAlias = Annotated[timedelta, _marked(SettingType.DURATION)]
Size: TypeAlias = Annotated[int, _marked(SettingType.SIZE)]
SecretText: TypeAlias = Annotated[Secret, _marked(SettingType.SECRET)]
Instant: TypeAlias = Annotated[datetime, _marked(SettingType.INSTANT)]
Clock: TypeAlias = Annotated[time, _marked(SettingType.CLOCK)]
HoursOfDay: TypeAlias = Annotated[DailyWindow, _marked(SettingType.WINDOW)]
WeekdayName: TypeAlias = Annotated[Weekday, _marked(SettingType.WEEKDAY)]
Address: TypeAlias = Annotated[str, _marked(SettingType.ADDRESS)]
Variables: TypeAlias = Annotated[SecretMap[str], _marked(SettingType.VARIABLES)]
Object: TypeAlias = Annotated[SecretMap[Any], _marked(SettingType.OBJECT)]
Anything: TypeAlias = Annotated[Any, _marked(SettingType.ANYTHING)]
if TYPE_CHECKING:
    ScheduleInterval: TypeAlias = Interval
else:  # msgspec does not take the union of a timedelta and a word, and only has to know the kind
    ScheduleInterval = Annotated[Any, _marked(SettingType.INTERVAL)]
