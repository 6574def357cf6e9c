"""A whole engine at work in this process: a real store that a test can fill up, and real plugins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, cast

from builders.configs import a_config, loaded
from builders.jobs import a_new_job
from builders.plugins import a_plugin
from builders.postgres import store_url
from builders.stores import open_sqlite
from ductile.config.compile.compiler import compile_snapshot
from ductile.config.snapshot import Snapshot
from ductile.core.jobs.model import Job
from ductile.engine.clock import SystemClock
from ductile.engine.deps import EngineDeps
from ductile.engine.engine import Engine
from ductile.errors import StoreBusyError, StoreFullError
from ductile.listeners import Listeners
from ductile.operations.context import OperationContext
from ductile.plugins.discovery import discover
from ductile.runner.process.spawn import SpawnRunner
from ductile.store.model.jobs import ClaimedJob, Submission
from ductile.store.port import Store
from ductile.store.postgres.store import open_postgres_store
from ductile.telemetry.signals import Signal, SignalBus, SignalEvent

SERVICE = "service: {max_workers: 2, shutdown_grace: 200ms}\n"


class Faulty:
    """A real store with verbs that a test has its hand on."""

    def __init__(self, store: Store) -> None:
        self.real = store
        self.full: set[str] = set()
        #: Verbs for which the database is locked.
        self.busy: set[str] = set()
        self.pause_after_claim: asyncio.Event | None = None
        self.claimed = asyncio.Event()
        #: Set whenever the store was asked for jobs, whether it gave any or not.
        self.asked = asyncio.Event()
        self.pause_after_record: asyncio.Event | None = None
        self.recorded = asyncio.Event()

    def __getattr__(self, verb: str) -> Any:
        if verb in self.full:
            return self._refuse
        if verb in self.busy:
            return self._refuse_as_busy
        return getattr(self.real, verb)

    async def _refuse(self, *_args: object, **_kwargs: object) -> None:
        raise StoreFullError("the disk is full")

    async def _refuse_as_busy(self, *_args: object, **_kwargs: object) -> None:
        raise StoreBusyError("the database is locked")

    async def claim(self, **request: Any) -> tuple[ClaimedJob, ...]:
        if "claim" in self.full:
            await self._refuse()
        claims = await self.real.claim(**request)
        self.asked.set()
        if claims and self.pause_after_claim is not None:
            self.claimed.set()
            await self.pause_after_claim.wait()
        return claims

    async def record_config(self, *args: Any) -> Any:
        if "record_config" in self.full:
            await self._refuse()
        answers = await self.real.record_config(*args)
        if self.pause_after_record is not None:
            self.recorded.set()
            await self.pause_after_record.wait()
        return answers


class Bench:
    """An engine, its store and every signal it has emitted."""

    def __init__(self, directory: Path, store: Faulty) -> None:
        self.directory = directory
        self.store = store
        self.seen = asyncio.Queue[SignalEvent]()
        self.emitted: list[SignalEvent] = []
        self.runner = SpawnRunner()
        self.ready = asyncio.Event()
        self.signals = SignalBus()
        self.signals.subscribe(self._note)
        equipment = EngineDeps(
            store=cast("Store", store),
            runner=self.runner,
            clock=SystemClock(),
            rng=Random(2),
            signals=self.signals,
            environ={"PATH": "/usr/bin:/bin"},
            load=self.load,
            listeners=Listeners(self.signals),
        )
        self.engine = Engine(equipment, self.load())
        self.life: asyncio.Task[None] | None = None

    def _note(self, event: SignalEvent) -> None:
        self.emitted.append(event)
        self.seen.put_nowait(event)

    def load(self) -> Snapshot:
        configuration = loaded(self.directory / "config.yaml")
        return compile_snapshot(configuration, discover(configuration.plugin_roots))

    @property
    def context(self) -> OperationContext:
        """The context of operations, as the daemon makes it."""
        return OperationContext(
            store=cast("Store", self.store),
            snapshot=self.engine.snapshot,
            now=lambda: datetime.now(UTC),
            rng=Random(),
            engine=self.engine,
            load_from_disk=self.load,
        )

    def configure(self, plugins: str) -> None:
        a_config(self.directory, f"{SERVICE}plugins:\n{plugins}")

    def start(self) -> asyncio.Task[None]:
        self.life = asyncio.create_task(self.engine.run(self.ready.set))
        return self.life

    async def started(self) -> None:
        """Start it, and go on when it is ready."""
        self.start()
        async with asyncio.timeout(60):
            await self.ready.wait()

    async def until(self, signal: Signal) -> SignalEvent:
        async with asyncio.timeout(60):
            while (event := await self.seen.get()).signal is not signal:
                pass
        return event

    async def submit(self, plugin: str = "echo", **fields: Any) -> str:
        job = a_new_job(plugin, "poll", **fields)
        await self.store.real.enqueue(Submission(jobs=(job,)))
        return job.id

    async def job(self, job_id: str) -> Job:
        job = await self.store.real.get_job(job_id)
        assert job is not None
        return job

    async def stopped(self) -> None:
        async with asyncio.timeout(60):
            assert self.life is not None
            await self.life


def keep_engine_in(store: str, directory: Path) -> None:
    """Have engines of this directory keep their store in one of `builders.postgres.STORES`."""
    (directory / "store.kind").write_text(store)


def _open_store(directory: Path) -> Store:
    kind, clock = directory / "store.kind", lambda: datetime.now(UTC)
    if kind.exists() and kind.read_text() == "postgres":
        return open_postgres_store(store_url(directory), clock=clock, rng=Random())
    return open_sqlite(directory / "state.db", clock=clock, rng=Random())


@asynccontextmanager
async def an_engine(directory: Path, plugins: str) -> AsyncIterator[Bench]:
    """Not started yet. Enter it again with the same directory: another daemon on the same store."""
    if not (directory / "plugins" / "echo").exists():
        a_plugin(directory / "plugins", "echo")
    a_config(directory, f"{SERVICE}plugins:\n{plugins}")
    real = _open_store(directory)
    bench = Bench(directory, Faulty(real))
    try:
        yield bench
    finally:
        bench.engine.stop()
        bench.engine.stop()
        if bench.life is not None:
            await asyncio.wait({bench.life})
        await bench.runner.close()
        await real.close()
