"""Doctor checks of the machine: the clock, the disk, and the addresses to listen on."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ductile.config.snapshot import Snapshot
from ductile.errors import ConflictError
from ductile.operations.diagnose.findings import DoctorCheck, DoctorFinding, failure, ok, warning
from ductile.operations.diagnose.wording import time_text
from ductile.struct import Value

#: Ductile is not older: a clock before this was never set.
_FIRST_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
_CLOCK_SLACK = timedelta(seconds=5)
_MIB = 1024 * 1024
#: A busy daemon can fill this within minutes.
_MIN_FREE = 64 * _MIB
_LOW_FREE = 1024 * _MIB
_LOW_SHARE = 0.05
_LOW_INODES_SHARE = 0.01


def check_clock(now: datetime, newest_at: datetime | None, timezone: str) -> DoctorFinding:
    if now < _FIRST_YEAR:
        return failure(
            DoctorCheck.CLOCK, f"the clock says {now:%Y-%m-%d}", fix="set the clock: timedatectl set-ntp true"
        )
    if newest_at is not None and newest_at - now > _CLOCK_SLACK:
        return warning(
            DoctorCheck.CLOCK,
            f"the clock was set back: the ledger has entries from {time_text(newest_at)}",
            fix="let NTP keep the clock: timedatectl set-ntp true",
        )
    return ok(DoctorCheck.CLOCK, f"the clock says {time_text(now)}; schedules are in {timezone}")


class FreeSpace(Value):
    """Free space of a filesystem in bytes. `inodes` is 0 where their number is not limited."""

    free: int
    size: int
    free_inodes: int
    inodes: int


def free_space_at(path: Path) -> FreeSpace:
    found = os.statvfs(path)
    return FreeSpace(
        free=found.f_bavail * found.f_frsize,
        size=found.f_blocks * found.f_frsize,
        free_inodes=found.f_favail,
        inodes=found.f_files,
    )


def check_space(space: FreeSpace, where: str) -> DoctorFinding:
    fix = "free some space, or set state.path to another disk"
    left = f"{space.free // _MIB} MiB are left"
    if space.free < _MIN_FREE:
        return failure(DoctorCheck.DISK, left, where=where, fix=fix)
    if space.free < _LOW_FREE and space.free < space.size * _LOW_SHARE:
        return warning(DoctorCheck.DISK, f"only {left}", where=where, fix=fix)
    if space.inodes and space.free_inodes < space.inodes * _LOW_INODES_SHARE:
        return warning(
            DoctorCheck.DISK, f"only {space.free_inodes} more files can be made", where=where, fix=fix
        )
    return ok(DoctorCheck.DISK, left, where)


def listener_findings(snapshot: Snapshot, *, daemon_runs: bool) -> Iterator[DoctorFinding]:
    listeners = _listeners(snapshot)
    for key, address in listeners:
        error = None if daemon_runs else _bind_error(address)
        if error is None:
            state = "the daemon listens there" if daemon_runs else "it is free"
            yield ok(DoctorCheck.LISTENERS, f"{address}: {state}", key)
        else:
            message = f"{address} cannot be listened on: {error}"
            fix = f"stop what listens there, or: ductile config set {key} HOST:PORT --lock"
            yield failure(DoctorCheck.LISTENERS, message, where=key, fix=fix)
    if not listeners:
        yield ok(DoctorCheck.LISTENERS, "no listener is configured")


def refuse_taken_addresses(snapshot: Snapshot) -> None:
    """Raise `ConflictError` if a daemon could not start because an address cannot be listened on."""
    for key, address in _listeners(snapshot):
        if (error := _bind_error(address)) is not None:
            raise ConflictError(
                f"{address} cannot be listened on: {error}",
                hint="End what listens there, or choose another address: "
                f"ductile config set {key} HOST:PORT --lock",
            )


def _listeners(snapshot: Snapshot) -> list[tuple[str, str]]:
    """The configuration key and the address of each listener."""
    api = [("api.listen", snapshot.api.listen)] if snapshot.api.enabled else []
    return api + ([("webhooks.listen", snapshot.webhooks_listen)] if snapshot.webhooks_enabled else [])


def _bind_error(address: str) -> str | None:
    """Bind the address and release it at once. Returns the error, None if there was none."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _kind, _protocol, _name, resolved = found[0]
        with socket.socket(family, socket.SOCK_STREAM) as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(resolved)
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None
