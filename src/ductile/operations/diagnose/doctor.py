"""`system doctor`: every check of the installation, with a fix for each problem.

It works with or without a daemon and changes nothing. Health commands of plugins run only in a daemon, and
only if the caller asks for them. A check that cannot be made is a finding, not an error.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec

from ductile import __version__
from ductile.config.snapshot import Snapshot, SqliteLocation
from ductile.core.jobs.failures import BreakerState
from ductile.core.schedules.admission import OVERDUE_AFTER
from ductile.core.schedules.planner import OccurrenceOutcome, SkipReason
from ductile.core.webhooks.url_policy import refused_host
from ductile.engine.deps import EngineStatus
from ductile.engine.schedules.entries import active_schedules
from ductile.errors import ConfigError, DuctileError, StoreError
from ductile.operations import request
from ductile.operations.context import OperationContext
from ductile.operations.diagnose import doctor_local as local
from ductile.operations.diagnose.findings import DoctorCheck, DoctorFinding, DoctorReport, build_report
from ductile.operations.diagnose.wording import time_text
from ductile.operations.plugins.health import CheckHealth, check_health, last_health_checks, unhealthy_plugins
from ductile.operations.schedules.audit import audit_history
from ductile.operations.system.nodes import (
    list_nodes,
    node_findings,
    waiting_findings,
    waiting_for_node,
)
from ductile.store.model.jobs import InitRecord
from ductile.store.model.maintenance import FailingReceiver, RecentFailures, StoreStats
from ductile.store.model.notices import NoticeHealth
from ductile.store.model.records import BreakerRow
from ductile.store.model.schedules import ScheduleEntry
from ductile.struct import Value

_RECENT = timedelta(days=1)
_MIB = 1024 * 1024
#: The writer truncates the write-ahead log far earlier, unless another program keeps a read transaction open.
_LARGE_WAL = 256 * _MIB
#: Reasons of occurrences that were skipped because of other polls of the plugin.
_OTHER_POLLS = frozenset({SkipReason.WAITING, SkipReason.OUTSTANDING_POLLS})
#: The most occurrences of each schedule that are audited; `schedule history` audits all.
_MAX_AUDITED_OCCURRENCES = 50


class RunDoctor(Value):
    version: Annotated[str | None, request.in_local_call("The version of the program that asks.")] = None
    ask_health: Annotated[bool, request.in_local_call("Run the health commands of plugins.")] = False


async def doctor(context: OperationContext, request: RunDoctor) -> DoctorReport:
    """Check the configuration, the machine, the daemon, the plugins and the store."""
    findings = await _config_findings(context)
    try:
        await context.store.check_files()
    except StoreError as error:
        # The files of the store are gone and the daemon stops: other checks would describe a lost store.
        return build_report([*findings, DoctorCheck.STORE.raised(error)])
    findings += _machine_findings(context.snapshot(), daemon_runs=context.engine is not None)
    if context.engine is not None:
        findings.append(_daemon_finding(context.engine.status(), request.version))
        try:
            # A caller with read access starts no plugin: it gets the results of the latest health commands.
            if request.ask_health:
                findings += local.health_findings((await check_health(context, CheckHealth())).health)
            else:
                findings += local.past_health_findings(await last_health_checks(context))
        except DuctileError as error:
            findings.append(DoctorCheck.HEALTH.raised(error))
    else:
        findings.append(daemon_not_running())
    now, snapshot = context.now(), context.snapshot()
    try:
        failures = await context.store.recent_failures(since=now - _RECENT)
        findings += [
            local.check_clock(now, failures.newest_at, snapshot.timezone),
            *store_findings(await context.store.stats()),
            *node_findings(await list_nodes(context)),
            *waiting_findings(await waiting_for_node(context)),
            *breaker_findings(await context.store.list_breakers()),
            *[finding async for finding in schedule_findings(context)],
            *init_findings(await unhealthy_plugins(context)),
            *orphan_findings(await context.count_orphaned()),
            *failure_findings(failures),
            *receiver_findings(failures.receivers, snapshot.state_webhooks.allow),
            *notice_findings(await context.store.notice_health(), snapshot),
        ]
    except StoreError as error:
        findings.append(DoctorCheck.STORE.raised(error))
    return build_report(findings)


def doctor_without_store(snapshot: Snapshot, *more: DoctorFinding) -> DoctorReport:
    """Return the report where the configuration can be loaded and the store cannot be opened."""
    machine = _machine_findings(snapshot, daemon_runs=False)
    return build_report([*local.config_findings(snapshot), *machine, *more])


def doctor_without_config(error: ConfigError, directory: Path | None) -> DoctorReport:
    """Return the report where the configuration cannot be loaded."""
    files = () if directory is None else local.permission_findings(directory, ())
    return build_report([*local.refused_config(error), *files])


def daemon_not_running() -> DoctorFinding:
    return DoctorCheck.DAEMON.warn("no daemon is running", fix="ductile system start")


def store_not_created(path: Path) -> DoctorFinding:
    return DoctorCheck.STORE.ok("there is no store yet; the first start makes it", str(path))


def _machine_findings(snapshot: Snapshot, *, daemon_runs: bool) -> Iterator[DoctorFinding]:
    """Yield findings for file modes, plugins, listeners and the disk."""
    state = snapshot.state
    private = [*local.environment_files(snapshot), state.directory]
    if isinstance(state, SqliteLocation):
        private.append(state.path)
    yield from local.permission_findings(snapshot.directory, private)
    yield from local.plugin_findings(snapshot)
    yield from local.listener_findings(snapshot, daemon_runs=daemon_runs)
    places = (state.directory, *state.directory.parents)
    directory = next((candidate for candidate in places if candidate.is_dir()), None)
    if directory is not None:
        yield local.check_space(os.statvfs(directory), str(directory))


async def _config_findings(context: OperationContext) -> list[DoctorFinding]:
    """Return findings for the configuration on disk, which the next start or reload will load."""
    in_force = context.snapshot()
    if context.load_from_disk is None:
        return [*local.config_findings(in_force)]
    try:
        on_disk = await asyncio.to_thread(context.load_from_disk)
    except ConfigError as error:
        return [*local.refused_config(error)]
    findings = [*local.config_findings(on_disk), *local.newly_refused(in_force, on_disk)]
    if on_disk.fingerprint != in_force.fingerprint:
        message = "the configuration on disk is not the one in force"
        where = str(on_disk.directory)
        findings.append(DoctorCheck.CONFIG.warn(message, where=where, fix="ductile apply"))
    return findings


def _daemon_finding(status: EngineStatus, installed: str | None) -> DoctorFinding:
    where = f"process {status.pid}"
    if installed not in (None, __version__):
        message = f"the daemon is version {__version__}, and {installed} is installed"
        fix = "ductile system stop, then ductile system start"
        return DoctorCheck.DAEMON.warn(message, where=where, fix=fix)
    if status.stopping:
        return DoctorCheck.DAEMON.warn("the daemon is stopping", where=where)
    return DoctorCheck.DAEMON.ok(f"the daemon runs, version {__version__}", where)


def notice_findings(health: NoticeHealth, snapshot: Snapshot) -> Iterator[DoctorFinding]:
    """Yield findings for the plugin or pipeline of `service.on_failure`; none if it is not set."""
    name, receiver = snapshot.service.on_failure, snapshot.policy.on_failure
    if name is None or receiver is None:
        return
    if health.failed:
        times = "the last time" if health.failed == 1 else f"{health.failed} times in a row"
        yield DoctorCheck.NOTICES.warn(
            f"{name}, the receiver of failure notices, failed {times}: {health.error}",
            where=f"job {health.failed_job_id}",
            fix=f"fix the cause (ductile job explain {health.failed_job_id}), "
            f"then send the notice again: ductile job retry {health.failed_job_id}",
        )
    if not receiver.accepts_jobs:
        yield DoctorCheck.NOTICES.warn(
            f"{receiver.plugin}, the receiver of failure notices, is disabled; "
            f"{health.waiting} failures wait",
            where="service.on_failure",
            fix=f"ductile plugin enable {receiver.plugin}",
        )
    if not health.failed and receiver.accepts_jobs:
        yield DoctorCheck.NOTICES.ok(f"{name} receives failure notices")


def store_findings(stats: StoreStats) -> Iterator[DoctorFinding]:
    if stats.damage:
        yield DoctorCheck.STORE.error(
            f"the file is damaged: {stats.damage[0]}",
            where=stats.path,
            fix="stop the daemon, keep a copy of the file, then: ductile system restore FILE --to DIR",
        )
    if stats.search_damage:
        message = "the index for searching the log was damaged and is built anew; no job is affected"
        yield DoctorCheck.STORE.warn(message, where=stats.path)
    for log in stats.damaged_wals:
        yield DoctorCheck.STORE.warn(
            "the write-ahead log was damaged when the store was opened: jobs that were accepted last may be "
            "missing",
            where=log,
            fix=f"look for them (ductile job list), send again what is missing, then: rm {log}",
        )
    if stats.wal_size > _LARGE_WAL:
        yield DoctorCheck.STORE.warn(
            f"the write-ahead log has grown to {stats.wal_size // _MIB} MiB",
            where=f"{stats.path}-wal",
            fix="end whatever else has the store open (fuser), or restart the daemon",
        )
    if not stats.damage:
        filesystem = f", on {stats.filesystem}" if stats.filesystem else ""
        details = f"{stats.size // _MIB} MiB, schema version {stats.schema_version}{filesystem}"
        yield DoctorCheck.STORE.ok(f"the store is undamaged: {details}", stats.path)


def breaker_findings(rows: Sequence[BreakerRow]) -> Iterator[DoctorFinding]:
    not_closed = [row for row in rows if row.breaker.state is not BreakerState.CLOSED]
    for row in not_closed:
        job_id = row.breaker.last_job_id
        yield DoctorCheck.BREAKERS.warn(
            f"the breaker of {row.plugin} {row.command} is {row.breaker.state} after "
            f"{row.breaker.failures} failures: the scheduler does not run it",
            where=f"job {job_id}" if job_id else None,
            fix=f"fix the cause{f' (ductile job explain {job_id})' if job_id else ''}, "
            f"then: ductile system reset {row.plugin}",
        )
    if not not_closed:
        yield DoctorCheck.BREAKERS.ok("no breaker is open")


async def schedule_findings(context: OperationContext) -> AsyncIterator[DoctorFinding]:
    """Yield at most one finding for each active schedule, or one for all if nothing is wrong."""
    engine, active = context.engine, active_schedules(context.snapshot())
    all_ok = True
    for entry in await context.store.list_schedules():
        if (entry.plugin, entry.schedule_id) not in active:
            continue
        if engine is not None and entry.plugin in engine.draining:
            continue  # Its due runs wait for the end of the drain.
        finding = check_schedule(entry, context.now(), daemon_runs=engine is not None)
        finding = finding or await _check_history(context, entry)
        if finding is not None:
            all_ok = False
            yield finding
    if all_ok:
        run = "1 schedule runs" if len(active) == 1 else f"{len(active)} schedules run"
        yield DoctorCheck.SCHEDULES.ok(f"{run} as configured, without a gap")


def check_schedule(entry: ScheduleEntry, now: datetime, *, daemon_runs: bool) -> DoctorFinding | None:
    """Return a finding for a schedule that is paused, is overdue or waits for long; None for any other."""
    name, where = f"{entry.plugin} {entry.schedule_id}", f"plugins.{entry.plugin}.schedules"
    explain = f"ductile schedule explain {name}"
    if entry.paused_at is not None:
        message = f"{name} is paused since {time_text(entry.paused_at)}"
        return DoctorCheck.SCHEDULES.warn(message, where=where, fix=f"ductile schedule resume {name}")
    if daemon_runs and entry.next_at is not None and now - entry.next_at > OVERDUE_AFTER:
        message = f"{name} is overdue since {time_text(entry.next_at)}"
        return DoctorCheck.SCHEDULES.error(message, where=where, fix=explain)
    if daemon_runs and entry.deferred is not None and now - entry.deferred.start_at > OVERDUE_AFTER:
        since = time_text(entry.deferred.start_at)
        message = f"{name} waits since {since} for other polls of {entry.plugin} to end"
        return DoctorCheck.SCHEDULES.warn(message, where=where, fix=explain)
    return None


async def _check_history(context: OperationContext, entry: ScheduleEntry) -> DoctorFinding | None:
    """Return a finding for a history with a gap or with occurrences that other polls displaced, else None."""
    page = await context.store.list_occurrences(
        entry.plugin, entry.schedule_id, limit=_MAX_AUDITED_OCCURRENCES
    )
    name, where = f"{entry.plugin} {entry.schedule_id}", f"plugins.{entry.plugin}.schedules"
    if (await audit_history(context, entry, page.rows, newest=True)).complete is False:
        message = f"the history of {name} has a gap"
        return DoctorCheck.SCHEDULES.warn(message, where=where, fix=f"ductile schedule history {name}")
    since = context.now() - _RECENT
    skipped = sum(
        row.count
        for row in page.rows
        if row.outcome is OccurrenceOutcome.SKIPPED
        and row.reason in _OTHER_POLLS
        and (row.until_at or row.nominal_at) > since
    )
    if not skipped:
        return None
    return DoctorCheck.SCHEDULES.warn(
        f"{name} runs less often than it is due: within a day {skipped} of its occurrences were skipped "
        f"because other polls of {entry.plugin} were queued or running",
        where=where,
        fix=f"raise plugins.{entry.plugin}.max_outstanding_polls, or let its schedules be due less often; "
        f"see: ductile schedule history {name}",
    )


def init_findings(failed: Mapping[str, InitRecord]) -> Iterator[DoctorFinding]:
    for name, record in failed.items():
        yield DoctorCheck.PLUGINS.warn(
            f"{name} is unhealthy: its init failed: {record.error}",
            where=f"job {record.job_id}" if record.job_id else f"plugins.{name}",
            fix=f"fix the cause, then: ductile job retry {record.job_id}" if record.job_id else None,
        )


def orphan_findings(orphaned: int) -> Iterator[DoctorFinding]:
    if orphaned:
        jobs, pronoun = ("1 job was", "it") if orphaned == 1 else (f"{orphaned} jobs were", "them")
        yield DoctorCheck.JOBS.warn(
            f"{jobs} running when the process that ran {pronoun} died; the next start runs {pronoun} again, "
            f"or ends {pronoun}",
            where="ductile queue list",
            fix="ductile system start",
        )


def failure_findings(failures: RecentFailures) -> Iterator[DoctorFinding]:
    """Yield a finding for each group of jobs that failed for good, or lost their plugin, within a day."""
    for group in failures.endings:
        jobs = "job" if group.jobs == 1 else "jobs"
        yield DoctorCheck.JOBS.warn(
            f"{group.jobs} {jobs} of {group.plugin} {group.command} failed for good within a day",
            where=f"job {group.latest_job_id}",
            fix=f"ductile job explain {group.latest_job_id}",
        )
    for group in failures.removed:
        jobs = "1 queued job" if group.jobs == 1 else f"{group.jobs} queued jobs"
        yield DoctorCheck.JOBS.warn(
            f"{jobs} of {group.plugin} {group.command} ended within a day because the plugin was removed "
            "or disabled",
            where=f"job {group.latest_job_id}",
            fix=f"if they are still wanted: ductile plugin enable {group.plugin}, "
            f"then: ductile job retry {group.latest_job_id}",
        )
    if not failures.endings and not failures.removed:
        yield DoctorCheck.JOBS.ok("no job failed for good within a day")


def receiver_findings(receivers: Sequence[FailingReceiver], allow: Sequence[str]) -> Iterator[DoctorFinding]:
    """Yield a finding for each receiver that does not accept state webhooks, or that Ductile does not call.

    `allow` are the hosts of `state_webhooks.allow`.
    """
    for receiver in receivers:
        counts = f"{receiver.waiting} wait, {receiver.dropped} were given up"
        host = refused_host(receiver.receiver, receiver.last_error, allow)
        if host is None:
            error = f" ({receiver.last_error})" if receiver.last_error else ""
            yield DoctorCheck.RECEIVERS.warn(
                f"{receiver.receiver} does not accept state webhooks: {counts}{error}",
                where=receiver.receiver,
                fix="see `ductile webhook deliveries`; when it answers again: ductile webhook resend ID",
            )
            continue
        # Ductile itself refuses to call the host. The list is set as a whole, so the fix names it as a whole.
        hosts = shlex.quote(msgspec.json.encode([*allow, host]).decode())
        warning = "" if allow else "; from then on only listed hosts are called"
        yield DoctorCheck.RECEIVERS.warn(
            f"state webhooks to {receiver.receiver} are not sent: state_webhooks.allow does not list {host}; "
            f"{counts}",
            where="state_webhooks.allow",
            fix=f"if it may be called: ductile config set state_webhooks.allow {hosts} && ductile apply "
            f"(what was given up: ductile webhook resend ID){warning}",
        )
    if not receivers:
        yield DoctorCheck.RECEIVERS.ok("every receiver accepts its state webhooks")
