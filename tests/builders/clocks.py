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
    #: By the monotonic reading: a clock that is set back prolongs no wait.
    end: float
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
        left = float("inf") if until is None else (until - self._now).total_seconds()
        waiting = _Waiting(until, self._monotonic + left, wake, asyncio.get_running_loop().create_future())
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
        return waiting.wake.is_set() or waiting.over.done() or self._is_due(waiting)

    def _is_due(self, waiting: _Waiting) -> bool:
        due_at = self._due_at(waiting)
        return due_at is not None and due_at <= self._now

    def _due_at(self, waiting: _Waiting) -> datetime | None:
        if waiting.until is None:
            return None
        return min(waiting.until, self._now + timedelta(seconds=waiting.end - self._monotonic))

    async def advance(self, **span: float) -> None:
        """Let time pass; everything that falls due on the way happens at its instant."""
        await self.rest()
        target = self._now + timedelta(**span)
        while (due := self._first_due(target)) < target:
            await self._move_to(due)
        await self._move_to(target)

    def _first_due(self, target: datetime) -> datetime:
        dues = (self._due_at(each) for each in self._waiting)
        return min((due for due in dues if due is not None), default=target)

    async def _move_to(self, instant: datetime) -> None:
        self._monotonic += (instant - self._now).total_seconds()
        self._now = instant
        await self._release()

    async def _release(self) -> None:
        for each in self._waiting:
            if self._is_due(each) and not each.over.done():
                each.over.set_result(None)
        await self.rest()

    async def set_by(self, **span: float) -> None:
        """Set the wall clock, as an operator or a sleeping machine does; monotonic time does not pass."""
        await self.rest()
        self._now += timedelta(**span)
        await self._release()
