"""health_analyzer's arithmetic: trends, anomalies and the merging of measures, as properties."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from builders.shipped import plugin_module

series = plugin_module("health_analyzer", "series")
days = plugin_module("health_analyzer", "days")
metrics = plugin_module("health_analyzer", "metrics")

START = date(2026, 1, 1)
values = st.floats(-1000, 1000, allow_nan=False)
offsets = st.lists(st.integers(0, 120), min_size=3, max_size=60, unique=True)


def on_days(pairs: dict[int, float]) -> dict[date, float]:
    return {START + timedelta(days=offset): value for offset, value in pairs.items()}


@st.composite
def some_series(draw: st.DrawFn, at_least: int = 3) -> dict[date, float]:
    drawn_offsets = draw(st.lists(st.integers(0, 120), min_size=at_least, max_size=60, unique=True))
    return on_days({offset: draw(values) for offset in drawn_offsets})


@given(offsets, values, st.floats(-10, 10))
def test_an_exact_line_is_found_whatever_days_are_missing(
    offsets_of_days: list[int], base: float, slope: float
) -> None:
    """Gaps change neither slope nor interval: no value is invented for a missing day."""
    trend = series.linear_trend(on_days({offset: base + slope * offset for offset in offsets_of_days}))
    assert trend.values == len(offsets_of_days)
    assert trend.slope == pytest.approx(slope, abs=1e-6)
    assert trend.high - trend.low == pytest.approx(0, abs=1e-5)


@given(some_series(), values, st.integers(-400, 400))
def test_a_trend_does_not_depend_on_where_a_series_begins(
    day_values: dict[date, float], shift: float, moved: int
) -> None:
    trend = series.linear_trend(day_values)
    other = series.linear_trend(
        {day + timedelta(days=moved): value + shift for day, value in day_values.items()}
    )
    assert other == pytest.approx(trend, abs=1e-6)
    assert trend.low <= trend.slope <= trend.high


@given(some_series(), st.floats(0.1, 10))
def test_a_trend_scales_and_mirrors_with_its_values(day_values: dict[date, float], factor: float) -> None:
    """Units do not change what is rising, and a mirrored series falls as the first one rises."""
    trend = series.linear_trend(day_values)
    scaled = series.linear_trend({day: -factor * value for day, value in day_values.items()})
    assert scaled.slope == pytest.approx(-factor * trend.slope, abs=1e-6)
    assert scaled.low == pytest.approx(-factor * trend.high, abs=1e-6)


def test_a_trend_of_two_days_is_not_known() -> None:
    assert series.linear_trend(on_days({0: 1.0, 9: 2.0})) is None


def test_the_interval_is_that_of_a_textbook() -> None:
    """The values are computed by hand: slope 0.8, standard error sqrt(0.12), t(3) 3.1824."""
    trend = series.linear_trend(on_days(dict(enumerate([1.0, 3.0, 2.0, 5.0, 4.0]))))
    assert trend.slope == pytest.approx(0.8)
    assert trend.high - trend.slope == pytest.approx(3.1824 * math.sqrt(0.12), rel=1e-4)
    assert trend.direction == "unclear"


@pytest.mark.parametrize("degrees", [1, 2, 3, 7, 30, 31, 50, 400])
def test_the_quantiles_leave_five_percent_outside(degrees: int) -> None:
    """The density of Student's t is integrated between the quantiles by Simpson's rule."""
    quantile = series.t_quantile(degrees)
    scale = (
        math.gamma((degrees + 1) / 2) / math.gamma(degrees / 2) if degrees < 300 else math.sqrt(degrees / 2)
    )
    steps = 4000
    width = 2 * quantile / steps
    total = 0.0
    for index in range(steps + 1):
        weight = 1 if index in (0, steps) else 4 if index % 2 else 2
        at = -quantile + index * width
        total += weight * (1 + at * at / degrees) ** (-(degrees + 1) / 2)
    assert total * width / 3 * scale / math.sqrt(degrees * math.pi) == pytest.approx(0.95, abs=1e-3)


@given(st.lists(values, min_size=11, max_size=40), values, st.floats(1e6, 1e9))
def test_one_absurd_value_before_hardly_moves_a_score(
    baseline: list[float], value: float, absurd: float
) -> None:
    """The score rests on medians: one outlier shifts each by at most one rank, whatever its size."""
    replaced = [absurd, *baseline[1:]]
    larger = [absurd * 1000, *baseline[1:]]
    assert series.robust_score(value, replaced, 1) == series.robust_score(value, larger, 1)


@given(st.lists(values, min_size=1, max_size=40), values, st.floats(0.1, 10), values)
def test_a_score_does_not_depend_on_the_unit(
    baseline: list[float], value: float, factor: float, shift: float
) -> None:
    score = series.robust_score(value, baseline, 1)
    moved = series.robust_score(
        value * factor + shift, [baseline_value * factor + shift for baseline_value in baseline], factor
    )
    assert moved == pytest.approx(score, rel=1e-6, abs=1e-6)


@given(st.lists(values, min_size=10, max_size=28))
def test_the_usual_value_is_no_anomaly(baseline: list[float]) -> None:
    day_values = on_days(dict(enumerate([*baseline, sorted(baseline)[len(baseline) // 2]])))
    assert series.find_anomaly(day_values, max(day_values), 1) is None


def test_days_that_are_alike_make_no_alarm_of_noise() -> None:
    """With a deviation of zero, the smallest deviation of the metric decides."""
    day_values = on_days(dict.fromkeys(range(20), 80.0))
    assert (
        series.find_anomaly({**day_values, START + timedelta(days=20): 80.9}, START + timedelta(days=20), 0.3)
        is None
    )
    anomaly = series.find_anomaly(
        {**day_values, START + timedelta(days=20): 83.0}, START + timedelta(days=20), 0.3
    )
    assert (anomaly.usual, anomaly.score) == (80.0, pytest.approx(10.0))


def test_too_few_days_before_say_nothing() -> None:
    day_values = on_days({**dict.fromkeys(range(9), 80.0), 9: 500.0})
    assert series.find_anomaly(day_values, START + timedelta(days=9), 0.3) is None


@given(some_series(at_least=1), st.integers(0, 120), st.integers(1, 30))
def test_a_moving_average_lies_between_the_values_it_covers(
    day_values: dict[date, float], end: int, width: int
) -> None:
    last = START + timedelta(days=end)
    covered = [value for day, value in day_values.items() if 0 <= (last - day).days < width]
    average = series.moving_average(day_values, last, width, at_least=1)
    missing = series.missing_days(day_values, last - timedelta(days=width - 1), last)
    assert len(covered) + len(missing) == width
    if not covered:
        assert average is None
    else:
        assert min(covered) - 1e-9 <= average <= max(covered) + 1e-9


ZONES = ("Pacific/Kiritimati", "Pacific/Pago_Pago", "Europe/Oslo", "America/New_York", "UTC")


@given(st.integers(946_684_800, 1_893_456_000), st.sampled_from(ZONES), st.sampled_from(ZONES))
def test_a_measure_belongs_to_the_day_where_the_person_was(
    seconds: int, zone: str, configured_zone: str
) -> None:
    """The zone of a measure counts before the configured one, for seconds and for ISO texts."""
    instant = datetime.fromtimestamp(seconds, UTC)
    expected = instant.astimezone(ZoneInfo(zone)).date()
    for at in (instant.isoformat(), instant.strftime("%Y-%m-%dT%H:%M:%SZ"), seconds):
        assert days.read_day({"at": at, "timezone": zone}, ZoneInfo(configured_zone)) == expected
        assert days.read_day({"at": at}, ZoneInfo(zone)) == expected
    local = instant.astimezone(ZoneInfo(zone))
    if local.utcoffset():
        assert days.read_day({"at": local.isoformat()}, None) == expected


@given(st.sampled_from(list(metrics.METRICS)), st.data())
def test_units_of_a_metric_convert_to_the_same_value(name: str, data: st.DataObject) -> None:
    metric = metrics.METRICS[name]
    value = data.draw(st.floats(metric.low, metric.high))
    for unit, factor in metric.units.items():
        converted = metrics.convert(value / factor, unit, metric.units)
        assert converted == pytest.approx(value)


names = st.sampled_from(["", "a", "b"])
measures = st.builds(
    lambda metric, offset, source, name, value: days.Measure(
        metric, START + timedelta(days=offset), source, name, value
    ),
    st.sampled_from(["weight", "steps"]),
    st.integers(0, 4),
    st.sampled_from(["withings", "garmin"]),
    names,
    st.one_of(st.none(), st.integers(1, 100)),
)
event_lists = st.lists(st.lists(measures, min_size=1, max_size=4), min_size=1, max_size=8)


def merge_events(events: list[tuple[int, list[Any]]]) -> dict[str, Any]:
    merged_days: dict[str, Any] = {}
    for revision, measures_of_event in events:
        merged_days, _ = days.merge(merged_days, measures_of_event, revision)
    return merged_days


@given(event_lists, st.data())
def test_repeated_and_late_events_lead_to_the_same_days(events: list[list[Any]], data: st.DataObject) -> None:
    """The newest event about a measure decides, whatever the order and number of events."""
    for event in events:  # an event has one value for each measure
        assume(all(a.key != b.key or a.metric != b.metric for a, b in pairwise(sorted(event, key=str))))
        assume(len({(measure.metric, measure.key) for measure in event}) == len(event))
    numbered = list(enumerate(events))
    repeated = data.draw(st.permutations([*numbered, *data.draw(st.lists(st.sampled_from(numbered)))]))
    first, second = merge_events(numbered), merge_events(repeated)
    for metric in ("weight", "steps"):
        assert days.daily_series(second, metric) == days.daily_series(first, metric)


@given(event_lists)
def test_the_same_event_again_changes_nothing(events: list[list[Any]]) -> None:
    for event in events:
        assume(len({(measure.metric, measure.key) for measure in event}) == len(event))
    merged_days = merge_events(list(enumerate(events)))
    merged_again, changed = days.merge(merged_days, events[-1], len(events) - 1)
    assert (merged_again, changed) == (merged_days, 0)


def test_a_corrected_measure_leaves_the_day_it_was_on() -> None:
    def weight(day: int, value: float) -> Any:
        return days.Measure("weight", START + timedelta(days=day), "withings", "77", value)

    merged_days, _ = days.merge({}, [weight(0, 80.0)], 1)
    merged_days, changed = days.merge(merged_days, [weight(1, 79.0)], 2)
    late, ignored = days.merge(merged_days, [weight(0, 80.0)], 1)
    assert days.daily_series(late, "weight") == {START + timedelta(days=1): 79.0}
    assert (changed, ignored) == (1, 0)


@given(st.lists(st.integers(0, 3000), max_size=30), st.integers(60, 800))
def test_only_the_wanted_days_are_kept(offsets_of_days: list[int], keep_days: int) -> None:
    today = START + timedelta(days=3000)
    all_days = {
        (START + timedelta(days=offset)).isoformat(): {"steps": {"x:": [1, 1]}} for offset in offsets_of_days
    }
    bounded_days = days.bounded(all_days, keep_days, today)
    assert set(bounded_days) == {
        day for day in all_days if (today - date.fromisoformat(day)).days <= keep_days
    }


def test_a_full_state_drops_its_oldest_days() -> None:
    """The kept days always fit into the state, however much a source sends."""
    entries = {f"source:{number:080d}": [80.123, 1770544800000] for number in range(50)}
    all_days = {
        (START + timedelta(days=n)).isoformat(): dict.fromkeys(metrics.METRICS, entries) for n in range(60)
    }
    bounded_days = days.bounded(all_days, 400, START + timedelta(days=59))
    assert 0 < len(bounded_days) < 60
    assert max(bounded_days) == max(all_days)
    assert len(json.dumps(bounded_days)) <= 1024 * 1024 - 100_000


def test_two_watches_count_the_same_steps_once() -> None:
    day = {"steps": {"garmin:": [9000, 1], "withings:a": [4000, 1], "withings:b": [4500, 1]}}
    assert days.daily_series({"2026-01-01": day}, "steps") == {START: 9000}
