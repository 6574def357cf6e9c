"""A few threads for short blocking work, with the shortest way there and back.

What `run_in_executor` does with two futures and two callbacks for each call, this does with one of each:
it is paid for by every job. Nor is the loop woken for a result that something else will wake it for soon.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

Made = TypeVar("Made")

#: Seconds until the loop looks for results of which nobody has told it.
_UNTOLD = 0.005


class SpawnThreads:
    def __init__(self, count: int, name: str) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._count = count
        self._name = name
        self._threads: list[threading.Thread] = []
        self.under_way = 0
        self._idle = asyncio.Event()
        self._results: deque[Callable[[], None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def do(
        self,
        work: Callable[[], Made],
        *,
        abandoned: Callable[[Made], None],
        will_be_collected: Callable[[Made], bool] = lambda _: False,
    ) -> Made:
        """What `work` makes in a thread. If nobody waits for it any more, `abandoned` is given it.

        `is_told` is asked in the thread, once the result can be had: whether somebody else will `collect` it.
        """
        loop = asyncio.get_running_loop()
        made: asyncio.Future[Made] = loop.create_future()
        self._start_threads()
        self.under_way += 1
        self._look_later(loop)
        self._work.put(lambda: self._run(loop, work, made, abandoned, will_be_collected))
        try:
            return await made
        except asyncio.CancelledError:
            if made.done() and not made.cancelled() and made.exception() is None:
                abandoned(made.result())  # it came in the same turn in which its caller was cancelled
            raise

    def collect(self) -> None:
        """Hand every result that is there to who waits for it. On the loop."""
        while self._results:
            self._results.popleft()()

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None:
            self._timer = loop.call_later(_UNTOLD, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self.under_way:
            self._look_later(loop)
        self.collect()

    async def close(self) -> None:
        """Wait for what is under way, then let the threads end."""
        while self.under_way:
            self._idle.clear()
            await self._idle.wait()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for _ in self._threads:
            self._work.put(None)
        self._threads = []  # whoever comes all the same gets new ones

    def _start_threads(self) -> None:
        if not self._threads:
            self._threads = [
                threading.Thread(target=self._help, name=f"{self._name}-{number}", daemon=True)
                for number in range(self._count)
            ]
            for thread in self._threads:
                thread.start()

    def _help(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _run(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Callable[[], Made],
        made: asyncio.Future[Made],
        abandoned: Callable[[Made], None],
        will_be_collected: Callable[[Made], bool],
    ) -> None:
        """In the thread. A defect of the work is raised where it is waited for, not here."""
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - whatever it is, somebody waits to hear of it
            fault = error
            self._results.append(lambda: self._failed(made, fault))
        else:
            self._results.append(lambda: self._done(made, result, abandoned))
            if will_be_collected(result):
                return
        loop.call_soon_threadsafe(self.collect)

    def _done(self, made: asyncio.Future[Made], result: Made, abandoned: Callable[[Made], None]) -> None:
        try:
            if made.cancelled():
                abandoned(result)
            else:
                made.set_result(result)
        finally:
            # Last: whoever waits for the end of all is not to be faster than who was waiting for this one.
            self._ended()

    def _failed(self, made: asyncio.Future[Made], error: Exception) -> None:
        if not made.cancelled():
            made.set_exception(error)
        self._ended()

    def _ended(self) -> None:
        self.under_way -= 1
        if not self.under_way:
            self._idle.set()
