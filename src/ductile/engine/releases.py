"""Retry waits: sleeps until the next one is over, lets it move on, and wakes the dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from ductile.engine.clock import Clock
from ductile.errors import StoreBusyError, StoreFullError
from ductile.store.port import Store

#: How long to leave a store alone that is full or locked.
PAUSE = timedelta(seconds=1)


class Releases:
    def __init__(self, store: Store, clock: Clock, wake: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._wake = wake
        self._woken = asyncio.Event()
        self._next: datetime | None = None

    def expect(self, due_at: datetime) -> None:
        """A job was put back that is due then."""
        if self._next is None or due_at < self._next:
            self._woken.set()

    def poke(self) -> None:
        """The clock was set: look again."""
        self._woken.set()

    async def run(self) -> None:
        while True:
            self._woken.clear()
            try:
                released = await self._store.release_due()
            except (StoreFullError, StoreBusyError):
                # What is due stays due. The store is asked again, and nobody is stopped for that.
                await self._clock.wait(self._clock.now() + PAUSE, asyncio.Event())
                continue
            if released.count:
                self._wake()
            self._next = released.next_due_at
            await self._clock.wait(self._next, self._woken)
