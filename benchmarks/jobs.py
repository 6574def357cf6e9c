"""Whole jobs, durable from submission to result, beside the bare loop that only starts processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from statistics import median, quantiles

from benchmarks.plugins import HERE, compile_c, encoded_request, write_plugins
from benchmarks.table import Line, compared
from ductile.admin.config import open_configuration
from ductile.core.ids import make_id
from ductile.core.jobs.model import NewJob, SubmittedBy
from ductile.daemon import tune_garbage_collector
from ductile.engine.clock import SystemClock
from ductile.engine.deps import EngineDeps
from ductile.engine.engine import Engine
from ductile.listeners import Listeners
from ductile.runner.warm.pool import WarmRunner
from ductile.store.model.jobs import Submission
from ductile.store.sqlite.store import SqliteStore, open_sqlite_store
from ductile.telemetry.signals import Signal, SignalBus, SignalEvent

AT_ONCE = 8
#: With more of them both processors have work while results wait for the disk: the bare loop never
#: waits and does not need them, a durable queue does.
MORE_AT_ONCE = (16, 32)
JOBS = {"c": 1500, "sh": 1000, "python": 120, "httpx": 40}
OURS = {"c": 1500, "sh": 1000, "python": 600, "httpx": 400}
#: Runs of a second or two vary most with the load of the machine: they are measured more often.
OFTEN = {"c": 3, "sh": 3}
GOALS = {"c": ">= 0.25", "sh": ">= 0.5", "python": ">= 4", "httpx": ">= 12"}


def measure(directory: Path, rounds: int) -> list[Line]:
    config_dir = directory / "jobs"
    config_dir.mkdir()
    entrypoints = write_plugins(config_dir, workers=AT_ONCE)
    loop = directory / "spawn_loop"
    compile_c(HERE / "spawn_loop.c", loop)
    bare: dict[str, list[float]] = {name: [] for name in JOBS}
    ours: dict[str, list[float]] = {name: [] for name in JOBS}
    xargs: list[float] = []
    waits: list[Wait] = []
    for number in range(rounds):
        # In every round: one moment of the machine says little about it.
        waits += asyncio.run(idle_waits(config_dir, f"latency-{number}", entrypoints["sh"]))
        for name, entrypoint in entrypoints.items():
            for again in range(OFTEN.get(name, 1)):
                bare[name].append(bare_rate(loop, entrypoint, JOBS[name]))
                ours[name].append(asyncio.run(drain_rate(config_dir, f"{number}-{again}-{name}", name)))
        xargs.append(xargs_rate(entrypoints["sh"], JOBS["sh"]))
    lines = [
        compared(f"jobs, {name} plugin, {AT_ONCE} at once", ours[name], bare[name], "jobs/s", GOALS[name])
        for name in JOBS
    ]
    lines.append(compared("jobs, sh plugin, beside xargs -P", ours["sh"][:: OFTEN["sh"]], xargs, "jobs/s"))
    for at_once in MORE_AT_ONCE:
        more_ours, more_bare = with_more(directory, loop, rounds * OFTEN["sh"], at_once)
        lines.append(compared(f"jobs, sh plugin, {at_once} at once", more_ours, more_bare, "jobs/s"))
    return [*lines, *latencies(waits)]


def with_more(directory: Path, loop: Path, rounds: int, at_once: int) -> tuple[list[float], list[float]]:
    """The rates of the sh plugin, ours and bare, with more of them at once."""
    config_dir = directory / f"jobs-{at_once}"
    config_dir.mkdir()
    entrypoint = write_plugins(config_dir, workers=at_once)["sh"]
    bare, ours = [], []
    for number in range(rounds):
        bare.append(bare_rate(loop, entrypoint, JOBS["sh"], at_once))
        ours.append(asyncio.run(drain_rate(config_dir, str(number), "sh")))
    return ours, bare


def bare_rate(loop: Path, entrypoint: Path, jobs: int, at_once: int = AT_ONCE) -> float:
    command = [str(loop), str(entrypoint), str(jobs), str(at_once), a_request()]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def a_request() -> str:
    """Return the request for `a_job`: a shell reads it byte by byte, so its length matters."""
    job = a_job("sh")
    return encoded_request(job.id, job.plugin, dict(job.payload or {}), {"ductile_plugin": job.plugin})


def xargs_rate(entrypoint: Path, jobs: int) -> float:
    """No pipes, no requests: processes only."""
    began = time.perf_counter()
    subprocess.run(
        ["xargs", "-P", str(AT_ONCE), "-n", "1", str(entrypoint)],
        input="\n".join(map(str, range(jobs))),
        text=True,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return jobs / (time.perf_counter() - began)


class Ends:
    """Counts jobs that have ended, and signals when there are enough."""

    def __init__(self) -> None:
        self._left = 0
        self._done = asyncio.Event()
        #: When the program of the last job was started, by `time.perf_counter`.
        self.last_start = 0.0

    def __call__(self, happening: SignalEvent) -> None:
        if happening.signal is Signal.JOB_STARTED:
            self.last_start = time.perf_counter() - float(str(happening.data["ms_ago"])) / 1000
        elif happening.signal is Signal.JOB_SUCCEEDED:
            self._left -= 1
            if self._left == 0:
                self._done.set()

    def expect(self, jobs: int) -> None:
        self._left += jobs
        self._done.clear()

    async def wait(self) -> None:
        await self._done.wait()


@asynccontextmanager
async def an_engine(config_dir: Path, name: str) -> AsyncIterator[tuple[Engine, SqliteStore, Ends]]:
    snapshot = open_configuration(str(config_dir), os.environ).snapshot
    store = open_sqlite_store(config_dir / f"{name}.db", clock=lambda: datetime.now(UTC), rng=Random(1))
    signals, ends = SignalBus(), Ends()
    signals.subscribe(ends)
    equipment = EngineDeps(
        store=store,
        runner=WarmRunner(),
        clock=SystemClock(),
        rng=Random(2),
        signals=signals,
        environ=os.environ,
        load=lambda: snapshot,
        listeners=Listeners(signals),
    )
    engine = Engine(equipment, snapshot)
    ready = asyncio.Event()
    life = asyncio.create_task(engine.run(ready.set))
    await ready.wait()
    tune_garbage_collector()  # as the daemon does
    try:
        yield engine, store, ends
    finally:
        engine.stop()
        await life
        await equipment.runner.close()
        await store.close()


async def drain_rate(config_dir: Path, name: str, plugin: str) -> float:
    """Jobs per second from the first claim to the last result on disk; one job first, to be warm."""
    async with an_engine(config_dir, name) as (engine, store, ends):
        await run_jobs(engine, store, ends, plugin, 1)
        began = time.perf_counter()
        await run_jobs(engine, store, ends, plugin, OURS[plugin])
        return OURS[plugin] / (time.perf_counter() - began)


async def run_jobs(engine: Engine, store: SqliteStore, ends: Ends, plugin: str, count: int) -> None:
    ends.expect(count)
    engine.dispatcher.prepare_claim()
    await store.enqueue(Submission(jobs=tuple(a_job(plugin) for _ in range(count))))
    await ends.wait()


_rng = Random(3)


def a_job(plugin: str) -> NewJob:
    return NewJob(
        id=make_id(datetime.now(UTC), _rng),
        plugin=plugin,
        command="handle",
        submitted_by=SubmittedBy.API,
        max_attempts=1,
        payload={"text": "x" * 400},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Milliseconds of one job on an idle machine, and of its process alone."""

    to_start: float
    to_done: float
    by_hand: float


def latencies(waits: list[Wait]) -> list[Line]:
    by_hand = f"{median(wait.by_hand for wait in waits):.1f} ms by hand"
    return [
        latency("submit to start, sh plugin, idle: p50 in ms", [wait.to_start for wait in waits], "", ""),
        latency(
            "submit to done, sh plugin, idle: p50 in ms", [wait.to_done for wait in waits], by_hand, "<= 5"
        ),
    ]


def latency(what: str, spent: list[float], beside: str, goal: str) -> Line:
    cuts = quantiles(spent, n=100)
    ours = f"{cuts[49]:.1f} ms (p99 {cuts[98]:.1f})"
    return Line(what=what, ours=ours, bare=beside, ratio=cuts[49], goal=goal)


async def idle_waits(config_dir: Path, name: str, entrypoint: Path) -> list[Wait]:
    """Alternate with the process alone, so that both see the same machine."""
    waits = []
    request = a_request().encode()
    async with an_engine(config_dir, name) as (engine, store, ends):
        await run_jobs(engine, store, ends, "sh", 5)
        for _ in range(200):
            began = time.perf_counter()
            await run_jobs(engine, store, ends, "sh", 1)
            done = time.perf_counter()
            subprocess.run([entrypoint], input=request, capture_output=True, check=True)  # noqa: ASYNC221 - alone
            by_hand = time.perf_counter() - done
            waits.append(
                Wait(
                    to_start=(ends.last_start - began) * 1000,
                    to_done=(done - began) * 1000,
                    by_hand=by_hand * 1000,
                )
            )
    return waits
