"""The doctor's look at what the store tells: itself, breakers, schedules, failed jobs, deaf receivers."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from ductile.core.jobs.breaker import BreakerState
from ductile.core.schedules.diagnosis import OVERDUE_AFTER
from ductile.core.schedules.planner import SkipReason
from ductile.core.webhooks.url_policy import refused_host
from ductile.engine.schedules.entries import active_schedules
from ductile.operations.context import OperationContext
from ductile.operations.diagnose.findings import DoctorCheck, DoctorFinding, failure, ok, warning
from ductile.operations.schedules.audit import audit_history
from ductile.store.model.jobs import InitRecord
from ductile.store.model.maintenance import FailingReceiver, RecentFailures, StoreStats
from ductile.store.model.records import BreakerRow
from ductile.store.model.schedules import Occurrence, OccurrenceOutcome, ScheduleEntry

_MIB = 1024 * 1024
#: The writer empties its log long before: somebody reads and does not stop reading.
_LONG_LOG = 256 * _MIB
_RECENT = timedelta(days=1)
_OTHER_POLLS = frozenset({SkipReason.WAITING, SkipReason.OUTSTANDING_POLLS})
#: The latest ones of each schedule are held against its rule; `schedule history` does it for all.
_OCCURRENCES = 50


def store_findings(stats: StoreStats) -> Iterator[DoctorFinding]:
    if stats.damage:
        yield failure(
            DoctorCheck.STORE,
            f"the file is damaged: {stats.damage[0]}",
            where=stats.place,
            fix="stop the daemon, keep a copy of the file, then: ductile system restore FILE --to DIR",
        )
    if stats.search_damage:
        yield warning(
            DoctorCheck.STORE,
            "the index for searching the log was damaged and is built anew; no job is affected",
            where=stats.place,
        )
    for kept in stats.kept_logs:
        yield warning(
            DoctorCheck.STORE,
            "the write-ahead log was damaged when the store was opened: jobs that were accepted last may be "
            "missing",
            where=kept,
            fix=f"look for them (ductile job list), send again what is missing, then: rm {kept}",
        )
    if stats.log_size > _LONG_LOG:
        yield warning(
            DoctorCheck.STORE,
            f"the write-ahead log has grown to {stats.log_size // _MIB} MiB",
            where=f"{stats.place}-wal",
            fix="end whatever else has the store open (fuser), or restart the daemon",
        )
    if not stats.damage:
        said = f"{stats.size // _MIB} MiB, schema version {stats.schema_version}"
        on = f", on {stats.filesystem}" if stats.filesystem else ""
        yield ok(DoctorCheck.STORE, f"the store is whole: {said}{on}", stats.place)


def breaker_findings(rows: Sequence[BreakerRow]) -> Iterator[DoctorFinding]:
    open_ones = [row for row in rows if row.breaker.state is not BreakerState.CLOSED]
    for row in open_ones:
        yield warning(
            DoctorCheck.BREAKERS,
            f"the breaker of {row.plugin} {row.command} is {row.breaker.state} after "
            f"{row.breaker.failures} failures: the scheduler does not run it",
            where=f"job {row.breaker.last_job_id}" if row.breaker.last_job_id else None,
            fix=f"fix the cause (ductile job explain {row.breaker.last_job_id}), "
            f"then: ductile system reset {row.plugin}",
        )
    if not open_ones:
        yield ok(DoctorCheck.BREAKERS, "no breaker is open")


async def schedule_findings(context: OperationContext) -> AsyncIterator[DoctorFinding]:
    entries = await context.store.schedules()
    watched = active_schedules(context.snapshot())
    troubled = False
    for entry in entries:
        if (entry.plugin, entry.schedule_id) in watched:
            if context.engine is not None and entry.plugin in context.engine.draining:
                continue  # what falls due waits for the end of the drain
            finding = check_schedule(entry, context.now(), daemon_runs=context.engine is not None)
            finding = finding or await _judge_history(context, entry)
            if finding is not None:
                troubled = True
                yield finding
    if not troubled:
        yield ok(DoctorCheck.SCHEDULES, f"{len(watched)} schedules run as configured, without a gap")


def check_schedule(entry: ScheduleEntry, now: datetime, *, daemon_runs: bool) -> DoctorFinding | None:
    name = f"{entry.plugin} {entry.schedule_id}"
    where = f"plugins.{entry.plugin}.schedules"
    if entry.paused_at is not None:
        since = f"{entry.paused_at:%Y-%m-%dT%H:%M:%SZ}"
        fix = f"ductile schedule resume {name}"
        return warning(DoctorCheck.SCHEDULES, f"{name} is paused since {since}", where=where, fix=fix)
    if daemon_runs and entry.next_at is not None and now - entry.next_at > OVERDUE_AFTER:
        since = f"{entry.next_at:%Y-%m-%dT%H:%M:%SZ}"
        fix = f"ductile schedule explain {name}"
        return failure(DoctorCheck.SCHEDULES, f"{name} is overdue since {since}", where=where, fix=fix)
    if daemon_runs and entry.deferred is not None and now - entry.deferred.start_at > OVERDUE_AFTER:
        since = f"{entry.deferred.start_at:%Y-%m-%dT%H:%M:%SZ}"
        fix = f"ductile schedule explain {name}"
        message = f"{name} waits since {since} for other polls of {entry.plugin} to end"
        return warning(DoctorCheck.SCHEDULES, message, where=where, fix=fix)
    return None


async def _judge_history(context: OperationContext, entry: ScheduleEntry) -> DoctorFinding | None:
    page = await context.store.occurrences(entry.plugin, entry.schedule_id, limit=_OCCURRENCES)
    account = await audit_history(context, entry, page.rows, newest=True)
    name = f"{entry.plugin} {entry.schedule_id}"
    where = f"plugins.{entry.plugin}.schedules"
    if account["complete"] is False:
        message, fix = f"the history of {name} has a gap", f"ductile schedule history {name}"
        return warning(DoctorCheck.SCHEDULES, message, where=where, fix=fix)
    skipped = sum(row.count for row in page.rows if _gave_way(row, context.now()))
    if not skipped:
        return None
    return warning(
        DoctorCheck.SCHEDULES,
        f"{name} runs less often than it is due: within a day {skipped} of its occurrences were skipped "
        f"because other polls of {entry.plugin} were queued or running",
        where=where,
        fix=f"raise plugins.{entry.plugin}.max_outstanding_polls, or let its schedules be due less often; "
        f"see: ductile schedule history {name}",
    )


def _gave_way(row: Occurrence, now: datetime) -> bool:
    """Whether it was skipped of late because of polls of others."""
    recent = now - (row.until_at or row.nominal_at) < _RECENT
    return recent and row.outcome is OccurrenceOutcome.SKIPPED and row.reason in _OTHER_POLLS


def init_findings(marks: Mapping[str, InitRecord]) -> Iterator[DoctorFinding]:
    for name, record in marks.items():
        yield warning(
            DoctorCheck.PLUGINS,
            f"{name} is unhealthy: its init failed: {record.error}",
            where=f"job {record.job_id}" if record.job_id else f"plugins.{name}",
            fix=f"mend the cause, then: ductile job retry {record.job_id}" if record.job_id else None,
        )


def orphan_findings(orphaned: int) -> Iterator[DoctorFinding]:
    if orphaned:
        jobs = "1 job was" if orphaned == 1 else f"{orphaned} jobs were"
        yield warning(
            DoctorCheck.JOBS,
            f"{jobs} running when whoever ran them died; the next start takes them up again, or ends them",
            where="ductile queue list",
            fix="ductile system start",
        )


def trouble_findings(recent_failures: RecentFailures, allow: Sequence[str]) -> Iterator[DoctorFinding]:
    for bad in recent_failures.endings:
        jobs = "job" if bad.jobs == 1 else "jobs"
        yield warning(
            DoctorCheck.JOBS,
            f"{bad.jobs} {jobs} of {bad.plugin} {bad.command} failed for good within a day",
            where=f"job {bad.latest_job_id}",
            fix=f"ductile job explain {bad.latest_job_id}",
        )
    for removed in recent_failures.removed:
        jobs = "1 queued job" if removed.jobs == 1 else f"{removed.jobs} queued jobs"
        yield warning(
            DoctorCheck.JOBS,
            f"{jobs} of {removed.plugin} {removed.command} ended within a day because the plugin was removed "
            "or disabled",
            where=f"job {removed.latest_job_id}",
            fix=f"if they are still wanted: ductile plugin enable {removed.plugin}, "
            f"then: ductile job retry {removed.latest_job_id}",
        )
    if not recent_failures.endings and not recent_failures.removed:
        yield ok(DoctorCheck.JOBS, "no job failed for good within a day")
    for one in recent_failures.receivers:
        if (host := refused_host(one.receiver, one.last_error, allow)) is not None:
            yield _not_allowed(one, host, allow)
            continue
        yield warning(
            DoctorCheck.RECEIVERS,
            f"{one.receiver} does not take state webhooks: {one.waiting} wait, {one.dropped} were given up"
            + (f" ({one.last_error})" if one.last_error else ""),
            where=one.receiver,
            fix="see `ductile webhook deliveries`; when it answers again: ductile webhook resend ID",
        )
    if not recent_failures.receivers:
        yield ok(DoctorCheck.RECEIVERS, "every receiver takes what it is sent")


def _not_allowed(receiver: FailingReceiver, host: str, allow: Sequence[str]) -> DoctorFinding:
    """A receiver that we do not call ourselves. The list is set as a whole, so it is told as a whole."""
    listed = shlex.quote(msgspec.json.encode([*allow, host]).decode())
    only = "" if allow else "; from then on only listed hosts are called"
    return warning(
        DoctorCheck.RECEIVERS,
        f"state webhooks to {receiver.receiver} are not sent: state_webhooks.allow does not list {host}; "
        f"{receiver.waiting} wait, {receiver.dropped} were given up",
        where="state_webhooks.allow",
        fix=f"if it may be called: ductile config set state_webhooks.allow {listed} --lock && ductile reload "
        f"(what was given up: ductile webhook resend ID){only}",
    )
