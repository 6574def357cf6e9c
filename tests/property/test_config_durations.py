"""Durations and sizes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.core.durations import (
    MAX_DURATION,
    CalendarStep,
    QuantityError,
    format_duration,
    format_size,
    parse_duration,
    parse_interval,
    parse_size,
)

UNITS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
spans = st.integers(0, MAX_DURATION // timedelta(milliseconds=1)).map(lambda ms: timedelta(milliseconds=ms))


@given(spans)
def test_a_formatted_duration_is_parsed_back(span: timedelta) -> None:
    assert parse_duration(format_duration(span)) == span


@given(
    st.lists(st.integers(0, 400), min_size=6, max_size=6), st.sets(st.sampled_from(list(UNITS)), min_size=1)
)
def test_the_parts_of_a_duration_add_up(counts: list[int], used_units: set[str]) -> None:
    """`1h30m` is one hour and thirty minutes, for any choice of units."""
    parts = [(count, unit) for count, unit in zip(counts, UNITS, strict=True) if unit in used_units]
    text = "".join(f"{count}{unit}" for count, unit in parts)
    assert parse_duration(text) == timedelta(milliseconds=sum(count * UNITS[unit] for count, unit in parts))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("30s", 30),
        ("5m", 300),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("1w", 604_800),
        ("0s", 0),
        ("hourly", 3600),
        ("daily", 86_400),
        ("weekly", 604_800),
        ("monthly", 2_592_000),
    ],
)
def test_the_documented_forms(text: str, seconds: float) -> None:
    assert parse_duration(text).total_seconds() == seconds


@pytest.mark.parametrize(
    "text", ["", "5", "1.5h", "30m1h", "5m5m", "5M", "5 m", " 5m", "-5m", "5m\n", "1y", "\u0665m", "daily "]
)
def test_other_forms_are_refused_with_what_is_expected(text: str) -> None:
    """The message names the accepted forms."""
    with pytest.raises(QuantityError) as excinfo:
        parse_duration(text)
    assert "1h30m" in excinfo.value.expected


def test_longer_than_a_century_is_refused() -> None:
    with pytest.raises(QuantityError, match="hundred years"):
        parse_duration("999999999999999w")


def test_days_weeks_and_months_of_a_schedule_follow_the_calendar() -> None:
    """`daily` is not 24 hours where a day has 23; `hourly` and `24h` are fixed durations."""
    assert [parse_interval(word) for word in ("daily", "weekly", "monthly")] == list(CalendarStep)
    assert parse_interval("hourly") == timedelta(hours=1)
    assert parse_interval("24h") == timedelta(hours=24)


@given(st.integers(0, 10**15 - 1))
def test_a_formatted_size_is_parsed_back(count: int) -> None:
    assert parse_size(format_size(count)) == count
    assert parse_size(str(count)) == count


@pytest.mark.parametrize(
    ("text", "count"), [("64KB", 64_000), ("1MB", 10**6), ("1GiB", 2**30), ("10kib", 10_240), ("7B", 7)]
)
def test_sizes_count_in_thousands_or_in_1024s(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "1M", "1.5MB", "MB", "-1", "1 MB", "1TB"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(QuantityError, match="not a size"):
        parse_size(text)
