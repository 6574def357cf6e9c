"""The doctor's look at the machine: the clock, the disk, and the addresses to listen at."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ductile.config.snapshot import Snapshot
from ductile.errors import ConflictError
from ductile.operations.diagnose.findings import DoctorCheck, DoctorFinding, failure, ok, warning
from ductile.struct import Value

#: Nothing of ours is older: a clock before this was never set.
_FIRST_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
_CLOCK_SLACK = timedelta(seconds=5)
_MIB = 1024 * 1024
#: With less than this a busy daemon can fill the disk within minutes.
_TOO_LITTLE = 64 * _MIB
_LITTLE = 1024 * _MIB
_LITTLE_SHARE = 0.05


def check_clock(now: datetime, newest_at: datetime | None, timezone: str) -> DoctorFinding:
    if now < _FIRST_YEAR:
        return failure(
            DoctorCheck.CLOCK, f"the clock says {now:%Y-%m-%d}", fix="set the clock: timedatectl set-ntp true"
        )
    if newest_at is not None and newest_at - now > _CLOCK_SLACK:
        return warning(
            DoctorCheck.CLOCK,
            f"the clock was set back: the ledger has entries from {newest_at:%Y-%m-%dT%H:%M:%SZ}",
            fix="let NTP keep the clock: timedatectl set-ntp true",
        )
    return ok(DoctorCheck.CLOCK, f"the clock says {now:%Y-%m-%dT%H:%M:%SZ}; schedules are in {timezone}")


class FreeSpace(Value):
    """What is left on a filesystem; one without a number of inodes has as many as it needs."""

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


def check_space(room: FreeSpace, where: str) -> DoctorFinding:
    fix = "free some space, or set state.path to another disk"
    left = f"{room.free // _MIB} MiB are left"
    if room.free < _TOO_LITTLE:
        return failure(DoctorCheck.DISK, left, where=where, fix=fix)
    if room.free < _LITTLE and room.free < room.size * _LITTLE_SHARE:
        return warning(DoctorCheck.DISK, f"only {left}", where=where, fix=fix)
    if room.inodes and room.free_inodes < room.inodes * _LITTLE_SHARE / 5:
        return warning(
            DoctorCheck.DISK, f"only {room.free_inodes} more files can be made", where=where, fix=fix
        )
    return ok(DoctorCheck.DISK, left, where)


def listener_findings(snapshot: Snapshot, *, daemon_runs: bool) -> Iterator[DoctorFinding]:
    places = _listeners(snapshot)
    for key, listen in places:
        fault = None if daemon_runs else _why_not_bound(listen)
        if fault is None:
            said = "the daemon listens there" if daemon_runs else "it is free"
            yield ok(DoctorCheck.LISTENERS, f"{listen}: {said}", key)
        else:
            fix = f"stop what listens there, or: ductile config set {key} HOST:PORT --lock"
            yield failure(
                DoctorCheck.LISTENERS, f"{listen} cannot be listened on: {fault}", where=key, fix=fix
            )
    if not places:
        yield ok(DoctorCheck.LISTENERS, "no listener is configured")


def refuse_taken_addresses(snapshot: Snapshot) -> None:
    """What keeps a daemon from starting, before one is started: an address that cannot be listened at."""
    for key, listen in _listeners(snapshot):
        if (fault := _why_not_bound(listen)) is not None:
            raise ConflictError(
                f"{listen} cannot be listened at: {fault}",
                hint="End what listens there, or choose another address: "
                f"ductile config set {key} HOST:PORT --lock",
            )


def _listeners(snapshot: Snapshot) -> list[tuple[str, str]]:
    places = [("api.listen", snapshot.api.listen)] if snapshot.api.enabled else []
    return places + ([("webhooks.listen", snapshot.webhooks_listen)] if snapshot.webhooks_enabled else [])


def _why_not_bound(listen: str) -> str | None:
    """Bound and let go at once; None if that went well."""
    host, _, port = listen.rpartition(":")
    try:
        found = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _kind, _protocol, _name, address = found[0]
        with socket.socket(family, socket.SOCK_STREAM) as made:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None
