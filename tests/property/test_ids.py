"""Identifiers and instants as text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from uuid import RFC_4122, UUID

from hypothesis import given
from hypothesis import strategies as st

from builders.jobs import some_rng
from ductile.core.ids import make_id
from ductile.core.timestamps import EPOCH, format_timestamp, parse_timestamp

LAST_EXACT_YEAR = 2200  # a float of seconds has room for microseconds until 2242
instants = st.datetimes(datetime(1970, 1, 1), datetime(9000, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - the zone is drawn
zoned = st.datetimes(
    datetime(1971, 1, 1),  # noqa: DTZ001 - the zone is drawn
    datetime(9000, 1, 1),  # noqa: DTZ001 - the zone is drawn
    timezones=st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)


@given(instants, st.integers())
def test_ids_are_uuids_of_version_seven(now: datetime, seed: int) -> None:
    text = make_id(now, some_rng(seed))
    parsed = UUID(text)
    assert str(parsed) == text
    assert (parsed.version, parsed.variant) == (7, RFC_4122)


@given(st.datetimes(datetime(1970, 1, 1), datetime(LAST_EXACT_YEAR, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 - the zone is drawn
def test_an_id_tells_its_millisecond(now: datetime) -> None:
    """RFC 9562: 48 bits of Unix milliseconds, exact in spite of floating point until the year 2200."""
    milliseconds = UUID(make_id(now, some_rng())).int >> 80
    assert milliseconds == (now - EPOCH) // timedelta(milliseconds=1)


@given(instants, instants, st.integers(), st.integers())
def test_ids_sort_by_the_millisecond_they_were_made_in(
    instant: datetime, other_instant: datetime, seed: int, other_seed: int
) -> None:
    first, second = make_id(instant, some_rng(seed)), make_id(other_instant, some_rng(other_seed))
    if other_instant - instant >= timedelta(milliseconds=1):
        assert first < second


@given(instants, st.integers())
def test_ids_made_at_one_instant_differ(now: datetime, seed: int) -> None:
    rng = some_rng(seed)
    assert len({make_id(now, rng) for _ in range(50)}) == 50


def test_every_bit_of_chance_comes_up() -> None:
    """RFC 9562: all bits but version and variant are random; a missing digit would make ids collide."""
    rng, low = some_rng(), (1 << 80) - 1
    ids = [UUID(make_id(EPOCH, rng)).int & low for _ in range(500)]
    any_bits, all_bits = 0, low
    for number in ids:
        any_bits |= number
        all_bits &= number
    fixed = (0b1111 << 76) | (0b11 << 62)
    assert any_bits & ~fixed == low & ~fixed
    assert all_bits & ~fixed == 0


@given(zoned)
def test_a_written_timestamp_is_read_back_as_the_same_instant(instant: datetime) -> None:
    read = parse_timestamp(format_timestamp(instant))
    assert read == instant
    assert read.utcoffset() == timedelta(0)


@given(zoned, zoned)
def test_text_order_is_time_order(instant: datetime, other_instant: datetime) -> None:
    """The zones of the instants do not matter."""
    first, second = format_timestamp(instant), format_timestamp(other_instant)
    assert (first < second) == (instant < other_instant)
    assert (first == second) == (instant == other_instant)


@given(zoned)
def test_instants_have_one_width(instant: datetime) -> None:
    assert len(format_timestamp(instant)) == len("2026-02-08T10:00:00.000000Z")
    assert format_timestamp(instant).endswith("Z")
