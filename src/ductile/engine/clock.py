"""The clock and the loops of the engine: sleep, wait for an unavailable store, run timers and services.

Tests supply a clock that they move themselves. Two readings are needed: `now` is wall-clock time and may
jump, `monotonic` is elapsed time. Where the two disagree, the wall clock was set or the machine slept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar

from ductile.errors import StoreBusyError, StoreFullError

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
        again whether the time has come.
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
            # The smaller one counts: a wall clock that was set back must not prolong the wait.
            remaining = min((until - self.now()).total_seconds(), end - self.monotonic())
            if remaining <= 0:
                return
            try:
                # Waits in slices, to notice a wall clock that was set forward.
                async with asyncio.timeout(min(remaining, MAX_SLEEP_SECONDS)):
                    await wake.wait()
            except TimeoutError:
                continue


async def sleep(clock: Clock, span: timedelta) -> None:
    await clock.wait(clock.now() + span, asyncio.Event())


#: The errors of a store that cannot take a write now; the same write may succeed later.
STORE_UNAVAILABLE = (StoreFullError, StoreBusyError)
STORE_RETRY_INTERVAL = timedelta(seconds=1)

Result = TypeVar("Result")


async def retry_until_available(clock: Clock, use_store: Callable[[], Awaitable[Result]]) -> Result:
    """Return what `use_store` returns. While the store is full or locked, it is called again each second."""
    while True:
        try:
            return await use_store()
        except STORE_UNAVAILABLE:
            await sleep(clock, STORE_RETRY_INTERVAL)


#: The longest sleep, in case a notice about something that is due earlier was missed.
POLL_INTERVAL = timedelta(minutes=1)


class TimerLoop:
    def __init__(self, clock: Clock, work: Callable[[], Awaitable[datetime | None]]) -> None:
        """`work` does everything due now and returns the next due time, None if there is none."""
        self._clock = clock
        self._work = work
        self._woken = asyncio.Event()
        self._next: datetime | None = None

    def notify_due_at(self, due_at: datetime) -> None:
        """Wake the loop if work that is due at this time was stored, and is due before the known work."""
        if self._next is None or due_at < self._next:
            self._woken.set()

    def wake(self) -> None:
        """Repeat the work now: the clock was set, or due times have changed."""
        self._woken.set()

    async def run(self) -> None:
        while True:
            self._woken.clear()
            # Unknown during the work, which may not see entries stored meanwhile. So every notice wakes.
            self._next = None
            self._next = await retry_until_available(self._clock, self._work)
            poll_at = self._clock.now() + POLL_INTERVAL
            await self._clock.wait(min(self._next or poll_at, poll_at), self._woken)


def start_services(
    services: Mapping[str, Coroutine[Any, Any, None]], *, on_failure: Callable[[BaseException], None]
) -> dict[str, asyncio.Task[None]]:
    """Run each service in a task with its name. `on_failure` is called with the error of a service."""

    def report_failure(service: asyncio.Task[None]) -> None:
        if not service.cancelled() and (error := service.exception()) is not None:
            on_failure(error)

    tasks = {name: asyncio.create_task(service, name=name) for name, service in services.items()}
    for task in tasks.values():
        task.add_done_callback(report_failure)
    return tasks
