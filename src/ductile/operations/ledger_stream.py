"""The ledger as it grows: one reader of the store for all subscribers, and no subscriber delays another.

A subscriber registers first, then replays the stored rows up to its `start_seq`, then takes the rows that
came since. Otherwise a row between replay and registration would be missed, or come twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from ductile.store.model.records import LedgerRow
from ductile.store.notifier import LedgerAppended
from ductile.store.port import Store

PAGE_ROWS = 500
#: Rows that may wait for one subscriber. A slower one is disconnected, and resumes from the store.
MAX_WAITING_ROWS = 5_000
#: The ledger is read at least this often, in case a change was missed.
_POLL_SECONDS = 15.0


class TooFarBehindError(Exception):
    """The subscriber does not keep up, or the stream has ended."""


@dataclass(slots=True, eq=False)
class StreamSubscriber:
    """Gets the rows after `start_seq`."""

    start_seq: int
    waiting: deque[LedgerRow] = field(default_factory=deque)
    lagging: bool = False
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def push(self, rows: tuple[LedgerRow, ...]) -> None:
        if len(self.waiting) + len(rows) > MAX_WAITING_ROWS:
            self.disconnect()
        elif not self.lagging:
            self.waiting.extend(rows)
            self._arrived.set()

    def disconnect(self) -> None:
        self.lagging = True
        self.waiting.clear()
        self._arrived.set()

    async def next(self) -> tuple[LedgerRow, ...]:
        """Wait for rows and return them. Raises `TooFarBehindError`."""
        await self._arrived.wait()
        self._arrived.clear()
        if self.lagging:
            raise TooFarBehindError
        rows = tuple(self.waiting)
        self.waiting.clear()
        return rows


class LedgerStream:
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
    def joined(self) -> Iterator[StreamSubscriber]:
        subscriber = StreamSubscriber(start_seq=self._position)
        self._subscribers.add(subscriber)
        try:
            yield subscriber
        finally:
            self._subscribers.discard(subscriber)
            if not self._subscribers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def replay(self, after: int, until: int) -> AsyncIterator[tuple[LedgerRow, ...]]:
        """Yield pages of the stored rows after one number and up to another."""
        while after < until:
            rows = await self._store.ledger(after=after, limit=PAGE_ROWS)
            wanted = tuple(row for row in rows if row.seq <= until)
            if not wanted:
                return
            yield wanted
            after = wanted[-1].seq

    async def _read(self) -> None:
        try:
            with self._store.notifier.watch(LedgerAppended) as advanced:
                while True:
                    advanced.clear()
                    rows = await self._store.ledger(after=self._position, limit=PAGE_ROWS)
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
