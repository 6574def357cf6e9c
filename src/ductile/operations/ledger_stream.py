"""The ledger as it grows: one reader for all who follow it, and nobody can hold it up.

A follower joins first, then reads what is behind the place where it joined, then takes what has come since.
So nothing is missed between reading and following, and nothing comes twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ductile.store.model.records import LedgerRow
from ductile.store.port import Store
from ductile.telemetry.change_notifier import ChangeNotifier

_PAGE = 500
#: Rows that may wait for one follower. Who is further behind is cut off, and resumes from the store.
WAITING_ROWS = 5_000
#: What is written without being told of is found after this time at the latest.
_LOOK_AGAIN_SECONDS = 15.0


class TooFarBehindError(Exception):
    """The follower does not keep up, or there is nothing to follow any more."""


@dataclass(slots=True, eq=False)
class StreamSubscriber:
    """One who follows, from the row after `joined_at` on."""

    joined_at: int
    waiting: deque[LedgerRow] = field(default_factory=deque)
    behind: bool = False
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def give(self, rows: tuple[LedgerRow, ...]) -> None:
        if len(self.waiting) + len(rows) > WAITING_ROWS:
            self.cut_off()
        elif not self.behind:
            self.waiting.extend(rows)
            self._news.set()

    def cut_off(self) -> None:
        self.behind = True
        self.waiting.clear()
        self._news.set()

    async def next(self) -> tuple[LedgerRow, ...]:
        """What has come, when something has."""
        await self._news.wait()
        self._news.clear()
        if self.behind:
            raise TooFarBehindError
        rows = tuple(self.waiting)
        self.waiting.clear()
        return rows


class LedgerStream:
    def __init__(self, store: Store, news: ChangeNotifier) -> None:
        self._store = store
        self._news = news
        self._followers: set[StreamSubscriber] = set()
        self._position = 0
        self._task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    async def start_reading(self) -> None:
        """Begin with the first who follows; the reading ends with the last."""
        async with self._starting:
            if self._task is None or self._task.done():
                self._position = (await self._store.ledger_range())[1]
                self._task = asyncio.create_task(self._read(), name="ledger feed")

    @contextmanager
    def joined(self) -> Iterator[StreamSubscriber]:
        follower = StreamSubscriber(joined_at=self._position)
        self._followers.add(follower)
        try:
            yield follower
        finally:
            self._followers.discard(follower)
            if not self._followers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def replay(self, after: int, until: int) -> AsyncIterator[tuple[LedgerRow, ...]]:
        """Pages of what the store holds, after one number and up to another."""
        while after < until:
            rows = await self._store.ledger(after=after, limit=_PAGE)
            wanted = tuple(row for row in rows if row.seq <= until)
            if not wanted:
                return
            yield wanted
            after = wanted[-1].seq

    async def _read(self) -> None:
        try:
            await self._read_on()
        finally:
            for follower in self._followers:  # nobody is left waiting for what will not come
                follower.cut_off()

    async def _read_on(self) -> None:
        while True:
            coming = self._news.coming()
            rows = await self._store.ledger(after=self._position, limit=_PAGE)
            if rows:
                self._position = rows[-1].seq
                for follower in self._followers:
                    follower.give(rows)
                continue
            try:
                async with asyncio.timeout(_LOOK_AGAIN_SECONDS):
                    await coming.wait()
            except TimeoutError:
                continue
