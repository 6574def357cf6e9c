"""The ends of many processes, told through one descriptor.

To have the loop itself watch a descriptor and forget it again costs it several times what the kernel does for
it, and every job has one. So they are gathered in an epoll of their own, and the loop watches that.

Whoever starts a process lets it be watched at once, in its own thread; so the loop may hear of the end of a
process before it has heard of its start.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable


class ExitWatcher:
    """Implements `ductile.runner.process.handle.Watch` for descriptors that have something to tell once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_early: Callable[[], None]) -> None:
        """`on_early` is called when somebody has ended of whom the loop does not know yet."""
        self._loop = loop
        self._on_early = on_early
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._early: set[int] = set()
        loop.add_reader(self._epoll.fileno(), self._look)

    def arm(self, descriptor: int) -> None:
        """From now on its end is noticed. To be called first, in any thread."""
        self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLONESHOT)

    def is_early(self, descriptor: int) -> bool:
        """Whether it has ended, and waits for somebody who wants to know. May be called in any thread."""
        return descriptor in self._early

    def add_reader(self, descriptor: int, callback: Callable[[], None], /) -> None:
        """Have `callback` called when it ends; here and now, if it has."""
        if descriptor in self._early:
            self._early.discard(descriptor)
            callback()
        else:
            self._callbacks[descriptor] = callback

    def remove_reader(self, descriptor: int, /) -> None:
        # What has been told is silent from then on, and is taken off by closing it.
        if self._callbacks.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def close(self) -> None:
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _look(self) -> None:
        early = False
        for descriptor, _ in self._epoll.poll(0):
            callback = self._callbacks.pop(descriptor, None)
            if callback is None:
                self._early.add(descriptor)
                early = True
                continue
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - each on its own: none is told a second time
                self._loop.call_exception_handler({"message": "an end was met badly", "exception": error})
        if early:
            # Not sooner: who is just being handed over is now found by this, or finds that it is early.
            self._on_early()
