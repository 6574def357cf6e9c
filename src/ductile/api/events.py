"""The ledger as server-sent events: the number of an entry is its id, and nothing is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from ductile.errors import TooBusyError, UsageError
from ductile.operations.jobs.documents import ledger_event
from ductile.operations.ledger_stream import LedgerStream, StreamSubscriber, TooFarBehindError
from ductile.struct import Value

if TYPE_CHECKING:
    from uvicorn._types import ASGISendCallable

    from ductile.core.json import JsonObject
    from ductile.store.model.records import LedgerRow
    from ductile.store.port import Store

KEEP_ALIVE_SECONDS = 15.0
MAX_STREAMS = 64
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]
_MOST_DIGITS = 18


class EventFilter(Value):
    """Which entries a reader asked for, and after which."""

    after: int | None = None
    kinds: frozenset[str] = frozenset()
    job_id: str | None = None

    def holds(self, row: LedgerRow) -> bool:
        if self.kinds and row.kind not in self.kinds:
            return False
        return self.job_id is None or self.job_id in (row.job_id, row.run_id)


def parse_last_event_id(text: str | None) -> int | None:
    if text is None or not text.strip():
        return None
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()) or len(digits) > _MOST_DIGITS:
        raise UsageError(
            "Last-Event-ID is not a valid event id", hint="It is the number of the last event received."
        )
    return int(digits)


class _NoLongerAdmittedError(Exception):
    """The reader's token was taken away, or may no longer read events. Asking again tells it so."""


class EventStreams:
    """All who follow the ledger over HTTP."""

    def __init__(self, store: Store, feed: LedgerStream, *, keep_alive: float = KEEP_ALIVE_SECONDS) -> None:
        self._store = store
        self._feed = feed
        self._keep_alive = keep_alive
        self._open: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        return len(self._open)

    def close(self) -> None:
        """The daemon stops: streams end, and their readers come back to the next one with their last id."""
        for stream in list(self._open):
            stream.cancel()

    async def opened(
        self, wanted: EventFilter, admitted: Callable[[], bool] = lambda: True
    ) -> Callable[[ASGISendCallable], asyncio.Future[None]]:
        """A stream for one reader, up to the moment when it is no longer `admitted`.

        A store that cannot be read is told here, where it can still be answered.
        """
        if len(self._open) >= MAX_STREAMS:
            raise TooBusyError("too many event streams are open", hint="Close one, or try again later.")
        await self._store.ledger_range()

        def run(send: ASGISendCallable) -> asyncio.Future[None]:
            task = asyncio.ensure_future(self._run(_EventWriter(send, admitted), wanted))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            return task

        return run

    async def _run(self, out: _EventWriter, wanted: EventFilter) -> None:
        await self._feed.start_reading()
        with self._feed.joined() as follower:
            await out.start()
            # Being cancelled is how a stream is ended: by the reader's going, or by the daemon's.
            with suppress(TooFarBehindError, _NoLongerAdmittedError, asyncio.CancelledError):
                await out.write(_beginning(follower, wanted))
                await self._replay(out, follower, wanted)
                await self._follow(out, follower, wanted)
        await out.finish()

    async def _replay(self, out: _EventWriter, follower: StreamSubscriber, wanted: EventFilter) -> None:
        if wanted.after is None:
            return
        place, until = wanted.after, follower.joined_at
        if place > until:
            # An id of another store, or of a time before a backup: nothing tells what its reader has seen.
            lowest, _ = await self._store.ledger_range()
            await out.write(_gap(lowest, until, f"there is no event {place}; this goes on from now"))
            return
        async for rows in self._feed.replay(place, until):
            await self._tell_hole(out, place, rows[0].seq)
            await out.rows(rows, wanted)
            place = rows[-1].seq
        await self._tell_hole(out, place, until + 1)

    async def _tell_hole(self, out: _EventWriter, place: int, following: int) -> None:
        """Between two numbers that should follow each other, also where a sweep came between two pages.

        Only what is older than all that is held was swept; a number may also never have been given.
        """
        if following <= place + 1:
            return
        lowest, _ = await self._store.ledger_range()
        if lowest > place + 1 or not lowest:
            told = f"events before {following} are no longer held"
            await out.write(_gap(following, following - 1, told))

    async def _follow(self, out: _EventWriter, follower: StreamSubscriber, wanted: EventFilter) -> None:
        """What comes, and a sign of life whenever nothing of it was for this reader for a while."""
        clock = asyncio.get_running_loop().time
        place, due = follower.joined_at, clock() + self._keep_alive
        while True:
            rows: tuple[LedgerRow, ...] = ()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    rows = await follower.next()
            if rows:
                await self._tell_hole(out, place, rows[0].seq)
                place = rows[-1].seq
            if await out.rows(rows, wanted):
                due = clock() + self._keep_alive
            elif clock() >= due:
                # With the place: one who waits for something rare need not resume where it last came.
                await out.write(f": keep-alive\nid: {place}\n\n")
                due = clock() + self._keep_alive


class _EventWriter:
    """The way to one reader. One who does not read is cut off by the connection, which has a time for it."""

    def __init__(self, send: ASGISendCallable, admitted: Callable[[], bool]) -> None:
        self._send = send
        self._admitted = admitted

    async def start(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})

    async def rows(self, rows: Iterable[LedgerRow], wanted: EventFilter) -> bool:
        """Send those that are wanted; whether there were any."""
        text = "".join(_event(row) for row in rows if wanted.holds(row))
        if text:
            await self.write(text)
        return bool(text)

    async def write(self, text: str) -> None:
        if not self._admitted():
            raise _NoLongerAdmittedError
        await self._send({"type": "http.response.body", "body": text.encode(), "more_body": True})

    async def finish(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def _event(row: LedgerRow) -> str:
    return f"id: {row.seq}\nevent: {row.kind}\ndata: {_json(ledger_event(row))}\n\n"


def _beginning(follower: StreamSubscriber, wanted: EventFilter) -> str:
    """For a new reader, with the place where it joined: cut off before its first event, it misses nothing."""
    place = f"id: {follower.joined_at}\n" if wanted.after is None else ""
    return f"retry: 2000\n{place}\n"


def _gap(lowest: int, place: int, message: str) -> str:
    """Something is missing before `place`: whoever keeps a copy has to look at the jobs again."""
    told: JsonObject = {"oldest": lowest, "message": message}
    return f"id: {place}\nevent: gap\ndata: {_json(told)}\n\n"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
