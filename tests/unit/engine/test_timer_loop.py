"""Work that is due at an instant: nothing that was announced is forgotten."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from builders.clocks import SimulatedClock
from ductile.engine.clock import TimerLoop


async def test_a_wake_during_a_pass_causes_another_pass() -> None:
    """A retry or a deadline written while the loop reads, and not seen by it, is not lost."""
    clock = SimulatedClock()
    first, later = clock.now() + timedelta(seconds=1), clock.now() + timedelta(seconds=5)
    answers: list[datetime | None] = [first, None, later, None]
    looked: list[datetime] = []
    enough = asyncio.Event()

    async def look() -> datetime | None:
        looked.append(clock.now())
        answer = answers.pop(0)
        if len(looked) == 2:
            # Committed after the work has read the store, and published before the work returns.
            due.notify_due_at(later)
        if len(looked) == 3:
            enough.set()
        return answer

    due = TimerLoop(clock, look)
    running = asyncio.create_task(due.run())
    await clock.rest()
    await clock.advance(seconds=1)
    async with asyncio.timeout(60):
        await enough.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
