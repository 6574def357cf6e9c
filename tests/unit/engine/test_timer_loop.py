"""The timer loop runs work when it is due and loses no notification."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from builders.clocks import SimulatedClock
from ductile.engine.clock import TimerLoop


async def test_a_wake_during_a_pass_causes_another_pass() -> None:
    """A retry or deadline that is written during the pass is not lost."""
    clock = SimulatedClock()
    first, later = clock.now() + timedelta(seconds=1), clock.now() + timedelta(seconds=5)
    due_times: list[datetime | None] = [first, None, later, None]
    looked_at: list[datetime] = []
    enough = asyncio.Event()

    async def look() -> datetime | None:
        looked_at.append(clock.now())
        due_at = due_times.pop(0)
        if len(looked_at) == 2:
            # Committed after the work has read the store, and published before the work returns.
            timer.notify_due_at(later)
        if len(looked_at) == 3:
            enough.set()
        return due_at

    timer = TimerLoop(clock, look)
    running = asyncio.create_task(timer.run())
    await clock.rest()
    await clock.advance(seconds=1)
    async with asyncio.timeout(60):
        await enough.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
