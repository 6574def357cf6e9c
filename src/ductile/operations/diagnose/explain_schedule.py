"""`schedule explain`: says why a schedule does not run, in one sentence, with evidence and advice."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ductile.config.snapshot import PluginInstance, PluginRefusal, Schedule
from ductile.core.jobs.failures import Breaker, BreakerState
from ductile.core.jobs.model import TERMINAL, Job, JobStatus
from ductile.core.schedules.admission import FireView, ObservedSchedule, ScheduleCause, decide_cause
from ductile.core.schedules.planner import Occurrence, OccurrenceOutcome, SkipReason, disallowed_reason
from ductile.engine.schedules.entries import ActiveSchedule, conditions_of
from ductile.errors import NotFoundError
from ductile.operations.context import OperationContext
from ductile.operations.diagnose.wording import time_text
from ductile.operations.response import Id, Response, Timestamp, from_record, timestamp
from ductile.operations.schedules.audit import PastOccurrence, past_occurrence
from ductile.operations.schedules.manage import (
    DEFAULT_SCHEDULE,
    OneSchedule,
    configured_schedule,
    find_schedule,
)
from ductile.operations.system.breakers import BreakerStatus
from ductile.store.model.schedules import ScheduleEntry
from ductile.struct import Value

#: The most past occurrences that are shown.
_MAX_OCCURRENCES = 5
_PLACEHOLDER = re.compile(r"{(\w+)}")
_ADVICE: dict[ScheduleCause, tuple[str, ...]] = {
    ScheduleCause.NOT_CONFIGURED: ("Add it under plugins.{plugin}.schedules, then: ductile apply",),
    ScheduleCause.PLUGIN_DISABLED: ("ductile config set plugins.{plugin}.enabled true, then: ductile apply",),
    ScheduleCause.PLUGIN_REFUSED: ("{hint}", "ductile plugin check {plugin}"),
    ScheduleCause.PAUSED: ("ductile schedule resume {plugin} {id}",),
    ScheduleCause.NO_DAEMON: ("ductile system start",),
    ScheduleCause.NOT_LOADED: ("ductile apply",),
    ScheduleCause.OVERDUE: (
        "ductile system doctor",
        "Look for clock.jumped and service.failed in the daemon's log.",
    ),
    ScheduleCause.BREAKER_OPEN: (
        "ductile job explain {broken}",
        "Once the cause is fixed: ductile system reset {plugin}",
    ),
    ScheduleCause.BREAKER_HALF_OPEN: ("ductile job explain {broken}", "ductile system breaker {plugin}"),
    ScheduleCause.RUNNING: (
        "ductile job explain {job}",
        "To let runs overlap or replace one another, set if_running to queue or cancel.",
    ),
    ScheduleCause.WAITING: (
        "ductile queue list --plugin {plugin}",
        "To let polls of {plugin} run beside one another, raise plugins.{plugin}.max_outstanding_polls.",
    ),
    ScheduleCause.OUTSTANDING_POLLS: (
        "ductile queue list --plugin {plugin}",
        "Or raise plugins.{plugin}.max_outstanding_polls.",
    ),
    ScheduleCause.LAST_FAILED: ("ductile job explain {job}",),
    ScheduleCause.LAST_SKIPPED: ("To run it now: ductile schedule run {plugin} {id}",),
    ScheduleCause.FINISHED: ("To run it now: ductile schedule run {plugin} {id}",),
    ScheduleCause.ON_TIME: (),
}


class ScheduleExplanation(Response):
    plugin: str
    id: str
    cause: ScheduleCause
    verdict: str
    evidence: tuple[str, ...]
    advice: tuple[str, ...]
    next_at: Timestamp | None
    last_job_id: Id | None
    breaker: BreakerStatus | None
    occurrences: tuple[PastOccurrence, ...]


class _ScheduleRecords(Value):
    """The settings and rows by which a schedule is explained."""

    name: str
    schedule_id: str
    command: str
    plugin: PluginInstance | None
    refusal: PluginRefusal | None
    schedule: Schedule | None
    entry: ScheduleEntry | None
    last_job: Job | None
    breaker: Breaker | None
    outstanding: int
    #: Newest first.
    occurrences: tuple[Occurrence, ...]


async def explain_schedule(context: OperationContext, request: OneSchedule) -> ScheduleExplanation:
    """Explain why a schedule does not run, or that it does. Raises `NotFoundError`."""
    records = await _load_records(context, request)
    cause = decide_cause(_observe(context, records))
    entry, breaker = records.entry, records.breaker
    placeholders: dict[str, str | None] = {
        "plugin": records.name,
        "id": records.schedule_id,
        "job": None if records.last_job is None else records.last_job.id,
        "broken": None if breaker is None else breaker.last_job_id,
        "hint": None if records.refusal is None else records.refusal.hint,
    }
    # Lines with a job or a hint that is not known are left out.
    advice = [
        line for line in _ADVICE[cause] if all(placeholders[name] for name in _PLACEHOLDER.findall(line))
    ]
    return ScheduleExplanation(
        plugin=records.name,
        id=records.schedule_id,
        cause=cause,
        verdict=_verdict(records, cause),
        evidence=tuple(_evidence(records, cause)),
        advice=tuple(line.format(**placeholders) for line in advice),
        next_at=timestamp(None if entry is None else entry.next_at),
        last_job_id=None if entry is None else entry.last_job_id,
        breaker=None if breaker is None else from_record(BreakerStatus, breaker),
        occurrences=tuple(past_occurrence(row) for row in records.occurrences),
    )


async def _load_records(context: OperationContext, request: OneSchedule) -> _ScheduleRecords:
    """Read what is known of a schedule. Raises `NotFoundError` if it is neither stored nor configured."""
    plugin = context.snapshot().plugins.get(request.plugin)
    name, entry = request.plugin, None
    try:
        entry = await find_schedule(context, name, request.schedule)
        schedule_id = entry.schedule_id
    except NotFoundError:
        # A schedule that no daemon has loaded yet is explained too.
        configured_ids = [] if plugin is None else [schedule.id for schedule in plugin.schedules]
        schedule_id = request.schedule or (
            configured_ids[0] if len(configured_ids) == 1 else DEFAULT_SCHEDULE
        )
        if schedule_id not in configured_ids:
            raise
    schedule = configured_schedule(context, name, schedule_id)
    command = "poll" if schedule is None else schedule.command
    breakers = {(row.plugin, row.command): row.breaker for row in await context.store.list_breakers()}
    last_job_id = None if entry is None else entry.last_job_id
    return _ScheduleRecords(
        name=name,
        schedule_id=schedule_id,
        command=command,
        plugin=plugin,
        refusal=None if plugin is None else plugin.refused,
        schedule=schedule,
        entry=entry,
        last_job=None if last_job_id is None else await context.store.get_job(last_job_id),
        breaker=breakers.get((name, command)),
        outstanding=await context.store.count_outstanding(name, command),
        occurrences=(await context.store.list_occurrences(name, schedule_id, limit=_MAX_OCCURRENCES)).rows,
    )


def _observe(context: OperationContext, records: _ScheduleRecords) -> ObservedSchedule:
    plugin, entry, last = records.plugin, records.entry, records.last_job
    conditions = None
    if plugin is not None and records.schedule is not None:
        conditions = conditions_of(ActiveSchedule(plugin=plugin, schedule=records.schedule))
    return ObservedSchedule(
        now=context.now(),
        enabled=plugin is not None and plugin.enabled,
        refused=records.refusal is not None,
        paused=entry is not None and entry.paused_at is not None,
        daemon_runs=context.engine is not None,
        is_loaded=entry is not None,
        next_at=None if entry is None else entry.next_at,
        conditions=conditions,
        view=FireView(
            previous_live=last is not None and last.status not in TERMINAL,
            outstanding=records.outstanding,
            breaker=records.breaker,
            deferred=entry is not None and entry.deferred is not None,
        ),
        last_failed=last is not None and last.status in (JobStatus.FAILED, JobStatus.DEAD),
        last_skipped=any(row.outcome is OccurrenceOutcome.SKIPPED for row in records.occurrences[:1]),
    )


def _verdict(records: _ScheduleRecords, cause: ScheduleCause) -> str:
    """Return the sentence of the cause, with its details before the full stop."""
    ending = "."
    match cause:
        case ScheduleCause.ON_TIME if records.entry is not None:
            ending = f", next at {time_text(records.entry.next_at)}."
        case ScheduleCause.LAST_SKIPPED:
            ending = f": {_why_skipped(records.occurrences[0])}"
        case ScheduleCause.LAST_FAILED if records.last_job is not None:
            ending = f": {records.last_job.last_error or records.last_job.reason}."
        case ScheduleCause.PLUGIN_REFUSED if records.refusal is not None:
            ending = f": {records.refusal.reason}."
        case _:
            pass
    return f"{records.name} {records.schedule_id}: {cause.description.removesuffix('.')}{ending}"


def _why_skipped(row: Occurrence) -> str:
    return SkipReason(row.reason).description if row.reason else ""


def _evidence(records: _ScheduleRecords, cause: ScheduleCause) -> list[str]:
    """Return what is known of the schedule, its latest run, its breaker and its past occurrences."""
    entry, last, breaker = records.entry, records.last_job, records.breaker
    lines = []
    if entry is not None and entry.paused_at is not None:
        lines.append(f"Paused since {time_text(entry.paused_at)}.")
    if last is not None:
        lines.append(f"Its latest run is job {last.id}: {last.status} ({last.reason}).")
    if breaker is not None and breaker.state is not BreakerState.CLOSED:
        since = f" since {time_text(breaker.opened_at)}" if breaker.opened_at else ""
        lines.append(
            f"The breaker of {records.command} is {breaker.state}{since}, after {breaker.failures} failures."
        )
    if entry is not None and entry.deferred is not None:
        lines.append(f"The run of {time_text(entry.deferred.nominal_at)} waits for other polls to end.")
    if cause in (ScheduleCause.OUTSTANDING_POLLS, ScheduleCause.WAITING):
        lines.append(f"{records.outstanding} polls of {records.name} are queued or running.")
    if entry is not None and entry.next_at is not None:
        lines.append(f"Next due at {time_text(entry.next_at)}.")
        # Its hours may already say that the next run will be skipped.
        rule = None if records.schedule is None else records.schedule.rule
        if rule is not None and (reason := disallowed_reason(rule, entry.next_at)) is not None:
            lines.append(f"It will be skipped: {reason.description.removeprefix('It was ')}")
    return lines + [line for row in records.occurrences for line in _occurrence_lines(row)]


def _occurrence_lines(row: Occurrence) -> Iterator[str]:
    if row.reason == SkipReason.OUTSTANDING_POLLS and row.late is not None:
        seconds = round(row.late.total_seconds(), 1)
        yield f"The run of {time_text(row.nominal_at)} started {seconds} s late: it waited for other polls."
    if row.outcome is OccurrenceOutcome.SKIPPED:
        times = f", {row.count} times until {time_text(row.until_at)}" if row.count > 1 else ""
        yield f"Skipped at {time_text(row.nominal_at)}{times}: {_why_skipped(row)}"
