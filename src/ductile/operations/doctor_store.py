"""The doctor's look at what the store tells: itself, breakers, schedules, failed jobs, deaf receivers."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from ductile.core.addresses import refused_host
from ductile.core.breaker import BreakerState
from ductile.core.occurrences import SkipReason
from ductile.core.schedule_causes import OVERDUE_AFTER
from ductile.engine.schedule_table import watched_schedules
from ductile.operations.desk import Desk
from ductile.operations.findings import Check, Finding, doubtful, fine, wrong
from ductile.operations.schedule_account import account_of
from ductile.store.values.reading import BreakerRow
from ductile.store.values.schedules import Occurrence, OccurrenceOutcome, ScheduleEntry
from ductile.store.values.settling import InitRecord
from ductile.store.values.upkeep import StoreVitals, TroubledReceiver, Troubles

_MIB = 1024 * 1024
#: The writer empties its log long before: somebody reads and does not stop reading.
_LONG_LOG = 256 * _MIB
_OF_LATE = timedelta(days=1)
_OTHER_POLLS = frozenset({SkipReason.WAITING, SkipReason.OUTSTANDING_POLLS})
#: The latest ones of each schedule are held against its rule; `schedule history` does it for all.
_OCCURRENCES = 50


def judge_store(vitals: StoreVitals) -> Iterator[Finding]:
    if vitals.damage:
        yield wrong(
            Check.STORE,
            f"the file is damaged: {vitals.damage[0]}",
            where=vitals.place,
            fix="stop the daemon, keep a copy of the file, then: ductile system restore FILE --to DIR",
        )
    if vitals.search_damage:
        yield doubtful(
            Check.STORE,
            "the index for searching the log was damaged and is built anew; no job is affected",
            where=vitals.place,
        )
    for kept in vitals.kept_logs:
        yield doubtful(
            Check.STORE,
            "the write-ahead log was damaged when the store was opened: jobs that were accepted last may be "
            "missing",
            where=kept,
            fix=f"look for them (ductile job list), send again what is missing, then: rm {kept}",
        )
    if vitals.log_size > _LONG_LOG:
        yield doubtful(
            Check.STORE,
            f"the write-ahead log has grown to {vitals.log_size // _MIB} MiB",
            where=f"{vitals.place}-wal",
            fix="end whatever else has the store open (fuser), or restart the daemon",
        )
    if not vitals.damage:
        said = f"{vitals.size // _MIB} MiB, schema version {vitals.schema_version}"
        on = f", on {vitals.filesystem}" if vitals.filesystem else ""
        yield fine(Check.STORE, f"the store is whole: {said}{on}", vitals.place)


def breaker_findings(rows: Sequence[BreakerRow]) -> Iterator[Finding]:
    open_ones = [row for row in rows if row.breaker.state is not BreakerState.CLOSED]
    for row in open_ones:
        yield doubtful(
            Check.BREAKERS,
            f"the breaker of {row.plugin} {row.command} is {row.breaker.state} after "
            f"{row.breaker.failures} failures: the scheduler does not run it",
            where=f"job {row.breaker.last_job_id}" if row.breaker.last_job_id else None,
            fix=f"fix the cause (ductile job explain {row.breaker.last_job_id}), "
            f"then: ductile system reset {row.plugin}",
        )
    if not open_ones:
        yield fine(Check.BREAKERS, "no breaker is open")


async def schedule_findings(desk: Desk) -> AsyncIterator[Finding]:
    entries = await desk.store.schedules()
    watched = watched_schedules(desk.snapshot())
    troubled = False
    for entry in entries:
        if (entry.plugin, entry.schedule_id) in watched:
            if desk.engine is not None and entry.plugin in desk.engine.draining:
                continue  # what falls due waits for the end of the drain
            finding = judge_schedule(entry, desk.now(), daemon_runs=desk.engine is not None)
            finding = finding or await _judge_history(desk, entry)
            if finding is not None:
                troubled = True
                yield finding
    if not troubled:
        yield fine(Check.SCHEDULES, f"{len(watched)} schedules run as configured, without a gap")


def judge_schedule(entry: ScheduleEntry, now: datetime, *, daemon_runs: bool) -> Finding | None:
    name = f"{entry.plugin} {entry.schedule_id}"
    where = f"plugins.{entry.plugin}.schedules"
    if entry.paused_at is not None:
        since = f"{entry.paused_at:%Y-%m-%dT%H:%M:%SZ}"
        fix = f"ductile schedule resume {name}"
        return doubtful(Check.SCHEDULES, f"{name} is paused since {since}", where=where, fix=fix)
    if daemon_runs and entry.next_at is not None and now - entry.next_at > OVERDUE_AFTER:
        since = f"{entry.next_at:%Y-%m-%dT%H:%M:%SZ}"
        fix = f"ductile schedule explain {name}"
        return wrong(Check.SCHEDULES, f"{name} is overdue since {since}", where=where, fix=fix)
    if daemon_runs and entry.deferred is not None and now - entry.deferred.start_at > OVERDUE_AFTER:
        since = f"{entry.deferred.start_at:%Y-%m-%dT%H:%M:%SZ}"
        fix = f"ductile schedule explain {name}"
        message = f"{name} waits since {since} for other polls of {entry.plugin} to end"
        return doubtful(Check.SCHEDULES, message, where=where, fix=fix)
    return None


async def _judge_history(desk: Desk, entry: ScheduleEntry) -> Finding | None:
    page = await desk.store.occurrences(entry.plugin, entry.schedule_id, limit=_OCCURRENCES)
    account = await account_of(desk, entry, page.rows, newest=True)
    name = f"{entry.plugin} {entry.schedule_id}"
    where = f"plugins.{entry.plugin}.schedules"
    if account["complete"] is False:
        message, fix = f"the history of {name} has a gap", f"ductile schedule history {name}"
        return doubtful(Check.SCHEDULES, message, where=where, fix=fix)
    skipped = sum(row.count for row in page.rows if _gave_way(row, desk.now()))
    if not skipped:
        return None
    return doubtful(
        Check.SCHEDULES,
        f"{name} runs less often than it is due: within a day {skipped} of its occurrences were skipped "
        f"because other polls of {entry.plugin} were queued or running",
        where=where,
        fix=f"raise plugins.{entry.plugin}.max_outstanding_polls, or let its schedules be due less often; "
        f"see: ductile schedule history {name}",
    )


def _gave_way(row: Occurrence, now: datetime) -> bool:
    """Whether it was skipped of late because of polls of others."""
    recent = now - (row.until_at or row.nominal_at) < _OF_LATE
    return recent and row.outcome is OccurrenceOutcome.SKIPPED and row.reason in _OTHER_POLLS


def init_findings(marks: Mapping[str, InitRecord]) -> Iterator[Finding]:
    for name, record in marks.items():
        yield doubtful(
            Check.PLUGINS,
            f"{name} is unhealthy: its init failed: {record.error}",
            where=f"job {record.job_id}" if record.job_id else f"plugins.{name}",
            fix=f"mend the cause, then: ductile job retry {record.job_id}" if record.job_id else None,
        )


def orphan_findings(orphaned: int) -> Iterator[Finding]:
    if orphaned:
        jobs = "1 job was" if orphaned == 1 else f"{orphaned} jobs were"
        yield doubtful(
            Check.JOBS,
            f"{jobs} running when whoever ran them died; the next start takes them up again, or ends them",
            where="ductile queue list",
            fix="ductile system start",
        )


def trouble_findings(troubles: Troubles, allow: Sequence[str]) -> Iterator[Finding]:
    for bad in troubles.endings:
        jobs = "job" if bad.jobs == 1 else "jobs"
        yield doubtful(
            Check.JOBS,
            f"{bad.jobs} {jobs} of {bad.plugin} {bad.command} failed for good within a day",
            where=f"job {bad.latest_job_id}",
            fix=f"ductile job explain {bad.latest_job_id}",
        )
    for removed in troubles.removed:
        jobs = "1 queued job" if removed.jobs == 1 else f"{removed.jobs} queued jobs"
        yield doubtful(
            Check.JOBS,
            f"{jobs} of {removed.plugin} {removed.command} ended within a day because the plugin was removed "
            "or disabled",
            where=f"job {removed.latest_job_id}",
            fix=f"if they are still wanted: ductile plugin enable {removed.plugin}, "
            f"then: ductile job retry {removed.latest_job_id}",
        )
    if not troubles.endings and not troubles.removed:
        yield fine(Check.JOBS, "no job failed for good within a day")
    for one in troubles.receivers:
        if (host := refused_host(one.receiver, one.last_error, allow)) is not None:
            yield _not_allowed(one, host, allow)
            continue
        yield doubtful(
            Check.RECEIVERS,
            f"{one.receiver} does not take state webhooks: {one.waiting} wait, {one.dropped} were given up"
            + (f" ({one.last_error})" if one.last_error else ""),
            where=one.receiver,
            fix="see `ductile webhook deliveries`; when it answers again: ductile webhook resend ID",
        )
    if not troubles.receivers:
        yield fine(Check.RECEIVERS, "every receiver takes what it is sent")


def _not_allowed(receiver: TroubledReceiver, host: str, allow: Sequence[str]) -> Finding:
    """A receiver that we do not call ourselves. The list is set as a whole, so it is told as a whole."""
    listed = shlex.quote(msgspec.json.encode([*allow, host]).decode())
    only = "" if allow else "; from then on only listed hosts are called"
    return doubtful(
        Check.RECEIVERS,
        f"state webhooks to {receiver.receiver} are not sent: state_webhooks.allow does not list {host}; "
        f"{receiver.waiting} wait, {receiver.dropped} were given up",
        where="state_webhooks.allow",
        fix=f"if it may be called: ductile config set state_webhooks.allow {listed} --lock && ductile reload "
        f"(what was given up: ductile webhook resend ID){only}",
    )
