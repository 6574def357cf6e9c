"""Maintenance: remove rows whose retention is over, and index job logs for search, in small batches.

The batches have the writer's lowest priority, so that they never delay a job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from ductile.config.snapshot import Snapshot
from ductile.engine.clock import STORE_UNAVAILABLE, Clock, sleep
from ductile.store.model.maintenance import Retention
from ductile.store.notifier import JobEnded
from ductile.store.port import Store
from ductile.telemetry.signals import Signal, SignalBus

INDEX_DELAY = timedelta(seconds=5)


async def prune_forever(
    store: Store,
    clock: Clock,
    snapshot: Callable[[], Snapshot],
    signals: SignalBus,
    is_leader: Callable[[], bool] = lambda: True,
) -> None:
    """Prune at every tick, on the leader. A batch that finds nothing writes nothing."""
    while True:
        with suppress(*STORE_UNAVAILABLE):  # The next tick tries again.
            retention = retention_of(snapshot())
            removed = Counter[str]()
            more = is_leader()
            while more:
                pruned = await store.prune(retention)
                removed.update(pruned.rows)
                more = pruned.more
            if removed:
                signals.emit(Signal.RETENTION_PRUNED, data=dict(removed))
        await sleep(clock, snapshot().service.tick_interval)


async def index_forever(store: Store, clock: Clock, is_leader: Callable[[], bool] = lambda: True) -> None:
    """Index a few seconds after a job ended, on the leader: many jobs cost little more than one."""
    with store.notifier.watch(JobEnded) as job_ended:
        job_ended.set()  # An earlier daemon may have left logs to index.
        while True:
            await job_ended.wait()
            await sleep(clock, INDEX_DELAY)
            job_ended.clear()
            with suppress(*STORE_UNAVAILABLE):  # The next end of a job tries again.
                while is_leader() and await store.index_log():
                    pass


def retention_of(snapshot: Snapshot) -> Retention:
    service = snapshot.service
    return Retention(
        succeeded_jobs=service.job_queue_retention,
        job_log=service.job_log_retention,
        facts=service.facts_retention,
    )
