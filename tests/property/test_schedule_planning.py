"""Schedules over simulated years move strictly forward, repeat no occurrence and omit none."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from itertools import pairwise, takewhile
from random import Random
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st

from builders.jobs import a_job, ok
from builders.schedules import cron
from ductile.config.cron import CronTable
from ductile.core.durations import CalendarStep
from ductile.core.jobs.model import SubmittedBy
from ductile.core.jobs.settlement import SettleView, decide_settlement
from ductile.core.policy import PluginPolicy, Policy
from ductile.core.schedules.audit import find_gaps
from ductile.core.schedules.planner import DuePlan, DueRun, Occurrence, OccurrenceOutcome, plan_due
from ductile.core.schedules.rule import (
    CatchUp,
    DailyWindow,
    Every,
    IfRunning,
    PlannedOccurrence,
    ScheduleRule,
    add_intervals,
    first_occurrence,
    instant_of_wall_time,
    is_in_window,
    move_into_window,
    nominal_instants_from,
    occurrence_after_run,
    plan_occurrence,
)
from ductile.struct import replace

ZONES = (
    "UTC",
    "Europe/Vienna",
    "America/New_York",
    "America/Santiago",  # changes at midnight
    "Australia/Lord_Howe",  # changes by half an hour
    "Asia/Kathmandu",
)
YEAR = datetime(2026, 1, 1, tzinfo=UTC)
NEXT_YEAR = datetime(2027, 1, 1, tzinfo=UTC)

zones = st.sampled_from(ZONES)
instants = st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
minutes = st.sampled_from(("0", "30", "17", "*/20", "0,45", "*"))
named_hours = st.sampled_from(("0", "1", "2", "3", "*/2", "1-3", "23", "*"))
days = st.sampled_from(("* * *", "* * sun", "1 * *", "* 3,10,11 *", "31 * *"))
expressions = st.builds("{} {} {}".format, minutes, named_hours, days)
seeds = st.integers(0, 2**32)


@given(expressions, zones, instants)
def test_the_next_time_is_strictly_later_and_there_is_none_between(
    expression: str, zone: str, instant: datetime
) -> None:
    """The next time is the same from every earlier instant."""
    table = CronTable(expression=expression, timezone=zone)
    following = table.next_after(instant)
    assert following is not None
    assert following > instant
    assert table.next_after(following - timedelta(microseconds=1)) == following
    assert table.next_after(instant + (following - instant) / 2) == following


@given(zones, st.integers(0, 23), st.integers(0, 59))
@settings(max_examples=60)
def test_a_named_time_runs_once_on_every_day_of_the_year(zone: str, hour: int, minute: int) -> None:
    """This holds on days on which the time does not exist or occurs twice."""
    table = cron(f"{minute} {hour} * * *", zone)
    start = instant_of_wall_time(datetime(2026, 1, 1), ZoneInfo(zone)) - timedelta(microseconds=1)  # noqa: DTZ001
    first = first_occurrence(table, now=start, started_at=start, rng=Random(1))
    assert first is not None
    runs = takewhile(
        lambda nominal: nominal.astimezone(ZoneInfo(zone)).year == 2026,
        nominal_instants_from(table, first.nominal_at),
    )
    dates = [nominal.astimezone(ZoneInfo(zone)).date() for nominal in runs]
    assert len(dates) == len(set(dates)) == 365


@given(zones, st.sampled_from(list(CalendarStep)), instants, st.integers(1, 40))
def test_calendar_steps_go_forward(zone: str, interval: CalendarStep, instant: datetime, count: int) -> None:
    rule = ScheduleRule(trigger=Every(interval=interval), timezone=zone)
    assert instant < add_intervals(rule, instant, count) < add_intervals(rule, instant, count + 1)


def simulate(rule: ScheduleRule, downtimes: list[tuple[float, float]], rng: Random) -> list[Occurrence]:
    """Return the rows of a year of a daemon with downtimes, which plans at each start."""
    rows: list[Occurrence] = []
    upcoming = first_occurrence(rule, now=YEAR, started_at=YEAR, rng=rng)
    outages = [(YEAR + timedelta(days=day), YEAR + timedelta(days=day + length)) for day, length in downtimes]
    armed = YEAR
    while upcoming is not None and upcoming.start_at < NEXT_YEAR:
        now = upcoming.start_at
        for begin, end in outages:
            if begin <= now < end:
                now = armed = end
        plan = plan_due(rule, upcoming, now=now, active_since=armed, paused=False, rng=rng)
        assert plan is not None
        rows += rows_of_plan(plan)
        assert plan.next_occurrence != upcoming
        upcoming = plan.next_occurrence
    return rows


def rows_of_plan(plan: DuePlan) -> list[Occurrence]:
    return [
        Occurrence(
            plugin="p",
            schedule_id="s",
            nominal_at=item.nominal_at,
            until_at=item.nominal_at if isinstance(item, DueRun) else item.until_at,
            count=1 if isinstance(item, DueRun) else item.count,
            outcome=OccurrenceOutcome.RAN if isinstance(item, DueRun) else OccurrenceOutcome.SKIPPED,
            reason=None if isinstance(item, DueRun) else item.reason,
            job_id="j" if isinstance(item, DueRun) else None,
        )
        for item in plan.items
    ]


windows = st.one_of(
    st.none(),
    st.builds(
        lambda start, end: DailyWindow(start=time(start, 30), end=time(end, 15)),
        st.integers(0, 23),
        st.integers(0, 23),
    ),
)
outages = st.lists(
    st.tuples(st.floats(0, 360), st.floats(0.001, 3)), max_size=4, unique_by=lambda pair: int(pair[0] / 4)
).map(sorted)
policy = st.builds(
    lambda expression, zone, jitter, only, preferred, not_on, catch_up: cron(
        expression,
        zone,
        jitter=timedelta(minutes=jitter),
        only_between=only,
        preferred_window=preferred,
        not_on=not_on,
        catch_up=catch_up,
    ),
    st.builds("{} {} {}".format, st.sampled_from(("0", "30", "15,45")), named_hours, days),
    zones,
    st.sampled_from((0, 5, 20)),
    windows,
    windows,
    st.frozensets(st.integers(0, 6), max_size=2),
    st.sampled_from(list(CatchUp)),
)


@given(policy, outages, seeds)
@settings(max_examples=40)
def test_over_a_year_with_clock_changes_every_occurrence_is_accounted_for_once(
    rule: ScheduleRule, downtimes: list[tuple[float, float]], seed: int
) -> None:
    """This holds for any windows, jitter, downtimes and `catch_up`."""
    rows = simulate(rule, downtimes, Random(seed))
    if not rows:
        return
    last = rows[-1].until_at
    assert last is not None
    assert find_gaps(rows, rule, since=rows[0].nominal_at, until=last) == ()
    # The count of the expression is independent of the arithmetic of the check.
    first = first_occurrence(rule, now=YEAR, started_at=YEAR, rng=Random(seed))
    assert first is not None
    assert rows[0].nominal_at == first.nominal_at
    expected_count = sum(
        1 for _ in takewhile(lambda at: at <= last, nominal_instants_from(rule, first.nominal_at))
    )
    assert sum(row.count for row in rows) == expected_count
    assert all((a.until_at or a.nominal_at) < b.nominal_at for a, b in pairwise(rows))


@given(policy, outages, seeds)
@settings(max_examples=20)
def test_no_run_is_planned_where_none_is_allowed(
    rule: ScheduleRule, downtimes: list[tuple[float, float]], seed: int
) -> None:
    """Excluded hours and days have no runs."""
    for row in simulate(rule, downtimes, Random(seed)):
        if row.job_id is None:
            continue
        at = move_into_window(rule, row.nominal_at)
        assert rule.only_between is None or is_in_window(rule.only_between, at, rule.zone)
        assert at.astimezone(rule.zone).isoweekday() % 7 not in rule.not_on


@given(zones, windows, instants, st.integers(0, 600), seeds)
def test_jitter_stays_within_its_span_and_within_the_window(
    zone: str, window: DailyWindow | None, nominal: datetime, jitter: int, seed: int
) -> None:
    """Half of the jitter is on either side, and no run leaves its window."""
    rule = ScheduleRule(
        trigger=Every(interval=timedelta(hours=1)),
        timezone=zone,
        jitter=timedelta(minutes=jitter),
        preferred_window=window,
    )
    occurrence = plan_occurrence(rule, nominal, earliest=None, rng=Random(seed))
    assert occurrence is not None
    placed = move_into_window(rule, nominal)
    assert occurrence.nominal_at == nominal
    assert abs(occurrence.start_at - placed) <= rule.jitter / 2 + timedelta(microseconds=1)
    if window is not None and is_in_window(window, placed, rule.zone):
        assert is_in_window(window, occurrence.start_at, rule.zone)


@given(st.integers(1, 10_000), st.integers(0, 5_000), instants, seeds)
def test_an_interval_is_never_planned_beyond_its_bounds(
    interval: int, jitter: int, ended: datetime, seed: int
) -> None:
    """The start is at most now + interval + jitter/2, and never in the past."""
    rule = ScheduleRule(trigger=Every(interval=timedelta(seconds=interval)), jitter=timedelta(seconds=jitter))
    occurrence = occurrence_after_run(rule, ended_at=ended, rng=Random(seed))
    assert occurrence is not None
    nominal = ended + timedelta(seconds=interval)
    assert occurrence.nominal_at == nominal
    assert max(ended, nominal - rule.jitter / 2) <= occurrence.start_at <= nominal + rule.jitter / 2


@given(
    st.integers(1, 5000).map(lambda seconds: timedelta(seconds=seconds)),
    st.integers(0, 3_000_000).map(lambda seconds: timedelta(seconds=seconds)),
    st.sampled_from(list(CatchUp)),
)
def test_missed_intervals_are_counted_exactly(
    interval: timedelta, delay: timedelta, catch_up: CatchUp
) -> None:
    """The number is 1 + floor((now - next) / interval), in any number of plans."""
    rule = ScheduleRule(trigger=Every(interval=interval), catch_up=catch_up)
    now = YEAR + delay
    upcoming: PlannedOccurrence | None = PlannedOccurrence(nominal_at=YEAR, start_at=YEAR)
    rows: list[Occurrence] = []
    armed = now + timedelta(microseconds=1)
    while upcoming is not None and (
        plan := plan_due(rule, upcoming, now=now, active_since=armed, paused=False, rng=Random(1))
    ):
        rows += rows_of_plan(plan)
        upcoming = plan.next_occurrence
    missed = 1 + delay // interval
    assert sum(row.count for row in rows) == missed
    run_count = sum(row.job_id is not None for row in rows)
    assert run_count == {CatchUp.SKIP: 0, CatchUp.RUN_ONCE: 1, CatchUp.RUN_ALL: min(missed, 100)}[catch_up]
    assert upcoming is not None
    assert now < upcoming.nominal_at <= now + interval


class _StarvedDaemon:
    """A schedule whose scheduler and whose runs act at arbitrary times."""

    def __init__(self, rule: ScheduleRule, seed: int) -> None:
        self.rule = rule
        self.policy = Policy(plugins={"p": PluginPolicy(schedules={"s": rule})})
        self.rng = Random(seed)
        self.now = YEAR
        self.occurrence: PlannedOccurrence | None = PlannedOccurrence(nominal_at=YEAR, start_at=YEAR)
        self.rows: list[Occurrence] = []
        self.live: list[str] = []
        self.latest: str | None = None
        self.ended: dict[str, datetime] = {}

    def look(self) -> None:
        """Plan and fire as the scheduler does; the store decides which runs may start."""
        assert self.occurrence is not None
        plan = plan_due(
            self.rule, self.occurrence, now=self.now, active_since=YEAR, paused=False, rng=self.rng
        )
        if plan is None:
            return
        may_start = not self.live or self.rule.if_running is IfRunning.QUEUE or plan.is_catch_up
        for row in rows_of_plan(plan):
            if row.job_id is None:
                self.rows.append(row)
            elif may_start:
                self.latest = f"j{len(self.rows)}"
                self.live.append(self.latest)
                self.rows.append(replace(row, job_id=self.latest))
            else:
                skipped = OccurrenceOutcome.SKIPPED
                self.rows.append(replace(row, job_id=None, reason="running", outcome=skipped))
        self.occurrence = plan.next_occurrence

    def end(self) -> None:
        """End the oldest run as the store does."""
        if not self.live:
            return
        job_id = self.live.pop(0)
        self.ended[job_id] = self.now
        view = SettleView(
            job=a_job("p", "poll", submitted_by=SubmittedBy.SCHEDULER, submitted_detail="s"),
            state={},
            schedule_id="s" if job_id == self.latest else None,
            next_occurrence=self.occurrence,
        )
        settlement = decide_settlement(view, ok(), self.policy, self.now, self.rng)
        self.rows += rows_of_plan(DuePlan(items=settlement.skipped, next_occurrence=None))
        self.occurrence = settlement.next_occurrence or self.occurrence


@given(
    st.sampled_from((IfRunning.SKIP, IfRunning.QUEUE)),
    st.sampled_from(list(CatchUp)),
    st.sampled_from((0, 10)),
    windows,
    st.lists(st.tuples(st.sampled_from(("look", "end")), st.floats(0, 200)), max_size=40),
    seeds,
)
def test_an_interval_is_accounted_for_however_late_the_planner_comes(
    if_running: IfRunning,
    catch_up: CatchUp,
    jitter: int,
    only: DailyWindow | None,
    turns: list[tuple[str, float]],
    seed: int,
) -> None:
    """A starved daemon settles a run before it has planned the occurrences that were due meanwhile."""
    rule = ScheduleRule(
        trigger=Every(interval=timedelta(seconds=60)),
        jitter=timedelta(seconds=jitter),
        only_between=only,
        if_running=if_running,
        catch_up=catch_up,
    )
    starved = _StarvedDaemon(rule, seed)
    for turn, wait in turns:
        starved.now += timedelta(seconds=wait)
        getattr(starved, turn)()
    if not starved.rows or starved.occurrence is None:
        return
    until = starved.occurrence.nominal_at - timedelta(microseconds=1)
    gaps = find_gaps(starved.rows, rule, since=starved.rows[0].nominal_at, until=until, ended=starved.ended)
    assert gaps == ()
    rows = sorted(starved.rows, key=lambda row: row.nominal_at)
    assert all((a.until_at or a.nominal_at) < b.nominal_at for a, b in pairwise(rows))
