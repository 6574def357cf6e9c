"""Saving a store whose files were removed while it was open.

The process that has them open is the only one that can still read them. Before it ends it puts the store
back, so that the next start finds every job that was accepted.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from secrets import token_hex

import apsw

from ductile.config.file_io import PRIVATE_FILE, make_private_directory, sync_directory
from ductile.store.sqlite.connection import RESCUED
from ductile.store.sqlite.file_watch import FileWatch, PathState
from ductile.struct import Value


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
    if files.find(files.database) is PathState.SAME and files.find(files.log) is PathState.SAME:
        return Rescue(path=path, put_back=True)  # only the shared memory is gone, and SQLite makes it anew
    make_private_directory(path.parent)
    copy = _copy(connection, path)
    # On another device the directory of the store was unmounted, and what is here is not its place.
    is_here = path.parent.stat().st_dev == files.device
    put_back = is_here and files.find(files.log) is not PathState.OTHER and _put_back(copy, files)
    sync_directory(path.parent)
    return Rescue(path=path if put_back else copy, put_back=put_back)


def _copy(connection: apsw.Connection, path: Path) -> Path:
    """Copy the store beside its path. The copy has its final name only when it is whole."""
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


def _put_back(copy: Path, files: FileWatch) -> bool:
    """Give the copy the store's name in one step; False if another file has that name, or links fail."""
    match files.find(files.database):
        case PathState.OTHER:
            return False
        case PathState.SAME:  # without its log, which held what was accepted last
            copy.replace(files.database)
        case PathState.MISSING:
            try:
                os.link(copy, files.database)
            except OSError:  # another process was first, or the filesystem has no links
                return False
            copy.unlink()
    # Last: until here the store could be recovered with them, and now the copy has all of it.
    for name in (files.log, files.shared_memory):
        if files.find(name) is PathState.SAME:
            Path(name).unlink(missing_ok=True)
    return True
