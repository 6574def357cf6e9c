"""What the engine does when the store is slow, full or locked: it holds on, and it can be stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from builders.configs import a_config, loaded
from builders.jobs import a_new_job
from builders.plugins import a_plugin
from ductile.config.compile import compile_snapshot
from ductile.config.snapshot import Snapshot
from ductile.core.jobs import JobStatus
from ductile.core.rules import Rules
from ductile.engine.clock import SystemClock
from ductile.engine.engine import Engine, Equipment
from ductile.errors import StoreFullError
from ductile.plugins.discovery import discover
from ductile.runner.spawn import SpawnRunner
from ductile.store.sqlite.store import SqliteStore, open_sqlite_store
from ductile.store.values import Submission
from ductile.telemetry.signals import Happening, Signal, Signals


class Faulty:
    """A real store with one verb that a test has its hand on."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.full: set[str] = set()
        self.pause_after_claim: asyncio.Event | None = None
        self.claimed = asyncio.Event()

    def __getattr__(self, verb: str) -> Any:
        if verb in self.full:
            return self._refuse
        return getattr(self._store, verb)

    async def _refuse(self, *_args: object, **_kwargs: object) -> None:
        raise StoreFullError("the disk is full")

    async def claim(self, **given: Any) -> Any:
        claims = await self._store.claim(**given)
        if claims and self.pause_after_claim is not None:
            self.claimed.set()
            await self.pause_after_claim.wait()
        return claims


class Bench:
    def __init__(self, store: Faulty, engine: Engine, seen: asyncio.Queue[Happening]) -> None:
        self.store = store
        self.engine = engine
        self.seen = seen
        self.ready = asyncio.Event()
        self.life = asyncio.create_task(engine.run(self.ready.set))

    async def until(self, signal: Signal) -> Happening:
        async with asyncio.timeout(20):
            while (happening := await self.seen.get()).signal is not signal:
                pass
        return happening

    async def submit(self, **fields: Any) -> str:
        job = a_new_job("echo", "poll", **fields)
        await self.store._store.enqueue(Submission(jobs=(job,)))
        self.engine.wake()
        return job.id


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    a_plugin(tmp_path / "plugins", "echo")
    retry = "{backoff_base: 10ms, max_attempts: 3}"
    path = a_config(
        tmp_path,
        f"service: {{max_workers: 2, shutdown_grace: 200ms}}\nplugins:\n  echo: {{retry: {retry}}}\n",
    )
    configuration = loaded(path)
    snapshot: Snapshot = compile_snapshot(configuration, discover(configuration.plugin_roots))
    real = open_sqlite_store(tmp_path / "state.db", clock=lambda: datetime.now(UTC), dice=Random(1))
    store, signals, seen = Faulty(real), Signals(), asyncio.Queue[Happening]()
    signals.subscribe(seen.put_nowait)
    runner = SpawnRunner()
    equipment = Equipment(
        store=store,
        runner=runner,
        clock=SystemClock(),
        dice=Random(2),
        signals=signals,
        environ={"PATH": "/usr/bin:/bin"},
        load=lambda: snapshot,
    )
    bench = Bench(store, Engine(equipment, snapshot), seen)
    await bench.ready.wait()
    yield bench
    bench.engine.stop()
    bench.engine.stop()
    await asyncio.wait({bench.life})
    await runner.close()
    await real.close()


async def test_a_stop_while_a_claim_is_under_way_strands_no_job(bench: Bench) -> None:
    """SPEC 4.8: what was claimed is run or handed back; it is not found running by the next start."""
    bench.store.pause_after_claim = asyncio.Event()
    job_id = await bench.submit(max_attempts=1)
    await bench.store.claimed.wait()
    bench.engine.stop()
    bench.store.pause_after_claim.set()
    async with asyncio.timeout(20):
        await bench.life
    job = await bench.store._store.job(job_id)
    assert job is not None
    assert job.status is not JobStatus.RUNNING
    assert (await bench.store._store.recover(Rules())).jobs == ()


async def test_a_full_store_stops_nobody_when_a_retry_is_due(bench: Bench) -> None:
    """ENGINE 5: the disk is full, the daemon lives, and goes on when there is room."""
    bench.store.full.add("release_due")
    bench.engine.wake()
    job_id = await bench.submit()
    await bench.until(Signal.JOB_SUCCEEDED)
    assert not bench.life.done()
    bench.store.full.clear()
    job = await bench.store._store.job(job_id)
    assert job is not None
    assert job.status is JobStatus.SUCCEEDED


async def test_a_result_is_held_while_the_store_is_full_and_kept_when_it_is_not(bench: Bench) -> None:
    """ENGINE 5: finished outcomes are held and offered again."""
    bench.store.full.add("settle")
    job_id = await bench.submit()
    await bench.until(Signal.STORE_FULL)
    job = await bench.store._store.job(job_id)
    assert job is not None
    assert job.status is JobStatus.RUNNING
    bench.store.full.clear()
    await bench.until(Signal.JOB_SUCCEEDED)


async def test_a_second_stop_ends_a_daemon_whose_store_is_full(bench: Bench) -> None:
    """SPEC 4.8: at once means at once; the job is found running by the next start and loses nothing else."""
    bench.store.full.add("settle")
    job_id = await bench.submit()
    await bench.until(Signal.STORE_FULL)
    bench.engine.stop()
    bench.engine.stop()
    async with asyncio.timeout(20):
        await bench.life
    job = await bench.store._store.job(job_id)
    assert job is not None
    assert job.status is JobStatus.RUNNING
