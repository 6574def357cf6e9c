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
from ductile.core.json_values import JsonObject
from ductile.errors import ConfigError, DuctileError, StoreError
from ductile.operations import doctor_files as files
from ductile.operations import doctor_machine as machine
from ductile.operations import doctor_store as kept
from ductile.operations import parameters as read
from ductile.operations.desk import Desk, RunningEngine
from ductile.operations.findings import Check, Finding, doubtful, fine, of_error, shown
from ductile.operations.orphans import orphans
from ductile.operations.plugin_health import unhealthy_plugins
from ductile.operations.system import check_health, past_health

__all__ = [
    "Check",
    "doctor",
    "doctor_without_config",
    "doctor_without_store",
    "no_store",
    "not_running",
    "of_error",
]

_OF_LATE = timedelta(days=1)


async def doctor(desk: Desk, given: JsonObject) -> JsonObject:
    lost = await _lost_store(desk)
    if lost is not None:  # the daemon stops, and what it could still tell of its store is not on disk
        return shown([*await _config(desk), lost])
    found = [*await _config(desk), *_surroundings(desk.snapshot(), daemon_runs=desk.engine is not None)]
    if desk.engine is not None:
        found.append(_daemon(desk.engine, read.optional_text(given, "version")))
        found += await _health(desk, ask=read.flag(given, "ask_health"))
    else:
        found.append(not_running())
    found += await _store(desk)
    return shown(found)


def doctor_without_store(snapshot: Snapshot, *more: Finding) -> JsonObject:
    """Where there is a configuration, and no store that can be opened."""
    found = [*files.config_findings(snapshot), *_surroundings(snapshot, daemon_runs=False), *more]
    return shown(found)


def doctor_without_config(error: ConfigError, directory: Path | None) -> JsonObject:
    found = [*files.refused_config(error)]
    if directory is not None:
        found += files.permission_findings(directory, (), None)
    return shown(found)


def not_running() -> Finding:
    return doubtful(Check.DAEMON, "no daemon is running", fix="ductile system start")


def no_store(path: Path) -> Finding:
    return fine(Check.STORE, "there is no store yet; the first start makes it", str(path))


def _surroundings(snapshot: Snapshot, *, daemon_runs: bool) -> Iterator[Finding]:
    state = snapshot.state.path if isinstance(snapshot.state, SqliteLocation) else None
    yield from files.permission_findings(snapshot.directory, files.environment_files(snapshot), state)
    yield from files.plugin_findings(snapshot)
    yield from machine.listener_findings(snapshot, daemon_runs=daemon_runs)
    if state is not None and (place := _nearest(state.parent)) is not None:
        yield machine.judge_room(machine.room_at(place), str(place))


def _nearest(directory: Path) -> Path | None:
    """The directory, or the one above it that exists."""
    return next((each for each in (directory, *directory.parents) if each.is_dir()), None)


async def _config(desk: Desk) -> list[Finding]:
    """What is on disk: that is what the next start or reload will read."""
    if desk.load is None:
        return [*files.config_findings(desk.snapshot())]
    try:
        on_disk = await asyncio.to_thread(desk.load)
    except ConfigError as error:
        return [*files.refused_config(error)]
    found = [*files.config_findings(on_disk), *files.newly_refused(desk.snapshot(), on_disk)]
    if on_disk.fingerprint != desk.snapshot().fingerprint:
        message = "the configuration on disk is not the one in force"
        found.append(doubtful(Check.CONFIG, message, where=str(on_disk.directory), fix="ductile reload"))
    return found


def _daemon(engine: RunningEngine, caller: str | None) -> Finding:
    status = engine.status()
    if caller not in (None, __version__):
        return doubtful(
            Check.DAEMON,
            f"the daemon is version {__version__}, and {caller} is installed",
            where=f"process {status['pid']}",
            fix="ductile system stop, then ductile system start",
        )
    if status["stopping"]:
        return doubtful(Check.DAEMON, "the daemon is stopping", where=f"process {status['pid']}")
    return fine(Check.DAEMON, f"the daemon runs, version {__version__}", f"process {status['pid']}")


async def _lost_store(desk: Desk) -> Finding | None:
    try:
        await desk.store.check_files()
    except StoreError as error:
        return of_error(Check.STORE, error)
    return None


async def _health(desk: Desk, *, ask: bool) -> list[Finding]:
    """What the plugins say now or, for a caller who may only look, what they said when last asked."""
    try:
        if ask:
            return [*files.health_findings(await check_health(desk, {}))]
        return [*files.past_health_findings(await past_health(desk))]
    except DuctileError as error:
        return [of_error(Check.HEALTH, error)]


async def _store(desk: Desk) -> list[Finding]:
    try:
        troubles = await desk.store.troubles(since=desk.now() - _OF_LATE)
        return [
            machine.judge_clock(desk.now(), troubles.newest_at, desk.snapshot().timezone),
            *kept.judge_store(await desk.store.vitals()),
            *kept.breaker_findings(await desk.store.breakers()),
            *[finding async for finding in kept.schedule_findings(desk)],
            *kept.init_findings(await unhealthy_plugins(desk)),
            *kept.orphan_findings(await orphans(desk)),
            *kept.trouble_findings(troubles, desk.snapshot().state_webhooks.allow),
        ]
    except StoreError as error:
        return [of_error(Check.STORE, error)]
