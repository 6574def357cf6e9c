"""The writer: a thread that owns the writing connection and commits waiting requests together.

A request is the whole transaction of one verb. All requests that wait when the thread is free share one
commit, and therefore one fsync. Callers resume after that commit has returned.

A batch first runs without savepoints. If a request raises, the transaction is rolled back and the batch
runs again with a savepoint around each request, so that one failure does not affect the others. A request
may therefore run more than once before it is committed, and must have no effect except on the database.

After COMMIT the thread schedules one call on the event loop, which first publishes the changes of all
requests to the notifier and then sets the results of their futures.

What is particular to a database is in its `WriteConnection`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from ductile.errors import (
    ContendedError,
    DuctileError,
    StoreBusyError,
    StoreError,
    StoreFailedError,
    StoreFullError,
)
from ductile.store.notifier import STORE_AVAILABLE, Change, Notifier, StoreFailed, StoreUnavailable
from ductile.store.port import ClaimCall, Priority, SettledJob, Store, WriteHint
from ductile.store.session import Session
from ductile.store.verbs import maintenance
from ductile.store.verbs.jobs.queue import claim
from ductile.struct import asdict, replace

R = TypeVar("R")

#: A batch ends at the first of these limits.
MAX_REQUESTS = 256
MAX_BYTES = 4 * 1024 * 1024
MAX_SECONDS = 0.005
#: Jobs whose rows are read when a batch begins: its time does not suffice to settle more.
MAX_JOBS_TO_SETTLE = 64
#: Submissions that may wait; further ones are refused with `StoreBusyError`.
CAPACITY = 10_000
#: This many submissions in one iteration of the event loop are a burst: the loop is probably still reading
#: requests whose submissions follow. An idle writer is then woken two iterations later, so that they share
#: the commit. A commit that began earlier would compete with the loop for the GIL.
BURST = 8
BURST_ITERATIONS = 2
#: Requests that run after the claims of their batch. A claim uses the caps of the old configuration, so it
#: must not see the jobs that a CONFIGURE request adds.
_AFTER_CLAIMS = frozenset({Priority.CONFIGURE, Priority.MAINTENANCE})


class WriteRequest(msgspec.Struct, Generic[R], eq=False):
    """A verb's transaction that waits for its commit."""

    priority: Priority
    work: Callable[[Session], R]
    future: asyncio.Future[R]
    hint: WriteHint = None
    #: Published after the commit.
    changes: Sequence[Change] = ()
    result: R | None = None
    error: BaseException | None = None


class WriteSession(Session, Protocol):
    """The session of the writing connection, one for the connection's whole life."""

    changes: list[Change]
    #: Characters in the large columns of all rows inserted by `insert_buffered`, in any transaction.
    written_size: int

    def begin_request(self) -> None:
        """Begin the next write request of the batch, in the same transaction."""

    def flush(self) -> None:
        """Write the buffered rows."""

    def discard(self) -> None:
        """Drop the buffered rows: the transaction, or the savepoint, was rolled back."""


class WriteConnection(Protocol):
    """One database connection, used by the thread of the writer alone."""

    @property
    def session(self) -> WriteSession: ...

    @property
    def in_transaction(self) -> bool: ...

    @property
    def has_written(self) -> bool:
        """Return whether the last transaction has changed something."""

    def begin(self, seqs_to_settle: Callable[[], Sequence[int]]) -> None:
        """Begin a transaction in which no other process writes.

        `seqs_to_settle` returns the numbers of jobs that may end in it, whose rows can be read at once.
        """

    def commit(self, changes: Iterable[Change]) -> None:
        """Make the transaction durable, with the buffered rows. Raises if it is not.

        Notifies other nodes of the changes.
        """

    def roll_back(self) -> None: ...

    def savepoint(self) -> None: ...

    def release_savepoint(self) -> None: ...

    def roll_back_to_savepoint(self) -> None:
        """Undo the changes since the savepoint, and remove it."""

    def is_fatal(self, error: BaseException) -> bool:
        """Return whether nothing may be written after this error until the store is opened again."""

    def translate(self, error: BaseException) -> BaseException:
        """Return our error for one of the database."""

    def after_batch(self) -> None:
        """Maintain the database between two batches."""

    def check(self) -> None:
        """Raise `StoreFailedError` if the store can no longer be used. Called on the event loop."""


class Writer:
    def __init__(self, connection: WriteConnection, notifier: Notifier) -> None:
        self._connection = connection
        self._session = connection.session
        self._notifier = notifier
        #: The event loop of the latest call. A store is used by one loop at a time.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queues: tuple[deque[WriteRequest[Any]], ...] = tuple(deque() for _ in Priority)
        self._lock = threading.Lock()
        self._request_waits = threading.Condition(self._lock)
        self._closing = False
        #: Whether the thread waits for a request.
        self.is_idle = False
        #: Why writing has stopped for good.
        self.failure: StoreFailedError | None = None
        #: Whether the last batch failed because the store takes no writes now.
        self._is_unavailable = False
        #: Whether the disk was full at the last submission.
        self.is_full = False
        self._thread = threading.Thread(target=self._run, name="ductile-writer", daemon=True)
        self._thread.start()

    def submit(
        self, priority: Priority, work: Callable[[Session], R], hint: WriteHint = None
    ) -> asyncio.Future[R]:
        """Run `work` in a transaction. The future gets its result once the transaction is on disk.

        Raises `StoreBusyError` or `StoreFailedError` if the writer accepts no requests.
        """
        self._loop = loop = asyncio.get_running_loop()
        request = WriteRequest(priority, work, loop.create_future(), hint)
        queue = self._queues[priority]
        with self._lock:
            if self.failure is not None:
                raise self.failure
            if self._closing:
                raise StoreBusyError("the store is closing", hint="Try again when the daemon is back.")
            if priority is Priority.ENQUEUE and len(queue) >= CAPACITY:
                message = f"{CAPACITY} submissions wait for the disk"
                raise StoreBusyError(message, hint="Try again in a moment.")
            queue.append(request)
            if self.is_idle:
                # The thread wakes at the end of this iteration of the loop, whose requests share the commit.
                self.is_idle = False
                loop.call_soon(self.wake, loop, BURST_ITERATIONS)
        return request.future

    def wake(self, loop: asyncio.AbstractEventLoop, iterations: int) -> None:
        """Notify the thread; after a burst, up to `iterations` iterations of the loop later."""
        if iterations and len(self._queues[Priority.ENQUEUE]) >= BURST:
            loop.call_soon(self.wake, loop, iterations - 1)
            return
        with self._request_waits:
            self._request_waits.notify()

    def waiting(self, priority: Priority) -> int:
        """Return how many requests of this priority wait for the thread."""
        return len(self._queues[priority])

    def check(self) -> None:
        """Raise `StoreFailedError` if writing has stopped, or has to stop."""
        if self.failure is not None:
            raise self.failure
        try:
            self._connection.check()
        except StoreFailedError as error:
            self._loop = asyncio.get_running_loop()
            self._stop(error)
            raise

    def _stop(self, failure: StoreFailedError) -> None:
        """Write nothing more. The first failure is kept: later ones follow from it."""
        if self.failure is None:
            self.failure = failure
            self._call_on_loop(self._notifier.publish, (StoreFailed(error=failure),))

    async def close(self) -> None:
        """Commit the waiting requests, then end the thread."""
        with self._request_waits:
            self._closing = True
            self._request_waits.notify()
        await asyncio.to_thread(self._thread.join)

    # -- the thread

    def _run(self) -> None:
        while self._wait_for_work():
            try:
                self._write_batch()
                if self.failure is None:
                    try:
                        self._connection.after_batch()
                    except Exception as error:  # noqa: BLE001 - only a fatal one matters: the batch is committed
                        self._stop_if_fatal(error)
            except Exception as error:  # noqa: BLE001 - if the thread ended, callers would wait for ever
                stopped = StoreFailedError(
                    f"the store has stopped: {error!r}",
                    hint="Restart Ductile: it recovers from what is on disk.",
                )
                self._stop(stopped)
                waiting = self._take_all()
                self._fail(waiting, self.failure or stopped)
                self._notify(waiting)

    def _wait_for_work(self) -> bool:
        """Wait for a request. Returns False if there is none and the writer closes."""
        with self._request_waits:
            while not any(self._queues):
                if self._closing:
                    return False
                self.is_idle = True
                self._request_waits.wait()
            self.is_idle = False
        return True

    def _take_request(self) -> WriteRequest[Any] | None:
        for queue in self._queues:
            if queue:
                return queue.popleft()
        return None

    def _take_all(self) -> list[WriteRequest[Any]]:
        return list(iter(self._take_request, None))

    def _write_batch(self) -> None:
        """Commit the waiting requests together; if that fails, run them one by one."""
        batch: list[WriteRequest[Any]] = []
        try:
            try:
                self._begin(self._seqs_to_settle)
                self._run_batch(batch)
                self._connection.commit(_changes_of(batch))
            except Exception as error:  # noqa: BLE001 - the callers of the batch get it
                self._roll_back()
                if not batch or self._connection.is_fatal(error):
                    # The transaction could not begin, or the file is damaged: no request can be served.
                    batch += self._take_all()
                    self._fail(batch, error)
                else:
                    remaining = list(batch)
                    while remaining:
                        remaining = self._run_isolated(remaining)
        except Exception as error:
            self._fail(batch, error)
            raise
        finally:
            self._notify(batch)

    def _seqs_to_settle(self) -> list[int]:
        """Return the numbers of the jobs that waiting requests settle."""
        with self._lock:
            requests = islice(self._queues[Priority.SETTLE], MAX_JOBS_TO_SETTLE)
            return [request.hint.seq for request in requests if isinstance(request.hint, SettledJob)]

    def _begin(self, seqs_to_settle: Callable[[], Sequence[int]] = tuple) -> None:
        if self.failure is not None:
            raise self.failure
        self._connection.begin(seqs_to_settle)

    def _run_batch(self, batch: list[WriteRequest[Any]]) -> None:
        """Run the waiting requests, claims after submissions: they see the jobs of the same commit."""
        deadline = time.monotonic() + MAX_SECONDS
        max_size = self._session.written_size + MAX_BYTES
        deferred: deque[WriteRequest[Any]] = deque()

        def run_deferred() -> None:
            while deferred:
                requests = [deferred.popleft()]
                while deferred and _can_share_claim(requests[0], deferred[0]):
                    requests.append(deferred.popleft())
                self._run_together(requests, batch)

        try:
            while (
                len(batch) < MAX_REQUESTS
                and self._session.written_size < max_size
                and (not batch or time.monotonic() < deadline)
            ):
                request = self._take_request()
                if request is None:
                    break
                if request.priority is Priority.CLAIM:
                    deferred.append(request)
                elif request.priority in _AFTER_CLAIMS:
                    deferred.append(request)
                    run_deferred()
                else:
                    self._run_request(request, batch)
            run_deferred()
        finally:
            batch += deferred  # if the batch has failed, these requests run again, or fail, with the others

    def _run_request(self, request: WriteRequest[Any], batch: list[WriteRequest[Any]]) -> None:
        batch.append(request)
        session = self._session
        session.begin_request()
        request.result = request.work(session)
        request.changes = session.changes

    def _run_together(self, requests: list[WriteRequest[Any]], batch: list[WriteRequest[Any]]) -> None:
        """Run one request, or several claims as one, whose jobs are divided in the order of the requests."""
        if len(requests) == 1:
            self._run_request(requests[0], batch)
            return
        batch += requests
        calls = [request.hint for request in requests if isinstance(request.hint, ClaimCall)]
        combined = replace(calls[0], limit=sum(call.limit for call in calls))
        self._session.begin_request()
        claims = iter(claim(self._session, **asdict(combined)))
        for request, call in zip(requests, calls, strict=True):
            request.result = tuple(islice(claims, call.limit))
            request.changes = self._session.changes

    def _run_isolated(self, requests: list[WriteRequest[Any]]) -> list[WriteRequest[Any]]:
        """Run each request in a savepoint, then commit.

        Returns the requests that must run again in a new transaction. A full disk inside a savepoint rolls
        back the whole transaction: then all requests run again but the one that found the disk full.
        """
        try:
            self._begin()
            for request in requests:
                request.error = self._try_request(request)
                if request.error is not None and self._connection.is_fatal(request.error):
                    self._roll_back()
                    self._fail(requests, request.error)
                    return []
                if not self._connection.in_transaction:
                    return [other for other in requests if other is not request]
            self._connection.commit(_changes_of(requests))
        except Exception as error:  # noqa: BLE001 - the commit failed, and with it every request
            self._roll_back()
            self._fail([request for request in requests if request.error is None], error)
        return []

    def _try_request(self, request: WriteRequest[Any]) -> BaseException | None:
        """Run a request in a savepoint. Returns its error; None if it succeeded."""
        self._connection.savepoint()
        try:
            self._run_request(request, [])
            self._session.flush()
        except Exception as error:  # noqa: BLE001 - only this request fails
            self._session.discard()
            if self._connection.in_transaction:
                self._connection.roll_back_to_savepoint()
            return error
        self._connection.release_savepoint()
        return None

    def _fail(self, requests: Iterable[WriteRequest[Any]], error: BaseException) -> None:
        self._stop_if_fatal(error)
        for request in requests:
            request.error = error

    def _stop_if_fatal(self, error: BaseException | None) -> None:
        if isinstance(error, StoreFailedError):
            self._stop(error)
        elif error is not None and self._connection.is_fatal(error):
            self._stop(
                StoreFailedError(
                    f"the store has stopped: {error}",
                    hint="Restart Ductile: it recovers from what is on disk. Check the disk if this repeats.",
                )
            )

    def _roll_back(self) -> None:
        self._session.discard()
        if self._connection.in_transaction:
            self._connection.roll_back()

    # -- after the commit

    def _notify(self, batch: list[WriteRequest[Any]]) -> None:
        for request in batch:
            if request.error is not None:
                request.error = self._connection.translate(request.error)
        errors = [request.error for request in batch]
        if None in errors:
            if self._is_unavailable:
                self._is_unavailable = False
                self._call_on_loop(self._notifier.publish, (STORE_AVAILABLE,))
        elif errors and isinstance(errors[0], StoreBusyError) and not isinstance(errors[0], ContendedError):
            self.report_unavailable(errors[0])
        # Only submissions tell whether the disk is full: the end of a job may fit where a new job does not.
        if any(isinstance(error, StoreFullError) for error in errors):
            self.is_full = True
        elif self._connection.has_written and any(
            request.priority is Priority.ENQUEUE and request.error is None for request in batch
        ):
            self.is_full = False
        self._call_on_loop(self._publish_and_resolve, batch)

    def report_unavailable(self, error: StoreBusyError) -> None:
        """Publish that the store takes no writes, once until it takes them again. Called on the thread."""
        if not self._is_unavailable:
            self._is_unavailable = True
            self._call_on_loop(self._notifier.publish, (StoreUnavailable(error=error),))

    def _call_on_loop(self, callback: Callable[[Any], None], argument: Any) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed, so no caller waits any more
                self._loop.call_soon_threadsafe(callback, argument)

    def _publish_and_resolve(self, batch: list[WriteRequest[Any]]) -> None:
        """Publish the changes, then resolve the futures. Their callers resume in the next iteration."""
        self._notifier.publish(_changes_of(batch))
        for request in batch:
            if request.future.done():
                continue  # the caller was cancelled; its request is on disk
            if request.error is None:
                request.future.set_result(request.result)
            elif isinstance(request.error, DuctileError):
                request.future.set_exception(request.error)
            else:
                internal = StoreError(f"internal error in the store: {request.error!r}")
                internal.__cause__ = request.error
                request.future.set_exception(internal)


def _can_share_claim(request: WriteRequest[Any], other: WriteRequest[Any]) -> bool:
    """Return whether both requests claim jobs, with arguments that differ in `limit` only."""
    return (
        isinstance(request.hint, ClaimCall)
        and isinstance(other.hint, ClaimCall)
        and replace(other.hint, limit=request.hint.limit) == request.hint
    )


def _changes_of(batch: Iterable[WriteRequest[Any]]) -> Iterable[Change]:
    """Return the changes of the requests that have not failed, each change once."""
    return {
        id(change): change for request in batch if request.error is None for change in request.changes
    }.values()


async def is_still_full(store: Store, writer: Writer) -> bool:
    """Return whether the disk is full. If it was, a test row is written and deleted to find out."""
    if writer.is_full:
        with suppress(StoreFullError, StoreBusyError):
            await store.run_write(Priority.ENQUEUE, maintenance.write_probe_row)
            await store.run_write(Priority.ENQUEUE, maintenance.delete_probe_row)
    return writer.is_full
