"""Locks that let one process use a store. The kernel releases them when the process dies.

Two files are locked with `flock`. `ductile.lock` contains the holder's pid, but can be removed and replaced.
The database cannot be removed without the daemon noticing it, so the lock on the database decides.

`flock` locks are independent of the POSIX locks that SQLite takes on the database. Closing any descriptor of
the database drops SQLite's locks of this process, so the descriptor opened here stays open until the store
is closed.
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
from ductile.config.snapshot import SqliteLocation, StateLocation
from ductile.errors import ConflictError, DeniedError, file_error
from ductile.struct import Value

LOCK_FILE = "ductile.lock"
#: Written beside the lock by holders other than a daemon: the holder's pid and its purpose.
PURPOSE_FILE = "ductile.lock.purpose"
#: Attempts to take a lock. `find_holder` takes a shared lock for a moment, so the first may fail.
_LOCK_ATTEMPTS = 5
_ATTEMPT_INTERVAL = 0.02
#: A lock file contains a pid; a larger file is something else.
_MAX_FILE_BYTES = 64
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class LockPurpose(StrEnum):
    """The purpose for which a process holds the store. The values are written to the purpose file."""

    DAEMON = "daemon"
    #: Running one job without a daemon.
    RUN = "run"
    #: A short command on the store.
    COMMAND = "command"


#: The message and the hint of the error for a store in use, by the holder's purpose.
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


class LockHolder(Value):
    pid: int
    purpose: LockPurpose


class StoreLock:
    """A lock that is held from construction until `release`, or until the process ends in any way."""

    def __init__(
        self, directory: Path, database: Path | None, purpose: LockPurpose = LockPurpose.DAEMON
    ) -> None:
        """Raise `ConflictError` if another process holds the lock file or the database.

        Without `database`, which is then on a server, the lock excludes other daemons of this machine only.
        """
        make_private_directory(directory)
        self.path = directory / LOCK_FILE
        self._purpose = purpose
        self._database_path = database
        self._database: int | None = None
        descriptor: int | None = None
        for _ in range(_LOCK_ATTEMPTS):
            if (descriptor := self._try_take()) is not None:
                break
            time.sleep(_ATTEMPT_INTERVAL)
        if descriptor is None:
            raise _in_use_error(self.path, find_holder(directory))
        self._descriptor = descriptor
        try:
            self.hold_database()
            self._write_holder()
        except BaseException:
            self.release()
            raise

    def _try_take(self) -> int | None:
        descriptor = _open_lock_file(self.path)
        # The file may have been removed between opening and locking; such a lock excludes no process.
        if _flock(descriptor) and _is_at(descriptor, self.path):
            return descriptor
        os.close(descriptor)
        return None

    def hold_database(self) -> None:
        """Lock the database too, if it exists. Raise `ConflictError` if another process holds it."""
        if self._database is not None or self._database_path is None:
            return
        try:
            descriptor = os.open(self._database_path, _READ_FLAGS)
        except OSError:
            return  # Missing or unreadable: opening the store reports which.
        for _ in range(_LOCK_ATTEMPTS):
            if _flock(descriptor):
                self._database = descriptor
                return
            time.sleep(_ATTEMPT_INTERVAL)
        holder = _flock_holder(descriptor)
        os.close(descriptor)
        raise _in_use_error(self._database_path, holder)

    def renew(self) -> bool:
        """Take the lock file again if it was removed or replaced; return whether that was done.

        If another process has locked a new file meanwhile, the lock on the database stops that process.
        """
        if _is_at(self._descriptor, self.path):
            return False
        with suppress(OSError, DeniedError):
            descriptor = self._try_take()
            if descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = descriptor
                self._write_holder()
                return True
        return False

    def _write_holder(self) -> None:
        text = f"{os.getpid()}\n".encode()
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))
        purpose_file = self.path.with_name(PURPOSE_FILE)
        with suppress(OSError):  # The purpose only improves error messages.
            purpose_file.unlink(missing_ok=True)
            if self._purpose is not LockPurpose.DAEMON:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                descriptor = os.open(purpose_file, flags, 0o600)
                os.write(descriptor, f"{os.getpid()} {self._purpose}\n".encode())
                os.close(descriptor)

    def release(self) -> None:
        """Release both locks; call it after the store is closed. Never raises: the disk may be lost.

        The lock file stays. Removing it would let a third process lock a new file at a path whose old file
        a second process still holds. The kernel, not the file, decides whether the store is held.
        """
        with suppress(OSError):
            if self._purpose is not LockPurpose.DAEMON:
                self.path.with_name(PURPOSE_FILE).unlink(missing_ok=True)
        for descriptor in (self._database, self._descriptor):
            if descriptor is not None:
                with suppress(OSError):
                    os.close(descriptor)


def lock_store(location: StateLocation, purpose: LockPurpose = LockPurpose.DAEMON) -> StoreLock:
    """Lock the store, or on a server this machine's directory for it.

    Raises `ConflictError` if another process holds it.
    """
    database = location.path if isinstance(location, SqliteLocation) else None
    try:
        return StoreLock(location.directory, database, purpose)
    except OSError as error:
        key = "state.path" if database is not None else "state.directory"
        hint = f"Check its permissions, or set {key} to another place."
        message = f"the store's directory {location.directory} cannot be used"
        raise file_error(message, error, hint=hint) from error


def refuse_held(location: StateLocation) -> None:
    """Raise `ConflictError` if a process holds the store. This process must not have the store open."""
    if (holder := find_holder(location.directory)) is not None:
        raise _in_use_error(location.directory / LOCK_FILE, holder)
    if not isinstance(location, SqliteLocation):
        return
    database = location.path
    try:
        descriptor = os.open(database, _READ_FLAGS)
    except OSError:
        return
    try:
        if not _flock(descriptor):
            raise _in_use_error(database, _flock_holder(descriptor))
    finally:
        os.close(descriptor)


def find_holder(directory: Path) -> LockHolder | None:
    """Return the process whose pid is in the lock file, if the lock is held.

    The purpose file counts only if the same process wrote it. A daemon writes none.
    """
    path = directory / LOCK_FILE
    try:
        descriptor = os.open(path, _READ_FLAGS | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(descriptor, _MAX_FILE_BYTES, 0).decode(errors="replace").strip().partition(" ")[0]
    else:
        return None
    finally:
        os.close(descriptor)
    if not pid.isdigit():
        return None
    writer, purpose = "", ""
    with suppress(OSError):
        descriptor = os.open(path.with_name(PURPOSE_FILE), _READ_FLAGS | os.O_NOFOLLOW)
        try:
            text = os.pread(descriptor, _MAX_FILE_BYTES, 0).decode(errors="replace")
        finally:
            os.close(descriptor)
        writer, _, purpose = text.strip().partition(" ")
    is_known = writer == pid and purpose in tuple(LockPurpose)
    return LockHolder(pid=int(pid), purpose=LockPurpose(purpose) if is_known else LockPurpose.DAEMON)


def _open_lock_file(path: Path) -> int:
    """Open or create the lock file. Raises `DeniedError` for any other file: it would be overwritten."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _not_a_lock_error(path, "is a symbolic link") from error
        raise
    status = os.fstat(descriptor)
    fault = None
    if not stat.S_ISREG(status.st_mode):
        fault = "is not a regular file"
    elif status.st_nlink > 1:
        fault = "has another name as well"
    elif status.st_size > _MAX_FILE_BYTES:
        fault = "is not a lock file of Ductile"
    if fault is not None:
        os.close(descriptor)
        raise _not_a_lock_error(path, fault)
    return descriptor


def _not_a_lock_error(path: Path, fault: str) -> DeniedError:
    return DeniedError(f"{path} {fault}, and was left alone", hint="Move it out of the way, then try again.")


def _in_use_error(path: Path, holder: LockHolder | None) -> ConflictError:
    subject = f"process {holder.pid}" if holder else "another process"
    message, hint = _IN_USE_TEXTS[LockPurpose.DAEMON if holder is None else holder.purpose]
    return ConflictError(
        f"{subject} {message} ({path})", hint=hint, details={"pid": None if holder is None else holder.pid}
    )


def _flock(descriptor: int) -> bool:
    """Take an exclusive `flock` on the file. Returns False if another process holds one."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether the open file is the one at this path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        return False


def _flock_holder(descriptor: int) -> LockHolder | None:
    """Return the process that holds a `flock` on this file, from /proc/locks, if it is known."""
    locked = os.fstat(descriptor)
    with suppress(OSError, ValueError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            # 1: FLOCK  ADVISORY  WRITE 4711 08:01:131 0 EOF
            kind, pid, file = (*line.split()[1:2], *line.split()[4:6])
            if kind == "FLOCK" and file.endswith(f":{locked.st_ino}") and _has_open(pid, locked):
                return LockHolder(pid=int(pid), purpose=LockPurpose.DAEMON)
    return None


def _has_open(pid: str, file: os.stat_result) -> bool:
    """Return whether the process has the file open. An inode alone does not identify a file."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if os.path.samestat(link.stat(), file):
                return True
    return False
