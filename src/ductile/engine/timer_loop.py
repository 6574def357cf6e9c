"""Work that is due at an instant in the store: sleeps until the next one, does it, and looks again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from ductile.engine.clock import Clock
from ductile.errors import StoreBusyError, StoreFullError

#: How long to leave a store alone that is full or locked.
PAUSE = timedelta(seconds=1)


class TimerLoop:
    def __init__(self, clock: Clock, work: Callable[[], Awaitable[datetime | None]]) -> None:
        """`work` does what is due now, and answers when the next is."""
        self._clock = clock
        self._work = work
        self._woken = asyncio.Event()
        self._next: datetime | None = None

    def expect(self, due_at: datetime) -> None:
        """Something was written that is due then."""
        if self._next is None or due_at < self._next:
            self._woken.set()

    def wake(self) -> None:
        """The clock was set, or somebody changed what is due: look again."""
        self._woken.set()

    async def run(self) -> None:
        while True:
            self._woken.clear()
            # Unknown while it is looked up: what is written meanwhile may not be seen, whenever it is due.
            self._next = None
            try:
                self._next = await self._work()
            except (StoreFullError, StoreBusyError):
                # What is due stays due. The store is asked again, and nobody is stopped for that.
                await self._clock.wait(self._clock.now() + PAUSE, asyncio.Event())
                continue
            await self._clock.wait(self._next, self._woken)
