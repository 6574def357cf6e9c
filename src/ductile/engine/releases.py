"""Retry waits: sleeps until the next one is over, lets it move on, and wakes the dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from ductile.engine.clock import Clock
from ductile.store.port import Store


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
            released = await self._store.release_due()
            if released.count:
                self._wake()
            self._next = released.next_due_at
            await self._clock.wait(self._next, self._woken)
