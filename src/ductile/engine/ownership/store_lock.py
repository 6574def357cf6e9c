"""One daemon for each store: locks that the kernel releases when their holder dies.

Two files are locked. `ductile.lock` names its holder, but anybody can remove it and lock a new one. The
database cannot be removed without the daemon noticing, so its own lock decides.

Both are `flock` locks. They are independent of the POSIX locks that SQLite takes on the database; but closing
any descriptor of the database drops SQLite's locks in this process, so the one that is opened here stays
open until the store is closed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from ductile.config.file_io import make_private_directory
from ductile.errors import ConflictError, DeniedError
from ductile.struct import Value

LOCK_FILE = "ductile.lock"
#: Beside the lock while it is held by anything but a daemon: the holder's PID and what it is.
PURPOSE_FILE = "ductile.lock.purpose"
_LOCK_ATTEMPTS = 5
_ATTEMPT_INTERVAL = 0.02
#: Bytes. A lock file holds a PID; a larger file is not one.
_MAX_FILE_BYTES = 64


class LockPurpose(StrEnum):
    """What somebody holds a store for."""

    DAEMON = "daemon"
    #: A job that is run without a daemon, for as long as it takes.
    RUN = "run"
    #: A command that works on the store, for a moment.
    COMMAND = "command"


class LockHolder(Value):
    pid: int
    keeper: LockPurpose


class StoreLock:
    """Held from the making of this object until `release`, or until the process ends, however that is."""

    def __init__(
        self, directory: Path, keeper: LockPurpose = LockPurpose.DAEMON, *, database: Path | None = None
    ) -> None:
        """Raise `ConflictError` if another process holds the lock, on the directory or on `database`."""
        make_private_directory(directory)
        self.path = directory / LOCK_FILE
        self._keeper = keeper
        self._database: int | None = None
        self._descriptor = self._take()
        try:
            if database is not None:
                self.hold_database(database)
            self._write_holder()
        except BaseException:
            self.release()
            raise

    def _take(self) -> int:
        """A process that only looks who holds the lock takes it for a moment, so one refusal is no answer."""
        for _ in range(_LOCK_ATTEMPTS):
            descriptor = self._try_take()
            if descriptor is not None:
                return descriptor
            time.sleep(_ATTEMPT_INTERVAL)
        raise held_error(self.path)

    def _try_take(self) -> int | None:
        descriptor = _open_lock(self.path)
        # The file may have been removed between opening and locking it: such a lock excludes nobody.
        if _lock(descriptor) and _is_at(descriptor, self.path):
            return descriptor
        os.close(descriptor)
        return None

    def hold_database(self, path: Path) -> None:
        """Lock the database too, as soon as it exists. Raise `ConflictError` if another process has."""
        if self._database is not None:
            return
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return  # it is not there yet, or cannot be read: opening the store tells which
        for _ in range(_LOCK_ATTEMPTS):
            if _lock(descriptor):
                self._database = descriptor
                return
            time.sleep(_ATTEMPT_INTERVAL)
        holder = _flock_holder(descriptor)
        os.close(descriptor)
        raise _in_use_error(
            path, None if holder is None else LockHolder(pid=holder, keeper=LockPurpose.DAEMON)
        )

    def renew(self) -> bool:
        """Take the lock file again if it was removed or replaced; whether that was done.

        If another process has locked a new file meanwhile, the lock on the database refuses that process.
        """
        if _is_at(self._descriptor, self.path):
            return False
        with suppress(OSError, DeniedError):
            taken = self._try_take()
            if taken is not None:
                os.close(self._descriptor)
                self._descriptor = taken
                self._write_holder()
                return True
        return False

    def _write_holder(self) -> None:
        text = f"{os.getpid()}\n".encode()
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))
        purpose = self.path.with_name(PURPOSE_FILE)
        with suppress(OSError):  # what the store is held for is only told, and decides nothing
            purpose.unlink(missing_ok=True)
            if self._keeper is not LockPurpose.DAEMON:
                descriptor = os.open(purpose, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                os.write(descriptor, f"{os.getpid()} {self._keeper}\n".encode())
                os.close(descriptor)

    def release(self) -> None:
        """To be called when the store is closed. Never fails: the disk may be lost by then.

        The lock file stays, and nothing is written to it. Removing it would let a third process lock a
        name that a second still holds; and that nobody holds it, the kernel tells.
        """
        with suppress(OSError):
            if self._keeper is not LockPurpose.DAEMON:
                self.path.with_name(PURPOSE_FILE).unlink(missing_ok=True)
        for descriptor in (self._database, self._descriptor):
            if descriptor is not None:
                with suppress(OSError):
                    os.close(descriptor)


def _open_lock(path: Path) -> int:
    """Open the lock file, or make it. A link to another file is refused: it would be written to."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _not_a_lock(path, "is a symbolic link") from error
        raise
    wrong = _wrong_with(os.fstat(descriptor))
    if wrong is not None:
        os.close(descriptor)
        raise _not_a_lock(path, wrong)
    return descriptor


def _wrong_with(found: os.stat_result) -> str | None:
    if not stat.S_ISREG(found.st_mode):
        return "is not a regular file"
    if found.st_nlink > 1:
        return "has another name as well"
    return "is not a lock file of Ductile" if found.st_size > _MAX_FILE_BYTES else None


def _not_a_lock(path: Path, why: str) -> DeniedError:
    return DeniedError(f"{path} {why}, and was left alone", hint="Move it out of the way, then try again.")


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        return False


def _flock_holder(descriptor: int) -> int | None:
    """The process that holds a `flock` on this file, as far as the kernel tells us."""
    wanted = os.fstat(descriptor)
    with suppress(OSError, ValueError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            # 1: FLOCK  ADVISORY  WRITE 4711 08:01:131 0 EOF
            kind, pid, file = (*line.split()[1:2], *line.split()[4:6])
            if kind == "FLOCK" and file.endswith(f":{wanted.st_ino}") and _has_open(pid, wanted):
                return int(pid)
    return None


def _has_open(pid: str, wanted: os.stat_result) -> bool:
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if os.path.samestat(link.stat(), wanted):
                return True
    return False


def held_error(path: Path) -> ConflictError:
    return _in_use_error(path, holder_of(path.parent))


def _in_use_error(path: Path, holder: LockHolder | None) -> ConflictError:
    who = f"process {holder.pid}" if holder else "another process"
    message, hint = _IN_USE_TEXTS[LockPurpose.DAEMON if holder is None else holder.keeper]
    return ConflictError(
        f"{who} {message} ({path})", hint=hint, details={"pid": None if holder is None else holder.pid}
    )


def refuse_held(database: Path) -> None:
    """Raise `ConflictError` if a process holds the store. For a process that has not opened it itself."""
    directory = database.parent
    if holder_of(directory) is not None:
        raise held_error(directory / LOCK_FILE)
    try:
        descriptor = os.open(database, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return
    try:
        if not _lock(descriptor):
            holder = _flock_holder(descriptor)
            raise _in_use_error(
                database, None if holder is None else LockHolder(pid=holder, keeper=LockPurpose.DAEMON)
            )
    finally:
        os.close(descriptor)


_IN_USE_TEXTS = {
    LockPurpose.DAEMON: (
        "uses this store already",
        "Talk to that daemon with `ductile status`, or stop it with `ductile system stop`.",
    ),
    LockPurpose.RUN: (
        "uses this store to run a job without a daemon",
        "Wait until that run has ended, or end it, then try again.",
    ),
    LockPurpose.COMMAND: (
        "uses this store for a moment",
        "It is a command that will have ended soon: try again.",
    ),
}


def holder_of(directory: Path) -> LockHolder | None:
    """The process that wrote itself into the lock file, if the lock is held."""
    path = directory / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, _MAX_FILE_BYTES, 0).decode(errors="replace")
        return _read_holder(text, _read_purpose(path.with_name(PURPOSE_FILE)))
    finally:
        os.close(descriptor)
    return None


def _read_purpose(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        return os.pread(descriptor, _MAX_FILE_BYTES, 0).decode(errors="replace")
    finally:
        os.close(descriptor)


def _read_holder(text: str, purpose: str) -> LockHolder | None:
    """The PID is in the lock. A purpose counts if the same process wrote it; a daemon writes none."""
    pid = text.strip().partition(" ")[0]
    wrote, _, keeper = purpose.strip().partition(" ")
    known = LockPurpose(keeper) if wrote == pid and keeper in tuple(LockPurpose) else LockPurpose.DAEMON
    return LockHolder(pid=int(pid), keeper=known) if pid.isdigit() else None
