"""Maintenance: remove rows whose retention is over, and index job logs for search, in small sweeps.

Sweeps have the writer's lowest priority, so that they never delay a job.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from ductile.config.snapshot import Snapshot
from ductile.engine.clock import STORE_UNAVAILABLE, Clock
from ductile.store.model.maintenance import Retention
from ductile.store.notifier import JobEnded
from ductile.store.port import Store
from ductile.telemetry.signals import Signal, SignalBus

INDEX_DELAY = timedelta(seconds=5)


class Maintenance:
    def __init__(
        self, store: Store, clock: Clock, snapshot: Callable[[], Snapshot], signals: SignalBus
    ) -> None:
        self._store = store
        self._clock = clock
        self._snapshot = snapshot
        self._signals = signals

    async def prune_forever(self) -> None:
        """Prune at every tick. A sweep that finds nothing writes nothing."""
        never = asyncio.Event()
        while True:
            with suppress(*STORE_UNAVAILABLE):  # The next tick tries again.
                await self._prune()
            await self._clock.wait(self._clock.now() + self._snapshot().service.tick_interval, never)

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

    async def index_forever(self) -> None:
        """Index a few seconds after a job ended: many jobs cost little more than one."""
        never = asyncio.Event()
        with self._store.notifier.watch(JobEnded) as job_ended:
            job_ended.set()  # An earlier daemon may have left logs to index.
            while True:
                await job_ended.wait()
                await self._clock.wait(self._clock.now() + INDEX_DELAY, never)
                job_ended.clear()
                with suppress(*STORE_UNAVAILABLE):  # The next end of a job tries again.
                    while await self._store.index_log():
                        pass


def retention_of(snapshot: Snapshot) -> Retention:
    service = snapshot.service
    return Retention(
        succeeded_jobs=service.job_queue_retention,
        job_log=service.job_log_retention,
        facts=service.facts_retention,
    )
