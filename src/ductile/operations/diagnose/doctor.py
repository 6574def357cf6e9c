"""`system doctor`: everything that can be looked at, with a daemon or without, and what mends it.

Nothing is changed, but that plugins are asked for their health where the daemon runs. What cannot be looked
at is a finding, never an error: a doctor who faints is of no use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from ductile import __version__
from ductile.config.snapshot import Snapshot, SqliteLocation
from ductile.core.json import JsonObject
from ductile.errors import ConfigError, DuctileError, StoreError
from ductile.operations import parameters as read
from ductile.operations.context import OperationContext, RunningEngine
from ductile.operations.diagnose import doctor_files as files
from ductile.operations.diagnose import doctor_machine as machine
from ductile.operations.diagnose import doctor_store as kept
from ductile.operations.diagnose.findings import (
    DoctorCheck,
    DoctorFinding,
    build_report,
    from_error,
    ok,
    warning,
)
from ductile.operations.jobs.orphaned import count_orphaned
from ductile.operations.plugins.health import unhealthy_plugins
from ductile.operations.system.status import check_health, past_health

__all__ = [
    "DoctorCheck",
    "daemon_not_running",
    "doctor",
    "doctor_without_config",
    "doctor_without_store",
    "from_error",
    "store_not_created",
]

_RECENT = timedelta(days=1)


async def doctor(context: OperationContext, given: JsonObject) -> JsonObject:
    lost = await _lost_store(context)
    if lost is not None:  # the daemon stops, and what it could still tell of its store is not on disk
        return build_report([*await _config(context), lost])
    found = [
        *await _config(context),
        *_surroundings(context.snapshot(), daemon_runs=context.engine is not None),
    ]
    if context.engine is not None:
        found.append(_daemon(context.engine, read.optional_text(given, "version")))
        found += await _health(context, ask=read.flag(given, "ask_health"))
    else:
        found.append(daemon_not_running())
    found += await _store(context)
    return build_report(found)


def doctor_without_store(snapshot: Snapshot, *more: DoctorFinding) -> JsonObject:
    """Where there is a configuration, and no store that can be opened."""
    found = [*files.config_findings(snapshot), *_surroundings(snapshot, daemon_runs=False), *more]
    return build_report(found)


def doctor_without_config(error: ConfigError, directory: Path | None) -> JsonObject:
    found = [*files.refused_config(error)]
    if directory is not None:
        found += files.permission_findings(directory, (), None)
    return build_report(found)


def daemon_not_running() -> DoctorFinding:
    return warning(DoctorCheck.DAEMON, "no daemon is running", fix="ductile system start")


def store_not_created(path: Path) -> DoctorFinding:
    return ok(DoctorCheck.STORE, "there is no store yet; the first start makes it", str(path))


def _surroundings(snapshot: Snapshot, *, daemon_runs: bool) -> Iterator[DoctorFinding]:
    state = snapshot.state.path if isinstance(snapshot.state, SqliteLocation) else None
    yield from files.permission_findings(snapshot.directory, files.environment_files(snapshot), state)
    yield from files.plugin_findings(snapshot)
    yield from machine.listener_findings(snapshot, daemon_runs=daemon_runs)
    if state is not None and (place := _nearest(state.parent)) is not None:
        yield machine.check_space(machine.free_space_at(place), str(place))


def _nearest(directory: Path) -> Path | None:
    """The directory, or the one above it that exists."""
    return next((each for each in (directory, *directory.parents) if each.is_dir()), None)


async def _config(context: OperationContext) -> list[DoctorFinding]:
    """What is on disk: that is what the next start or reload will read."""
    if context.load is None:
        return [*files.config_findings(context.snapshot())]
    try:
        on_disk = await asyncio.to_thread(context.load)
    except ConfigError as error:
        return [*files.refused_config(error)]
    found = [*files.config_findings(on_disk), *files.newly_refused(context.snapshot(), on_disk)]
    if on_disk.fingerprint != context.snapshot().fingerprint:
        message = "the configuration on disk is not the one in force"
        found.append(warning(DoctorCheck.CONFIG, message, where=str(on_disk.directory), fix="ductile reload"))
    return found


def _daemon(engine: RunningEngine, caller: str | None) -> DoctorFinding:
    status = engine.status()
    if caller not in (None, __version__):
        return warning(
            DoctorCheck.DAEMON,
            f"the daemon is version {__version__}, and {caller} is installed",
            where=f"process {status.pid}",
            fix="ductile system stop, then ductile system start",
        )
    if status.stopping:
        return warning(DoctorCheck.DAEMON, "the daemon is stopping", where=f"process {status.pid}")
    return ok(DoctorCheck.DAEMON, f"the daemon runs, version {__version__}", f"process {status.pid}")


async def _lost_store(context: OperationContext) -> DoctorFinding | None:
    try:
        await context.store.check_files()
    except StoreError as error:
        return from_error(DoctorCheck.STORE, error)
    return None


async def _health(context: OperationContext, *, ask: bool) -> list[DoctorFinding]:
    """What the plugins say now or, for a caller who may only look, what they said when last asked."""
    try:
        if ask:
            return [*files.health_findings(await check_health(context, {}))]
        return [*files.past_health_findings(await past_health(context))]
    except DuctileError as error:
        return [from_error(DoctorCheck.HEALTH, error)]


async def _store(context: OperationContext) -> list[DoctorFinding]:
    try:
        recent_failures = await context.store.recent_failures(since=context.now() - _RECENT)
        return [
            machine.check_clock(context.now(), recent_failures.newest_at, context.snapshot().timezone),
            *kept.store_findings(await context.store.stats()),
            *kept.breaker_findings(await context.store.breakers()),
            *[finding async for finding in kept.schedule_findings(context)],
            *kept.init_findings(await unhealthy_plugins(context)),
            *kept.orphan_findings(await count_orphaned(context)),
            *kept.trouble_findings(recent_failures, context.snapshot().state_webhooks.allow),
        ]
    except StoreError as error:
        return [from_error(DoctorCheck.STORE, error)]
