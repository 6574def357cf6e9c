"""Accounted time: what becomes of every due instant of a schedule, decided before anything is done.

`plan_due` turns a schedule that is due into runs, skips with their reasons, and its next slot. Whether
a planned run may really start depends on rows that change; the store asks `firing` about that.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import groupby, islice, pairwise
from random import Random
from typing import TypeAlias

from ductile.core.schedules.rule import (
    After,
    CatchUp,
    Every,
    ScheduleRule,
    Slot,
    draw_slot,
    nominal_instants_from,
    snap_to_window,
)
from ductile.core.schedules.windows import day_around, is_in_window, next_opening, weekday_of
from ductile.struct import Value

#: The most runs that are made up for at once.
MAX_CATCH_UP = 100
#: Occurrences looked at in one plan: a year of minutes is accounted for in pieces that delay nobody.
CHUNK = 1000
#: In a week every weekday comes, and its hours once more.
_ENOUGH_OPENINGS = 16
#: A start later than this is recorded as late.
LATE_AFTER = timedelta(seconds=1)


class SkipReason(StrEnum):
    """Why an occurrence did not run. Each is explained in `SKIP_REASONS`."""

    MISSED = "missed"
    CATCH_UP_LIMIT = "catch_up_limit"
    JOINED = "joined"
    PAUSED = "paused"
    OUTSIDE_HOURS = "outside_hours"
    EXCLUDED_DAY = "excluded_day"
    RUNNING = "running"
    WAITING = "waiting"
    OUTSTANDING_POLLS = "outstanding_polls"
    BREAKER_OPEN = "breaker_open"
    BREAKER_HALF_OPEN = "breaker_half_open"
    BAD_PAYLOAD = "bad_payload"


SKIP_REASONS: dict[SkipReason, str] = {
    SkipReason.MISSED: "The daemon was down or too late for it, and `catch_up` does not make it up.",
    SkipReason.CATCH_UP_LIMIT: f"More were missed than the {MAX_CATCH_UP} that `run_all` makes up.",
    SkipReason.JOINED: "It was moved to the start of the preferred window, where a later one runs too.",
    SkipReason.PAUSED: "The schedule was paused.",
    SkipReason.OUTSIDE_HOURS: "It was outside `only_between`.",
    SkipReason.EXCLUDED_DAY: "It was on a day that `not_on` excludes.",
    SkipReason.RUNNING: "The previous run had not ended (`if_running: skip`).",
    SkipReason.WAITING: "The one before it still waited for other polls (`max_outstanding_polls`) to end.",
    SkipReason.OUTSTANDING_POLLS: "As many polls as `max_outstanding_polls` were queued or running.",
    SkipReason.BREAKER_OPEN: "The circuit breaker was open.",
    SkipReason.BREAKER_HALF_OPEN: "The circuit breaker was waiting for the result of its probe.",
    SkipReason.BAD_PAYLOAD: "The payload of the schedule cannot be stored; correct the configuration.",
}


class Skip(Value):
    """One or several adjacent occurrences that do not run, for one reason."""

    nominal_at: datetime
    until_at: datetime
    count: int
    reason: SkipReason


class DueRun(Value):
    """An occurrence that is to run now; `due_at` was its start."""

    nominal_at: datetime
    due_at: datetime


DueItem: TypeAlias = Skip | DueRun


class DuePlan(Value):
    """What a due schedule comes to: an item for every due occurrence, in order, and where it stands then."""

    items: tuple[DueItem, ...]
    following: Slot | None
    #: The runs make up for missed ones: they follow one another, outside the poll guard.
    in_a_row: bool = False

    @property
    def runs(self) -> tuple[DueRun, ...]:
        return tuple(item for item in self.items if isinstance(item, DueRun))


class _DueOccurrence(Value):
    nominal_at: datetime
    start_at: datetime


def lateness(run: DueRun, now: datetime) -> timedelta | None:
    """By how much a run starts late, or None if it is on time."""
    late = now - run.due_at
    return late if late > LATE_AFTER else None


def plan_due(
    rule: ScheduleRule, slot: Slot, *, now: datetime, armed_since: datetime, paused: bool, rng: Random
) -> DuePlan | None:
    """Account for everything that is due by now; None if nothing is.

    What should have started before `armed_since` (the start of the service, the end of a suspend) was
    missed, and so is what a later due occurrence has overtaken; `catch_up` decides about those.
    """
    if slot.start_at > now:
        return None
    if (bulk := _plan_in_bulk(rule, slot, now=now, paused=paused)) is not None:
        return bulk
    due, following = _collect(rule, slot, now)
    if len(due) > CHUNK:
        # Too many to look at once. What may still be made up for is left for the next plan.
        kept = len(due) - MAX_CATCH_UP - 1
        reasons = [_fixed_reason(rule, each, paused=paused) or _swallowed(rule) for each in due[:kept]]
        rest = due[kept]
        left = Slot(nominal_at=rest.nominal_at, start_at=rest.start_at)
        return DuePlan(items=_items(due[:kept], reasons), following=left)
    reasons_or_runs = _judge(rule, due, now=now, armed_since=armed_since, paused=paused)
    if (deferred := _defer(rule, due, reasons_or_runs, now=now, armed_since=armed_since)) is not None:
        return deferred
    return _complete(rule, due, reasons_or_runs, following, now=now, armed_since=armed_since, rng=rng)


def skips_while_running(rule: ScheduleRule, slot: Slot, *, now: datetime) -> tuple[Skip, ...] | None:
    """Account for everything that fell due by now while the previous run was live, with `if_running: skip`.

    None if that is more than is looked at in one plan: then it is left for `plan_due`.
    """
    due, _ = _collect(rule, slot, now)
    if len(due) > CHUNK:
        return None
    reasons = [_fixed_reason(rule, each, paused=False) or SkipReason.RUNNING for each in due]
    return tuple(item for item in _items(due, reasons) if isinstance(item, Skip))


def _plan_in_bulk(rule: ScheduleRule, slot: Slot, *, now: datetime, paused: bool) -> DuePlan | None:
    """A plain interval that was missed very often: counted, not walked."""
    trigger = rule.trigger
    if not isinstance(trigger, Every) or not isinstance(trigger.interval, timedelta):
        return None
    missed = 1 + (now - slot.nominal_at) // trigger.interval
    if rule.preferred_window is not None or missed <= CHUNK:
        return None
    count = missed - MAX_CATCH_UP - 1
    skip = Skip(
        nominal_at=slot.nominal_at,
        until_at=slot.nominal_at + (count - 1) * trigger.interval,
        count=count,
        reason=SkipReason.PAUSED if paused else _swallowed(rule),
    )
    rest = slot.nominal_at + count * trigger.interval
    return DuePlan(items=(skip,), following=Slot(nominal_at=rest, start_at=rest))


def _collect(rule: ScheduleRule, slot: Slot, now: datetime) -> tuple[list[_DueOccurrence], datetime | None]:
    """What is due, and the nominal instant of the first that is not."""
    due = [_DueOccurrence(nominal_at=slot.nominal_at, start_at=slot.start_at)]
    for nominal in islice(nominal_instants_from(rule, slot.nominal_at), 1, None):
        placed = snap_to_window(rule, nominal)
        if placed > now:
            return due, nominal
        due.append(_DueOccurrence(nominal_at=nominal, start_at=placed))
        if len(due) > CHUNK:
            return due, None
    return due, None


def _judge(
    rule: ScheduleRule, due: Sequence[_DueOccurrence], *, now: datetime, armed_since: datetime, paused: bool
) -> list[SkipReason | None]:
    """For each due occurrence why it is skipped, or None if it runs."""
    reasons = [_fixed_reason(rule, each, paused=paused) for each in due]
    open_ones = [index for index, reason in enumerate(reasons) if reason is None]
    if rule.preferred_window is not None:
        for index, later in pairwise(open_ones):
            if snap_to_window(rule, due[index].nominal_at) == snap_to_window(rule, due[later].nominal_at):
                reasons[index] = SkipReason.JOINED
        open_ones = [index for index in open_ones if reasons[index] is None]
    if not open_ones:
        return reasons
    on_time = due[open_ones[-1]].start_at >= armed_since or isinstance(rule.trigger, After)
    missed = open_ones[:-1] if on_time else open_ones
    made_up = missed[len(missed) - _made_up(rule, len(missed), on_time=on_time) :]
    for index in missed:
        reasons[index] = disallowed_reason(rule, now) if index in made_up else _swallowed(rule)
    return reasons


def _made_up(rule: ScheduleRule, missed: int, *, on_time: bool) -> int:
    """How many of the missed occurrences run now."""
    match rule.catch_up:
        case CatchUp.SKIP:
            return 0
        case CatchUp.RUN_ONCE:
            return 0 if on_time else min(missed, 1)
        case CatchUp.RUN_ALL:
            return min(missed, MAX_CATCH_UP)


def _swallowed(rule: ScheduleRule) -> SkipReason:
    return SkipReason.CATCH_UP_LIMIT if rule.catch_up is CatchUp.RUN_ALL else SkipReason.MISSED


def _fixed_reason(rule: ScheduleRule, due: _DueOccurrence, *, paused: bool) -> SkipReason | None:
    return SkipReason.PAUSED if paused else disallowed_reason(rule, snap_to_window(rule, due.nominal_at))


def disallowed_reason(rule: ScheduleRule, instant: datetime) -> SkipReason | None:
    """Why nothing may run at this instant, or None."""
    if rule.only_between is not None and not is_in_window(rule.only_between, instant, rule.zone):
        return SkipReason.OUTSIDE_HOURS
    if rule.not_on and weekday_of(instant, rule.zone) in rule.not_on:
        return SkipReason.EXCLUDED_DAY
    return None


def next_allowed(rule: ScheduleRule, instant: datetime) -> datetime | None:
    """The instant, or the first one after it at which the hours and days of the rule allow a run."""
    for _ in range(_ENOUGH_OPENINGS):
        match disallowed_reason(rule, instant):
            case SkipReason.OUTSIDE_HOURS if rule.only_between is not None:
                instant = next_opening(rule.only_between, instant, rule.zone)
            case SkipReason.EXCLUDED_DAY:
                instant = day_around(instant, rule.zone)[1]
            case _:
                return instant
    return None


def _defer(
    rule: ScheduleRule,
    due: Sequence[_DueOccurrence],
    reasons: Sequence[SkipReason | None],
    *,
    now: datetime,
    armed_since: datetime,
) -> DuePlan | None:
    """Missed runs that are made up for wait for the preferred window, as every run does."""
    window = rule.preferred_window
    if window is None or None not in reasons or is_in_window(window, now, rule.zone):
        return None
    first = reasons.index(None)
    if due[first].start_at >= armed_since:
        return None
    opening = next_opening(window, now, rule.zone)
    waiting = Slot(nominal_at=due[first].nominal_at, start_at=opening)
    return DuePlan(items=_items(due[:first], reasons[:first]), following=waiting)


def _complete(
    rule: ScheduleRule,
    due: Sequence[_DueOccurrence],
    reasons: Sequence[SkipReason | None],
    following: datetime | None,
    *,
    now: datetime,
    armed_since: datetime,
    rng: Random,
) -> DuePlan:
    items = _items(due, reasons)
    runs = [item for item in items if isinstance(item, DueRun)]
    made_up = any(run.due_at < armed_since for run in runs) or len(runs) > 1
    if following is not None and runs and isinstance(rule.trigger, Every):
        # Provisional: the end of the run draws it anew, with its jitter.
        slot: Slot | None = Slot(nominal_at=following, start_at=snap_to_window(rule, following))
    else:
        slot = draw_slot(rule, following, earliest=now, rng=rng)
    return DuePlan(items=items, following=slot, in_a_row=made_up and rule.catch_up is CatchUp.RUN_ALL)


def _items(due: Sequence[_DueOccurrence], reasons: Sequence[SkipReason | None]) -> tuple[DueItem, ...]:
    """In order; adjacent skips for one reason are one."""
    items: list[DueItem] = []
    for reason, group in groupby(zip(due, reasons, strict=True), key=lambda pair: pair[1]):
        members = [each for each, _ in group]
        if reason is None:
            items += [DueRun(nominal_at=each.nominal_at, due_at=each.start_at) for each in members]
        else:
            first, last = members[0].nominal_at, members[-1].nominal_at
            items.append(Skip(nominal_at=first, until_at=last, count=len(members), reason=reason))
    return tuple(items)
