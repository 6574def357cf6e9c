"""Preview the next runs of a schedule, and find gaps in its history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from random import Random

from ductile.core.jobs.model import TERMINAL, JobReason, Transition
from ductile.core.schedules.planner import Occurrence, SkipReason, disallowed_reason, next_allowed, plan_due
from ductile.core.schedules.rule import (
    CLOCK_SLACK,
    Cron,
    Every,
    PlannedOccurrence,
    ScheduleRule,
    add_intervals,
    move_into_window,
    nominal_instants_from,
)
from ductile.struct import Value

#: The reason of occurrences that an operator started (`schedule run`).
RUN_NOW = "run_now"
_EPSILON = timedelta(microseconds=1)
#: The most occurrences in a preview: the hours and days of a rule may allow no run at all.
_MAX_PREVIEWED = 3000


class UpcomingOccurrence(Value):
    """A future occurrence. A skipped one represents all that follow until runs are allowed again."""

    nominal_at: datetime
    #: With jitter for the first occurrence only; that of the others is not decided yet.
    start_at: datetime
    skip: SkipReason | None
    #: When runs are allowed again after a skipped occurrence; None for never.
    skipped_until: datetime | None = None


def preview_runs(
    rule: ScheduleRule, occurrence: PlannedOccurrence | None, runs: int
) -> tuple[UpcomingOccurrence, ...]:
    """Return the next `runs` runs from the occurrence on, and the skips before each of them.

    For an `every`, each run is assumed to end at once.
    """
    if occurrence is None:
        return ()
    upcoming: list[UpcomingOccurrence] = []
    for nominal in islice(_instants_with_jumps(rule, occurrence.nominal_at), _MAX_PREVIEWED):
        start = move_into_window(rule, nominal)
        skip = disallowed_reason(rule, start)
        if skip is not None and upcoming and upcoming[-1].skip is skip:
            continue
        upcoming.append(
            UpcomingOccurrence(
                nominal_at=nominal,
                start_at=occurrence.start_at if nominal == occurrence.nominal_at else start,
                skip=skip,
                skipped_until=None if skip is None else next_allowed(rule, start),
            )
        )
        runs -= skip is None
        if runs <= 0:
            break
    return tuple(upcoming)


def _instants_with_jumps(rule: ScheduleRule, first: datetime) -> Iterator[datetime]:
    """Yield nominal instants as `nominal_instants_from`, but only the first of each disallowed period.

    The end of the period is computed where the rule permits it, because walking through it can take long.
    """
    trigger = rule.trigger
    is_fixed = isinstance(trigger, Every) and isinstance(trigger.interval, timedelta)
    if rule.preferred_window is not None or not (is_fixed or isinstance(trigger, Cron)):
        yield from nominal_instants_from(rule, first)
        return
    start: datetime | None = first
    while start is not None:
        for nominal in nominal_instants_from(rule, start):
            yield nominal
            if disallowed_reason(rule, nominal) is not None:
                break
        else:
            return
        opening = next_allowed(rule, nominal)
        start = None
        if opening is not None and isinstance(trigger, Cron):
            start = trigger.times.next_after(opening - _EPSILON)
        elif opening is not None and isinstance(trigger, Every) and isinstance(trigger.interval, timedelta):
            start = nominal - ((nominal - opening) // trigger.interval) * trigger.interval


def preview_catch_up(
    rule: ScheduleRule, occurrence: PlannedOccurrence, *, now: datetime, rng: Random
) -> tuple[tuple[UpcomingOccurrence, ...], PlannedOccurrence | None]:
    """Return the missed runs that a daemon starting now would run at once, and the occurrence after them."""
    runs: list[UpcomingOccurrence] = []
    next_occurrence: PlannedOccurrence | None = occurrence
    while next_occurrence is not None:
        plan = plan_due(rule, next_occurrence, now=now, active_since=now, paused=False, rng=rng)
        if plan is None:
            break
        runs += [UpcomingOccurrence(nominal_at=run.nominal_at, start_at=now, skip=None) for run in plan.runs]
        next_occurrence = plan.next_occurrence
    return tuple(runs), next_occurrence


def end_before_manual_retry(changes: Sequence[tuple[datetime, Transition]]) -> datetime | None:
    """Return when a job ended before any retry by an operator; None if it has not. Oldest change first.

    A transition to `failed` may be followed by another attempt. It is an end if nothing follows, or only a
    retry that an operator requested: the schedule has continued by then.
    """
    following = (*(change for _, change in changes[1:]), None)
    for (at, change), next_change in zip(changes, following, strict=False):
        is_last = next_change is None or next_change.reason is JobReason.MANUAL_RETRY
        if is_last and change.to_status in TERMINAL:
            return at
    return None


class Gap(Value):
    """A period in which an occurrence has no row, or more than one."""

    from_at: datetime
    to_at: datetime
    expected: int
    found: int


def find_gaps(
    rows: Sequence[Occurrence],
    rule: ScheduleRule,
    *,
    since: datetime,
    until: datetime,
    ended: Mapping[str, datetime] | None = None,
) -> tuple[Gap, ...]:
    """Return all gaps between two instants. Without a gap, each occurrence has exactly one row.

    `since` is an occurrence that is in the rows. An `every` counts from the end of its runs: `ended` has the
    end of each job that has ended.
    """
    ordered = sorted(rows, key=lambda row: row.nominal_at)
    if isinstance(rule.trigger, Every):
        return tuple(_gaps_of_every(ordered, rule, since, until, ended or {}))
    return tuple(_gaps_of_calendar(ordered, rule, since, until))


def _gaps_of_calendar(
    rows: Sequence[Occurrence], rule: ScheduleRule, since: datetime, until: datetime
) -> Iterator[Gap]:
    """Yield the nominal instants that are not in exactly one row, and the rows with a wrong count."""
    planned = [(row.nominal_at, row.until_at or row.nominal_at, row) for row in rows if row.reason != RUN_NOW]
    instants_in = [0] * len(planned)
    position = 0
    for nominal in nominal_instants_from(rule, since):
        if nominal > until:
            break
        while position < len(planned) and planned[position][1] < nominal:
            position += 1
        covering = 0
        for index in range(position, len(planned)):
            begin, end, _ = planned[index]
            if begin > nominal:
                break
            if end >= nominal:
                covering += 1
                instants_in[index] += 1
        if covering != 1:
            yield Gap(from_at=nominal, to_at=nominal, expected=1, found=covering)
    for (begin, end, row), expected in zip(planned, instants_in, strict=True):
        if since <= begin and end <= until and expected != row.count:
            yield Gap(from_at=begin, to_at=end, expected=expected, found=row.count)


def _gaps_of_every(
    rows: Sequence[Occurrence],
    rule: ScheduleRule,
    since: datetime,
    until: datetime,
    ended: Mapping[str, datetime],
) -> Iterator[Gap]:
    """Yield a gap where a row is later than one interval after the previous row or the end of its run."""
    anchor, run_end = since, None
    for row in rows:
        if row.nominal_at > until:
            break
        if row.nominal_at > since and row.nominal_at > (limit := _latest_next(rule, anchor, run_end)):
            yield Gap(from_at=anchor, to_at=limit, expected=1, found=0)
        anchor = max(anchor, row.until_at or row.nominal_at)
        if row.job_id is not None:
            run_end = ended.get(row.job_id)
    if until > (limit := _latest_next(rule, anchor, run_end)):
        yield Gap(from_at=anchor, to_at=limit, expected=1, found=0)


def _latest_next(rule: ScheduleRule, anchor: datetime, run_end: datetime | None) -> datetime:
    """Return the latest instant of the row that follows `anchor`.

    A run that ends before the provisional next occurrence moves it to one interval after the end.
    """

    def after(instant: datetime) -> datetime:
        return move_into_window(rule, add_intervals(rule, instant)) + rule.jitter / 2 + CLOCK_SLACK

    provisional = after(anchor)
    if run_end is not None and anchor <= run_end <= provisional:
        return after(run_end)
    return provisional
