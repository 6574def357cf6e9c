"""Callers who wait for a job to end: registered before it is enqueued, woken by its commit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from ductile.errors import TooBusyError


class Waiters:
    def __init__(self) -> None:
        self._by_job: dict[str, set[asyncio.Future[None]]] = {}
        self._over = False

    @contextmanager
    def waiting_for(self, job_id: str) -> Iterator[asyncio.Future[None]]:
        """A future that is done when the job has ended. Enter before looking at the job, or miss its end."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._by_job.setdefault(job_id, set())
        waiting.add(future)
        if self._over:  # whoever comes now would wait for somebody who has gone
            future.set_result(None)
        try:
            yield future
        finally:
            waiting.discard(future)
            if not waiting:
                self._by_job.pop(job_id, None)

    def __len__(self) -> int:
        """How many callers wait."""
        return sum(map(len, self._by_job.values()))

    def ended(self, job_id: str) -> None:
        self._wake(self._by_job.get(job_id, ()))

    def everybody(self) -> None:
        """The daemon stops: nobody is left waiting, and nobody begins to."""
        self._over = True
        for waiting in list(self._by_job.values()):
            self._wake(waiting)

    @staticmethod
    def _wake(waiting: set[asyncio.Future[None]] | tuple[()]) -> None:
        for future in tuple(waiting):
            if not future.done():
                future.set_result(None)


class SyncLimit:
    def __init__(self) -> None:
        self._taken = 0

    @contextmanager
    def take(self, limit: int) -> Iterator[None]:
        """Hold one of `limit` slots; if none is free, nothing is waited for."""
        if self._taken >= limit:
            raise TooBusyError(
                f"{limit} callers are waiting for synchronous runs, and no more may",
                hint="Try again soon, or send ?async=true and ask for the job later.",
            )
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1
