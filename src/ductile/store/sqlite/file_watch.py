"""The files of an open store, compared with what lies at their paths.

SQLite goes on writing to files that were unlinked and reports success; all of it is lost when the process
ends. Device and inode tell such a file from the one at the path: an inode number is not used again while a
process has the file open. Nothing is opened here, because closing a descriptor of the database drops the
POSIX locks that SQLite holds on it.
"""

from __future__ import annotations

import os
from enum import Enum, auto
from typing import TypeAlias

from ductile.errors import StoreFailedError

_Identity: TypeAlias = tuple[int, int]


class PathState(Enum):
    """What lies at the path of a file that is in use."""

    SAME = auto()
    OTHER = auto()
    MISSING = auto()


class FileWatch:
    """Remembers the database, its write-ahead log and its shared memory as they are when this is made."""

    def __init__(self, database: str, log: str) -> None:
        self.database, self.log, self.shared_memory = database, log, f"{database}-shm"
        paths = (self.database, self.log, self.shared_memory)
        self._known = [(path, found) for path in paths if (found := _identity(path)) is not None]

    def find(self, path: str) -> PathState:
        """What lies at the path of one of the files now."""
        found = _identity(path)
        if found is None:
            return PathState.MISSING
        return PathState.SAME if (path, found) in self._known else PathState.OTHER

    @property
    def device(self) -> int:
        """The device that the database was on when it was opened."""
        return self._known[0][1][0]

    @property
    def is_lost(self) -> bool:
        """Whether one of the files is no longer at its path."""
        try:
            self.check()
        except StoreFailedError:
            return True
        return False

    def check(self) -> None:
        """Raise `StoreFailedError` if one of the files was removed or replaced. Costs a `stat` for each."""
        for path, known in self._known:
            try:
                found = _identity(path)
            except PermissionError:
                continue  # it may well be there: permissions of a directory were changed
            except OSError as error:
                raise _lost(f"{path} cannot be found any more: {error.strerror}") from error
            if found != known:
                raise _lost(f"{path} was removed or replaced while it was in use")


def _identity(path: str) -> _Identity | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - before every answer to a caller, and twice as fast
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def _lost(message: str) -> StoreFailedError:
    return StoreFailedError(
        message,
        hint="Nothing more is accepted. The daemon writes the store back from what it still has open, and "
        "stops; the line `store.rescued` of its log says where. Start it again.",
    )
