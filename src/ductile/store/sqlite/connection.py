"""Opening the file with safe settings, and the translation of SQLite's errors."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import apsw

from ductile.config.file_io import make_private_directory
from ductile.errors import (
    StoreBusyError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    StoreSchemaError,
    is_disk_full,
)

#: "Duct": distinguishes our files from other SQLite files.
APPLICATION_ID = 0x44756374
#: How long a write waits for the lock of another process.
BUSY_TIMEOUT_MS = 5000
#: Pages that a connection caches, and therefore how much memory a daemon takes as its file grows.
_CACHE_KIB = 4 * 1024
_JOURNAL_LIMIT = 64 * 1024 * 1024

#: Locks and shared memory do not work on these; WAL would corrupt the store.
NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "9p", "beegfs"}
    | {"fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "fuse.davfs2", "davfs"}
)


def open_writer(path: Path) -> apsw.Connection:
    """Open the connection that writes; creates the file, private to its owner, if there is none."""
    refuse_network_filesystem(path, read_mounts())
    with translated(path):
        make_private_directory(path.parent)
        refuse_wal_without_database(path)
        has_wal = wal_path(path).exists()
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        _configure(connection)
        # If the store is refused, closing it must not change a log. See `checkpoint_on_close`.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(has_wal))
        ((application_id,),) = connection.execute("PRAGMA application_id").fetchall()
        ((tables,),) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        if application_id != APPLICATION_ID and tables:  # a file of another program: it stays unchanged
            raise StoreSchemaError(
                f"{path} is an SQLite database, but not a Ductile store",
                hint="Set state.path to a new file, or to the store that Ductile made.",
            )
        for pragma in (
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
            "temp_store = MEMORY",
            f"cache_size = -{_CACHE_KIB}",
            f"journal_size_limit = {_JOURNAL_LIMIT}",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        return connection


def wal_path(path: Path) -> Path:
    """Return the write-ahead log of a database. SQLite puts it beside the target of a link."""
    real = Path(os.path.realpath(path))
    return real.with_name(f"{real.name}-wal")


def checkpoint_on_close(connection: apsw.Connection) -> None:
    """Let the last connection checkpoint and remove the log when it closes: the file is intact."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)


#: Part of the name of the copy that a daemon makes if the files of its store were removed.
RESCUED = "rescued-"


def refuse_wal_without_database(path: Path) -> None:
    """Raise `StoreFailedError` for a write-ahead log, or a rescued copy, whose database is missing or empty.

    SQLite removes the log when it creates the database, and with it the jobs accepted last.
    """
    real, log = Path(os.path.realpath(path)), wal_path(path)
    rescued = sorted(real.parent.glob(f"{real.name}.{RESCUED}*"))
    if rescued and not real.exists():
        raise StoreFailedError(
            f"{real} is missing; what it held when it was removed is in {rescued[-1]}",
            hint=f"To go on with it: mv {rescued[-1]} {real}. For an empty store, move it elsewhere.",
        )
    if not log.exists():
        return
    if real.exists() and (real.stat().st_size or not log.stat().st_size):
        return
    state = "empty" if real.exists() else "missing"
    raise StoreFailedError(
        f"{real} is {state}, and its write-ahead log {log.name} is still there; nothing was touched",
        hint="Put the file back if it was moved. If it is lost, move the log out of the way "
        f"(mv {log} {log}.old), then restore a backup, or start with an empty store.",
    )


def open_reader(path: Path) -> apsw.Connection:
    with translated(path):
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        _configure(connection)
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}").fetchall()
        return connection


def _configure(connection: apsw.Connection) -> None:
    connection.set_busy_timeout(BUSY_TIMEOUT_MS)
    # One plan for each query. SQLite otherwise compiles a statement again when a bound value changes that
    # might matter to the plan, which takes longer than running it.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)


# -- errors


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Translate errors of SQLite and the system into ours."""
    try:
        yield
    except (apsw.Error, OSError) as error:
        raise translate(error, path) from error


def translate(error: apsw.Error | OSError, path: Path) -> StoreError:
    """Return our error for one of SQLite or the system."""
    if isinstance(error, apsw.FullError) or (isinstance(error, OSError) and is_disk_full(error)):
        return StoreFullError(
            f"the disk that holds {path} is full",
            hint="Free some space, then try again. Nothing that was accepted is lost.",
        )
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusyError(
                f"{path} is locked by another process",
                hint="Find it with `fuser` or `lsof`, end it, and try again.",
            )
        case apsw.CorruptError() if is_search_damage(error):
            return SearchIndexError(
                "the index for searching the log is damaged; it is built anew, and no job is affected",
                hint="Search again in a moment.",
            )
        case apsw.NotADBError() | apsw.CorruptError():
            return damaged_error(path, f"{path} is damaged or is not an SQLite database: {error}")
        case apsw.CantOpenError() | apsw.ReadOnlyError() | apsw.PermissionsError() | PermissionError():
            return StoreFailedError(
                f"{path} cannot be opened for writing: {error}",
                hint="The file and its directory must be writable by the user that runs Ductile.",
            )
        case apsw.IOError() | OSError():
            return StoreFailedError(
                f"reading or writing {path} failed: {error}",
                hint="Check the disk. After an I/O error nothing more is written; a restart recovers. "
                "What was being written then may be on disk or not: look for it before sending it again.",
            )
        case _:
            return StoreError(f"the store refused the operation: {error}")


class SearchIndexError(StoreBusyError):
    """The full-text index is damaged. It can be rebuilt from the log."""


def is_search_damage(error: BaseException) -> bool:
    """Return whether a virtual table is damaged; the only virtual table is the full-text index."""
    code = getattr(error, "extendedresult", None)
    return isinstance(error, apsw.CorruptError) and code == apsw.SQLITE_CORRUPT_VTAB


def damaged_error(path: Path, message: str) -> StoreFailedError:
    """Return the error for a damaged file."""
    return StoreFailedError(
        message,
        hint=f"Keep a copy of {path} and of what lies beside it (-wal), then restore a backup "
        "(`ductile system restore FILE --to DIR`) or point state.path to a new file.",
    )


def is_fatal(error: BaseException) -> bool:
    """Return whether the file must not be used after this error until it is opened again."""
    return not is_search_damage(error) and isinstance(
        error,
        apsw.IOError
        | apsw.CorruptError
        | apsw.NotADBError
        | apsw.CantOpenError
        | apsw.ReadOnlyError
        | StoreFailedError,
    )


# -- filesystems

#: In mountinfo, space, tab, newline and backslash are written as octal numbers.
_OCTAL = re.compile(r"\\([0-7]{3})")


def read_mounts() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # not Linux: SQLite's own checks must do


def refuse_network_filesystem(path: Path, mountinfo: str) -> None:
    """Raise `StoreError` if the path, or the target of a link there, is on a network filesystem."""
    filesystem = filesystem_of(path.resolve(), mountinfo)
    if filesystem in NETWORK_FILESYSTEMS:
        raise StoreError(
            f"{path} is on a network filesystem ({filesystem}), where SQLite's locks do not work",
            hint="Set state.path to a file on a local disk.",
        )


def filesystem_of(path: Path, mountinfo: str) -> str | None:
    """Return the type of the filesystem of a path: that of the longest mount point above it."""
    best: tuple[int, str] | None = None
    target = path.absolute()
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or not kinds:  # noqa: PLR2004 - the mount point is the fifth field
            continue
        point = Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        # A later mount on the same point hides the earlier one.
        if target.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), kinds[0])
    return None if best is None else best[1]
