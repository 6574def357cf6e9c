"""The ledger as server-sent events. The number of an entry is the id of its event.

A reader of one job also gets the output of the running job, as `job.output` events without an id.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from ductile.engine.clock import STORE_RETRY_INTERVAL, STORE_UNAVAILABLE
from ductile.errors import TooBusyError, UsageError
from ductile.operations.jobs.documents import ledger_event, live_output_text
from ductile.store.notifier import LedgerAppended
from ductile.struct import Value

if TYPE_CHECKING:
    from uvicorn._types import ASGISendCallable

    from ductile.engine.live_output import LiveOutput, OutputPiece
    from ductile.store.model.records import LedgerRow
    from ductile.store.port import Store

KEEP_ALIVE_SECONDS = 15.0
MAX_STREAMS = 64
PAGE_ROWS = 500
#: Rows that may wait for one subscriber. A slower one is disconnected, and resumes from the store.
MAX_WAITING_ROWS = 5_000
#: The ledger is read at least this often, in case a change was missed.
_POLL_SECONDS = 15.0
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]
_MAX_DIGITS = 18


class EventFilter(Value):
    """The events that a reader gets."""

    #: The number of the last entry that the reader has; None for entries from now on.
    after: int | None = None
    kinds: frozenset[str] = frozenset()
    job_id: str | None = None
    #: Whether the reader also gets the output of the job, which needs the right to read jobs.
    output: bool = False
    #: Only entries about jobs of this token; None for all entries.
    token: str | None = None

    def matches(self, row: LedgerRow) -> bool:
        if self.token is not None and row.token != self.token:
            return False
        if self.kinds and row.kind not in self.kinds:
            return False
        return self.job_id is None or self.job_id in (row.job_id, row.run_id)


def parse_last_event_id(text: str | None) -> int | None:
    """Return the number in a `Last-Event-ID`; None if it is empty. Raises `UsageError`."""
    digits = "" if text is None else text.strip()
    if not digits:
        return None
    if not (digits.isascii() and digits.isdigit()) or len(digits) > _MAX_DIGITS:
        raise UsageError(
            "Last-Event-ID is not a valid event id", hint="It is the number of the last event received."
        )
    return int(digits)


class SubscriberDisconnectedError(Exception):
    """The subscriber was disconnected: it does not keep up, or the stream has ended."""


@dataclass(slots=True, eq=False)
class StreamSubscriber:
    """One reader of the stream, with the rows after `start_seq` that are still to be sent to it."""

    start_seq: int
    waiting: deque[LedgerRow] = field(default_factory=deque)
    is_disconnected: bool = False
    #: Set when there are rows, or something else for the reader.
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def push(self, rows: tuple[LedgerRow, ...]) -> None:
        if len(self.waiting) + len(rows) > MAX_WAITING_ROWS:
            self.disconnect()
        elif not self.is_disconnected:
            self.waiting.extend(rows)
            self.arrived.set()

    def disconnect(self) -> None:
        self.is_disconnected = True
        self.waiting.clear()
        self.arrived.set()

    async def next(self) -> tuple[LedgerRow, ...]:
        """Wait until `arrived` is set and return the rows. Raises `SubscriberDisconnectedError`."""
        await self.arrived.wait()
        self.arrived.clear()
        if self.is_disconnected:
            raise SubscriberDisconnectedError
        rows = tuple(self.waiting)
        self.waiting.clear()
        return rows


class LedgerStream:
    """The new entries of the ledger, read once for all subscribers. A slow subscriber delays no other.

    A subscriber registers first, then replays the stored rows up to its `start_seq`, then takes the rows that
    came since. Otherwise a row between replay and registration would be missed, or come twice.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._subscribers: set[StreamSubscriber] = set()
        self._position = 0
        self._task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    async def start_reading(self) -> None:
        """Start the reader, unless it runs. It ends with the last subscriber."""
        async with self._starting:
            if self._task is None or self._task.done():
                self._position = (await self._store.ledger_range())[1]
                self._task = asyncio.create_task(self._read(), name="ledger stream")

    @contextmanager
    def subscribed(self) -> Iterator[StreamSubscriber]:
        """Register a subscriber, which gets all new rows until the context ends."""
        subscriber = StreamSubscriber(start_seq=self._position)
        self._subscribers.add(subscriber)
        try:
            yield subscriber
        finally:
            self._subscribers.discard(subscriber)
            if not self._subscribers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def replay(
        self, after: int, until: int, token: str | None = None
    ) -> AsyncIterator[tuple[LedgerRow, ...]]:
        """Yield pages of the stored rows after one number and up to another; with a token, of its jobs."""
        while after < until:
            rows = await self._store.list_ledger(after=after, limit=PAGE_ROWS, token=token)
            page = tuple(row for row in rows if row.seq <= until)
            if not page:
                return
            yield page
            after = page[-1].seq

    async def _read(self) -> None:
        """Read new rows for all subscribers, until the last one leaves and cancels this."""
        try:
            with self._store.notifier.watch(LedgerAppended) as advanced:
                while True:
                    advanced.clear()
                    try:
                        rows = await self._store.list_ledger(after=self._position, limit=PAGE_ROWS)
                    except STORE_UNAVAILABLE:
                        # The streams stay open, and keep-alives are sent.
                        await asyncio.sleep(STORE_RETRY_INTERVAL.total_seconds())
                        continue
                    if rows:
                        self._position = rows[-1].seq
                        for subscriber in self._subscribers:
                            subscriber.push(rows)
                        continue
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_POLL_SECONDS):
                            await advanced.wait()
        finally:
            for subscriber in self._subscribers:  # No more rows will come.
                subscriber.disconnect()


class _TokenRevokedError(Exception):
    """The reader's token is gone, or may no longer read events. The next request is refused."""


class EventStreams:
    """The open event streams: opens them, and ends those that a new configuration refuses."""

    def __init__(
        self, store: Store, live: LiveOutput | None = None, *, keep_alive: float = KEEP_ALIVE_SECONDS
    ) -> None:
        """`live` has the output of running jobs; without it there are no `job.output` events."""
        self._store = store
        self._live = live
        self._ledger = LedgerStream(store)
        self._keep_alive = keep_alive
        #: The open streams, each with the function that returns whether its token is still admitted.
        self._open: dict[asyncio.Task[None], Callable[[], bool]] = {}

    @property
    def count(self) -> int:
        return len(self._open)

    def close(self) -> None:
        """End all streams: the daemon stops. Readers resume with their last id at its next start."""
        for stream in list(self._open):
            stream.cancel()

    def end_refused(self) -> None:
        """End the streams whose token is gone or may no longer read events: the configuration changed."""
        for stream, is_admitted in list(self._open.items()):
            if not is_admitted():
                stream.cancel()

    async def open(
        self, event_filter: EventFilter, is_admitted: Callable[[], bool] = lambda: True
    ) -> Callable[[ASGISendCallable], asyncio.Future[None]]:
        """Return the function that sends a stream to one reader. It ends when `is_admitted` returns false.

        Raises `TooBusyError`, and `StoreError` if the ledger cannot be read: an open stream could not report
        that.
        """
        if len(self._open) >= MAX_STREAMS:
            raise TooBusyError("too many event streams are open", hint="Close one, or try again later.")
        await self._store.ledger_range()

        def run(send: ASGISendCallable) -> asyncio.Future[None]:
            task = asyncio.ensure_future(self._run(_EventWriter(send, is_admitted, event_filter)))
            self._open[task] = is_admitted
            task.add_done_callback(self._open.pop)
            return task

        return run

    async def _run(self, writer: _EventWriter) -> None:
        """Send one stream: stored entries first, then new ones until the stream ends."""
        await self._ledger.start_reading()
        job_id, live = writer.filter.job_id, self._live if writer.filter.output else None
        with (
            self._ledger.subscribed() as subscriber,
            live.following(job_id, subscriber.arrived) if live and job_id else nullcontext(),
        ):
            await writer.start()
            # A stream ends by cancellation: the client disconnected, or the daemon stops.
            # One whose position cannot be read now is ended as well: the client resumes with its last id.
            with suppress(
                SubscriberDisconnectedError, _TokenRevokedError, asyncio.CancelledError, *STORE_UNAVAILABLE
            ):
                after = writer.filter.after
                # A new reader gets its position, where it resumes if it is cut off before its first event.
                id_line = f"id: {subscriber.start_seq}\n" if after is None else ""
                await writer.write(f"retry: 2000\n{id_line}\n")
                position = subscriber.start_seq
                if after is not None:
                    position = await self._replay(writer, after, subscriber.start_seq)
                await self._follow(writer, subscriber, position)
        await writer.finish()

    async def _replay(self, writer: _EventWriter, after: int, until: int) -> int:
        """Send the stored entries after a number, up to the one at which the subscriber was registered.

        Returns the number after which new entries are sent.
        """
        if after > until:
            lowest, highest = await self._store.ledger_range()
            if after <= highest:
                return after  # Another node has sent entries that this node has not read yet.
            # The id is of another store, or from before a restore, so the entries of the reader are unknown.
            await writer.write_gap(lowest, until, f"there is no event {after}; only new events follow")
            return until
        async for rows in self._ledger.replay(after, until, writer.filter.token):
            await self._report_gap(writer, after, rows[0].seq)
            await writer.write_rows(rows)
            after = rows[-1].seq
        await self._report_gap(writer, after, until + 1)
        return until

    async def _report_gap(self, writer: _EventWriter, after: int, following: int) -> None:
        """Send a gap event if retention has removed entries between two numbers.

        Removed entries are older than all stored ones; other missing numbers were never assigned.
        """
        if following <= after + 1:
            return
        lowest, _ = await self._store.ledger_range()
        if lowest > after + 1 or not lowest:
            message = f"events before {following} are no longer held"
            await writer.write_gap(following, following - 1, message)

    async def _follow(self, writer: _EventWriter, subscriber: StreamSubscriber, position: int) -> None:
        """Send entries after a number as they come, and a keep-alive when none was sent for a while."""
        clock = asyncio.get_running_loop().time
        due = clock() + self._keep_alive
        output_position: int | None = None
        subscriber.arrived.set()  # Output of the running execution is sent at once.
        while True:
            rows: tuple[LedgerRow, ...] = ()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    rows = tuple(row for row in await subscriber.next() if row.seq > position)
            if self._live is not None and writer.filter.output:
                # Before the rows: the output of an execution is complete before its end is stored.
                output = self._live.read(writer.filter.job_id, output_position)
                output_position = output.position
                if await writer.write_output(output.pieces):
                    due = clock() + self._keep_alive
            if rows:
                await self._report_gap(writer, position, rows[0].seq)
                position = rows[-1].seq
            if await writer.write_rows(rows):
                due = clock() + self._keep_alive
            elif clock() >= due:
                # The position saves readers of rare events from replaying all others when they resume.
                await writer.write(f": keep-alive\nid: {position}\n\n")
                due = clock() + self._keep_alive


class _EventWriter:
    """Writes to one reader. The connection's write timeout disconnects a reader that does not read."""

    def __init__(self, send: ASGISendCallable, is_admitted: Callable[[], bool], filter_: EventFilter) -> None:
        self._send = send
        self._is_admitted = is_admitted
        self.filter = filter_

    async def start(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})

    async def write_rows(self, rows: Iterable[LedgerRow]) -> bool:
        """Send the rows that pass the filter; return whether there were any."""
        text = "".join(
            f"id: {row.seq}\nevent: {row.kind}\ndata: {_json(ledger_event(row))}\n\n"
            for row in rows
            if self.filter.matches(row)
        )
        if text:
            await self.write(text)
        return bool(text)

    async def write_output(self, pieces: Iterable[OutputPiece]) -> bool:
        """Send output of the job; return whether there was any.

        These events have no id, because a reader resumes at an entry of the ledger.
        """
        text = "".join(f"event: job.output\ndata: {_json(live_output_text(piece))}\n\n" for piece in pieces)
        if text:
            await self.write(text)
        return bool(text)

    async def write_gap(self, oldest: int, position: int, message: str) -> None:
        """Report missing entries before `position`: a reader that keeps a copy reads the jobs again."""
        data = _json({"oldest": oldest, "message": message})
        await self.write(f"id: {position}\nevent: gap\ndata: {data}\n\n")

    async def write(self, text: str) -> None:
        if not self._is_admitted():
            raise _TokenRevokedError
        await self._send({"type": "http.response.body", "body": text.encode(), "more_body": True})

    async def finish(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
