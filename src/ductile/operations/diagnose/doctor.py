"""`system doctor`: every check of the installation, with a fix for each problem.

It works with or without a daemon and changes nothing; a daemon runs the health commands of plugins if asked.
A check that cannot be made is a finding, not an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from ductile import __version__
from ductile.config.snapshot import Snapshot, SqliteLocation
from ductile.engine.deps import EngineStatus
from ductile.errors import ConfigError, DuctileError, StoreError
from ductile.operations import request
from ductile.operations.context import OperationContext
from ductile.operations.diagnose import doctor_local as local
from ductile.operations.diagnose import doctor_store as stored
from ductile.operations.diagnose.findings import DoctorCheck, DoctorFinding, DoctorReport, build_report
from ductile.operations.plugins.health import CheckHealth, check_health, last_health_checks, unhealthy_plugins
from ductile.struct import Value

__all__ = [
    "DoctorCheck",
    "RunDoctor",
    "daemon_not_running",
    "doctor",
    "doctor_without_config",
    "doctor_without_store",
    "store_not_created",
]

_RECENT = timedelta(days=1)


class RunDoctor(Value):
    version: Annotated[str | None, request.local("The version of the program that asks.")] = None
    ask_health: Annotated[bool, request.local("Run the health commands of plugins.")] = False


async def doctor(context: OperationContext, request: RunDoctor) -> DoctorReport:
    found = await _config_findings(context)
    try:
        await context.store.check_files()
    except StoreError as error:
        # The files of the store are gone and the daemon stops: other checks would describe a lost store.
        return build_report([*found, DoctorCheck.STORE.raised(error)])
    found += _machine_findings(context.snapshot(), daemon_runs=context.engine is not None)
    if context.engine is not None:
        found.append(_daemon_finding(context.engine.status(), request.version))
        try:
            # A caller with read access starts no plugin: it gets the results of the latest health commands.
            if request.ask_health:
                found += local.health_findings((await check_health(context, CheckHealth())).health)
            else:
                found += local.past_health_findings(await last_health_checks(context))
        except DuctileError as error:
            found.append(DoctorCheck.HEALTH.raised(error))
    else:
        found.append(daemon_not_running())
    return build_report(found + await _store_findings(context))


def doctor_without_store(snapshot: Snapshot, *more: DoctorFinding) -> DoctorReport:
    """The report where the configuration can be loaded and the store cannot be opened."""
    found = [*local.config_findings(snapshot), *_machine_findings(snapshot, daemon_runs=False), *more]
    return build_report(found)


def doctor_without_config(error: ConfigError, directory: Path | None) -> DoctorReport:
    found = [*local.refused_config(error)]
    if directory is not None:
        found += local.permission_findings(directory, (), None)
    return build_report(found)


def daemon_not_running() -> DoctorFinding:
    return DoctorCheck.DAEMON.warn("no daemon is running", fix="ductile system start")


def store_not_created(path: Path) -> DoctorFinding:
    return DoctorCheck.STORE.ok("there is no store yet; the first start makes it", str(path))


def _machine_findings(snapshot: Snapshot, *, daemon_runs: bool) -> Iterator[DoctorFinding]:
    state = snapshot.state.path if isinstance(snapshot.state, SqliteLocation) else None
    yield from local.permission_findings(snapshot.directory, local.environment_files(snapshot), state)
    yield from local.plugin_findings(snapshot)
    yield from local.listener_findings(snapshot, daemon_runs=daemon_runs)
    parents = () if state is None else state.parents
    directory = next((each for each in parents if each.is_dir()), None)
    if directory is not None:
        yield local.check_space(local.free_space_at(directory), str(directory))


async def _config_findings(context: OperationContext) -> list[DoctorFinding]:
    """Findings for the configuration on disk, which the next start or reload will load."""
    in_force = context.snapshot()
    if context.load is None:
        return [*local.config_findings(in_force)]
    try:
        on_disk = await asyncio.to_thread(context.load)
    except ConfigError as error:
        return [*local.refused_config(error)]
    found = [*local.config_findings(on_disk), *local.newly_refused(in_force, on_disk)]
    if on_disk.fingerprint != in_force.fingerprint:
        message = "the configuration on disk is not the one in force"
        where = str(on_disk.directory)
        found.append(DoctorCheck.CONFIG.warn(message, where=where, fix="ductile reload"))
    return found


def _daemon_finding(status: EngineStatus, installed: str | None) -> DoctorFinding:
    where = f"process {status.pid}"
    if installed not in (None, __version__):
        message = f"the daemon is version {__version__}, and {installed} is installed"
        fix = "ductile system stop, then ductile system start"
        return DoctorCheck.DAEMON.warn(message, where=where, fix=fix)
    if status.stopping:
        return DoctorCheck.DAEMON.warn("the daemon is stopping", where=where)
    return DoctorCheck.DAEMON.ok(f"the daemon runs, version {__version__}", where)


async def _store_findings(context: OperationContext) -> list[DoctorFinding]:
    now, snapshot = context.now(), context.snapshot()
    try:
        failures = await context.store.recent_failures(since=now - _RECENT)
        return [
            local.check_clock(now, failures.newest_at, snapshot.timezone),
            *stored.store_findings(await context.store.stats()),
            *stored.breaker_findings(await context.store.breakers()),
            *[finding async for finding in stored.schedule_findings(context)],
            *stored.init_findings(await unhealthy_plugins(context)),
            *stored.orphan_findings(await context.count_orphaned()),
            *stored.failure_findings(failures, snapshot.state_webhooks.allow),
        ]
    except StoreError as error:
        return [DoctorCheck.STORE.raised(error)]
