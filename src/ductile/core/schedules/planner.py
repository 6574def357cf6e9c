"""Plan a run or a skip for every due occurrence of a schedule, so that each gets exactly one row.

`plan_due` turns a due schedule into runs, skips with their reasons, and the next occurrence. Whether a
planned run may start depends on rows that change meanwhile; `ductile.core.schedules.admission` decides that.
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
    PlannedOccurrence,
    ScheduleRule,
    day_around,
    is_in_window,
    move_into_window,
    nominal_instants_from,
    plan_occurrence,
    weekday_of,
    window_start_after,
)
from ductile.struct import DescribedEnum, Value

#: The most missed runs that `catch_up: run_all` runs.
MAX_CATCH_UP = 100
#: The most occurrences in one plan. A year of minutes takes several, so that other schedules are not delayed.
MAX_PLANNED_AT_ONCE = 1000
#: The starts of windows and days that `next_allowed` tries: enough to reach the hours of every weekday.
_MAX_OPENINGS = 16
#: A start with a longer delay is recorded as late.
LATE_AFTER = timedelta(seconds=1)


class SkipReason(DescribedEnum):
    """The reason why an occurrence did not run."""

    MISSED = "missed", "The daemon was down or too late for it, and `catch_up` does not make it up."
    CATCH_UP_LIMIT = "catch_up_limit", f"More were missed than the {MAX_CATCH_UP} that `run_all` makes up."
    COALESCED = "joined", "It was moved to the start of the preferred window, where a later one runs too."
    PAUSED = "paused", "The schedule was paused."
    OUTSIDE_HOURS = "outside_hours", "It was outside `only_between`."
    EXCLUDED_DAY = "excluded_day", "It was on a day that `not_on` excludes."
    RUNNING = "running", "The previous run had not ended (`if_running: skip`)."
    WAITING = "waiting", "The one before it still waited for other polls (`max_outstanding_polls`) to end."
    OUTSTANDING_POLLS = (
        "outstanding_polls",
        "As many polls as `max_outstanding_polls` were queued or running.",
    )
    BREAKER_OPEN = "breaker_open", "The circuit breaker was open."
    BREAKER_HALF_OPEN = "breaker_half_open", "The circuit breaker was waiting for the result of its probe."
    BAD_PAYLOAD = "bad_payload", "The payload of the schedule cannot be stored; correct the configuration."


class Skip(Value):
    """One or several adjacent occurrences that do not run, for one reason."""

    nominal_at: datetime
    until_at: datetime
    count: int
    reason: SkipReason


class DueRun(Value):
    """An occurrence that runs now; `due_at` is when it should have started."""

    nominal_at: datetime
    due_at: datetime


DueItem: TypeAlias = Skip | DueRun


class OccurrenceOutcome(StrEnum):
    RAN = "ran"
    LATE = "late"
    SKIPPED = "skipped"


class Occurrence(Value):
    """One due instant of a schedule, or several adjacent ones skipped for the same reason."""

    plugin: str
    schedule_id: str
    nominal_at: datetime
    outcome: OccurrenceOutcome
    until_at: datetime | None = None
    count: int = 1
    reason: str | None = None
    job_id: str | None = None
    late: timedelta | None = None
    #: The present status of its job, in lists of stored occurrences; None if the job was removed.
    job_status: str | None = None


class DuePlan(Value):
    """The runs and skips of every due occurrence of a schedule, in order, and the occurrence after them."""

    items: tuple[DueItem, ...]
    next_occurrence: PlannedOccurrence | None
    #: The runs make up for missed ones: they run one after the other, without the limit on polls.
    is_catch_up: bool = False

    @property
    def runs(self) -> tuple[DueRun, ...]:
        return tuple(item for item in self.items if isinstance(item, DueRun))


def lateness(run: DueRun, now: datetime) -> timedelta | None:
    """Return how late a run starts; None if it is on time."""
    late = now - run.due_at
    return late if late > LATE_AFTER else None


def plan_due(
    rule: ScheduleRule,
    occurrence: PlannedOccurrence,
    *,
    now: datetime,
    active_since: datetime,
    paused: bool,
    rng: Random,
) -> DuePlan | None:
    """Plan everything that is due at `now`; None if nothing is.

    An occurrence is missed if it should have started before `active_since` (the start of the service, or the
    end of a suspend), or if a later one is due as well. `catch_up` decides about missed occurrences.
    """
    if occurrence.start_at > now:
        return None
    if (bulk := _plan_in_bulk(rule, occurrence, now=now, paused=paused)) is not None:
        return bulk
    due, following = _collect_due(rule, occurrence, now)
    if len(due) > MAX_PLANNED_AT_ONCE:
        # Skip all but those that `catch_up` may still run; the next plan decides about them.
        count = len(due) - MAX_CATCH_UP - 1
        reasons = [
            _reason_from_rule(rule, missed, paused=paused) or _missed_reason(rule) for missed in due[:count]
        ]
        return DuePlan(items=_to_items(due[:count], reasons), next_occurrence=due[count])
    skip_reasons = _skip_reasons(rule, due, now=now, active_since=active_since, paused=paused)
    deferred = _defer_to_window(rule, due, skip_reasons, now=now, active_since=active_since)
    if deferred is not None:
        return deferred
    items = _to_items(due, skip_reasons)
    runs = [item for item in items if isinstance(item, DueRun)]
    if following is not None and runs and isinstance(rule.trigger, Every):
        # Provisional, without jitter: the end of the run plans it again.
        next_occurrence: PlannedOccurrence | None = PlannedOccurrence(
            nominal_at=following, start_at=move_into_window(rule, following)
        )
    else:
        next_occurrence = plan_occurrence(rule, following, earliest=now, rng=rng)
    missed = any(run.due_at < active_since for run in runs) or len(runs) > 1
    return DuePlan(
        items=items, next_occurrence=next_occurrence, is_catch_up=missed and rule.catch_up is CatchUp.RUN_ALL
    )


def skips_while_running(
    rule: ScheduleRule, occurrence: PlannedOccurrence, *, now: datetime
) -> tuple[Skip, ...] | None:
    """Return the skips of all occurrences that fell due while the previous run ran (`if_running: skip`).

    None if there are too many for one plan; `plan_due` then decides about them.
    """
    due, _ = _collect_due(rule, occurrence, now)
    if len(due) > MAX_PLANNED_AT_ONCE:
        return None
    reasons = [_reason_from_rule(rule, start, paused=False) or SkipReason.RUNNING for start in due]
    return tuple(item for item in _to_items(due, reasons) if isinstance(item, Skip))


def _plan_in_bulk(
    rule: ScheduleRule, occurrence: PlannedOccurrence, *, now: datetime, paused: bool
) -> DuePlan | None:
    """Return a plan that skips the missed occurrences of a fixed interval at once; None if they are few."""
    trigger = rule.trigger
    if not isinstance(trigger, Every) or not isinstance(trigger.interval, timedelta):
        return None
    missed = 1 + (now - occurrence.nominal_at) // trigger.interval
    if rule.preferred_window is not None or missed <= MAX_PLANNED_AT_ONCE:
        return None
    count = missed - MAX_CATCH_UP - 1
    skip = Skip(
        nominal_at=occurrence.nominal_at,
        until_at=occurrence.nominal_at + (count - 1) * trigger.interval,
        count=count,
        reason=SkipReason.PAUSED if paused else _missed_reason(rule),
    )
    next_at = occurrence.nominal_at + count * trigger.interval
    return DuePlan(items=(skip,), next_occurrence=PlannedOccurrence(nominal_at=next_at, start_at=next_at))


def _collect_due(
    rule: ScheduleRule, occurrence: PlannedOccurrence, now: datetime
) -> tuple[list[PlannedOccurrence], datetime | None]:
    """Return the due occurrences, and the nominal instant of the first that is not due.

    The instant is None if no occurrence follows, or if more than `MAX_PLANNED_AT_ONCE` are due.
    """
    due = [occurrence]
    for nominal in islice(nominal_instants_from(rule, occurrence.nominal_at), 1, None):
        start = move_into_window(rule, nominal)
        if start > now:
            return due, nominal
        due.append(PlannedOccurrence(nominal_at=nominal, start_at=start))
        if len(due) > MAX_PLANNED_AT_ONCE:
            return due, None
    return due, None


def _skip_reasons(
    rule: ScheduleRule,
    due: Sequence[PlannedOccurrence],
    *,
    now: datetime,
    active_since: datetime,
    paused: bool,
) -> list[SkipReason | None]:
    """Return for each due occurrence why it is skipped; None if it runs."""
    reasons = [_reason_from_rule(rule, occurrence, paused=paused) for occurrence in due]
    allowed = [index for index, reason in enumerate(reasons) if reason is None]
    if rule.preferred_window is not None:
        for index, later in pairwise(allowed):
            if move_into_window(rule, due[index].nominal_at) == move_into_window(rule, due[later].nominal_at):
                reasons[index] = SkipReason.COALESCED
        allowed = [index for index in allowed if reasons[index] is None]
    if not allowed:
        return reasons
    on_time = due[allowed[-1]].start_at >= active_since or isinstance(rule.trigger, After)
    missed = allowed[:-1] if on_time else allowed
    limit = 0
    if rule.catch_up is CatchUp.RUN_ALL:
        limit = MAX_CATCH_UP
    elif rule.catch_up is CatchUp.RUN_ONCE and not on_time:
        limit = 1
    caught_up = missed[max(0, len(missed) - limit) :]
    for index in missed:
        reasons[index] = disallowed_reason(rule, now) if index in caught_up else _missed_reason(rule)
    return reasons


def _missed_reason(rule: ScheduleRule) -> SkipReason:
    return SkipReason.CATCH_UP_LIMIT if rule.catch_up is CatchUp.RUN_ALL else SkipReason.MISSED


def _reason_from_rule(rule: ScheduleRule, due: PlannedOccurrence, *, paused: bool) -> SkipReason | None:
    """Return the reason to skip an occurrence that depends only on the rule and its pause."""
    return SkipReason.PAUSED if paused else disallowed_reason(rule, move_into_window(rule, due.nominal_at))


def disallowed_reason(rule: ScheduleRule, instant: datetime) -> SkipReason | None:
    """Return why the hours and days of the rule do not allow a run at the instant; None if they do."""
    if rule.only_between is not None and not is_in_window(rule.only_between, instant, rule.zone):
        return SkipReason.OUTSIDE_HOURS
    if rule.not_on and weekday_of(instant, rule.zone) in rule.not_on:
        return SkipReason.EXCLUDED_DAY
    return None


def next_allowed(rule: ScheduleRule, instant: datetime) -> datetime | None:
    """Return the first instant from `instant` on at which the rule allows a run; None if there is none."""
    for _ in range(_MAX_OPENINGS):
        match disallowed_reason(rule, instant):
            case SkipReason.OUTSIDE_HOURS if rule.only_between is not None:
                instant = window_start_after(rule.only_between, instant, rule.zone)
            case SkipReason.EXCLUDED_DAY:
                instant = day_around(instant, rule.zone)[1]
            case _:
                return instant
    return None


def _defer_to_window(
    rule: ScheduleRule,
    due: Sequence[PlannedOccurrence],
    reasons: Sequence[SkipReason | None],
    *,
    now: datetime,
    active_since: datetime,
) -> DuePlan | None:
    """Return a plan in which missed runs wait for the preferred window; None if they need not wait."""
    window = rule.preferred_window
    if window is None or None not in reasons or is_in_window(window, now, rule.zone):
        return None
    first = reasons.index(None)
    if due[first].start_at >= active_since:
        return None
    waiting = PlannedOccurrence(
        nominal_at=due[first].nominal_at, start_at=window_start_after(window, now, rule.zone)
    )
    return DuePlan(items=_to_items(due[:first], reasons[:first]), next_occurrence=waiting)


def _to_items(due: Sequence[PlannedOccurrence], reasons: Sequence[SkipReason | None]) -> tuple[DueItem, ...]:
    """Return one item per run, and one per group of adjacent skips with the same reason."""
    items: list[DueItem] = []
    for reason, group in groupby(zip(due, reasons, strict=True), key=lambda pair: pair[1]):
        members = [occurrence for occurrence, _ in group]
        if reason is None:
            items += [DueRun(nominal_at=member.nominal_at, due_at=member.start_at) for member in members]
        else:
            first, last = members[0].nominal_at, members[-1].nominal_at
            items.append(Skip(nominal_at=first, until_at=last, count=len(members), reason=reason))
    return tuple(items)
