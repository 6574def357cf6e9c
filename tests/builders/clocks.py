"""A clock for waiting loops: the test moves it, and it moves only while every loop waits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from builders.jobs import START


@dataclass(slots=True)
class _Wait:
    until: datetime | None
    #: By monotonic time, so that a wall clock that is set back prolongs no wait.
    end: float
    wake: asyncio.Event
    ended: asyncio.Future[None]


class SimulatedClock:
    """A wall clock and a monotonic clock, as a machine has them. `set_by` moves only the wall clock."""

    def __init__(self, now: datetime = START) -> None:
        self._now = now
        self._monotonic = 1000.0
        self._waits: list[_Wait] = []
        self._entered = asyncio.Event()

    def now(self) -> datetime:
        return self._now

    def __call__(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    async def wait(self, until: datetime | None, wake: asyncio.Event) -> None:
        remaining = float("inf") if until is None else (until - self._now).total_seconds()
        pending = _Wait(until, self._monotonic + remaining, wake, asyncio.get_running_loop().create_future())
        self._waits.append(pending)
        self._entered.set()
        woken = asyncio.ensure_future(wake.wait())
        futures: set[asyncio.Future[Any]] = {pending.ended, woken}
        try:
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
            self._waits.remove(pending)

    async def rest(self) -> None:
        """Wait until every loop waits and none is due or woken."""
        while not self._waits or any(self._goes_on(wait) for wait in self._waits):
            self._entered.clear()
            await self._entered.wait()

    def _goes_on(self, wait: _Wait) -> bool:
        return wait.wake.is_set() or wait.ended.done() or self._is_due(wait)

    def _is_due(self, wait: _Wait) -> bool:
        due_at = self._due_at(wait)
        return due_at is not None and due_at <= self._now

    def _due_at(self, wait: _Wait) -> datetime | None:
        if wait.until is None:
            return None
        return min(wait.until, self._now + timedelta(seconds=wait.end - self._monotonic))

    async def advance(self, **span: float) -> None:
        """Let time pass. Each wait that is due on the way ends at its instant."""
        await self.rest()
        target = self._now + timedelta(**span)
        while (due := self._first_due(target)) < target:
            await self._move_to(due)
        await self._move_to(target)

    def _first_due(self, target: datetime) -> datetime:
        dues = (self._due_at(wait) for wait in self._waits)
        return min((due for due in dues if due is not None), default=target)

    async def _move_to(self, instant: datetime) -> None:
        self._monotonic += (instant - self._now).total_seconds()
        self._now = instant
        await self._release()

    async def _release(self) -> None:
        for wait in self._waits:
            if self._is_due(wait) and not wait.ended.done():
                wait.ended.set_result(None)
        await self.rest()

    async def set_by(self, **span: float) -> None:
        """Set the wall clock, as an operator or a sleeping machine does. Monotonic time stays."""
        await self.rest()
        self._now += timedelta(**span)
        await self._release()
