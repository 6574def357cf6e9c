"""The clock that the engine's loops read and sleep by. Tests supply one that they move themselves.

Two readings are needed: `now` is wall-clock time and may jump, `monotonic` is elapsed time. Where the two
disagree, the wall clock was set or the machine slept.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol

#: The longest single sleep in seconds: event-loop time stands still while the machine sleeps.
MAX_SLEEP_SECONDS = 60.0


class Clock(Protocol):
    def now(self) -> datetime:
        """Return the current time, aware and in UTC. It may go backwards."""
        ...

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start. They never go backwards."""
        ...

    async def wait(self, until: datetime | None, wake: asyncio.Event) -> None:
        """Return at `until` (None: never) or when `wake` is set, whichever is first.

        Does not clear the event. Returns early if the wall clock was set back meanwhile, so callers check
        what is due again.
        """
        ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def wait(self, until: datetime | None, wake: asyncio.Event) -> None:
        if until is None:
            await wake.wait()
            return
        end = self.monotonic() + (until - self.now()).total_seconds()
        while not wake.is_set():
            # The smaller of both: a wall clock that was set back must not prolong the wait.
            left = min((until - self.now()).total_seconds(), end - self.monotonic())
            if left <= 0:
                return
            try:
                # In slices, to notice a wall clock that was set forward.
                async with asyncio.timeout(min(left, MAX_SLEEP_SECONDS)):
                    await wake.wait()
            except TimeoutError:
                continue
