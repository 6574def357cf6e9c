"""`schedule explain`: why a schedule does not run, in one sentence, with evidence and what to do."""

from __future__ import annotations

import re
from datetime import datetime

from ductile.config.snapshot import PluginInstance, Schedule
from ductile.core.jobs.model import TERMINAL, Job, JobStatus
from ductile.core.json import JsonObject
from ductile.core.schedules.admission import FireView
from ductile.core.schedules.diagnosis import ScheduleCause, ScheduleFacts, decide_cause
from ductile.core.schedules.planner import SkipReason, disallowed_reason
from ductile.engine.schedules.entries import ActiveSchedule, conditions_of
from ductile.errors import NotFoundError
from ductile.operations import parameters as read
from ductile.operations.context import OperationContext
from ductile.operations.diagnose.waiting import time_text
from ductile.operations.jobs.documents import instant, shown_breaker, shown_occurrence
from ductile.operations.schedules.control import find_schedule
from ductile.store.model.records import BreakerRow
from ductile.store.model.schedules import Occurrence, OccurrenceOutcome, ScheduleEntry
from ductile.struct import Value

_SHOWN = 5
_PLACEHOLDER = re.compile(r"{(\w+)}")
_ADVICE: dict[ScheduleCause, tuple[str, ...]] = {
    ScheduleCause.NOT_CONFIGURED: ("Add it under plugins.{plugin}.schedules, then: ductile reload",),
    ScheduleCause.PLUGIN_DISABLED: (
        "ductile config set plugins.{plugin}.enabled true --lock, then: ductile reload",
    ),
    ScheduleCause.PLUGIN_REFUSED: ("{hint}", "ductile plugin check {plugin}"),
    ScheduleCause.PAUSED: ("ductile schedule resume {plugin} {id}",),
    ScheduleCause.NO_DAEMON: ("ductile system start",),
    ScheduleCause.NOT_LOADED: ("ductile reload",),
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
    ScheduleCause.OVER: ("To run it now: ductile schedule run {plugin} {id}",),
    ScheduleCause.ON_TIME: (),
}


class _ScheduleRecords(Value):
    """A schedule with all that surrounds it."""

    name: str
    schedule_id: str
    now: datetime
    plugin: PluginInstance | None
    schedule: Schedule | None
    entry: ScheduleEntry | None
    last_job: Job | None
    breaker: BreakerRow | None
    outstanding: int
    occurrences: tuple[Occurrence, ...]
    daemon_runs: bool

    @property
    def command(self) -> str:
        return "poll" if self.schedule is None else self.schedule.command


async def explain_schedule(context: OperationContext, given: JsonObject) -> JsonObject:
    case = await _gather(context, given)
    cause = decide_cause(_facts(case))
    return {
        "plugin": case.name,
        "id": case.schedule_id,
        "cause": cause.value,
        "verdict": _verdict(case, cause),
        "evidence": [*_evidence(case, cause)],
        "advice": [*_advice(case, cause)],
        "next_at": instant(None if case.entry is None else case.entry.next_at),
        "last_job_id": None if case.entry is None else case.entry.last_job_id,
        "breaker": None if case.breaker is None else shown_breaker(case.breaker.breaker),
        "occurrences": [shown_occurrence(row) for row in case.occurrences],
    }


async def _gather(context: OperationContext, given: JsonObject) -> _ScheduleRecords:
    name, schedule_id, entry = await _which(context, given)
    plugin = context.snapshot().plugins.get(name)
    own = () if plugin is None else plugin.schedules
    schedule = next((each for each in own if each.id == schedule_id), None)
    command = "poll" if schedule is None else schedule.command
    breakers = [row for row in await context.store.breakers() if (row.plugin, row.command) == (name, command)]
    last = None if entry is None or entry.last_job_id is None else await context.store.job(entry.last_job_id)
    return _ScheduleRecords(
        name=name,
        schedule_id=schedule_id,
        now=context.now(),
        plugin=plugin,
        schedule=schedule,
        entry=entry,
        last_job=last,
        breaker=breakers[0] if breakers else None,
        outstanding=await context.store.outstanding(name, command),
        occurrences=(await context.store.occurrences(name, schedule_id, limit=_SHOWN)).rows,
        daemon_runs=context.engine is not None,
    )


async def _which(context: OperationContext, given: JsonObject) -> tuple[str, str, ScheduleEntry | None]:
    """Also one that no daemon has seen yet: that it was not seen is what is to be explained."""
    try:
        entry = await find_schedule(context, given)
    except NotFoundError:
        name, wanted = read.text(given, "plugin"), read.optional_text(given, "schedule")
        plugin = context.snapshot().plugins.get(name)
        own = [] if plugin is None else [each.id for each in plugin.schedules]
        chosen = wanted or (own[0] if len(own) == 1 else "default")
        if chosen not in own:
            raise
        return name, chosen, None
    return entry.plugin, entry.schedule_id, entry


def _facts(case: _ScheduleRecords) -> ScheduleFacts:
    plugin, last = case.plugin, case.last_job
    conditions = None
    if plugin is not None and case.schedule is not None:
        conditions = conditions_of(ActiveSchedule(plugin=plugin, schedule=case.schedule))
    newest = case.occurrences[0] if case.occurrences else None
    return ScheduleFacts(
        now=case.now,
        enabled=plugin is not None and plugin.enabled,
        refused=plugin is not None and plugin.refused is not None,
        paused=case.entry is not None and case.entry.paused_at is not None,
        daemon_runs=case.daemon_runs,
        known=case.entry is not None,
        next_at=None if case.entry is None else case.entry.next_at,
        conditions=conditions,
        view=FireView(
            previous_live=last is not None and last.status not in TERMINAL,
            outstanding=case.outstanding,
            breaker=None if case.breaker is None else case.breaker.breaker,
            deferred=case.entry is not None and case.entry.deferred is not None,
        ),
        last_failed=last is not None and last.status in (JobStatus.FAILED, JobStatus.DEAD),
        last_skipped=newest is not None and newest.outcome is OccurrenceOutcome.SKIPPED,
    )


def _verdict(case: _ScheduleRecords, cause: ScheduleCause) -> str:
    name = f"{case.name} {case.schedule_id}"
    sentence = cause.description
    match cause:
        case ScheduleCause.ON_TIME if case.entry is not None:
            sentence = f"{sentence[:-1]}, next at {time_text(case.entry.next_at)}."
        case ScheduleCause.LAST_SKIPPED:
            sentence = f"{sentence[:-1]}: {_why_skipped(case.occurrences[0])}"
        case ScheduleCause.LAST_FAILED if case.last_job is not None:
            sentence = f"{sentence[:-1]}: {case.last_job.last_error or case.last_job.reason}."
        case ScheduleCause.PLUGIN_REFUSED if case.plugin is not None and case.plugin.refused is not None:
            sentence = f"{sentence[:-1]}: {case.plugin.refused.reason}."
        case _:
            pass
    return f"{name}: {sentence}"


def _why_skipped(row: Occurrence) -> str:
    return SkipReason(row.reason).description if row.reason else ""


def _evidence(case: _ScheduleRecords, cause: ScheduleCause) -> list[str]:
    entry, told = case.entry, []
    if entry is not None and entry.paused_at is not None:
        told.append(f"Paused since {time_text(entry.paused_at)}.")
    if case.last_job is not None:
        told.append(
            f"Its latest run is job {case.last_job.id}: {case.last_job.status} ({case.last_job.reason})."
        )
    if case.breaker is not None and case.breaker.breaker.state != "closed":
        breaker = case.breaker.breaker
        since = f" since {time_text(breaker.opened_at)}" if breaker.opened_at else ""
        told.append(
            f"The breaker of {case.command} is {breaker.state}{since}, after {breaker.failures} failures."
        )
    if entry is not None and entry.deferred is not None:
        told.append(f"The run of {time_text(entry.deferred.nominal_at)} waits for other polls to end.")
    if cause in (ScheduleCause.OUTSTANDING_POLLS, ScheduleCause.WAITING):
        told.append(f"{case.outstanding} polls of {case.name} are queued or running.")
    if entry is not None and entry.next_at is not None:
        told.append(f"Next due at {time_text(entry.next_at)}.")
        told += _coming_skip(case, entry.next_at)
    for row in case.occurrences:
        if row.reason == SkipReason.OUTSTANDING_POLLS and row.late is not None:
            seconds = round(row.late.total_seconds(), 1)
            told.append(
                f"The run of {time_text(row.nominal_at)} started {seconds} s late: it waited for other polls."
            )
        if row.outcome is OccurrenceOutcome.SKIPPED:
            times = f", {row.count} times until {time_text(row.until_at)}" if row.count > 1 else ""
            told.append(f"Skipped at {time_text(row.nominal_at)}{times}: {_why_skipped(row)}")
    return told


def _coming_skip(case: _ScheduleRecords, next_at: datetime) -> list[str]:
    """What is known already to be skipped, from its hours alone."""
    why = None if case.schedule is None else disallowed_reason(case.schedule.rule, next_at)
    return [] if why is None else [f"It will be skipped: {why.description.removeprefix('It was ')}"]


def _advice(case: _ScheduleRecords, cause: ScheduleCause) -> list[str]:
    """What can be filled in of what there is to say: a job that is not known cannot be looked at."""
    refusal = None if case.plugin is None else case.plugin.refused
    known: dict[str, str | None] = {
        "plugin": case.name,
        "id": case.schedule_id,
        "job": None if case.last_job is None else case.last_job.id,
        "broken": None if case.breaker is None else case.breaker.breaker.last_job_id,
        "hint": None if refusal is None else refusal.hint,
    }
    return [
        line.format(**known)
        for line in _ADVICE[cause]
        if all(known[name] for name in _PLACEHOLDER.findall(line))
    ]
