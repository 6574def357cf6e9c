"""The SQLite adapter of the store's port: verbs run on the writer's connection or on a reader's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeVar

import apsw

from ductile.core.ids import make_id
from ductile.errors import StoreBusyError, StoreError, StoreFailedError
from ductile.store.model.maintenance import PruneResult, Retention, StoreStats
from ductile.store.named_sql import load_queries
from ductile.store.port import Priority, Store, WriteHint
from ductile.store.session import Session
from ductile.store.sqlite.connection import (
    SearchIndexError,
    checkpoint_on_close,
    damaged_error,
    filesystem_of,
    open_reader,
    open_writer,
    read_mounts,
    translated,
    wal_path,
)
from ductile.store.sqlite.file_identities import Rescue, rescue_store
from ductile.store.sqlite.migrate import migrate, migrations, refuse_other_version
from ductile.store.sqlite.read_pool import ReadPool
from ductile.store.sqlite.session import SqliteSession
from ductile.store.sqlite.wal_damage import copy_damaged_wal, damaged_wal_copies, find_wal_damage
from ductile.store.sqlite.write_connection import SqliteWriteConnection
from ductile.store.verbs import maintenance
from ductile.store.verbs.jobs.insert import BATCH_SIZE
from ductile.store.writer import Writer, is_still_full

R = TypeVar("R")

#: Bytes. A file up to this size is checked for damage at every start, which takes a fraction of a second.
MAX_SIZE_CHECKED_AT_START = 256 * 1024 * 1024
#: A file up to this size is checked after an unclean end. A larger one would delay the start too long.
MAX_SIZE_CHECKED_AFTER_CRASH = 4 * 1024 * 1024 * 1024
#: A word that every message about damage of the full-text index contains.
_FTS_MARKER = "fts5"


class DamagedWal(NamedTuple):
    """The copy of a damaged write-ahead log."""

    path: Path
    #: Transactions that could not be read.
    lost: int


class ReadOnlySqliteStore(Store):
    """A store that another process writes. Verbs that write are refused with `StoreBusyError`."""

    def __init__(self, store_id: str, readers: ReadPool) -> None:
        super().__init__(store_id)
        self._readers = readers

    def run_read(self, work: Callable[[Session], R]) -> Awaitable[R]:
        return self._readers.read(work)

    def run_write(
        self,
        priority: Priority,  # noqa: ARG002
        work: Callable[[Session], R],  # noqa: ARG002
        hint: WriteHint = None,  # noqa: ARG002
    ) -> Awaitable[R]:
        raise StoreBusyError("another process writes to the store", hint="Try again when it has ended.")

    async def close(self) -> None:
        self._readers.close()

    async def check_files(self) -> None:
        """Do nothing: the process that writes checks its files."""

    async def is_full(self) -> bool:
        return False

    async def stats(self) -> StoreStats:
        return await self._readers.read_fresh(lambda session: _read_stats(session, self._readers.path))


class SqliteStore(ReadOnlySqliteStore):
    """`ductile.store.port.Store` on one SQLite file. Made by `open_sqlite_store`."""

    def __init__(
        self,
        store_id: str,
        readers: ReadPool,
        connection: apsw.Connection,
        session: SqliteSession,
        clock: Callable[[], datetime],
    ) -> None:
        super().__init__(store_id, readers)
        self.connection = connection
        write_connection = SqliteWriteConnection(connection, session, clock, readers.path)
        self.files = write_connection.files
        self.writer = Writer(write_connection, self.notifier)
        self._indexing: set[asyncio.Task[None]] = set()
        self._is_closed = False
        #: The damaged write-ahead log that was found when the store was opened.
        self.damaged_wal: DamagedWal | None = None
        #: Where `close` saved the store if its files had been removed, or the error that prevented it.
        self.rescue: Rescue | OSError | apsw.Error | None = None

    def run_write(
        self, priority: Priority, work: Callable[[Session], R], hint: WriteHint = None
    ) -> Awaitable[R]:
        return self.writer.submit(priority, work, hint)

    async def check_files(self) -> None:
        self.writer.check()

    async def is_full(self) -> bool:
        return await is_still_full(self, self.writer)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for task in self._indexing:
            task.cancel()
        await asyncio.gather(*self._indexing, return_exceptions=True)
        await self.writer.close()
        with suppress(StoreFailedError):
            self.writer.check()  # an idle store may not have noticed yet that its files were removed
        self._readers.close()
        if self.writer.failure is not None:
            # A checkpoint would remove the log from which a file with a fatal error is recovered.
            self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            if self.files.is_lost:
                try:
                    self.rescue = await asyncio.to_thread(rescue_store, self.connection, self.files)
                except (OSError, apsw.Error) as error:
                    self.rescue = error
        self.connection.close()

    # -- the full-text index: a damaged one is rebuilt, and the verb that meets the damage raises

    async def run_read(self, work: Callable[[Session], R]) -> R:
        try:
            return await self._readers.read(work)
        except SearchIndexError:
            await self._rebuild_search_index()
            raise

    async def prune(self, retention: Retention, *, limit: int = maintenance.PRUNE_BATCH) -> PruneResult:
        try:
            return await super().prune(retention, limit=limit)
        except SearchIndexError:
            await self._rebuild_search_index()
            raise

    async def index_log(self, *, limit: int = BATCH_SIZE) -> int:
        try:
            return await super().index_log(limit=limit)
        except StoreError as error:
            # The only constraint that indexing can break is one of the index itself.
            if not isinstance(error, SearchIndexError) and error.code != StoreError.code:
                raise
            await self._rebuild_search_index()
            raise SearchIndexError(f"the index for searching the log is damaged: {error}") from error

    async def stats(self) -> StoreStats:
        stats = await super().stats()
        if stats.search_damage:
            await self._rebuild_search_index()
        return stats

    async def _rebuild_search_index(self) -> None:
        """Empty the index, then fill it again in the background."""
        await self.run_write(Priority.MAINTENANCE, maintenance.empty_search_index)
        task = asyncio.create_task(self._index_all(), name="search index")
        self._indexing.add(task)
        task.add_done_callback(self._indexing.discard)

    async def _index_all(self) -> None:
        with suppress(StoreError):  # the next batch continues from here
            while await super().index_log():
                pass


def open_sqlite_store_read_only(path: Path, *, clock: Callable[[], datetime]) -> ReadOnlySqliteStore:
    """Open a store that another process has open and has migrated."""
    queries = load_queries("ductile.store.sqlite")
    connection = open_reader(path)
    try:
        refuse_other_version(connection, path)
        with translated(path):
            session = SqliteSession(connection, queries, Random(0), clock())
            store_id = session.fetch_value("get_meta", key="store_id") or ""
    finally:
        connection.close()
    return ReadOnlySqliteStore(store_id, ReadPool(path, queries, clock))


def open_sqlite_store(
    path: Path, *, clock: Callable[[], datetime], rng: Random, check_integrity: bool = False
) -> SqliteStore:
    """Open the store; creates or migrates the file as needed.

    Checks the file for damage if the last process did not close it, and if `check_integrity` is set. Raises
    `StoreFailedError` for a damaged file, which is left unchanged.
    """
    queries = load_queries("ductile.store.sqlite")
    wal = wal_path(path)
    crashed = _size(wal) > 0
    wal_damage = find_wal_damage(wal) if crashed else None
    damaged_wal: DamagedWal | None = None
    connection = open_writer(path)
    try:
        with translated(path):
            session = SqliteSession(connection, queries, rng, clock())
            max_size = MAX_SIZE_CHECKED_AT_START if check_integrity else 0
            if crashed:
                max_size = MAX_SIZE_CHECKED_AFTER_CRASH
            is_search_damaged = _size(path) <= max_size and _check_damage(session, path)
            if wal_damage is not None:  # copied before the first write, which overwrites the log
                damaged_wal = DamagedWal(path=copy_damaged_wal(wal, wal_damage), lost=wal_damage.transactions)
            if is_search_damaged:
                maintenance.empty_search_index(session)
        checkpoint_on_close(connection)
        migrate(connection, path)
        with translated(path):
            session.set_min_timestamp(session.fetch_value("latest_instant") or "")
            # Made with the store and kept for good. Two processes that create it at once agree on one.
            session.execute("insert_meta_if_absent", key="store_id", value=make_id(session.now, session.rng))
            store_id: str = session.fetch_value("get_meta", key="store_id")
    except BaseException:
        connection.close()
        raise
    readers = ReadPool(path, queries, clock)
    store = SqliteStore(store_id, readers, connection, session, clock)
    store.damaged_wal = damaged_wal
    return store


def _check_damage(session: SqliteSession, path: Path) -> bool:
    """Return whether the full-text index is damaged. Raises `StoreFailedError` if the rest of the file is."""
    damage, search_damage = _find_damage(session)
    if damage:
        raise damaged_error(path, f"{path} is damaged: {damage[0]}")
    return bool(search_damage)


def _find_damage(session: Session) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the messages about damage of the file, and those about damage of the full-text index.

    Needs a new connection: one that has searched before may cache parts of the full-text index from an
    earlier snapshot, and report the difference as damage.
    """
    damage = [line for (line,) in session.fetch_all("check_damage") if line != "ok"]
    in_search = tuple(line for line in damage if _FTS_MARKER in line.lower())
    return tuple(line for line in damage if line not in in_search), in_search


def _read_stats(session: Session, path: Path) -> StoreStats:
    damage, search_damage = _find_damage(session)
    return StoreStats(
        path=str(path),
        size=_size(path),
        wal_size=_size(wal_path(path)),
        schema_version=session.fetch_value("schema_version"),
        newest_schema=migrations()[-1][0],
        filesystem=filesystem_of(path.resolve(), read_mounts()),
        damage=damage,
        search_damage=search_damage,
        damaged_wals=tuple(map(str, damaged_wal_copies(path.resolve()))),
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
