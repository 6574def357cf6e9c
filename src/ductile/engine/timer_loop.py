"""A loop that does what is due in the store, sleeps until the next due time, and repeats."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from ductile.engine.clock import Clock
from ductile.engine.store_retry import retry_until_available

#: The longest sleep, in case something that is due earlier was stored unnoticed.
POLL_INTERVAL = timedelta(minutes=1)


class TimerLoop:
    def __init__(self, clock: Clock, work: Callable[[], Awaitable[datetime | None]]) -> None:
        """`work` does everything due now and returns the next due time, None if there is none."""
        self._clock = clock
        self._work = work
        self._woken = asyncio.Event()
        self._next: datetime | None = None

    def expect(self, due_at: datetime) -> None:
        """Something that is due at this time was stored."""
        if self._next is None or due_at < self._next:
            self._woken.set()

    def wake(self) -> None:
        """Look again: the clock was set, or due times have changed."""
        self._woken.set()

    async def run(self) -> None:
        while True:
            self._woken.clear()
            # Unknown during the work: it may not see what is stored meanwhile, so `expect` always wakes.
            self._next = None
            self._next = await retry_until_available(self._clock, self._work)
            poll_at = self._clock.now() + POLL_INTERVAL
            await self._clock.wait(min(self._next or poll_at, poll_at), self._woken)
