"""Looking at a schedule from outside: what is to come, and a proof that nothing was left out (SPEC 5.9)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from random import Random
from typing import Protocol

from ductile.core.jobs import TERMINAL, Reason, Transition
from ductile.core.occurrences import SkipReason, forbidden, plan_due
from ductile.core.schedule import CLOCK_SLACK, Every, ScheduleRule, Slot, place, slots_from, step
from ductile.value import Value

#: The reason under which a run that a person asked for stands in the history.
RUN_NOW = "run_now"


class Upcoming(Value):
    """An occurrence to come. Only the first one's jitter is drawn; `skip` is known from its hours alone."""

    nominal_at: datetime
    start_at: datetime
    skip: SkipReason | None


def preview(rule: ScheduleRule, slot: Slot | None, count: int) -> tuple[Upcoming, ...]:
    """The next occurrences from where a schedule stands, an `every` as if each run ended at once."""
    if slot is None:
        return ()
    nominals = islice(slots_from(rule, slot.nominal_at), count)
    return tuple(
        Upcoming(
            nominal_at=nominal,
            start_at=slot.start_at if nominal == slot.nominal_at else place(rule, nominal),
            skip=forbidden(rule, place(rule, nominal)),
        )
        for nominal in nominals
    )


def made_up_at_start(
    rule: ScheduleRule, slot: Slot, *, now: datetime, dice: Random
) -> tuple[tuple[Upcoming, ...], Slot | None]:
    """What would run at once if a daemon started now, and where the schedule would stand then."""
    runs: list[Upcoming] = []
    following: Slot | None = slot
    while following is not None:
        plan = plan_due(rule, following, now=now, armed_since=now, paused=False, dice=dice)
        if plan is None:
            break
        runs += [Upcoming(nominal_at=run.nominal_at, start_at=now, skip=None) for run in plan.runs]
        following = plan.following
    return tuple(runs), following


class Accounted(Protocol):
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
        rests = after is None or after.reason is Reason.MANUAL_RETRY
        if rests and change.to_status in TERMINAL:
            return at
    return None


class Gap(Value):
    """A stretch in which at least one occurrence is unaccounted for, or accounted for more than once."""

    from_at: datetime
    to_at: datetime
    expected: int
    found: int


def prove_no_gap(
    rows: Sequence[Accounted],
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


def _end_of(row: Accounted) -> datetime:
    return row.until_at or row.nominal_at


def _gaps_of_calendar(
    rows: Sequence[Accounted], rule: ScheduleRule, since: datetime, until: datetime
) -> Iterator[Gap]:
    """Each nominal instant lies in exactly one row, and a range counts as many as lie in it."""
    planned = [row for row in rows if row.reason != RUN_NOW]
    held = [0] * len(planned)
    position = 0
    for nominal in slots_from(rule, since):
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
    rows: Sequence[Accounted],
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
    return place(rule, step(rule, anchor)) + rule.jitter / 2 + CLOCK_SLACK
