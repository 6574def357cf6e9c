"""Saving a store whose files were removed while it was open.

The process that has them open is the only one that can still read them. Before it ends it puts the store
back, so that the next start finds every job that was accepted.
"""

from __future__ import annotations

import os
from contextlib import closing, suppress
from pathlib import Path
from secrets import token_hex

import apsw

from ductile.config.files import PRIVATE_FILE, make_private_directory, sync_directory
from ductile.store.sqlite.file_watch import FileWatch, Found
from ductile.value import Value


class Rescue(Value):
    """Where the whole store is now."""

    path: Path
    #: Whether that is its own path. Otherwise another file lies there, and was left alone.
    put_back: bool


def rescue_store(connection: apsw.Connection, files: FileWatch) -> Rescue:
    """Write all that is committed to the store's own path or, if another file is there, beside it.

    Raises `OSError` or `apsw.Error` if that is not possible.
    """
    path = Path(files.database)
    if files.find(files.database) is Found.SAME and files.find(files.log) is not Found.OTHER:
        # Only the log was removed: what is in it goes into the database, which is still in its place.
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        return Rescue(path=path, put_back=True)
    copy = path.with_name(f"{path.name}.rescued-{token_hex(4)}")
    make_private_directory(path.parent)
    _copy(connection, copy)
    # On another device the directory of the store was unmounted, and what is here is not its place.
    is_here = path.parent.stat().st_dev == files.device
    put_back = is_here and files.find(files.database) is Found.MISSING and _put_back(copy, files)
    sync_directory(path.parent)
    return Rescue(path=path if put_back else copy, put_back=put_back)


def _copy(connection: apsw.Connection, target: Path) -> None:
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE))
    with closing(apsw.Connection(str(target))) as writer:
        with writer.backup("main", connection, "main") as copying:
            copying.step(-1)
        writer.execute("PRAGMA journal_mode = DELETE").fetchall()


def _put_back(copy: Path, files: FileWatch) -> bool:
    """Give the copy the store's name; False if another file has taken it meanwhile."""
    for name in (files.log, files.shared_memory):
        # All of it is in the copy. Left behind, SQLite would take it for the copy's own.
        if files.find(name) is Found.SAME:
            Path(name).unlink(missing_ok=True)
    if files.find(files.log) is Found.OTHER:
        return False
    with suppress(FileExistsError):
        os.link(copy, files.database)
        copy.unlink()
        return True
    return False
