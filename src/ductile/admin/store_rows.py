"""Opens whole stores as rows, whichever database they are in: to copy one into another."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Protocol

from ductile.config.file_io import publish_file, sync_directory
from ductile.config.snapshot import PostgresLocation, StateLocation
from ductile.engine.store_lock import LockPurpose, lock_store
from ductile.errors import ConflictError, NotFoundError, file_error
from ductile.random_source import BufferedSystemRandom
from ductile.store.open_store import require_driver
from ductile.store.sqlite import transfer as sqlite
from ductile.store.sqlite.connection import refuse_wal_without_database
from ductile.store.sqlite.store import open_sqlite_store
from ductile.store.transfer import StoreSource, StoreTarget, TransferProgress, copy_rows, is_empty

#: Appended to the name of an SQLite file that is not complete yet.
UNFINISHED_SUFFIX = ".unfinished"

store_tables = sqlite.store_tables


class SearchableTarget(StoreTarget, Protocol):
    def build_search_index(self, on_rows: Callable[[int], None]) -> None:
        """Fill the full-text index from the log."""


def sqlite_file(location: StateLocation) -> Path:
    """Return the SQLite file of a store; for one on a server, the file that it would be on this machine."""
    return location.directory / "state.db" if isinstance(location, PostgresLocation) else location.path


@contextmanager
def open_source(location: StateLocation, now: datetime) -> Iterator[StoreSource]:
    """Open a store for reading, and keep other processes out. Raises ConflictError if one uses it."""
    if isinstance(location, PostgresLocation):
        with _postgres(location).open_source(location.url.reveal(), now, exclusive=True) as rows:
            yield rows
        return
    path = location.path
    refuse_wal_without_database(path)
    if not path.is_file():
        raise NotFoundError(f"there is no store at {path}", hint="Check the path, and --config.")
    asyncio.run(_recover(path, now))
    with sqlite.open_source(path, now) as store:
        yield store


def copy_to_file(location: PostgresLocation, path: Path, now: datetime, progress: TransferProgress) -> None:
    """Copy a store on a server into a new SQLite file, as it is at one instant, while daemons write to it.

    The full-text index is left out: a daemon on the copy builds it.
    """
    with (
        _postgres(location).open_source(location.url.reveal(), now, exclusive=False) as source,
        sqlite.create_target(path, now) as target,
    ):
        copy_rows(source, target, store_tables(), progress)


async def _recover(path: Path, now: datetime) -> None:
    """Open and close a store, so that the log that a crash left is applied and an old schema is migrated."""
    store = open_sqlite_store(path, clock=lambda: now, rng=BufferedSystemRandom(), check_integrity=True)
    await store.close()


@contextmanager
def open_target(location: StateLocation, now: datetime) -> Iterator[SearchableTarget]:
    """Create a store that is visible once the context ends without an error.

    Raises ConflictError if a process uses it, or if it has rows.
    """
    if isinstance(location, PostgresLocation):
        with _postgres(location).open_target(location.url.reveal(), now) as rows:
            _refuse_rows(rows, location)
            yield rows
        return
    refuse_existing(location.path)
    scratch = location.path.with_name(location.path.name + UNFINISHED_SUFFIX)
    try:
        scratch.unlink(missing_ok=True)  # of a command that was killed
        with sqlite.create_target(scratch, now) as created:
            yield created
        publish_file(scratch, location.path)
    except FileExistsError:
        refuse_existing(location.path)
        raise
    except OSError as error:
        raise file_error(f"cannot write {scratch}", error) from error
    finally:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
    sync_directory(location.path.parent)


def refuse_unusable_target(location: StateLocation, now: datetime) -> None:
    """Raise ConflictError if a store cannot be created there; nothing is changed."""
    if not isinstance(location, PostgresLocation):
        refuse_existing(location.path)
        return
    with _postgres(location).inspect_target(location.url.reveal(), now) as rows:
        if rows is not None:
            _refuse_rows(rows, location)


def refuse_existing(path: Path) -> None:
    """Raise ConflictError if there is a file."""
    refuse_wal_without_database(path)
    if os.path.lexists(path):
        raise ConflictError(
            f"{path} already exists, and is not overwritten",
            hint=f"Name another file, or move it out of the way: mv {path} {path}.old",
        )


def _refuse_rows(rows: StoreSource, location: PostgresLocation) -> None:
    if not is_empty(rows, store_tables()):
        raise ConflictError(
            f"the store at {location.name} is not empty, and nothing is overwritten",
            hint="Name an empty database, or another schema of it with ?options=-csearch_path%3DSCHEMA.",
        )


@contextmanager
def lock_sqlite_stores(*locations: StateLocation) -> Iterator[None]:
    """Hold the directories of SQLite files, so that no daemon can start there.

    Raises ConflictError if a daemon, or a command, uses one of them.
    """
    with ExitStack() as locks:
        directories: set[Path] = set()
        for location in locations:
            if not isinstance(location, PostgresLocation) and location.directory not in directories:
                directories.add(location.directory)
                locks.callback(lock_store(location, LockPurpose.COMMAND).release)
        yield


def _postgres(location: PostgresLocation) -> ModuleType:
    """Return the adapter. Raises ConfigError if its driver is not installed."""
    require_driver(location)
    from ductile.store.postgres import transfer  # noqa: PLC0415 - an optional dependency

    return transfer
