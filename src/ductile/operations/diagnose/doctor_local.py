"""Doctor checks that need no store: configuration, file modes, plugins, clock, disk and listeners."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ductile.config.find_config import CHECKSUMS_FILE, resolve_path
from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.jobs.settlement import LogStatus
from ductile.errors import ConfigError, ConflictError, IntegrityError
from ductile.operations.diagnose.findings import DoctorCheck, DoctorFinding, FindingLevel
from ductile.operations.diagnose.wording import time_text
from ductile.operations.plugins.health import NOT_CHECKED, PluginHealth
from ductile.store.model.records import LogRow

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
#: Only problems of the seal have this hint.
_SEAL_HINT = "ductile apply"
#: Ductile did not exist before this instant, so a clock that shows an earlier one was never set.
_EARLIEST_TIME = datetime(2026, 1, 1, tzinfo=UTC)
_CLOCK_SLACK = timedelta(seconds=5)
_MIB = 1024 * 1024
#: A busy daemon can fill this within minutes.
_MIN_FREE = 64 * _MIB
_LOW_FREE = 1024 * _MIB
_LOW_SHARE = 0.05
_LOW_INODES_SHARE = 0.01


def config_findings(snapshot: Snapshot) -> Iterator[DoctorFinding]:
    """Yield findings for a configuration that was loaded."""
    sealed = [problem for problem in snapshot.warnings if _SEAL_HINT in (problem.hint or "")]
    others = [problem for problem in snapshot.warnings if problem not in sealed]
    yield from (DoctorCheck.CONFIG.problem(FindingLevel.WARN, problem) for problem in others)
    yield from (DoctorCheck.SEAL.problem(FindingLevel.WARN, problem) for problem in sealed)
    directory = snapshot.directory
    if not others:
        yield DoctorCheck.CONFIG.ok("the configuration loads without a warning", str(directory))
    if not sealed:
        message = "the files and plugins are what was sealed"
        yield DoctorCheck.SEAL.ok(message, str(directory / CHECKSUMS_FILE))


def refused_config(error: ConfigError) -> Iterator[DoctorFinding]:
    """Yield one finding for each problem of a configuration that could not be loaded."""
    check = DoctorCheck.SEAL if isinstance(error, IntegrityError) else DoctorCheck.CONFIG
    if not error.problems:
        yield check.error(error.message, fix=error.hint)
    yield from (check.problem(FindingLevel.ERROR, problem) for problem in error.problems)


def environment_files(snapshot: Snapshot) -> tuple[Path, ...]:
    """Return the files of environment variables that the configuration includes: they hold its secrets."""
    match snapshot.redacted:
        case {"environment_vars": {"include": [*names]}}:
            return tuple(resolve_path(str(name), snapshot.directory) for name in names)
        case _:
            return ()


def permission_findings(directory: Path, private: Iterable[Path]) -> Iterator[DoctorFinding]:
    """Yield findings for files that other users can change or read. `private` are files with secrets."""
    files = sorted((*directory.glob("*.yaml"), *directory.glob("*.yml"), directory / CHECKSUMS_FILE))
    paths = dict.fromkeys((directory, *files), False) | dict.fromkeys(private, True)
    all_ok = True
    for path, is_private in paths.items():
        try:
            status = path.stat()
        except OSError:
            continue  # A missing file is reported by the check that needs it.
        open_to_others = stat.S_IMODE(status.st_mode) & _OTHERS
        where, fix = str(path), f"chmod {0o700 if stat.S_ISDIR(status.st_mode) else 0o600:o} {path}"
        if status.st_uid not in (os.geteuid(), 0):
            message = f"it belongs to user {status.st_uid}, not to the user who runs this"
            yield DoctorCheck.PERMISSIONS.warn(message, where=where, fix=f"chown {os.geteuid()} {path}")
        elif open_to_others & _OTHERS_WRITE:
            yield DoctorCheck.PERMISSIONS.error("other users can change it", where=where, fix=fix)
        elif open_to_others and is_private:
            message = "other users can read it, and it holds secrets"
            yield DoctorCheck.PERMISSIONS.error(message, where=where, fix=fix)
        elif open_to_others:
            yield DoctorCheck.PERMISSIONS.warn("other users can read it", where=where, fix=fix)
        else:
            continue
        all_ok = False
    if all_ok:
        yield DoctorCheck.PERMISSIONS.ok("only their owner can read and change the files", str(directory))


def newly_refused(in_force: Snapshot, on_disk: Snapshot) -> Iterator[DoctorFinding]:
    """Yield findings for plugins that run now and that the next start or reload will refuse."""
    known = {plugin.name for plugin in in_force.refused}
    for plugin in on_disk.refused:
        if plugin.name not in known:
            yield _refused(plugin, "will not run after the next start or reload")


def plugin_findings(snapshot: Snapshot) -> Iterator[DoctorFinding]:
    yield from (_refused(plugin, "cannot run") for plugin in snapshot.refused)
    if not snapshot.refused:
        count = sum(plugin.runnable for plugin in snapshot.plugins.values())
        yield DoctorCheck.PLUGINS.ok(f"{count} of {len(snapshot.plugins)} configured plugins can run")


def _refused(plugin: PluginInstance, consequence: str) -> DoctorFinding:
    refusal = plugin.refused
    assert refusal is not None  # noqa: S101 - `Snapshot.refused` lists only plugins that have one
    return DoctorCheck.PLUGINS.error(
        f"{plugin.name} {consequence}: {refusal.reason}",
        where=f"plugins.{plugin.name}",
        fix=refusal.hint or f"ductile plugin check {plugin.uses}",
    )


def health_findings(rows: Sequence[PluginHealth]) -> Iterator[DoctorFinding]:
    """Yield findings for health commands that were run just now."""
    checked = [row for row in rows if row.status != NOT_CHECKED]
    unhealthy = [row for row in checked if row.status != LogStatus.SUCCEEDED]
    for row in rows:
        if row.status == NOT_CHECKED:
            message = f"{row.plugin} was not asked for its health: it is busy, and runs one job at a time"
            yield DoctorCheck.HEALTH.ok(message)
    yield from (_unhealthy(row, "is not healthy") for row in unhealthy)
    if checked and not unhealthy:
        yield DoctorCheck.HEALTH.ok(f"{len(checked)} plugins report that they are healthy")
    if not rows:
        yield DoctorCheck.HEALTH.ok("no plugin has a health command")


def past_health_findings(last_checks: Mapping[str, LogRow | None]) -> Iterator[DoctorFinding]:
    """Yield findings for the latest health commands, without running one."""
    rows = [row for row in last_checks.values() if row is not None]
    unhealthy = [row for row in rows if row.status is not LogStatus.SUCCEEDED]
    yield from (_unhealthy(row, f"was not healthy at {time_text(row.completed_at)}") for row in unhealthy)
    if not last_checks:
        yield DoctorCheck.HEALTH.ok("no plugin has a health command")
    elif not rows:
        yield DoctorCheck.HEALTH.ok("no plugin was asked for its health yet; `ductile doctor` asks them")
    elif not unhealthy:
        yield DoctorCheck.HEALTH.ok(f"{len(rows)} plugins were healthy when they were last asked")


def _unhealthy(check: PluginHealth | LogRow, verdict: str) -> DoctorFinding:
    return DoctorCheck.HEALTH.error(
        f"{check.plugin} {verdict}: {check.error or check.status}",
        where=f"job {check.job_id}",
        fix=f"ductile job explain {check.job_id}",
    )


def check_clock(now: datetime, newest_at: datetime | None, timezone: str) -> DoctorFinding:
    if now < _EARLIEST_TIME:
        return DoctorCheck.CLOCK.error(
            f"the clock says {now:%Y-%m-%d}", fix="set the clock: timedatectl set-ntp true"
        )
    if newest_at is not None and newest_at - now > _CLOCK_SLACK:
        return DoctorCheck.CLOCK.warn(
            f"the clock was set back: the ledger has entries from {time_text(newest_at)}",
            fix="let NTP keep the clock: timedatectl set-ntp true",
        )
    return DoctorCheck.CLOCK.ok(f"the clock says {time_text(now)}; schedules are in {timezone}")


def check_space(filesystem: os.statvfs_result, where: str) -> DoctorFinding:
    fix = "free some space, or set state.path to another disk"
    free = filesystem.f_bavail * filesystem.f_frsize
    left = f"{free // _MIB} MiB are left"
    if free < _MIN_FREE:
        return DoctorCheck.DISK.error(left, where=where, fix=fix)
    if free < _LOW_FREE and filesystem.f_bavail < filesystem.f_blocks * _LOW_SHARE:
        return DoctorCheck.DISK.warn(f"only {left}", where=where, fix=fix)
    # The number of inodes is 0 where it is not limited.
    if filesystem.f_files and filesystem.f_favail < filesystem.f_files * _LOW_INODES_SHARE:
        message = f"only {filesystem.f_favail} more files can be made"
        return DoctorCheck.DISK.warn(message, where=where, fix=fix)
    return DoctorCheck.DISK.ok(left, where)


def listener_findings(snapshot: Snapshot, *, daemon_runs: bool) -> Iterator[DoctorFinding]:
    listeners = _listen_addresses(snapshot)
    for key, address in listeners:
        error = None if daemon_runs else _bind_error(address)
        if error is None:
            state = "the daemon listens there" if daemon_runs else "it is free"
            yield DoctorCheck.LISTENERS.ok(f"{address}: {state}", key)
        else:
            message = f"{address} cannot be listened on: {error}"
            fix = f"stop what listens there, or: ductile config set {key} HOST:PORT --lock"
            yield DoctorCheck.LISTENERS.error(message, where=key, fix=fix)
    if not listeners:
        yield DoctorCheck.LISTENERS.ok("no listener is configured")


def refuse_taken_addresses(snapshot: Snapshot) -> None:
    """Raise `ConflictError` if a daemon could not start because an address cannot be listened on."""
    for key, address in _listen_addresses(snapshot):
        if (error := _bind_error(address)) is not None:
            raise ConflictError(
                f"{address} cannot be listened on: {error}",
                hint="End what listens there, or choose another address: "
                f"ductile config set {key} HOST:PORT --lock",
            )


def _listen_addresses(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Return the configuration key and the address of each listener."""
    api = [("api.listen", snapshot.api.listen)] if snapshot.api.enabled else []
    return api + ([("webhooks.listen", snapshot.webhooks_listen)] if snapshot.webhooks_enabled else [])


def _bind_error(address: str) -> str | None:
    """Bind the address and release it at once. Returns the error, None if there was none."""
    host, _, port = address.rpartition(":")
    try:
        addresses = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _kind, _protocol, _name, resolved = addresses[0]
        with socket.socket(family, socket.SOCK_STREAM) as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(resolved)
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None
