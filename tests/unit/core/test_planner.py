"""Due instants become runs, late runs, or skips with a reason."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from builders.schedules import NEW_YORK, at, cron, every, hours, occurrence, planned, summarised, utc
from ductile.core.jobs.model import JobReason, JobStatus, Transition
from ductile.core.schedules.audit import RUN_NOW, end_before_manual_retry, find_gaps, preview_runs
from ductile.core.schedules.planner import (
    MAX_CATCH_UP,
    Occurrence,
    OccurrenceOutcome,
    Skip,
    SkipReason,
    lateness,
    plan_due,
)
from ductile.core.schedules.rule import After, CatchUp, PlannedOccurrence, ScheduleRule

HOUR = timedelta(hours=1)
SKIP, ONCE, ALL = CatchUp.SKIP, CatchUp.RUN_ONCE, CatchUp.RUN_ALL


def test_nothing_is_planned_before_its_start() -> None:
    """Jitter moves the start, so a nominal instant alone is not due."""
    upcoming = occurrence("2026-02-08 10:00", "2026-02-08 10:04")
    now = utc("2026-02-08 10:03")
    assert (
        plan_due(cron("0 * * * *"), upcoming, now=now, active_since=now, paused=False, rng=Random(1)) is None
    )


def test_a_run_and_where_the_schedule_stands_then() -> None:
    plan = planned(cron("0 * * * *"), occurrence("2026-02-08 10:00"), "2026-02-08 10:00")
    assert summarised(plan) == ["10:00 ran"]
    assert plan.next_occurrence == occurrence("2026-02-08 11:00")


def test_firing_an_interval_sets_a_provisional_next() -> None:
    """The next occurrence is the due time plus the interval, without jitter; the end of the run adds
    jitter.
    """
    rule = every("1h", jitter=timedelta(minutes=30))
    plan = planned(rule, occurrence("2026-02-08 10:00", "2026-02-08 10:07"), "2026-02-08 10:07")
    assert plan.next_occurrence == occurrence("2026-02-08 11:00")


def test_lateness_is_measured_from_the_start() -> None:
    """A run is late by the time since its start."""
    plan = planned(cron("0 * * * *"), occurrence("2026-02-08 10:00", "2026-02-08 10:04"), "2026-02-08 10:06")
    (run,) = plan.runs
    assert lateness(run, utc("2026-02-08 10:06")) == timedelta(minutes=2)
    assert lateness(run, utc("2026-02-08 10:04:00.900")) is None


# -- catching up


@pytest.mark.parametrize("rule", [every("1h"), cron("0 * * * *")], ids=["every", "cron"])
@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        (SKIP, ["03:00-10:00 x8 missed"]),
        (ONCE, ["03:00-09:00 x7 missed", "10:00 ran"]),
        (ALL, [f"{hour:02}:00 ran" for hour in range(3, 11)]),
    ],
)
def test_after_downtime(rule: ScheduleRule, catch_up: CatchUp, expected: list[str]) -> None:
    """The number of missed occurrences is 1 + floor((now - next) / interval)."""
    rule = ScheduleRule(trigger=rule.trigger, catch_up=catch_up)
    plan = planned(rule, occurrence("2026-02-08 03:00"), "2026-02-08 10:20", armed="2026-02-08 10:20")
    assert summarised(plan) == expected
    assert plan.next_occurrence == occurrence("2026-02-08 11:00")
    assert plan.is_catch_up is (catch_up is ALL)


def test_occurrences_due_after_the_start_are_not_missed() -> None:
    """A run that is late by a second runs with every `catch_up`."""
    plan = planned(
        cron("0 * * * *"), occurrence("2026-02-08 10:00"), "2026-02-08 10:00:05", armed="2026-02-08 09:59"
    )
    assert summarised(plan) == ["10:00 ran"]


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        (SKIP, ["08:00-09:00 x2 missed", "10:00 ran"]),
        (ONCE, ["08:00-09:00 x2 missed", "10:00 ran"]),
        (ALL, ["08:00 ran", "09:00 ran", "10:00 ran"]),
    ],
)
def test_a_daemon_that_hung_starts_no_storm(catch_up: CatchUp, expected: list[str]) -> None:
    """An occurrence is missed if a later one is due; the latest one runs."""
    rule = cron("0 * * * *", catch_up=catch_up)
    assert summarised(planned(rule, occurrence("2026-02-08 08:00"), "2026-02-08 10:05")) == expected


def test_run_all_makes_up_for_a_hundred_at_most() -> None:
    """The newest hundred run; the others are recorded as skipped."""
    rule = every("1m", catch_up=ALL)
    plan = planned(rule, occurrence("2026-02-08 00:00"), "2026-02-08 03:00:30", armed="2026-02-08 03:00:30")
    assert len(plan.runs) == MAX_CATCH_UP
    assert summarised(plan)[0] == "00:00-01:20 x81 catch_up_limit"


@pytest.mark.parametrize("catch_up", list(CatchUp))
@pytest.mark.parametrize("rule", [every("1m"), cron("* * * * *")], ids=["every", "cron"])
def test_a_month_of_minutes_is_accounted_for_in_pieces(rule: ScheduleRule, catch_up: CatchUp) -> None:
    """Every occurrence is accounted for once, although each plan has a bounded size."""
    rule = ScheduleRule(trigger=rule.trigger, catch_up=catch_up)
    now, upcoming = utc("2026-02-03 00:00:30"), occurrence("2026-02-01 00:00")
    count, runs, steps = 0, 0, 0
    while (
        plan := plan_due(rule, upcoming, now=now, active_since=now, paused=False, rng=Random(1))
    ) is not None:
        count += sum(item.count if isinstance(item, Skip) else 1 for item in plan.items)
        runs += len(plan.runs)
        steps += 1
        assert plan.next_occurrence is not None
        upcoming = plan.next_occurrence
    assert count == 2 * 24 * 60 + 1
    assert runs == {SKIP: 0, ONCE: 1, ALL: 100}[catch_up]
    assert steps <= 4
    assert upcoming == occurrence("2026-02-03 00:01")


def test_the_pieces_leave_enough_to_make_up_for() -> None:
    """The newest hundred run, also if a plan ends just before them."""
    rule = cron("* * * * *", catch_up=ALL)
    first = planned(rule, occurrence("2026-02-08 00:00"), "2026-02-08 16:50:30", armed="2026-02-08 16:50:30")
    assert first.runs == ()
    assert first.next_occurrence is not None
    second = planned(rule, first.next_occurrence, "2026-02-08 16:50:30", armed="2026-02-08 16:50:30")
    assert len(second.runs) == MAX_CATCH_UP


def test_a_missed_instant_runs_once_unless_configured_to_skip() -> None:
    for catch_up, expected in (
        (SKIP, ["09:00-09:00 x1 missed"]),
        (ONCE, ["09:00 ran"]),
        (ALL, ["09:00 ran"]),
    ):
        plan = planned(
            at("2026-02-08 09:00", catch_up=catch_up),
            occurrence("2026-02-08 09:00"),
            "2026-02-08 10:00",
            armed="2026-02-08 10:00",
        )
        assert (summarised(plan), plan.next_occurrence) == (expected, None)


def test_a_delay_is_never_missed() -> None:
    """A delay begins with each start of the daemon; after a suspend it runs late."""
    rule = ScheduleRule(trigger=After(delay=HOUR))
    plan = planned(rule, occurrence("2026-02-08 09:00"), "2026-02-08 10:00", armed="2026-02-08 09:59")
    assert (summarised(plan), plan.next_occurrence) == (["09:00 ran"], None)


# -- hours, days, windows


def test_outside_the_hours_is_skipped() -> None:
    """The end of the window is excluded."""
    rule = cron("0 * * * *", NEW_YORK, only_between=hours("08:00-10:00"))
    for moment, expected in (
        ("12:00", "outside_hours"),
        ("13:00", "ran"),
        ("14:00", "ran"),
        ("15:00", "outside_hours"),
    ):
        plan = planned(rule, occurrence(f"2026-02-09 {moment}"), f"2026-02-09 {moment}")
        assert summarised(plan)[0].endswith(expected), moment


def test_hours_across_midnight() -> None:
    rule = cron("0 * * * *", only_between=hours("22:00-06:00"))
    for moment, expected in (
        ("21:00", "outside_hours"),
        ("22:00", "ran"),
        ("05:00", "ran"),
        ("06:00", "outside_hours"),
    ):
        plan = planned(rule, occurrence(f"2026-02-09 {moment}"), f"2026-02-09 {moment}")
        assert summarised(plan)[0].endswith(expected), moment


def test_days_without_runs_are_those_of_the_zone() -> None:
    """Sunday is 0. 03:00 UTC on Monday is still Sunday in New York."""
    rule = cron("0 * * * *", NEW_YORK, not_on=frozenset({0}))
    assert summarised(planned(rule, occurrence("2026-02-09 03:00"), "2026-02-09 03:00"))[0].endswith(
        "excluded_day"
    )
    assert summarised(planned(rule, occurrence("2026-02-09 06:00"), "2026-02-09 06:00"))[0].endswith("ran")


def test_catching_up_respects_the_hours_of_the_moment() -> None:
    """A missed run is skipped if the present time is outside the hours."""
    rule = cron("0 21 * * *", only_between=hours("08:00-22:00"), catch_up=ONCE)
    plan = planned(rule, occurrence("2026-02-08 21:00"), "2026-02-08 23:00", armed="2026-02-08 23:00")
    assert summarised(plan) == ["21:00-21:00 x1 outside_hours"]


def test_runs_that_move_to_one_window_are_one_run() -> None:
    """Hourly runs of a day are joined to one run at the start of the window."""
    rule = cron("0 * * * *", preferred_window=hours("02:00-04:00"))
    plan = planned(rule, occurrence("2026-02-08 04:00", "2026-02-09 02:00"), "2026-02-09 02:00")
    assert summarised(plan) == ["04:00-01:00 x22 joined", "02:00 ran"]
    assert plan.next_occurrence == occurrence("2026-02-09 03:00")


def test_an_interval_goes_on_from_where_it_was_moved_to() -> None:
    rule = every("1h", preferred_window=hours("02:00-04:00"))
    plan = planned(rule, occurrence("2026-02-08 03:30"), "2026-02-08 03:30")
    assert plan.next_occurrence == occurrence("2026-02-09 02:00")


def test_catching_up_waits_for_the_preferred_window() -> None:
    rule = cron("0 3 * * *", preferred_window=hours("02:00-04:00"), catch_up=ONCE)
    plan = planned(rule, occurrence("2026-02-06 03:00"), "2026-02-08 10:00", armed="2026-02-08 10:00")
    assert summarised(plan) == ["03:00-03:00 x2 missed"]
    assert plan.next_occurrence == occurrence("2026-02-08 03:00", "2026-02-09 02:00")
    later_plan = planned(rule, plan.next_occurrence, "2026-02-09 02:00", armed="2026-02-08 10:00")
    assert (summarised(later_plan), later_plan.next_occurrence) == (
        ["03:00 ran"],
        occurrence("2026-02-09 03:00"),
    )


def test_a_paused_schedule_skips_everything_in_one_row() -> None:
    """The reason is `paused`, not the hours and not the downtime."""
    rule = every("1m", only_between=hours("00:00-00:30"), catch_up=ALL)
    plan = planned(
        rule, occurrence("2026-02-08 00:00"), "2026-02-08 02:00", armed="2026-02-08 02:00", paused=True
    )
    assert summarised(plan) == ["00:00-02:00 x121 paused"]


def test_every_reason_is_explained() -> None:
    """The descriptions in the code and in the docs are equal."""
    page = (Path(__file__).parents[3] / "docs/explanation/schedules.md").read_text(encoding="utf-8")
    for reason in SkipReason:
        assert f"| `{reason}` | {reason.description} |" in page


# -- looking ahead, and looking back


def test_the_preview_crosses_a_clock_change_and_tells_what_will_be_skipped() -> None:
    """`schedule next -n` uses this preview."""
    rule = cron("30 2 * * *", NEW_YORK, not_on=frozenset({1}))
    upcoming = PlannedOccurrence(nominal_at=utc("2026-03-07 07:30"), start_at=utc("2026-03-07 07:33"))
    preview = preview_runs(rule, upcoming, 3)
    assert [entry.nominal_at for entry in preview] == [
        utc("2026-03-07 07:30"),
        utc("2026-03-08 07:00"),
        utc("2026-03-09 06:30"),
        utc("2026-03-10 06:30"),
    ]
    assert preview[0].start_at == upcoming.start_at
    assert [entry.skip for entry in preview] == [None, None, SkipReason.EXCLUDED_DAY, None]
    assert preview_runs(at("2026-03-08 07:00"), occurrence("2026-03-08 07:00"), 20)[1:] == ()
    assert preview_runs(rule, None, 20) == ()
    (skipped, *_) = (entry for entry in preview if entry.skip is not None)
    assert skipped.skipped_until == utc("2026-03-10 04:00")


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (every("1s", only_between=hours("08:00-22:00")), "2026-03-08 08:00"),
        (every("7m", only_between=hours("08:00-22:00")), "2026-03-08 08:03"),
        (every("5m", not_on=frozenset({0, 1, 2})), "2026-03-11 00:00"),
        (cron("*/5 * * * *", only_between=hours("08:00-22:00"), not_on=frozenset({0})), "2026-03-09 08:00"),
        (every("daily", not_on=frozenset({0, 1})), "2026-03-10 00:00"),
        (cron("0 3 * * *", only_between=hours("08:00-22:00")), None),
        (every("5m", not_on=frozenset(range(7))), None),
    ],
)
def test_the_preview_goes_on_to_the_next_run(rule: ScheduleRule, expected: str | None) -> None:
    """All occurrences that are skipped until the next run are one entry."""
    skipped, *runs = preview_runs(rule, occurrence("2026-03-08 00:00"), 3)
    assert skipped.skip in (SkipReason.OUTSIDE_HOURS, SkipReason.EXCLUDED_DAY)
    starts = [entry.start_at for entry in runs if entry.skip is None]
    if expected is None:
        assert starts == []
    else:
        assert (starts[0], len(starts)) == (utc(expected), 3)


def occurrence_row(
    start: str, until: str | None = None, *, count: int = 1, job: str | None = None
) -> Occurrence:
    return Occurrence(
        plugin="p",
        schedule_id="s",
        nominal_at=utc(f"2026-02-08 {start}"),
        until_at=utc(f"2026-02-08 {until or start}"),
        count=count,
        outcome=OccurrenceOutcome.RAN if job else OccurrenceOutcome.SKIPPED,
        job_id=job,
        reason=None if job else "missed",
    )


def describe_gaps(rule: ScheduleRule, *rows: Occurrence, until: str = "06:30", **ended: str) -> list[str]:
    found_gaps = find_gaps(
        rows,
        rule,
        since=utc("2026-02-08 01:00"),
        until=utc(f"2026-02-08 {until}"),
        ended={job: utc(f"2026-02-08 {at}") for job, at in ended.items()},
    )
    return [f"{gap.from_at:%H:%M}-{gap.to_at:%H:%M} {gap.expected}/{gap.found}" for gap in found_gaps]


def test_the_check_finds_what_a_cron_left_out_or_did_twice() -> None:
    rule = cron("0 * * * *")
    rows = [
        occurrence_row("01:00", job="a"),
        occurrence_row("02:00", "05:00", count=4),
        occurrence_row("06:00", job="b"),
    ]
    assert describe_gaps(rule, *rows) == []
    assert describe_gaps(rule, *rows[:2]) == ["06:00-06:00 1/0"]
    assert describe_gaps(rule, *rows, occurrence_row("04:00", job="c")) == ["04:00-04:00 1/2"]
    assert describe_gaps(rule, rows[0], occurrence_row("02:00", "05:00", count=3), rows[2]) == [
        "02:00-05:00 4/3"
    ]
    manual_run = Occurrence(
        plugin="p",
        schedule_id="s",
        nominal_at=utc("2026-02-08 04:00"),
        outcome=OccurrenceOutcome.RAN,
        job_id="d",
        reason=RUN_NOW,
    )
    assert describe_gaps(rule, *rows, manual_run) == []


def test_the_check_follows_an_interval_from_the_ends_of_its_runs() -> None:
    """The expected occurrences of an interval depend on the ends of its runs."""
    rule = every("1h")
    rows = [
        occurrence_row("01:00", job="a"),
        occurrence_row("02:40", job="b"),
        occurrence_row("03:40", "04:40", count=2),
        occurrence_row("06:10", job="c"),
    ]
    assert describe_gaps(rule, *rows, a="01:40", b="05:10") == []
    assert describe_gaps(rule, rows[0], *rows[2:], a="01:40", b="05:10") == [
        "01:00-02:40 1/0",
        "04:40-05:40 1/0",
    ]
    assert describe_gaps(rule, *rows, until="09:00", a="01:40", b="05:10", c="06:20") == ["06:10-07:20 1/0"]


_QUEUED, _RUNNING, _FAILED = JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.FAILED
_CLAIMED = Transition(from_status=_QUEUED, to_status=_RUNNING, reason=JobReason.CLAIMED)
_RUN_FAILED = Transition(from_status=_RUNNING, to_status=_FAILED, reason=JobReason.PLUGIN_ERROR)
_RETRIED = Transition(from_status=_FAILED, to_status=_QUEUED, reason=JobReason.RETRY)
_EXHAUSTED = Transition(from_status=_FAILED, to_status=JobStatus.DEAD, reason=JobReason.ATTEMPTS_EXHAUSTED)
_SUCCEEDED = Transition(from_status=_RUNNING, to_status=JobStatus.SUCCEEDED, reason=JobReason.COMPLETED)
_RETRIED_BY_HAND = Transition(from_status=JobStatus.DEAD, to_status=_QUEUED, reason=JobReason.MANUAL_RETRY)


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ([], None),
        ([_CLAIMED], None),
        ([_CLAIMED, _SUCCEEDED], 1),
        ([_CLAIMED, _RUN_FAILED], 1),
        ([_CLAIMED, _RUN_FAILED, _RETRIED], None),
        ([_CLAIMED, _RUN_FAILED, _RETRIED, _CLAIMED, _SUCCEEDED], 4),
        ([_CLAIMED, _RUN_FAILED, _RETRIED, _CLAIMED, _RUN_FAILED, _EXHAUSTED], 5),
        ([_CLAIMED, _RUN_FAILED, _EXHAUSTED, _RETRIED_BY_HAND, _CLAIMED, _SUCCEEDED], 2),
    ],
)
def test_a_job_ends_when_no_attempt_follows(changes: list[Transition], end: int | None) -> None:
    """The first end counts, also if the job was retried by hand afterwards."""
    begin = utc("2026-02-08 10:00")
    ended_at = end_before_manual_retry(
        [(begin + number * HOUR, change) for number, change in enumerate(changes)]
    )
    assert ended_at == (None if end is None else begin + end * HOUR)
