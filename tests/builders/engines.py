"""A running engine in this process, with real plugins and a real store that can be made to fail."""

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


class FaultyStore:
    """A real store whose verbs a test can make fail or wait."""

    def __init__(self, store: Store) -> None:
        self.real = store
        self.full: set[str] = set()
        #: Verbs for which the database is locked.
        self.busy: set[str] = set()
        self.pause_after_claim: asyncio.Event | None = None
        self.claimed = asyncio.Event()
        #: Set after every claim, also one without jobs.
        self.claim_called = asyncio.Event()
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
        self.claim_called.set()
        if claims and self.pause_after_claim is not None:
            self.claimed.set()
            await self.pause_after_claim.wait()
        return claims

    async def record_config(self, *args: Any) -> Any:
        if "record_config" in self.full:
            await self._refuse()
        results = await self.real.record_config(*args)
        if self.pause_after_record is not None:
            self.recorded.set()
            await self.pause_after_record.wait()
        return results


class EngineUnderTest:
    """An engine, its store and every signal it has emitted."""

    def __init__(self, directory: Path, store: FaultyStore) -> None:
        self.directory = directory
        self.store = store
        self._unread = asyncio.Queue[SignalEvent]()
        self.emitted: list[SignalEvent] = []
        self.runner = SpawnRunner()
        self.ready = asyncio.Event()
        self.signals = SignalBus()
        self.signals.subscribe(self._record)
        deps = EngineDeps(
            store=cast("Store", store),
            runner=self.runner,
            clock=SystemClock(),
            rng=Random(2),
            signals=self.signals,
            environ={"PATH": "/usr/bin:/bin"},
            load=self.load,
            listeners=Listeners(self.signals),
        )
        self.engine = Engine(deps, self.load())
        self.task: asyncio.Task[None] | None = None

    def _record(self, event: SignalEvent) -> None:
        self.emitted.append(event)
        self._unread.put_nowait(event)

    def load(self) -> Snapshot:
        configuration = loaded(self.directory / "config.yaml")
        return compile_snapshot(configuration, discover(configuration.plugin_roots))

    @property
    def context(self) -> OperationContext:
        """Return the context of operations, as the daemon makes it."""
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
        self.task = asyncio.create_task(self.engine.run(self.ready.set))
        return self.task

    async def start_and_wait(self) -> None:
        """Start the engine, and wait until it is ready."""
        self.start()
        async with asyncio.timeout(60):
            await self.ready.wait()

    async def until(self, signal: Signal) -> SignalEvent:
        """Wait for the next event of this signal, and return it."""
        async with asyncio.timeout(60):
            while (event := await self._unread.get()).signal is not signal:
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

    async def wait_until_stopped(self) -> None:
        async with asyncio.timeout(60):
            assert self.task is not None
            await self.task


def keep_engine_in(store: str, directory: Path) -> None:
    """Make engines of this directory keep their store in one of `builders.postgres.STORES`."""
    (directory / "store.kind").write_text(store)


def _open_store(directory: Path) -> Store:
    kind, clock = directory / "store.kind", lambda: datetime.now(UTC)
    if kind.exists() and kind.read_text() == "postgres":
        return open_postgres_store(store_url(directory), clock=clock, rng=Random())
    return open_sqlite(directory / "state.db", clock=clock, rng=Random())


@asynccontextmanager
async def an_engine(directory: Path, plugins: str) -> AsyncIterator[EngineUnderTest]:
    """Return an engine that is not started. A second one of the same directory uses the same store."""
    if not (directory / "plugins" / "echo").exists():
        a_plugin(directory / "plugins", "echo")
    a_config(directory, f"{SERVICE}plugins:\n{plugins}")
    store = _open_store(directory)
    under_test = EngineUnderTest(directory, FaultyStore(store))
    try:
        yield under_test
    finally:
        under_test.engine.stop()
        under_test.engine.stop()
        if under_test.task is not None:
            await asyncio.wait({under_test.task})
        await under_test.runner.close()
        await store.close()
