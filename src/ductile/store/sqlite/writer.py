"""The one writer: a thread that owns the writing connection and commits what waits together.

Every unit of work is a verb's whole transaction. All that wait when the thread is free share one
commit, so one fsync is paid by many; each caller goes on only when that commit has returned.

How a failing unit leaves its neighbours alone: a batch first runs without savepoints. If a unit
raises, everything is rolled back and the batch runs again with a savepoint around each unit. Units
therefore have no effect but on the database, and may run more than once before they are committed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from enum import IntEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

import apsw
import msgspec

from ductile.errors import DuctileError, StoreBusyError, StoreError, StoreFailedError, StoreFullError
from ductile.store.sqlite.connection import must_stop, translate
from ductile.store.sqlite.file_watch import FileWatch
from ductile.store.sqlite.session import SqliteSession
from ductile.store.sqlite.wal_room import WalRoom

Answer = TypeVar("Answer")

#: A batch ends at whichever comes first.
MAX_REQUESTS = 256
MAX_BYTES = 4 * 1024 * 1024
MAX_SECONDS = 0.005
#: More submissions than this waiting, and further ones are told to come back later.
CAPACITY = 10_000
#: Where so many submissions wake a writer that was idle, more are being read: it waits so many turns of the
#: loop for them. A commit without them would be fought for with all that the loop does for them meanwhile.
BURST = 8
BURST_TURNS = 2
#: Pages in the write-ahead log at which it is copied back into the file, between batches.
CHECKPOINT_PAGES = 1000


class Priority(IntEnum):
    """Who comes into the next batch when several wait: finishing work makes room, accepting more does not."""

    SETTLE = 0
    CLAIM = 1
    CONFIGURE = 2
    ENQUEUE = 3
    MAINTENANCE = 4


#: A claim never finds what these bring or take in its own batch: it was asked for before, by the
#: configuration of then, and would run an init of a plugin that this does not have.
_AFTER_CLAIMS = frozenset({Priority.CONFIGURE, Priority.MAINTENANCE})


class WriteRequest(msgspec.Struct, Generic[Answer], eq=False):
    """A verb's transaction that waits for its commit."""

    priority: Priority
    work: Callable[[SqliteSession], Answer]
    size: int
    told: Callable[[Answer], None] | None
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Answer]
    answer: Answer | None = None
    error: BaseException | None = None


class Writer:
    def __init__(
        self,
        connection: apsw.Connection,
        session: SqliteSession,
        clock: Callable[[], datetime],
        path: Path,
    ) -> None:
        self._connection = connection
        self._session = session
        self._clock = clock
        self._path = path
        self._lanes: tuple[deque[WriteRequest[Any]], ...] = tuple(deque() for _ in Priority)
        self._lock = threading.Lock()
        self._work_waits = threading.Condition(self._lock)
        self._closing = False
        self._idle = False
        self._failure: StoreFailedError | None = None
        #: Whether the disk was full when something was last submitted.
        self.is_full = False
        self._has_written = False
        self._wal_pages = 0
        self._log = WalRoom(connection.filename_wal, connection.pragma("page_size"))
        self._files = FileWatch(connection.filename, connection.filename_wal)
        self._outbox_watcher: tuple[asyncio.AbstractEventLoop, Callable[[], None]] | None = None
        self._failure_watcher: tuple[asyncio.AbstractEventLoop, Callable[[StoreFailedError], None]] | None = (
            None
        )
        connection.set_wal_hook(self._note_wal)
        self._thread = threading.Thread(target=self._loop, name="ductile-writer", daemon=True)
        self._thread.start()

    def submit(
        self,
        priority: Priority,
        work: Callable[[SqliteSession], Answer],
        *,
        size: int = 0,
        told: Callable[[Answer], None] | None = None,
    ) -> asyncio.Future[Answer]:
        """Run `work` in a transaction; its answer comes once that is on disk, to `told` in any case."""
        loop = asyncio.get_running_loop()
        unit = WriteRequest(priority, work, size, told, loop, loop.create_future())
        with self._lock:
            if self._closing or self._failure is not None or len(self._lanes[priority]) >= CAPACITY:
                self._refuse_if_unfit(priority)
            self._lanes[priority].append(unit)
            if self._idle:
                # At the end of this turn of the loop: whoever submits within it shares the commit.
                self._idle = False
                loop.call_soon(self._end_idleness, loop, BURST_TURNS)
        return unit.future

    def _end_idleness(self, loop: asyncio.AbstractEventLoop, turns: int) -> None:
        if turns and len(self._lanes[Priority.ENQUEUE]) >= BURST:
            loop.call_soon(self._end_idleness, loop, turns - 1)
            return
        with self._work_waits:
            self._work_waits.notify()

    def watch_outbox(self, grew: Callable[[], None]) -> None:
        self._outbox_watcher = (asyncio.get_running_loop(), grew)

    def watch_failure(self, failed: Callable[[StoreFailedError], None]) -> None:
        self._failure_watcher = (asyncio.get_running_loop(), failed)
        if self._failure is not None:
            failed(self._failure)

    def check(self) -> None:
        """Raise `StoreFailedError` if writing has stopped, or a file was removed or replaced."""
        if self._failure is not None:
            raise self._failure
        try:
            self._files.check()
        except StoreFailedError as error:
            self._stop(error)
            raise

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    @property
    def files(self) -> FileWatch:
        return self._files

    def _stop(self, failure: StoreFailedError) -> None:
        """Write nothing more. The first failure is the cause; later ones follow from it."""
        if self._failure is not None:
            return
        self._failure = failure
        if self._failure_watcher is not None:
            loop, failed = self._failure_watcher
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(failed, failure)

    def _refuse_if_unfit(self, priority: Priority) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closing:
            raise StoreBusyError("the store is closing", hint="Try again when the daemon is back.")
        if priority is Priority.ENQUEUE and len(self._lanes[priority]) >= CAPACITY:
            raise StoreBusyError(f"{CAPACITY} submissions wait for the disk", hint="Try again in a moment.")

    async def close(self) -> None:
        """Commit everything that waits, then end the thread."""
        with self._work_waits:
            self._closing = True
            self._work_waits.notify()
        await asyncio.to_thread(self._thread.join)

    # -- the thread

    def _loop(self) -> None:
        while self._wait_for_work():
            try:
                self._write_batch()
                self._checkpoint_if_large()
            except Exception as error:  # noqa: BLE001 - a thread that died unseen would leave everybody waiting
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """What must not happen has: nothing more is written, and everybody who waits is told."""
        stopped = StoreFailedError(
            f"the store has stopped: {error!r}", hint="Restart Ductile: it recovers from what is on disk."
        )
        self._stop(stopped)
        waiting: list[WriteRequest[Any]] = []
        while (unit := self._take()) is not None:
            unit.error = self._failure or stopped
            waiting.append(unit)
        self._tell(waiting)

    def _wait_for_work(self) -> bool:
        with self._work_waits:
            while not any(self._lanes):
                if self._closing:
                    return False
                self._idle = True
                self._work_waits.wait()
            self._idle = False
        return True

    def _take(self) -> WriteRequest[Any] | None:
        for priority in self._lanes:
            if priority:
                return priority.popleft()
        return None

    def _write_batch(self) -> None:
        batch: list[WriteRequest[Any]] = []
        try:
            try:
                self._begin()
                self._run_plainly(batch)
                self._session.flush()
                self._commit()
            except Exception as error:  # noqa: BLE001 - whatever it is, its callers must be told
                self._recover_batch(batch, error)
        except Exception as error:
            self._fail(batch, error)
            raise
        finally:
            self._tell(batch)
            if self._session.outbox_dirty:
                self._tell_outbox()

    def _begin(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._has_written = False
        self._execute("BEGIN IMMEDIATE")
        self._log.preallocate(self._wal_pages)
        self._session.begin_at(self._clock())

    def _commit(self) -> None:
        # A commit to a file that was unlinked succeeds too. Checked before, so that what is refused is not
        # in the store that is put back; and after, so that nothing is acknowledged that is not at its path.
        self._files.check()
        self._execute("COMMIT")
        self._files.check()
        self._session.committed()

    def _run_plainly(self, done: list[WriteRequest[Any]]) -> None:
        """Run what waits, claims after submissions: so they find what the same commit brings."""
        size, deadline = 0, time.monotonic() + MAX_SECONDS
        held: deque[WriteRequest[Any]] = deque()

        def run(unit: WriteRequest[Any]) -> None:
            nonlocal size
            done.append(unit)
            before = self._session.weight
            self._session.begin_unit()
            unit.answer = unit.work(self._session)
            size += max(unit.size, self._session.weight - before)

        def run_held() -> None:
            while held:
                run(held.popleft())

        try:
            while len(done) < MAX_REQUESTS and size < MAX_BYTES and (not done or time.monotonic() < deadline):
                unit = self._take()
                if unit is None:
                    break
                if unit.priority is Priority.CLAIM:
                    held.append(unit)
                elif unit.priority in _AFTER_CLAIMS:
                    held.append(unit)
                    run_held()
                else:
                    run(unit)
            run_held()
        finally:
            done += held  # of a batch that failed: whoever is in it is served in another way

    def _recover_batch(self, batch: list[WriteRequest[Any]], error: Exception) -> None:
        """A unit or the commit failed. Run them again one by one, unless the file is not to be trusted."""
        self._roll_back()
        if not batch or must_stop(error):
            # It could not even begin, or is not to be trusted: nobody who waits can be served.
            while (unit := self._take()) is not None:
                batch.append(unit)
            self._fail(batch, error)
            return
        waiting = list(batch)
        while waiting:
            waiting = self._run_isolated(waiting)

    def _run_isolated(self, units: list[WriteRequest[Any]]) -> list[WriteRequest[Any]]:
        """Each unit in its savepoint, then one commit. Returns who must run again in a new transaction.

        A full disk inside a savepoint rolls back the whole transaction, not only the savepoint: then
        the units before it are gone too and run again, without the one that found the disk full.
        """
        try:
            self._begin()
            for unit in units:
                unit.error = self._try_unit(unit)
                if unit.error is not None and must_stop(unit.error):
                    # Nothing of this batch is on disk, and nothing more will be.
                    self._roll_back()
                    self._fail(units, unit.error)
                    return []
                if not self._connection.in_transaction:
                    return [other for other in units if other is not unit]
            self._commit()
        except Exception as error:  # noqa: BLE001 - the commit failed: every unit failed with it
            self._roll_back()
            self._fail([unit for unit in units if unit.error is None], error)
        return []

    def _try_unit(self, unit: WriteRequest[Any]) -> BaseException | None:
        self._execute("SAVEPOINT unit")
        try:
            self._session.begin_unit()
            unit.answer = unit.work(self._session)
            self._session.flush()
        except Exception as error:  # noqa: BLE001 - it is this unit's alone
            self._session.discard()
            if self._connection.in_transaction:
                self._execute("ROLLBACK TO unit")
                self._execute("RELEASE unit")
            return error
        self._execute("RELEASE unit")
        return None

    def _fail(self, units: Iterable[WriteRequest[Any]], error: BaseException) -> None:
        self._stop_if_untrusted(error)
        for unit in units:
            unit.error = error

    def _stop_if_untrusted(self, error: BaseException | None) -> None:
        if isinstance(error, StoreFailedError):
            self._stop(error)
        elif isinstance(error, apsw.Error) and must_stop(error):
            self._stop(
                StoreFailedError(
                    f"the store has stopped: {error}",
                    hint="Restart Ductile: it recovers from what is on disk. Check the disk if this repeats.",
                )
            )

    def _roll_back(self) -> None:
        self._session.discard()
        if self._connection.in_transaction:
            self._execute("ROLLBACK")

    def _execute(self, sql: str) -> None:
        self._connection.execute(sql).fetchall()

    def _tell(self, units: list[WriteRequest[Any]]) -> None:
        """Nobody hears of anything before the commit has returned; then everybody does, in one go."""
        by_loop: dict[asyncio.AbstractEventLoop, list[WriteRequest[Any]]] = {}
        for unit in units:
            if unit.error is not None and isinstance(unit.error, apsw.Error):
                unit.error = translate(unit.error, self._path)
            if unit.loop in by_loop:
                by_loop[unit.loop].append(unit)
            else:
                by_loop[unit.loop] = [unit]
        self._note_room(units)
        for loop, told in by_loop.items():
            try:
                loop.call_soon_threadsafe(_resolve, told)
            except RuntimeError:  # the loop is closed: nobody is waiting any more
                continue

    def _note_room(self, units: list[WriteRequest[Any]]) -> None:
        """A full disk is one for submissions: the end of a job may still fit where a new job does not."""
        if any(isinstance(unit.error, StoreFullError) for unit in units):
            self.is_full = True
        elif self._has_written and any(
            unit.priority is Priority.ENQUEUE and unit.error is None for unit in units
        ):
            self.is_full = False

    def _tell_outbox(self) -> None:
        """Once for all that a batch has put there; if it was rolled back, somebody looks in vain."""
        if self._outbox_watcher is not None:
            loop, grew = self._outbox_watcher
            with suppress(RuntimeError):  # the loop is closed: nobody is watching any more
                loop.call_soon_threadsafe(grew)

    # -- the write-ahead log

    def _note_wal(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        """Called by SQLite after each commit that has written something."""
        self._wal_pages = pages
        self._has_written = True
        return apsw.SQLITE_OK

    def _checkpoint_if_large(self) -> None:
        """Between batches, so that no caller waits for it inside a commit; readers are not disturbed."""
        if self._wal_pages < CHECKPOINT_PAGES or self._failure is not None:
            return
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error as error:
            self._stop_if_untrusted(error)
        self._wal_pages = 0
        self._log.forget()


def _resolve(units: list[WriteRequest[Any]]) -> None:
    """On the loop. Whoever waits goes on in its next turn, so after `told`."""
    for unit in units:
        if unit.told is not None and unit.error is None:
            try:
                unit.told(unit.answer)
            except Exception as error:  # noqa: BLE001 - a defect of one must not keep the others waiting
                unit.loop.call_exception_handler({"message": "telling failed", "exception": error})
        if unit.future.done():
            continue  # the caller was cancelled; what it asked for is on disk all the same
        if unit.error is None:
            unit.future.set_result(unit.answer)
        elif isinstance(unit.error, DuctileError):
            unit.future.set_exception(unit.error)
        else:
            defect = StoreError(f"the store met a defect: {unit.error!r}")
            defect.__cause__ = unit.error
            unit.future.set_exception(defect)
