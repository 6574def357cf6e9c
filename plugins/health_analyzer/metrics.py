"""The metrics that are analysed: units, plausible values, and how measures become the value of a day."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

KILOGRAMS = {"kg": 1.0, "g": 0.001, "lb": 0.45359237, "st": 6.35029318}
MINUTES = {"min": 1.0, "s": 1 / 60, "h": 60.0}
KILOMETRES = {"km": 1.0, "m": 0.001, "mi": 1.609344}
BEATS = {"bpm": 1.0}
PERCENT = {"%": 1.0, "ratio": 100.0}
COUNT = {"count": 1.0, "steps": 1.0}
POINTS = {"points": 1.0}


class Metric(NamedTuple):
    """`total` metrics are added up within a source, and the largest source counts. Others are averaged."""

    label: str
    units: dict[str, float]
    low: float
    high: float
    #: Differences below this are noise, however alike the days before were.
    smallest_deviation: float
    digits: int = 0
    total: bool = False
    #: Whether values of coming days are known, such as those of a calendar.
    planned: bool = False

    @property
    def unit(self) -> str:
        return next(iter(self.units))


METRICS = {
    "weight": Metric("Weight", KILOGRAMS, 1, 700, 0.3, digits=1),
    "body_fat": Metric("Body fat", PERCENT, 1, 90, 0.5, digits=1),
    "sleep": Metric("Sleep", MINUTES, 0, 2880, 15, total=True),
    "resting_heart_rate": Metric("Resting heart rate", BEATS, 20, 200, 1),
    "steps": Metric("Steps", COUNT, 0, 300_000, 500, total=True),
    "active_minutes": Metric("Active minutes", MINUTES, 0, 1440, 10, total=True),
    "stress": Metric("Stress", POINTS, 0, 100, 3),
    "meetings": Metric("Time in meetings", MINUTES, 0, 2880, 30, total=True, planned=True),
}


def convert(value: Any, unit: Any, units: dict[str, float]) -> float:
    """Return the value in the first of `units`. Raises ValueError for a value or unit that is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"the value {value!r} is not a number")
    if unit is None:
        return float(value)
    if unit not in units:
        raise ValueError(f"the unit {unit!r} is unknown; known are {', '.join(units)}")
    return float(value) * units[unit]


def plausible(metric: Metric, value: float) -> float:
    """Return the value, rounded so that the same measure in two units is the same. Raises ValueError."""
    if not metric.low <= value <= metric.high:
        raise ValueError(f"{value:g} {metric.unit} is outside {metric.low:g} to {metric.high:g}")
    return round(value, 3)
