"""Schedules over simulated years: strictly forward, nothing twice, nothing left out (SPEC 5.3, 5.9)."""

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
from ductile.core.accounting import prove_no_gap
from ductile.core.durations import CalendarStep
from ductile.core.hours import DayHours, instant_of, is_within
from ductile.core.jobs import SubmittedBy
from ductile.core.occurrences import Plan, Run, plan_due
from ductile.core.rules import PluginRules, Rules
from ductile.core.schedule import (
    CatchUp,
    Every,
    IfRunning,
    ScheduleRule,
    Slot,
    first_slot,
    place,
    redrawn_slot,
    slot_at,
    slots_from,
    step,
)
from ductile.core.settle import settle
from ductile.core.settlement import SettleView
from ductile.store.values.schedules import Occurrence, OccurrenceOutcome
from ductile.value import replace

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
    """SPEC 5.3: asked from anywhere before it, the answer is the same."""
    table = CronTable(expression=expression, timezone=zone)
    following = table.next_after(instant)
    assert following is not None
    assert following > instant
    assert table.next_after(following - timedelta(microseconds=1)) == following
    assert table.next_after(instant + (following - instant) / 2) == following


@given(zones, st.integers(0, 23), st.integers(0, 59))
@settings(max_examples=60)
def test_a_named_time_runs_once_on_every_day_of_the_year(zone: str, hour: int, minute: int) -> None:
    """SPEC 5.3: also on the days on which it does not exist, or comes twice."""
    table = cron(f"{minute} {hour} * * *", zone)
    start = instant_of(datetime(2026, 1, 1), ZoneInfo(zone)) - timedelta(microseconds=1)  # noqa: DTZ001
    first = first_slot(table, now=start, started_at=start, dice=Random(1))
    assert first is not None
    runs = takewhile(
        lambda nominal: nominal.astimezone(ZoneInfo(zone)).year == 2026, slots_from(table, first.nominal_at)
    )
    dates = [nominal.astimezone(ZoneInfo(zone)).date() for nominal in runs]
    assert len(dates) == len(set(dates)) == 365


@given(zones, st.sampled_from(list(CalendarStep)), instants, st.integers(1, 40))
def test_calendar_steps_go_forward(zone: str, interval: CalendarStep, instant: datetime, count: int) -> None:
    rule = ScheduleRule(trigger=Every(interval=interval), timezone=zone)
    assert instant < step(rule, instant, count) < step(rule, instant, count + 1)


def simulate(rule: ScheduleRule, downtimes: list[tuple[float, float]], dice: Random) -> list[Occurrence]:
    """A year of a daemon that is down at times: woken at each start, and accounting for all that is due."""
    rows: list[Occurrence] = []
    place_now = first_slot(rule, now=YEAR, started_at=YEAR, dice=dice)
    outages = [(YEAR + timedelta(days=day), YEAR + timedelta(days=day + long)) for day, long in downtimes]
    armed = YEAR
    while place_now is not None and place_now.start_at < NEXT_YEAR:
        now = place_now.start_at
        for begin, end in outages:
            if begin <= now < end:
                now = armed = end
        plan = plan_due(rule, place_now, now=now, armed_since=armed, paused=False, dice=dice)
        assert plan is not None
        rows += recorded(plan)
        assert plan.following != place_now
        place_now = plan.following
    return rows


def recorded(plan: Plan) -> list[Occurrence]:
    return [
        Occurrence(
            plugin="p",
            schedule_id="s",
            nominal_at=item.nominal_at,
            until_at=item.nominal_at if isinstance(item, Run) else item.until_at,
            count=1 if isinstance(item, Run) else item.count,
            outcome=OccurrenceOutcome.RAN if isinstance(item, Run) else OccurrenceOutcome.SKIPPED,
            reason=None if isinstance(item, Run) else item.reason,
            job_id="j" if isinstance(item, Run) else None,
        )
        for item in plan.items
    ]


windows = st.one_of(
    st.none(),
    st.builds(
        lambda start, end: DayHours(start=time(start, 30), end=time(end, 15)),
        st.integers(0, 23),
        st.integers(0, 23),
    ),
)
outages = st.lists(
    st.tuples(st.floats(0, 360), st.floats(0.001, 3)), max_size=4, unique_by=lambda pair: int(pair[0] / 4)
).map(sorted)
rules = st.builds(
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


@given(rules, outages, seeds)
@settings(max_examples=40)
def test_over_a_year_with_clock_changes_every_occurrence_is_accounted_for_once(
    rule: ScheduleRule, downtimes: list[tuple[float, float]], seed: int
) -> None:
    """SPEC 5.9: whatever the windows, the jitter, the downtimes and the policy."""
    rows = simulate(rule, downtimes, Random(seed))
    if not rows:
        return
    last = rows[-1].until_at
    assert last is not None
    assert prove_no_gap(rows, rule, since=rows[0].nominal_at, until=last) == ()
    # The same without the check's own arithmetic: the rows count what the expression counts.
    first = first_slot(rule, now=YEAR, started_at=YEAR, dice=Random(seed))
    assert first is not None
    assert rows[0].nominal_at == first.nominal_at
    named = sum(1 for _ in takewhile(lambda at: at <= last, slots_from(rule, first.nominal_at)))
    assert sum(row.count for row in rows) == named
    assert all((a.until_at or a.nominal_at) < b.nominal_at for a, b in pairwise(rows))


@given(rules, outages, seeds)
@settings(max_examples=20)
def test_no_run_is_planned_where_none_is_allowed(
    rule: ScheduleRule, downtimes: list[tuple[float, float]], seed: int
) -> None:
    """SPEC 5.4: hours and days that are excluded stay without runs."""
    for row in simulate(rule, downtimes, Random(seed)):
        if row.job_id is None:
            continue
        at = place(rule, row.nominal_at)
        assert rule.only_between is None or is_within(rule.only_between, at, rule.zone)
        assert at.astimezone(rule.zone).isoweekday() % 7 not in rule.not_on


@given(zones, windows, instants, st.integers(0, 600), seeds)
def test_jitter_stays_within_its_span_and_within_the_window(
    zone: str, window: DayHours | None, nominal: datetime, jitter: int, seed: int
) -> None:
    """SPEC 5.4: half to either side; it cannot push a run out of its window."""
    rule = ScheduleRule(
        trigger=Every(interval=timedelta(hours=1)),
        timezone=zone,
        jitter=timedelta(minutes=jitter),
        preferred_window=window,
    )
    slot = slot_at(rule, nominal, earliest=None, dice=Random(seed))
    assert slot is not None
    placed = place(rule, nominal)
    assert slot.nominal_at == nominal
    assert abs(slot.start_at - placed) <= rule.jitter / 2 + timedelta(microseconds=1)
    if window is not None and is_within(window, placed, rule.zone):
        assert is_within(window, slot.start_at, rule.zone)


@given(st.integers(1, 10_000), st.integers(0, 5_000), instants, seeds)
def test_an_interval_is_never_redrawn_beyond_its_bounds(
    interval: int, jitter: int, ended: datetime, seed: int
) -> None:
    """ENGINE 8: never beyond now + interval + jitter/2, and never into the past."""
    rule = ScheduleRule(trigger=Every(interval=timedelta(seconds=interval)), jitter=timedelta(seconds=jitter))
    slot = redrawn_slot(rule, ended_at=ended, dice=Random(seed))
    assert slot is not None
    nominal = ended + timedelta(seconds=interval)
    assert slot.nominal_at == nominal
    assert max(ended, nominal - rule.jitter / 2) <= slot.start_at <= nominal + rule.jitter / 2


@given(
    st.integers(1, 5000).map(lambda seconds: timedelta(seconds=seconds)),
    st.integers(0, 3_000_000).map(lambda seconds: timedelta(seconds=seconds)),
    st.sampled_from(list(CatchUp)),
)
def test_missed_intervals_are_counted_exactly(
    interval: timedelta, behind: timedelta, catch_up: CatchUp
) -> None:
    """ENGINE 8: 1 + floor((now - next) / interval), however it is cut into pieces."""
    rule = ScheduleRule(trigger=Every(interval=interval), catch_up=catch_up)
    now = YEAR + behind
    place_now: Slot | None = Slot(nominal_at=YEAR, start_at=YEAR)
    rows: list[Occurrence] = []
    armed = now + timedelta(microseconds=1)
    while place_now is not None and (
        plan := plan_due(rule, place_now, now=now, armed_since=armed, paused=False, dice=Random(1))
    ):
        rows += recorded(plan)
        place_now = plan.following
    missed = 1 + behind // interval
    assert sum(row.count for row in rows) == missed
    ran = sum(row.job_id is not None for row in rows)
    assert ran == {CatchUp.SKIP: 0, CatchUp.RUN_ONCE: 1, CatchUp.RUN_ALL: min(missed, 100)}[catch_up]
    assert place_now is not None
    assert now < place_now.nominal_at <= now + interval


class _Starved:
    """A schedule whose scheduler and whose runs come to their turn whenever they please."""

    def __init__(self, rule: ScheduleRule, seed: int) -> None:
        self.rule = rule
        self.rules = Rules(plugins={"p": PluginRules(schedules={"s": rule})})
        self.dice = Random(seed)
        self.now = YEAR
        self.slot: Slot | None = Slot(nominal_at=YEAR, start_at=YEAR)
        self.rows: list[Occurrence] = []
        self.live: list[str] = []
        self.latest: str | None = None
        self.ended: dict[str, datetime] = {}

    def look(self) -> None:
        """As the scheduler does, with the store's word on what may start."""
        assert self.slot is not None
        plan = plan_due(self.rule, self.slot, now=self.now, armed_since=YEAR, paused=False, dice=self.dice)
        if plan is None:
            return
        may_start = not self.live or self.rule.if_running is IfRunning.QUEUE or plan.in_a_row
        for row in recorded(plan):
            if row.job_id is None:
                self.rows.append(row)
            elif may_start:
                self.latest = f"j{len(self.rows)}"
                self.live.append(self.latest)
                self.rows.append(replace(row, job_id=self.latest))
            else:
                skipped = OccurrenceOutcome.SKIPPED
                self.rows.append(replace(row, job_id=None, reason="running", outcome=skipped))
        self.slot = plan.following

    def end(self) -> None:
        """As the store does when the oldest run has ended."""
        if not self.live:
            return
        job_id = self.live.pop(0)
        self.ended[job_id] = self.now
        view = SettleView(
            job=a_job("p", "poll", submitted_by=SubmittedBy.SCHEDULER, submitted_detail="s"),
            state={},
            latest_of="s" if job_id == self.latest else None,
            slot=self.slot,
        )
        settlement = settle(view, ok(), self.rules, self.now, self.dice)
        self.rows += recorded(Plan(items=settlement.skipped, following=None))
        self.slot = settlement.next_slot or self.slot


@given(
    st.sampled_from((IfRunning.SKIP, IfRunning.QUEUE)),
    st.sampled_from(list(CatchUp)),
    st.sampled_from((0, 10)),
    windows,
    st.lists(st.tuples(st.sampled_from(("look", "end")), st.floats(0, 200)), max_size=40),
    seeds,
)
def test_an_interval_is_accounted_for_whoever_comes_late(
    if_running: IfRunning,
    catch_up: CatchUp,
    jitter: int,
    only: DayHours | None,
    turns: list[tuple[str, float]],
    seed: int,
) -> None:
    """SPEC 5.9: a starved daemon settles a run before it has looked at what fell due meanwhile."""
    rule = ScheduleRule(
        trigger=Every(interval=timedelta(seconds=60)),
        jitter=timedelta(seconds=jitter),
        only_between=only,
        if_running=if_running,
        catch_up=catch_up,
    )
    starved = _Starved(rule, seed)
    for turn, wait in turns:
        starved.now += timedelta(seconds=wait)
        getattr(starved, turn)()
    if not starved.rows or starved.slot is None:
        return
    until = starved.slot.nominal_at - timedelta(microseconds=1)
    gaps = prove_no_gap(
        starved.rows, rule, since=starved.rows[0].nominal_at, until=until, ended=starved.ended
    )
    assert gaps == ()
    rows = sorted(starved.rows, key=lambda row: row.nominal_at)
    assert all((a.until_at or a.nominal_at) < b.nominal_at for a, b in pairwise(rows))
