"""One daemon for each store: a lock that the kernel lets go of when its holder dies (SPEC 4.8)."""

from __future__ import annotations

import fcntl
import os
import time
from enum import StrEnum
from pathlib import Path

from ductile.errors import ConflictError
from ductile.value import Value

LOCK_FILE = "ductile.lock"
_LOOKS = 5
_BETWEEN_LOOKS = 0.02


class Keeper(StrEnum):
    """What somebody holds a store for."""

    DAEMON = "daemon"
    #: A job that is run without a daemon, for as long as it takes.
    RUN = "run"
    #: A command that works on the store, for a moment.
    COMMAND = "command"


class Holder(Value):
    pid: int
    keeper: Keeper


class StoreLock:
    """Held from the making of this object until `release`, or until the process ends, however that is."""

    def __init__(self, directory: Path, keeper: Keeper = Keeper.DAEMON) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = directory / LOCK_FILE
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not self._take():
            os.close(self._descriptor)
            raise held(self.path)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()} {keeper}\n".encode(), 0)

    def _take(self) -> bool:
        """Somebody who only looks who holds the lock takes it for a moment, so one refusal is no answer."""
        for _ in range(_LOOKS):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_BETWEEN_LOOKS)
            else:
                return True
        return False

    def release(self) -> None:
        # The file stays: removing it would let a third process lock a name that a second still holds.
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def held(path: Path) -> ConflictError:
    holder = holder_of(path.parent)
    who = f"process {holder.pid}" if holder else "another process"
    message, hint = _TOLD[Keeper.DAEMON if holder is None else holder.keeper]
    return ConflictError(
        f"{who} {message} ({path})", hint=hint, details={"pid": None if holder is None else holder.pid}
    )


_TOLD = {
    Keeper.DAEMON: (
        "uses this store already",
        "Talk to that daemon with `ductile status`, or stop it with `ductile system stop`.",
    ),
    Keeper.RUN: (
        "uses this store to run a job without a daemon",
        "Wait until that run has ended, or end it, then try again.",
    ),
    Keeper.COMMAND: ("uses this store for a moment", "It is a command that will have ended soon: try again."),
}


def holder_of(directory: Path) -> Holder | None:
    """The process that wrote itself into the lock file, if the lock is held."""
    path = directory / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_holder(os.pread(descriptor, 64, 0).decode(errors="replace"))
    finally:
        os.close(descriptor)
    return None


def _read_holder(text: str) -> Holder | None:
    """An earlier version wrote no more than its number; that was a daemon, most of the time."""
    pid, _, keeper = text.strip().partition(" ")
    known = Keeper(keeper) if keeper in tuple(Keeper) else Keeper.DAEMON
    return Holder(pid=int(pid), keeper=known) if pid.isdigit() else None
