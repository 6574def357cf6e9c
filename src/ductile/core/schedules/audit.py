"""Looking at a schedule from outside: what is to come, and a proof that nothing was left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from random import Random
from typing import Protocol

from ductile.core.jobs.model import TERMINAL, JobReason, Transition
from ductile.core.schedules.planner import SkipReason, disallowed_reason, next_allowed, plan_due
from ductile.core.schedules.rule import (
    CLOCK_SLACK,
    Cron,
    Every,
    ScheduleRule,
    Slot,
    add_intervals,
    nominal_instants_from,
    snap_to_window,
)
from ductile.struct import Value

#: The reason under which a run that a person asked for stands in the history.
RUN_NOW = "run_now"
_TICK = timedelta(microseconds=1)


#: Occurrences that a preview looks at, at most: a schedule may be allowed to run nowhere.
_MAX_PREVIEWED = 3000


class Upcoming(Value):
    """An occurrence to come. Only the first one's jitter is drawn; `skip` is known from its hours alone.

    One that is skipped stands for all that follow it until runs are allowed again.
    """

    nominal_at: datetime
    start_at: datetime
    skip: SkipReason | None
    #: When the hours and days of the schedule allow runs again, if this one is skipped; None for never.
    skipped_until: datetime | None = None


def preview_runs(rule: ScheduleRule, slot: Slot | None, runs: int) -> tuple[Upcoming, ...]:
    """The next runs from where a schedule stands, and what is skipped before each of them.

    An `every` is followed as if each run ended at once.
    """
    if slot is None:
        return ()
    found: list[Upcoming] = []
    for nominal in islice(_slots_with_jumps(rule, slot.nominal_at), _MAX_PREVIEWED):
        placed = snap_to_window(rule, nominal)
        skip = disallowed_reason(rule, placed)
        if skip is not None and found and found[-1].skip is skip:
            continue
        found.append(
            Upcoming(
                nominal_at=nominal,
                start_at=slot.start_at if nominal == slot.nominal_at else placed,
                skip=skip,
                skipped_until=None if skip is None else next_allowed(rule, placed),
            )
        )
        runs -= skip is None
        if runs <= 0:
            break
    return tuple(found)


def _slots_with_jumps(rule: ScheduleRule, first: datetime) -> Iterator[datetime]:
    """As `slots_from`, but of a stretch without runs only the first, where the rest need not be walked."""
    trigger = rule.trigger
    fixed = isinstance(trigger, Every) and isinstance(trigger.interval, timedelta)
    if rule.preferred_window is not None or not (fixed or isinstance(trigger, Cron)):
        yield from nominal_instants_from(rule, first)
        return
    at: datetime | None = first
    while at is not None:
        for nominal in nominal_instants_from(rule, at):
            yield nominal
            if disallowed_reason(rule, nominal) is not None:
                at = _first_from(rule, nominal)
                break
        else:
            return


def _first_from(rule: ScheduleRule, nominal: datetime) -> datetime | None:
    """The first occurrence after a skipped one that the hours and days allow; None if there is none."""
    opening = next_allowed(rule, nominal)
    if opening is None:
        return None
    match rule.trigger:
        case Cron(times=times):
            return times.next_after(opening - _TICK)
        case Every(interval=timedelta() as interval):
            return nominal - ((nominal - opening) // interval) * interval
        case _:
            return None


def preview_catch_up(
    rule: ScheduleRule, slot: Slot, *, now: datetime, rng: Random
) -> tuple[tuple[Upcoming, ...], Slot | None]:
    """What would run at once if a daemon started now, and where the schedule would stand then."""
    runs: list[Upcoming] = []
    following: Slot | None = slot
    while following is not None:
        plan = plan_due(rule, following, now=now, armed_since=now, paused=False, rng=rng)
        if plan is None:
            break
        runs += [Upcoming(nominal_at=run.nominal_at, start_at=now, skip=None) for run in plan.runs]
        following = plan.following
    return tuple(runs), following


class OccurrenceRow(Protocol):
    """A row of the history: an instant, or a range of `count` adjacent ones."""

    @property
    def nominal_at(self) -> datetime: ...

    @property
    def until_at(self) -> datetime | None: ...

    @property
    def count(self) -> int: ...

    @property
    def reason(self) -> str | None: ...

    @property
    def job_id(self) -> str | None: ...


def first_end(changes: Sequence[tuple[datetime, Transition]]) -> datetime | None:
    """When a job ended first, all its retries over; None if it has not. Its changes come oldest first.

    `failed` is also the middle of the way to another attempt. So an end is what nothing follows, or only a
    retry that somebody asked for: by then the schedule has long gone on.
    """
    following = (*(change for _, change in changes[1:]), None)
    for (at, change), after in zip(changes, following, strict=False):
        rests = after is None or after.reason is JobReason.MANUAL_RETRY
        if rests and change.to_status in TERMINAL:
            return at
    return None


class Gap(Value):
    """A stretch in which at least one occurrence is unaccounted for, or accounted for more than once."""

    from_at: datetime
    to_at: datetime
    expected: int
    found: int


def find_gaps(
    rows: Sequence[OccurrenceRow],
    rule: ScheduleRule,
    *,
    since: datetime,
    until: datetime,
    ended: Mapping[str, datetime] | None = None,
) -> tuple[Gap, ...]:
    """Every violation between two instants; none proves that each occurrence is accounted for once.

    `since` is an occurrence that is in the rows. An `every` counts from the end of its runs, so their
    ends are needed; a run that is not in `ended` has not ended.
    """
    ordered = sorted(rows, key=lambda row: row.nominal_at)
    if isinstance(rule.trigger, Every):
        return tuple(_gaps_of_every(ordered, rule, since, until, ended or {}))
    return tuple(_gaps_of_calendar(ordered, rule, since, until))


def _end_of(row: OccurrenceRow) -> datetime:
    return row.until_at or row.nominal_at


def _gaps_of_calendar(
    rows: Sequence[OccurrenceRow], rule: ScheduleRule, since: datetime, until: datetime
) -> Iterator[Gap]:
    """Each nominal instant lies in exactly one row, and a range counts as many as lie in it."""
    planned = [row for row in rows if row.reason != RUN_NOW]
    held = [0] * len(planned)
    position = 0
    for nominal in nominal_instants_from(rule, since):
        if nominal > until:
            break
        while position < len(planned) and _end_of(planned[position]) < nominal:
            position += 1
        covering = 0
        for index in range(position, len(planned)):
            if planned[index].nominal_at > nominal:
                break
            if _end_of(planned[index]) >= nominal:
                covering += 1
                held[index] += 1
        if covering != 1:
            yield Gap(from_at=nominal, to_at=nominal, expected=1, found=covering)
    for row, inside in zip(planned, held, strict=True):
        if since <= row.nominal_at and _end_of(row) <= until and inside != row.count:
            yield Gap(from_at=row.nominal_at, to_at=_end_of(row), expected=inside, found=row.count)


def _gaps_of_every(
    rows: Sequence[OccurrenceRow],
    rule: ScheduleRule,
    since: datetime,
    until: datetime,
    ended: Mapping[str, datetime],
) -> Iterator[Gap]:
    """Nothing follows later than one interval after what came before it, or after the run's own end."""
    anchor, run_end = since, None
    for row in rows:
        if row.nominal_at > until:
            break
        if row.nominal_at > since and row.nominal_at > (limit := _limit(rule, anchor, run_end)):
            yield Gap(from_at=anchor, to_at=limit, expected=1, found=0)
        anchor = max(anchor, _end_of(row))
        if row.job_id is not None:
            run_end = ended.get(row.job_id)
    if until > (limit := _limit(rule, anchor, run_end)):
        yield Gap(from_at=anchor, to_at=limit, expected=1, found=0)


def _limit(rule: ScheduleRule, anchor: datetime, run_end: datetime | None) -> datetime:
    """The latest instant of what follows: a run that ended before the provisional one re-drew it."""
    provisional = _latest_after(rule, anchor)
    if run_end is not None and anchor <= run_end <= provisional:
        return _latest_after(rule, run_end)
    return provisional


def _latest_after(rule: ScheduleRule, anchor: datetime) -> datetime:
    """One interval later, with its jitter spent and the clock a little off."""
    return snap_to_window(rule, add_intervals(rule, anchor)) + rule.jitter / 2 + CLOCK_SLACK
