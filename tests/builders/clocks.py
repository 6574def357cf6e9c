"""A clock for loops that wait: time passes only when the test says so, and only when every loop rests."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from builders.jobs import START


@dataclass(slots=True)
class _Waiting:
    until: datetime | None
    wake: asyncio.Event
    over: asyncio.Future[None]


class SimulatedClock:
    """Two readings, as a machine has them: `set_by` and `sleep` move the wall clock alone."""

    def __init__(self, now: datetime = START) -> None:
        self._now = now
        self._monotonic = 1000.0
        self._waiting: list[_Waiting] = []
        self._entered = asyncio.Event()

    def now(self) -> datetime:
        return self._now

    def __call__(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    async def wait(self, until: datetime | None, wake: asyncio.Event) -> None:
        waiting = _Waiting(until, wake, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._entered.set()
        woken = asyncio.ensure_future(wake.wait())
        either: set[asyncio.Future[Any]] = {waiting.over, woken}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
            self._waiting.remove(waiting)

    async def rest(self) -> None:
        """Until a loop waits that nothing makes go on."""
        while not self._waiting or any(self._goes_on(each) for each in self._waiting):
            self._entered.clear()
            await self._entered.wait()

    def _goes_on(self, waiting: _Waiting) -> bool:
        return (
            waiting.wake.is_set()
            or waiting.over.done()
            or (waiting.until is not None and waiting.until <= self._now)
        )

    async def advance(self, **span: float) -> None:
        """Let time pass; everything that falls due on the way happens at its instant."""
        await self.rest()
        target = self._now + timedelta(**span)
        while (due := min((each.until for each in self._waiting if each.until), default=target)) < target:
            await self._move_to(due)
        await self._move_to(target)

    async def _move_to(self, instant: datetime) -> None:
        self._monotonic += (instant - self._now).total_seconds()
        self._now = instant
        await self._release()

    async def _release(self) -> None:
        for each in self._waiting:
            if each.until is not None and each.until <= self._now and not each.over.done():
                each.over.set_result(None)
        await self.rest()

    async def set_by(self, **span: float) -> None:
        """Somebody sets the clock, or the machine slept: no time passes that a timer would count."""
        await self.rest()
        self._now += timedelta(**span)
        await self._release()
