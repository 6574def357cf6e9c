"""Rows are pruned with every tick."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from builders.clocks import SimulatedClock
from builders.configs import a_config, a_discovery, loaded
from builders.jobs import a_new_job, ok, some_rng
from builders.stores import accept, open_sqlite, run_next
from ductile.config.compile.compiler import compile_snapshot
from ductile.engine.maintenance import prune_forever
from ductile.telemetry.signals import Signal, SignalBus, SignalEvent


async def test_pruning_follows_the_tick(tmp_path: Path) -> None:
    """A job whose retention is over is removed at the next tick."""
    service = "service: {tick_interval: 20s, dedupe_ttl: 1m, job_queue_retention: 1m}\nplugins: {}\n"
    snapshot = compile_snapshot(loaded(a_config(tmp_path, service)), a_discovery(tmp_path))
    clock = SimulatedClock()
    store = open_sqlite(tmp_path / "state.db", clock=clock, rng=some_rng(1))
    emitted: list[SignalEvent] = []
    signals = SignalBus()
    signals.subscribe(emitted.append, only=(Signal.RETENTION_PRUNED,))
    for _ in range(2):  # the newest row always stays
        await accept(store, a_new_job())
        await run_next(store, ok())
    pruning = asyncio.create_task(prune_forever(store, clock, lambda: snapshot, signals))
    await clock.advance(seconds=59)
    assert emitted == []
    await clock.advance(seconds=30)
    assert [dict(event.data) for event in emitted] == [{"succeeded_jobs": 1}]
    pruning.cancel()
    with suppress(asyncio.CancelledError):
        await pruning
    await store.close()
