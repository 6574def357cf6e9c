"""Executions over time: counts and percentiles for each span of a period."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from ductile.core.jobs.statistics import ExecutionSample, Percentiles, percentiles
from ductile.struct import Value


class PluginCount(Value):
    plugin: str
    executions: int
    failures: int


class SpanSample(Value):
    """The newest executions of a span, counted by plugin, and how many there are in all."""

    at: datetime
    counts: tuple[PluginCount, ...]
    #: About how many there are of all plugins; as many as were counted if all of them were.
    total: int
    times: tuple[ExecutionSample, ...]


class SeriesPoint(Value):
    at: datetime
    executions: int
    failures: int
    failures_by_plugin: Mapping[str, int]
    #: Whether the counts are estimated from the newest executions of the span.
    sampled: bool
    run_time: Percentiles | None
    wait: Percentiles | None


def split_period(since: datetime, until: datetime, parts: int) -> tuple[datetime, ...]:
    """Return the instants that divide a period into equal parts, with its beginning and its end.

    They are multiples of the length of a part, so that the parts are the same ones a moment later. The last
    part holds `until`, and the first one begins at `since` or less than the length of a part after it.
    """
    length = max(1, round((until - since).total_seconds() / parts))
    first = math.floor(until.timestamp() / length) + 1 - parts
    return tuple(datetime.fromtimestamp((first + number) * length, UTC) for number in range(parts + 1))


def summarise_span(span: SpanSample, plugins: Iterable[str] | None = None) -> SeriesPoint:
    """Return the counts and percentiles of one span: of all plugins, or `only` of these."""
    names = None if plugins is None else frozenset(plugins)
    counted = sum(count.executions for count in span.counts)
    scale = max(1.0, span.total / counted) if counted else 1.0
    counts = [count for count in span.counts if names is None or count.plugin in names]
    times = [time for time in span.times if names is None or time.plugin in names]
    return SeriesPoint(
        at=span.at,
        executions=_scaled((count.executions for count in counts), scale),
        failures=_scaled((count.failures for count in counts), scale),
        failures_by_plugin={
            count.plugin: _scaled((count.failures,), scale) for count in counts if count.failures
        },
        sampled=scale > 1.0,
        run_time=_percentiles([time.run_time for time in times]),
        wait=_percentiles([time.wait for time in times]),
    )


def _scaled(counts: Iterable[int], scale: float) -> int:
    return round(sum(counts) * scale)


def _percentiles(values: Sequence[timedelta | None]) -> Percentiles | None:
    return percentiles(value for value in values if value is not None)
