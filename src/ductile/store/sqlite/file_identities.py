"""The files of an open store: detecting their removal, and saving the store after it.

SQLite continues to write to unlinked files and reports success; all of it is lost when the process ends.
Device and inode distinguish such a file from the one at the path: an inode number is not reused while a
process has the file open. Nothing is opened here, because closing a descriptor of the database drops the
POSIX locks that SQLite holds.

The process that has the files open is the only one that can still read them. Before it ends it restores the
store in place, so that the next start finds every accepted job.
"""

from __future__ import annotations

import os
from contextlib import closing
from enum import Enum, auto
from pathlib import Path
from secrets import token_hex
from typing import TypeAlias

import apsw

from ductile.config.file_io import PRIVATE_FILE, make_private_directory, sync_directory
from ductile.errors import StoreFailedError
from ductile.store.sqlite.connection import RESCUED
from ductile.struct import Value

_Identity: TypeAlias = tuple[int, int]


class PathState(Enum):
    """The file at the path of an open file: the same one, another one, or none."""

    SAME = auto()
    OTHER = auto()
    MISSING = auto()


class FileIdentities:
    """The identities of the database, its write-ahead log and its shared memory when they were opened."""

    def __init__(self, database: str, wal: str) -> None:
        self.database, self.wal, self.shared_memory = database, wal, f"{database}-shm"
        paths = (self.database, self.wal, self.shared_memory)
        self._known = [(path, identity) for path in paths if (identity := _identity(path)) is not None]

    def state_at(self, path: str) -> PathState:
        """Return the present state of the path of one of the files."""
        identity = _identity(path)
        if identity is None:
            return PathState.MISSING
        return PathState.SAME if (path, identity) in self._known else PathState.OTHER

    @property
    def device(self) -> int:
        """The device that the database was on when it was opened."""
        return self._known[0][1][0]

    @property
    def is_lost(self) -> bool:
        """Return whether one of the files is no longer at its path."""
        try:
            self.check()
        except StoreFailedError:
            return True
        return False

    def check(self) -> None:
        """Raise `StoreFailedError` if one of the files was removed or replaced. Costs a `stat` for each."""
        for path, known in self._known:
            try:
                identity = _identity(path)
            except PermissionError:
                continue  # it may exist: permissions of a directory were changed
            except OSError as error:
                raise _lost_error(f"{path} cannot be found any more: {error.strerror}") from error
            if identity != known:
                raise _lost_error(f"{path} was removed or replaced while it was in use")


def _identity(path: str) -> _Identity | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - runs with every commit, and is twice as fast
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino


def _lost_error(message: str) -> StoreFailedError:
    return StoreFailedError(
        message,
        hint="Nothing more is accepted. The daemon writes the store back from what it still has open, and "
        "stops; the line `store.rescued` of its log says where. Start it again.",
    )


class Rescue(Value):
    """The path at which the store was saved."""

    path: Path
    #: Whether this is the path of the store. Otherwise another file is there, and was left unchanged.
    in_place: bool


def rescue_store(connection: apsw.Connection, files: FileIdentities) -> Rescue:
    """Write all that is committed to the store's own path or, if another file is there, beside it.

    Raises `OSError` or `apsw.Error` if that is not possible.
    """
    path = Path(files.database)
    if files.state_at(files.database) is PathState.SAME and files.state_at(files.wal) is PathState.SAME:
        return Rescue(path=path, in_place=True)  # only the shared memory is gone, and SQLite creates it again
    make_private_directory(path.parent)
    copy = _copy_beside(connection, path)
    # Another device: the store's filesystem was unmounted, and this is only its mount point.
    is_here = path.parent.stat().st_dev == files.device
    in_place = is_here and not _has_other_wal(files) and _restore_in_place(copy, files)
    sync_directory(path.parent)
    return Rescue(path=path if in_place else copy, in_place=in_place)


def _has_other_wal(files: FileIdentities) -> bool:
    """Return whether another log has the name of the store's own, and may hold transactions.

    An empty log holds none: SQLite creates it when a reader opens a store whose log was removed.
    """
    return files.state_at(files.wal) is PathState.OTHER and Path(files.wal).stat().st_size > 0


def _copy_beside(connection: apsw.Connection, path: Path) -> Path:
    """Copy the store beside its path. The copy gets its final name when it is complete."""
    name = f"{path.name}.{RESCUED}{token_hex(4)}"
    unfinished, copy = path.with_name(f".{name}"), path.with_name(name)
    os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE))
    with closing(apsw.Connection(str(unfinished))) as writer:
        with writer.backup("main", connection, "main") as copying:
            copying.step(-1)
        writer.execute("PRAGMA journal_mode = DELETE").fetchall()
    unfinished.rename(copy)
    sync_directory(path.parent)
    return copy


def _restore_in_place(copy: Path, files: FileIdentities) -> bool:
    """Give the copy the store's name in one step. Returns False if another file has it, or links fail."""
    match files.state_at(files.database):
        case PathState.OTHER:
            return False
        case PathState.SAME:  # its log, with the jobs accepted last, is lost
            copy.replace(files.database)
        case PathState.MISSING:
            try:
                os.link(copy, files.database)
            except OSError:  # another process was first, or the filesystem has no links
                return False
            copy.unlink()
    # Removed last: until here the store could be recovered from these files.
    # The log is the store's own, or empty.
    Path(files.wal).unlink(missing_ok=True)
    if files.state_at(files.shared_memory) is PathState.SAME:
        Path(files.shared_memory).unlink(missing_ok=True)
    return True
