"""Schedules are due by triggers, clock changes, windows and jitter."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from random import Random

import pytest

from builders.schedules import NEW_YORK, VIENNA, at, cron, every, hours, occurrence, utc, wall
from ductile.core.schedules.rule import (
    After,
    Cron,
    PlannedOccurrence,
    ScheduleRule,
    add_intervals,
    describe_rule,
    fingerprint_of,
    first_occurrence,
    instant_of_wall_time,
    move_into_window,
    nominal_instants_from,
    occurrence_after_clock_set_back,
    occurrence_after_edit,
    occurrence_after_run,
    plan_occurrence,
    window_around,
    window_start_after,
)

NOW = utc("2026-02-08 10:00")
HOUR = timedelta(hours=1)


def upcoming(rule: ScheduleRule, after: str, count: int) -> list[str]:
    first_run = first_occurrence(rule, now=utc(after), started_at=utc(after), rng=Random(1))
    assert first_run is not None
    return [
        wall(nominal, rule.timezone)
        for nominal in islice(nominal_instants_from(rule, first_run.nominal_at), count)
    ]


def first_run(
    rule: ScheduleRule, *, started: datetime = NOW, now: datetime = NOW
) -> PlannedOccurrence | None:
    return first_occurrence(rule, now=now, started_at=started, rng=Random(1))


# -- cron across clock changes


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("30 2 * * *", ["2026-03-08 03:00 EDT", "2026-03-09 02:30 EDT"]),
        ("*/15 2 * * *", ["2026-03-08 03:00 EDT", "2026-03-09 02:00 EDT"]),
        ("0 */2 * * *", ["2026-03-08 03:00 EDT", "2026-03-08 04:00 EDT"]),
        ("0,30 1,2,3 * * *", ["2026-03-08 01:30 EST", "2026-03-08 03:00 EDT", "2026-03-08 03:30 EDT"]),
        ("*/30 * * * *", ["2026-03-08 01:30 EST", "2026-03-08 03:00 EDT", "2026-03-08 03:30 EDT"]),
    ],
)
def test_a_cron_time_that_does_not_exist_runs_once_right_after_the_gap(
    expression: str, expected: list[str]
) -> None:
    """The clocks of New York go from 02:00 to 03:00 on March 8."""
    assert upcoming(cron(expression, NEW_YORK), "2026-03-08 06:00", len(expected)) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("30 1 * * *", ["2026-11-01 01:30 EDT", "2026-11-02 01:30 EST"]),
        ("*/30 1 * * *", ["2026-11-01 01:00 EDT", "2026-11-01 01:30 EDT", "2026-11-02 01:00 EST"]),
        ("15 */1 * * *", ["2026-11-01 00:15 EDT", "2026-11-01 01:15 EDT", "2026-11-01 01:15 EST"]),
        (
            "*/30 0-23 * * *",
            ["2026-11-01 00:30 EDT", "2026-11-01 01:00 EDT", "2026-11-01 01:30 EDT", "2026-11-01 01:00 EST"],
        ),
    ],
)
def test_a_repeated_cron_time_runs_once_unless_every_hour_is_meant(
    expression: str, expected: list[str]
) -> None:
    """The clocks of New York show 01:00 to 02:00 twice on November 1; an expression for every hour runs
    twice.
    """
    assert upcoming(cron(expression, NEW_YORK), "2026-11-01 04:00", len(expected)) == expected


def test_looking_from_the_second_pass_does_not_find_the_first() -> None:
    """At 01:10 after the change, 01:30 was an hour ago."""
    instant = utc("2026-11-01 06:10")
    assert wall(instant, NEW_YORK) == "2026-11-01 01:10 EST"
    assert upcoming(cron("30 1 * * *", NEW_YORK), "2026-11-01 06:10", 1) == ["2026-11-02 01:30 EST"]


def test_a_midnight_that_does_not_exist() -> None:
    """The clocks of Santiago skip the first hour of September 6."""
    assert upcoming(cron("0 0 * * *", "America/Santiago"), "2026-09-05 12:00", 2) == [
        "2026-09-06 01:00 -03",
        "2026-09-07 00:00 -03",
    ]


class NeverCron:
    expression = "never"

    def next_after(self, instant: datetime) -> None:
        del instant


def test_a_cron_that_never_comes_is_over() -> None:
    assert first_run(ScheduleRule(trigger=Cron(times=NeverCron()))) is None


# -- every


def test_an_interval_runs_when_first_seen_and_then_from_the_end_of_the_run() -> None:
    """The first run is at once, the next one an interval after the end of the run."""
    assert first_run(every("1h", jitter=HOUR)) == PlannedOccurrence(nominal_at=NOW, start_at=NOW)
    ended = NOW + timedelta(minutes=7)
    next_run = occurrence_after_run(every("1h"), ended_at=ended, rng=Random(1))
    assert next_run == PlannedOccurrence(nominal_at=ended + HOUR, start_at=ended + HOUR)


def test_only_an_interval_is_moved_by_the_end_of_its_run() -> None:
    for rule in (cron("0 * * * *"), at("2026-02-08 11:00"), ScheduleRule(trigger=After(delay=HOUR))):
        assert occurrence_after_run(rule, ended_at=NOW, rng=Random(1)) is None


@pytest.mark.parametrize(
    ("interval", "start", "expected"),
    [
        ("daily", "2026-03-28 01:30", ["2026-03-29 03:00 CEST", "2026-03-30 02:30 CEST"]),
        ("daily", "2026-10-24 00:30", ["2026-10-25 02:30 CEST", "2026-10-26 02:30 CET"]),
        ("weekly", "2026-03-25 09:00", ["2026-04-01 10:00 CEST", "2026-04-08 10:00 CEST"]),
        ("monthly", "2026-01-31 09:00", ["2026-02-28 10:00 CET", "2026-03-31 10:00 CEST"]),
        ("monthly", "2026-12-15 09:00", ["2027-01-15 10:00 CET", "2027-02-15 10:00 CET"]),
        ("24h", "2026-03-28 01:30", ["2026-03-29 03:30 CEST", "2026-03-30 03:30 CEST"]),
    ],
)
def test_calendar_steps_keep_the_time_of_day_of_the_zone(
    interval: str, start: str, expected: list[str]
) -> None:
    """A day is not always 24 hours; a month that is too short has the run on its last day."""
    rule = every(interval, timezone=VIENNA)
    assert [wall(add_intervals(rule, utc(start), count), VIENNA) for count in (1, 2)] == expected


def test_an_edited_interval_counts_from_the_last_run() -> None:
    """Only a schedule without a last run starts at once."""
    rule = every("2h")
    fired_at = NOW - HOUR
    next_run = occurrence_after_edit(rule, fired_at, now=NOW, started_at=NOW, rng=Random(1))
    assert next_run is not None
    assert next_run.nominal_at == NOW + HOUR
    overdue = occurrence_after_edit(rule, NOW - 5 * HOUR, now=NOW, started_at=NOW, rng=Random(1))
    assert overdue is not None
    assert overdue.nominal_at == NOW


# -- at, after


def test_an_instant_is_due_at_its_instant_even_when_it_is_past() -> None:
    """A past instant has to be due to be recorded as missed."""
    assert first_run(at("2026-02-08 09:00")) == occurrence("2026-02-08 09:00")


def test_a_delay_counts_from_the_start_of_the_service() -> None:
    """Each start of the daemon arms the delay; a reload after its time does not."""
    rule = ScheduleRule(trigger=After(delay=HOUR))
    assert first_run(rule) == occurrence("2026-02-08 11:00")
    assert first_run(rule, now=NOW + timedelta(minutes=30)) == occurrence("2026-02-08 11:00")
    assert first_run(rule, now=NOW + 2 * HOUR) is None
    assert first_run(ScheduleRule(trigger=After(delay=timedelta()))) == occurrence("2026-02-08 10:00")
    assert fingerprint_of(rule, NOW) != fingerprint_of(rule, NOW + HOUR)


def test_these_changes_make_another_schedule() -> None:
    """An edited `at` fires again; a change that moves no instant keeps the position of the schedule."""
    same_rules = [every("1h"), every("60m"), every("1h", jitter=HOUR, only_between=hours("08:00-22:00"))]
    assert len({fingerprint_of(rule, NOW) for rule in same_rules}) == 1
    other_rules = [
        every("1h"),
        every("2h"),
        every("daily"),
        every("24h"),
        every("daily", timezone=VIENNA),
        every("1h", preferred_window=hours("02:00-04:00")),
        cron("0 * * * *"),
        cron("1 * * * *"),
        at("2026-02-08 10:00"),
        at("2026-02-08 11:00"),
    ]
    assert len({fingerprint_of(rule, NOW) for rule in other_rules}) == len(other_rules)


# -- windows and jitter


def test_a_preferred_window_moves_a_run_to_its_next_start() -> None:
    """05:00 UTC is 06:00 in Vienna, after the window that ends at 04:00; the window of the next night
    counts.
    """
    rule = cron("0 * * * *", VIENNA, preferred_window=hours("02:00-04:00"))
    assert wall(move_into_window(rule, utc("2026-02-08 05:00")), VIENNA) == "2026-02-09 02:00 CET"
    assert wall(move_into_window(rule, utc("2026-02-08 02:30")), VIENNA) == "2026-02-08 03:30 CET"
    assert wall(move_into_window(rule, utc("2026-02-08 03:00")), VIENNA) == "2026-02-09 02:00 CET"


def test_a_window_across_midnight() -> None:
    rule = cron("0 * * * *", preferred_window=hours("22:00-02:00"))
    assert move_into_window(rule, utc("2026-02-08 01:30")) == utc("2026-02-08 01:30")
    assert move_into_window(rule, utc("2026-02-08 02:00")) == utc("2026-02-08 22:00")
    assert window_around(hours("22:00-02:00"), utc("2026-02-08 01:30"), rule.zone) == (
        utc("2026-02-07 22:00"),
        utc("2026-02-08 02:00"),
    )


def test_a_window_that_opens_in_the_gap_opens_after_it() -> None:
    """New York has no time from 02:00 to 03:00 on March 8."""
    rule = cron("0 * * * *", NEW_YORK, preferred_window=hours("02:15-02:45"))
    opening = window_start_after(hours("02:15-02:45"), utc("2026-03-08 05:00"), rule.zone)
    assert wall(opening, NEW_YORK) == "2026-03-08 03:00 EDT"


def test_wall_time_of_a_repeated_hour_is_the_first_one() -> None:
    zone = cron("0 * * * *", NEW_YORK).zone
    instant = instant_of_wall_time(datetime(2026, 11, 1, 1, 30), zone)  # noqa: DTZ001 - what the wall shows
    assert wall(instant, NEW_YORK) == "2026-11-01 01:30 EDT"
    assert instant.tzinfo is UTC


def test_jitter_moves_the_start_and_never_the_nominal_instant() -> None:
    """The start moves by up to half of the jitter to either side, and is decided once."""
    rule = cron("0 12 * * *", jitter=timedelta(minutes=10))
    nominal = utc("2026-02-08 12:00")
    occurrences = [plan_occurrence(rule, nominal, earliest=NOW, rng=Random(seed)) for seed in range(200)]
    offsets = [item.start_at - nominal for item in occurrences if item and item.nominal_at == nominal]
    assert len(offsets) == 200
    assert timedelta(minutes=-5) <= min(offsets) < timedelta(minutes=-4)
    assert timedelta(minutes=4) < max(offsets) <= timedelta(minutes=5)


def test_a_start_is_not_planned_for_a_time_that_is_over() -> None:
    rule = cron("0 12 * * *", jitter=timedelta(minutes=10))
    earliest = utc("2026-02-08 11:59")
    for seed in range(50):
        item = plan_occurrence(rule, utc("2026-02-08 12:00"), earliest=earliest, rng=Random(seed))
        assert item is not None
        assert item.start_at >= earliest


# -- the clock was set back


def test_an_occurrence_is_pulled_back_when_the_clock_was_set_back() -> None:
    """The wait is at most an interval, also if the clock was a year ahead."""
    far_occurrence = occurrence("2027-02-08 10:00")
    for rule, expected in (
        (every("1h"), NOW + HOUR),
        (every("daily"), NOW + 24 * HOUR),
        (cron("30 * * * *"), NOW + HOUR / 2),
        (ScheduleRule(trigger=After(delay=HOUR)), NOW + HOUR),
    ):
        moved = occurrence_after_clock_set_back(rule, far_occurrence, now=NOW, rng=Random(1))
        assert moved is not None
        assert moved.nominal_at == expected
    assert (
        occurrence_after_clock_set_back(at("2027-02-08 10:00"), far_occurrence, now=NOW, rng=Random(1))
        is None
    )


def test_an_occurrence_in_its_place_is_left_alone() -> None:
    """A start before its nominal instant is jitter, not a clock that was set back."""
    for rule, current in (
        (every("1h"), occurrence("2026-02-08 11:00")),
        (cron("0 * * * *"), occurrence("2026-02-08 11:00")),
        (cron("5 * * * *", jitter=timedelta(minutes=20)), occurrence("2026-02-08 11:05")),
    ):
        assert occurrence_after_clock_set_back(rule, current, now=NOW, rng=Random(1)) is None


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (every("5m", jitter=timedelta(seconds=30)), "every 5m ±15s"),
        (every("daily"), "every daily"),
        (cron("30 2 * * *", only_between=hours("08:00-22:00")), "cron 30 2 * * * only 08:00-22:00"),
        (cron("@hourly", not_on=frozenset({0, 6})), "cron @hourly not on sun, sat"),
        (every("1h", preferred_window=hours("22:00-06:00")), "every 1h within 22:00-06:00"),
        (at("2026-02-08 10:00"), "at 2026-02-08T10:00:00Z"),
        (ScheduleRule(trigger=After(delay=timedelta(seconds=10))), "after 10s"),
    ],
)
def test_a_rule_is_described_as_it_is_written(rule: ScheduleRule, text: str) -> None:
    assert describe_rule(rule) == text
