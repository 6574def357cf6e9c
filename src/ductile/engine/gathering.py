"""Results that go to the store together.

A commit costs the same for one result as for several, and so does everything that is woken by it. While
many jobs run, the next of them ends soon; so a result waits a moment for as many as still run.
"""

from __future__ import annotations

import asyncio

#: Seconds that a result waits at most for others.
LONGEST = 0.002


class Gathering:
    def __init__(self, longest: float = LONGEST) -> None:
        self._longest = longest
        self._here = 0
        self._departure = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    async def join(self, running: int) -> None:
        """Wait until as many have come as still run, or for a moment. Who is alone does not wait."""
        self._here += 1
        if self._here >= running:
            self._depart()
            return
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._longest, self._depart)
        await self._departure.wait()

    def _depart(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._here = 0
        self._departure.set()
        self._departure = asyncio.Event()
