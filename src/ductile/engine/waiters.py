"""Callers that wait for the end of a job or for new ledger entries."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from ductile.core.jobs.model import TERMINAL
from ductile.engine.clock import STORE_UNAVAILABLE, Clock, sleep
from ductile.store.notifier import JobEnded
from ductile.store.port import Store

#: How often the jobs of waiting callers are read, in case the change of one was missed.
POLL_INTERVAL = timedelta(seconds=5)


class Waiters:
    """Waiting callers. All of them resume when the daemon stops."""

    def __init__(self) -> None:
        self._by_job: dict[str, set[asyncio.Future[None]]] = {}
        self._ledger_watchers: set[asyncio.Event] = set()
        self._closed = False

    @contextmanager
    def waiting_for(self, job_id: str) -> Iterator[asyncio.Future[None]]:
        """Yield a future that resolves when the job ends. Register first, then read the job:
        otherwise a job that ends in between is missed.
        """
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

    def on_job_ended(self, change: JobEnded) -> None:
        _resolve(self._by_job.get(change.job_id, ()))

    @contextmanager
    def ledger_changes(self) -> Iterator[asyncio.Event]:
        """Yield an event that is set when the ledger has grown, and when the daemon stops.

        Clear it first, then read the ledger: otherwise an entry that is written in between is missed.
        """
        changed = asyncio.Event()
        self._ledger_watchers.add(changed)
        try:
            yield changed
        finally:
            self._ledger_watchers.discard(changed)

    def on_ledger_advanced(self) -> None:
        for changed in self._ledger_watchers:
            changed.set()

    async def poll_forever(self, store: Store, clock: Clock) -> None:
        while True:
            await sleep(clock, POLL_INTERVAL)
            with suppress(*STORE_UNAVAILABLE):  # The next poll reads them.
                for job_id in tuple(self._by_job):
                    job = await store.get_job(job_id)
                    if job is not None and job.status in TERMINAL:
                        _resolve(self._by_job.get(job_id, ()))

    def close(self) -> None:
        """Resume every caller; new callers return immediately. The daemon stops."""
        self._closed = True
        for futures in list(self._by_job.values()):
            _resolve(futures)
        self.on_ledger_advanced()


def _resolve(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in tuple(futures):
        if not future.done():
            future.set_result(None)
