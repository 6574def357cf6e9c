"""The ends of many processes, told through one descriptor.

To have the loop itself watch a descriptor and forget it again costs it several times what the kernel does for
it, and every job has one. So they are gathered in an epoll of their own, and the loop watches that.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable


class Exits:
    """Implements `ductile.runner.leader.Watch` for descriptors that have something to tell once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        loop.add_reader(self._epoll.fileno(), self._look)

    def add_reader(self, descriptor: int, callback: Callable[[], None], /) -> None:
        self._callbacks[descriptor] = callback
        self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLONESHOT)

    def remove_reader(self, descriptor: int, /) -> None:
        # What has been told is silent from then on, and is taken off by closing it.
        if self._callbacks.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def close(self) -> None:
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _look(self) -> None:
        for descriptor, _ in self._epoll.poll(0):
            callback = self._callbacks.pop(descriptor, None)
            if callback is not None:
                # Each on its own: none is told a second time if another one fails.
                self._loop.call_soon(callback)
