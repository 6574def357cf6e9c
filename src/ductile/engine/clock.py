"""The clock that the engine's loops read and sleep by; tests bring one that they move themselves.

Owns how to wait for an instant. Two readings are needed: `now` is what calendars are about and may
jump, `monotonic` is what has really gone by. Where the two disagree, somebody has set the clock or
the machine has slept.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol

#: A timer is told to come back at least so often: its seconds stand still while the machine sleeps.
LONGEST_WAIT = 60.0


class Clock(Protocol):
    def now(self) -> datetime:
        """The instant, aware and in UTC. It may go back."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start. They never go back."""
        ...

    async def wait(self, until: datetime | None, wake: asyncio.Event) -> None:
        """Return at `until` (None: never) or when `wake` is set, whichever is first.

        It does not clear the event. It returns early when the clock was set back meanwhile, after as long as
        it was to wait: so look again.
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
            # By both: a clock that was set back must not make anybody wait longer than they meant to.
            left = min((until - self.now()).total_seconds(), end - self.monotonic())
            if left <= 0:
                return
            try:
                # In slices, so that a clock which was set forward is noticed before a distant timer ends.
                async with asyncio.timeout(min(left, LONGEST_WAIT)):
                    await wake.wait()
            except TimeoutError:
                continue
