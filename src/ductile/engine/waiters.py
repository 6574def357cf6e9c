"""Callers that wait for a job to end, and the limit on how many may."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ductile.errors import TooBusyError


class Waiters:
    """Futures of waiting callers by job. All resolve when the daemon stops."""

    def __init__(self) -> None:
        self._by_job: dict[str, set[asyncio.Future[None]]] = {}
        self._closed = False

    @contextmanager
    def waiting_for(self, job_id: str) -> Iterator[asyncio.Future[None]]:
        """Yield a future that resolves when the job ends. Enter before reading the job, or miss its end."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        futures = self._by_job.setdefault(job_id, set())
        futures.add(future)
        if self._closed:
            future.set_result(None)
        try:
            yield future
        finally:
            futures.discard(future)
            if not futures:
                self._by_job.pop(job_id, None)

    def __len__(self) -> int:
        """Return the number of waiting callers."""
        return sum(map(len, self._by_job.values()))

    def ended(self, job_id: str) -> None:
        _resolve(self._by_job.get(job_id, ()))

    def close(self) -> None:
        """Resolve every future, and from now on every new one: the daemon stops."""
        self._closed = True
        for futures in list(self._by_job.values()):
            _resolve(futures)


def _resolve(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in tuple(futures):
        if not future.done():
            future.set_result(None)


class SyncLimit:
    """How many callers may wait for a synchronous run at once. A slot is taken before the run is enqueued."""

    def __init__(self) -> None:
        self._taken = 0

    @contextmanager
    def take(self, limit: int) -> Iterator[None]:
        """Hold one of `limit` slots. Raises `TooBusyError` at once if none is free."""
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
