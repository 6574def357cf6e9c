"""A running scheduler with a real store and a simulated clock. The test ends its jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from random import Random

from builders.clocks import SimulatedClock
from builders.configs import a_config, a_discovery, a_manifest, loaded
from builders.stores import claim_all, claim_one, open_sqlite
from ductile.config.compile.compiler import compile_snapshot
from ductile.config.snapshot import Snapshot
from ductile.core.jobs.model import Job, Outcome
from ductile.core.schedules.planner import Occurrence
from ductile.engine.schedules.scheduler import Scheduler
from ductile.store.model.jobs import Settled
from ductile.store.model.schedules import FireResult, FireStatus, Firing, ScheduleEntry
from ductile.store.port import Store

_SERVICE = "service: {timezone: UTC, tick_interval: 60s}\n"


def a_snapshot(directory: Path, plugins: str) -> Snapshot:
    """Return a configuration with these `plugins`; p and q are installed."""
    config = a_config(directory, f"{_SERVICE}plugins: {{{plugins}}}")
    return compile_snapshot(loaded(config), a_discovery(directory, a_manifest("p"), a_manifest("q")))


@dataclass(slots=True)
class SchedulerUnderTest:
    """A running scheduler, its store and clock, and everything that it reported."""

    directory: Path
    store: Store
    clock: SimulatedClock
    snapshot: Snapshot
    enqueued: int = 0
    stopped: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    clock_changes: int = 0
    scheduler: Scheduler = field(init=False)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(
            self.store,
            self.clock,
            lambda: self.snapshot,
            rng=Random(7),
            on_fired=self._record_fired,
            stop_job=self._record_stopped,
            on_clock_set=self._record_clock_change,
        )

    def _record_fired(self, _firing: Firing, report: FireResult) -> None:
        self.enqueued += report.status is FireStatus.FIRED
        self.ended += [job.id for job in report.ended]

    async def _record_stopped(self, job_id: str) -> None:
        self.stopped.append(job_id)

    def _record_clock_change(self) -> None:
        self.clock_changes += 1

    async def reload(self, plugins: str) -> None:
        self.snapshot = a_snapshot(self.directory, plugins)
        await self.wake()

    async def wake(self) -> None:
        """Wake the scheduler, as a reload or a settled run does, and wait until it is idle."""
        self.scheduler.wake()
        await self.clock.rest()

    async def pause(self, schedule_id: str = "default", plugin: str = "p") -> bool:
        """Pause a schedule, as the operation does."""
        paused = await self.store.pause_schedule(plugin, schedule_id, paused=True)
        self.scheduler.wake()
        return paused

    async def entry(self, schedule_id: str = "default", plugin: str = "p") -> ScheduleEntry:
        entries = await self.store.list_schedules()
        return next(entry for entry in entries if (entry.plugin, entry.schedule_id) == (plugin, schedule_id))

    async def history(self, schedule_id: str = "default", plugin: str = "p") -> list[Occurrence]:
        """Return the occurrences, oldest first."""
        return list(reversed((await self.store.list_occurrences(plugin, schedule_id, limit=200)).rows))

    async def outcomes(self, schedule_id: str = "default") -> list[str]:
        """Return the history as `HH:MM:SS outcome`, with count and reason where there are any."""
        return [
            " ".join(
                [f"{row.nominal_at:%H:%M:%S}", row.outcome]
                + ([f"x{row.count}"] if row.count > 1 else [])
                + ([row.reason] if row.reason else [])
            )
            for row in await self.history(schedule_id)
        ]

    async def start_next(self) -> Job:
        return await claim_one(self.store)

    async def start_all(self) -> list[Job]:
        return [claim.job for claim in await claim_all(self.store)]

    async def end(self, job: Job, outcome: Outcome) -> Settled:
        """Settle a running job and notify the scheduler, as the engine does."""
        result = await self.store.settle(job, outcome, self.snapshot.policy)
        assert isinstance(result, Settled), result
        if result.settlement.is_terminal:
            await self.wake()
        return result

    async def run_next(self, outcome: Outcome) -> Job:
        job = await self.start_next()
        await self.end(job, outcome)
        return job


@asynccontextmanager
async def scheduling(
    directory: Path, plugins: str, *, clock: SimulatedClock | None = None, seed: int = 1
) -> AsyncIterator[SchedulerUnderTest]:
    """Start a scheduler, and stop it at the end. A second one of the same directory is a restart."""
    clock = clock or SimulatedClock()
    rng = Random(seed)
    store = open_sqlite(directory / "state.db", clock=clock, rng=rng)
    under_test = SchedulerUnderTest(directory, store, clock, a_snapshot(directory, plugins))
    task = asyncio.create_task(under_test.scheduler.run())
    try:
        await clock.rest()
        yield under_test
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.close()


def clock_at(text: str) -> SimulatedClock:
    return SimulatedClock(datetime.fromisoformat(f"{text}+00:00"))
