"""Instants as people write them, across clock changes."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.core.durations import format_duration
from ductile.core.instants import InstantError, format_relative, parse_instant

#: Zones with changes in spring and autumn, at midnight, by half an hour, of a whole day, and without any.
ZONES = st.sampled_from(
    ["UTC", "Europe/Vienna", "America/Sao_Paulo", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kolkata"]
).map(ZoneInfo)
NOWS = st.datetimes(datetime(2009, 1, 1), datetime(2030, 1, 1)).map(  # noqa: DTZ001 - made aware here
    lambda moment: moment.replace(tzinfo=UTC)
)
VIENNA = ZoneInfo("Europe/Vienna")
#: A Wednesday, 11:30 in Vienna.
NOW = datetime(2026, 11, 18, 10, 30, tzinfo=UTC)
DAY = timedelta(days=1)
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", "2026-11-18T10:30:00+00:00"),
        ("1h", "2026-11-18T09:30:00+00:00"),
        ("1h30m ago", "2026-11-18T09:00:00+00:00"),
        ("in 2h", "2026-11-18T12:30:00+00:00"),
        ("2 d", "2026-11-16T10:30:00+00:00"),
        ("today", "2026-11-17T23:00:00+00:00"),
        ("Yesterday", "2026-11-16T23:00:00+00:00"),
        ("tomorrow", "2026-11-18T23:00:00+00:00"),
        ("monday", "2026-11-15T23:00:00+00:00"),
        ("wed", "2026-11-17T23:00:00+00:00"),
        ("thursday 09:00", "2026-11-12T08:00:00+00:00"),
        ("yesterday at 9:05:07", "2026-11-17T08:05:07+00:00"),
        ("10:30", "2026-11-18T09:30:00+00:00"),
        ("11:31", "2026-11-17T10:31:00+00:00"),
        ("2026-11-18", "2026-11-17T23:00:00+00:00"),
        ("2026-07-01", "2026-06-30T22:00:00+00:00"),
        ("2026-07-01 12:00", "2026-07-01T10:00:00+00:00"),
        ("2026-07-01T12:00:00", "2026-07-01T10:00:00+00:00"),
        ("2026-07-01T12:00:00.5-02:00", "2026-07-01T14:00:00.500000+00:00"),
        ("2026-07-01T12:00Z", "2026-07-01T12:00:00+00:00"),
        # The clocks skip 02:30 and repeat 02:30: the next valid instant, and the first of the two.
        ("2026-03-29 02:30", "2026-03-29T01:30:00+00:00"),
        ("2026-10-25 02:30", "2026-10-25T00:30:00+00:00"),
    ],
)
def test_examples(text: str, expected: str) -> None:
    assert parse_instant(text, now=NOW, zone=VIENNA) == datetime.fromisoformat(expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "mo",
        "noon",
        "25:00",
        "10:60",
        "2026-13-01",
        "2026-02-30",
        "10:30 monday",
        "yesterday x",
        "-1h",
    ],
)
def test_nonsense_is_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(InstantError) as excinfo:
        parse_instant(text, now=NOW, zone=VIENNA)
    assert "yesterday" in excinfo.value.expected


@given(st.text(max_size=30), NOWS, ZONES)
def test_no_text_raises_anything_else(text: str, now: datetime, zone: ZoneInfo) -> None:
    with suppress(InstantError):
        assert parse_instant(text, now=now, zone=zone).tzinfo is UTC


@given(NOWS, ZONES)
def test_today_has_begun_and_yesterday_is_over(now: datetime, zone: ZoneInfo) -> None:
    """This holds also where the clocks change at midnight or a whole day is left out."""
    yesterday, today, tomorrow = (
        parse_instant(word, now=now, zone=zone) for word in ("yesterday", "today", "tomorrow")
    )
    assert yesterday <= today <= now < tomorrow
    assert today.astimezone(zone).date() == now.astimezone(zone).date()


@given(
    NOWS,
    ZONES,
    st.sampled_from(WEEKDAYS),
)
def test_a_weekday_is_the_latest_one(now: datetime, zone: ZoneInfo, name: str) -> None:
    instant = parse_instant(name, now=now, zone=zone)
    assert now - 8 * DAY < instant <= now
    assert instant == parse_instant(name[:3], now=now, zone=zone)


@given(NOWS, ZONES, st.times())
def test_a_time_of_day_is_the_latest_one(now: datetime, zone: ZoneInfo, clock: time) -> None:
    """The instant is at most a day and a clock change ago, and never in the future."""
    instant = parse_instant(f"{clock:%H:%M:%S}", now=now, zone=zone)
    assert instant <= now or now.astimezone(zone).date() == date(2011, 12, 31)
    assert now - instant < 3 * DAY


@given(NOWS, ZONES, st.datetimes(datetime(2010, 1, 1), datetime(2030, 1, 1)))  # noqa: DTZ001 - a local time
def test_a_local_time_is_what_clocks_showed(now: datetime, zone: ZoneInfo, wall: datetime) -> None:
    """If the clocks skipped the time, the instant follows the gap."""
    instant = parse_instant(f"{wall:%Y-%m-%d %H:%M:%S}", now=now, zone=zone)
    local_time = instant.astimezone(zone).replace(tzinfo=None)
    assert local_time >= wall.replace(microsecond=0)
    assert local_time - wall.replace(microsecond=0) in (
        timedelta(0),
        timedelta(minutes=30),
        timedelta(hours=1),
        timedelta(hours=24),
    )


@given(NOWS, ZONES, st.timedeltas(timedelta(0), timedelta(days=400)))
def test_a_duration_is_before_now_or_after_it(now: datetime, zone: ZoneInfo, span: timedelta) -> None:
    span -= timedelta(microseconds=span.microseconds % 1000)
    text = format_duration(span)
    assert parse_instant(text, now=now, zone=zone) == now - span
    assert parse_instant(f"{text} ago", now=now, zone=zone) == now - span
    assert parse_instant(f"in {text}", now=now, zone=zone) == now + span


@given(NOWS, st.timedeltas(timedelta(days=-400), timedelta(days=400)))
def test_a_distance_is_rounded_towards_now(now: datetime, span: timedelta) -> None:
    text = format_relative(now + span, now)
    if abs(span) < timedelta(seconds=1):
        assert text == "now"
        return
    number, unit = text.removeprefix("in ").removesuffix(" ago").split()
    size = {"s": timedelta(seconds=1), "min": timedelta(minutes=1), "h": timedelta(hours=1), "d": DAY}[unit]
    assert int(number) * size <= abs(span) < (int(number) + 1) * size
    assert text.endswith(" ago") == (span < timedelta(0))
    assert text.startswith("in ") == (span > timedelta(0))
