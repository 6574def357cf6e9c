"""Upkeep: what has been kept long enough is removed, and what can be searched is indexed, in small sweeps.

Sweeps go through the store's lowest lane and yield between each other, so that they never hold up a job.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta

from ductile.config.snapshot import Snapshot
from ductile.engine.clock import Clock
from ductile.errors import StoreBusyError, StoreFullError
from ductile.store.model.maintenance import Retention
from ductile.store.port import Store
from ductile.telemetry.signals import Signal, SignalBus

BETWEEN_INDEXINGS = timedelta(seconds=5)


class Maintenance:
    def __init__(
        self, store: Store, clock: Clock, snapshot: Callable[[], Snapshot], signals: SignalBus
    ) -> None:
        self._store = store
        self._clock = clock
        self._snapshot = snapshot
        self._signals = signals
        self._ended = asyncio.Event()

    def job_ended(self) -> None:
        """There is something new to be indexed. Without jobs nothing wakes up."""
        self._ended.set()

    async def prune_forever(self) -> None:
        """At every tick. Where nothing is due that is a look at a few indexes, and no write."""
        never = asyncio.Event()
        while True:
            await self._patiently(self._prune)
            await self._clock.wait(self._clock.now() + self._snapshot().service.tick_interval, never)

    async def index_forever(self) -> None:
        never = asyncio.Event()
        self._ended.set()  # an earlier daemon may have left some
        while True:
            await self._ended.wait()
            # A pause first: indexing a hundred jobs together costs little more than indexing one.
            await self._clock.wait(self._clock.now() + BETWEEN_INDEXINGS, never)
            self._ended.clear()
            await self._patiently(self._index)

    @staticmethod
    async def _patiently(sweep: Callable[[], Awaitable[None]]) -> None:
        try:
            await sweep()
        except (StoreFullError, StoreBusyError):
            return  # upkeep can wait; the next round comes

    async def _prune(self) -> None:
        retention = retention_of(self._snapshot())
        removed = Counter[str]()
        more = True
        while more:
            pruned = await self._store.prune(retention)
            removed.update(pruned.rows)
            more = pruned.more
        if removed:
            self._signals.emit(Signal.RETENTION_PRUNED, data=dict(removed))

    async def _index(self) -> None:
        while await self._store.index_log():
            pass


def retention_of(snapshot: Snapshot) -> Retention:
    service = snapshot.service
    return Retention(
        succeeded_jobs=service.job_queue_retention,
        job_log=service.job_log_retention,
        facts=service.facts_retention,
    )
