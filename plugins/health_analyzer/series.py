"""Arithmetic on daily values: averages, linear trend, anomalies. No clock, no I/O, standard library only.

A series maps days to values. A day without a measure has no entry, and nothing is invented for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from statistics import NormalDist, median
from typing import NamedTuple

#: Makes the median absolute deviation of a normal distribution its standard deviation.
MAD_TO_SIGMA = 1.4826
#: Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
T_95 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip
#: Two points always lie on a line; the third is the first that can contradict it.
MIN_TREND_VALUES = 3


class Trend(NamedTuple):
    """A least-squares line: its slope per day, and the 95 % confidence interval of the slope."""

    values: int
    slope: float
    low: float
    high: float

    @property
    def direction(self) -> str:
        """`rising` or `falling` if the interval excludes zero, else `unclear`."""
        if self.low > 0:
            return "rising"
        return "falling" if self.high < 0 else "unclear"


class Anomaly(NamedTuple):
    """A value far from the usual: the median of the days before, and the distance in robust deviations."""

    day: date
    value: float
    usual: float
    score: float


def window(series: Mapping[date, float], end: date, days: int) -> dict[date, float]:
    """Return the values of the `days` days that end with `end`, in order."""
    first = end - timedelta(days=days - 1)
    return {day: series[day] for day in sorted(series) if first <= day <= end}


def missing_days(series: Mapping[date, float], first: date, last: date) -> list[date]:
    span = (last - first).days + 1
    return [day for day in (first + timedelta(days=n) for n in range(span)) if day not in series]


def mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return math.fsum(listed) / len(listed) if listed else None


def moving_average(series: Mapping[date, float], end: date, days: int = 7, at_least: int = 4) -> float | None:
    """Return the mean of the days that have a value; None if fewer than `at_least` of them have one."""
    values = window(series, end, days).values()
    return mean(values) if len(values) >= at_least else None


def linear_trend(series: Mapping[date, float]) -> Trend | None:
    """Fit a line by least squares; missing days are not filled. Returns None below 3 values."""
    if len(series) < MIN_TREND_VALUES:
        return None
    days = sorted(series)
    x = [float((day - days[0]).days) for day in days]
    y = [series[day] for day in days]
    x_mean, y_mean = math.fsum(x) / len(x), math.fsum(y) / len(y)
    spread = math.fsum((a - x_mean) ** 2 for a in x)
    slope = math.fsum((a - x_mean) * (b - y_mean) for a, b in zip(x, y)) / spread  # noqa: B905 - older Pythons
    residual = math.fsum((b - y_mean - slope * (a - x_mean)) ** 2 for a, b in zip(x, y))  # noqa: B905 - as above
    margin = t_quantile(len(x) - 2) * math.sqrt(residual / (len(x) - 2) / spread)
    return Trend(len(x), slope, slope - margin, slope + margin)


def t_quantile(degrees: int) -> float:
    """Return the two-sided 95 % quantile of Student's t; above 30 degrees of freedom by its expansion."""
    if degrees <= len(T_95):
        return T_95[degrees - 1]
    z = NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def robust_score(value: float, baseline: Sequence[float], smallest_deviation: float) -> float:
    """Return the distance from the median in robust standard deviations (median absolute deviation).

    Days that are all alike have a deviation of zero; `smallest_deviation` is used instead of a smaller one.
    """
    middle = median(baseline)
    deviation = MAD_TO_SIGMA * median(abs(each - middle) for each in baseline)
    return (value - middle) / max(deviation, smallest_deviation)


def find_anomaly(
    series: Mapping[date, float],
    day: date,
    smallest_deviation: float,
    *,
    threshold: float = 3.5,
    days: int = 28,
    at_least: int = 10,
) -> Anomaly | None:
    """Compare a day with the `days` days before it. None if it is usual or has no value, or if fewer than
    `at_least` of the days before have one.
    """
    baseline = list(window(series, day - timedelta(days=1), days).values())
    if day not in series or len(baseline) < at_least:
        return None
    score = robust_score(series[day], baseline, smallest_deviation)
    return Anomaly(day, series[day], median(baseline), score) if abs(score) >= threshold else None
