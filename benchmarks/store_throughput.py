"""Durable operations per second, with 1, 8 and 64 callers, beside a loop that commits row by row."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import apsw

from benchmarks.table import Line, compared
from ductile.core.ids import make_id
from ductile.core.jobs.admission import Caps
from ductile.core.jobs.model import Completed, Evidence, NewJob, PluginResponse, SubmittedBy
from ductile.core.policy import Policy
from ductile.store.model.jobs import Settled, Submission
from ductile.store.sqlite.store import open_sqlite_store

CALLERS = (1, 8, 64)
PAYLOAD = {"text": "x" * 200}
ANSWER = Completed(
    response=PluginResponse(ok=True, result="done"),
    evidence=Evidence(stdout='{"status": "ok", "result": "done"}', stderr="", exit_code=0),
)


def measure(directory: Path, rounds: int) -> list[Line]:
    bare: list[float] = []
    enqueued: dict[int, list[float]] = {callers: [] for callers in CALLERS}
    settled: dict[int, list[float]] = {callers: [] for callers in CALLERS}
    for number in range(rounds):
        bare.append(bare_loop(directory / f"bare-{number}.db"))
        for callers in CALLERS:
            jobs = 500 * callers if callers < 64 else 12_800
            path = directory / f"store-{number}-{callers}.db"
            put, done = asyncio.run(store_rates(path, callers=callers, jobs=jobs))
            enqueued[callers].append(put)
            settled[callers].append(done)
    enqueues = [
        compared(
            f"enqueue, {callers} callers",
            enqueued[callers],
            bare,
            "jobs/s",
            ">= 5" if callers == max(CALLERS) else "",
        )
        for callers in CALLERS
    ]
    # A job that is claimed and settled has been committed twice, so that is what the bare loop is asked for.
    twice = [rate / 2 for rate in bare]
    return enqueues + [
        compared(f"claim + settle, {callers} callers", settled[callers], twice, "jobs/s")
        for callers in CALLERS
    ]


def bare_loop(path: Path, rows: int = 1500) -> float:
    """One row of a job's size in a plain table, committed by itself, again and again."""
    connection = apsw.Connection(str(path))
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    connection.execute("CREATE TABLE jobs (seq INTEGER PRIMARY KEY, id TEXT UNIQUE, body TEXT)").fetchall()
    rng, now = Random(1), datetime.now(UTC)
    ids = [make_id(now, rng) for _ in range(rows)]
    began = time.perf_counter()
    for one in ids:
        connection.execute("INSERT INTO jobs (id, body) VALUES (?, ?)", (one, "x" * 400))
    spent = time.perf_counter() - began
    connection.close()
    return rows / spent


async def store_rates(path: Path, *, callers: int, jobs: int) -> tuple[float, float]:
    """Jobs enqueued per second, and then claimed and settled per second, by so many callers at once."""
    rng = Random(callers)
    store = open_sqlite_store(path, clock=lambda: datetime.now(UTC), rng=rng)
    submissions = iter([Submission(jobs=(a_job(rng),)) for _ in range(jobs)])
    caps, policy = Caps(workers=callers), Policy()

    async def submit() -> None:
        for submission in submissions:
            await store.enqueue(submission)

    async def work() -> None:
        while claims := await store.claim(owner="bench", caps=caps, limit=1, lease=timedelta(minutes=1)):
            job = claims[0].job
            assert isinstance(await store.settle(job, ANSWER, policy), Settled)

    try:
        return await rate(submit, callers, jobs), await rate(work, callers, jobs)
    finally:
        await store.close()


def a_job(rng: Random) -> NewJob:
    return NewJob(
        id=make_id(datetime.now(UTC), rng),
        plugin=f"plugin-{rng.randrange(5)}",
        command="handle",
        submitted_by=SubmittedBy.API,
        max_attempts=4,
        payload=dict(PAYLOAD),
    )


async def rate(caller: Callable[[], Awaitable[None]], callers: int, operations: int) -> float:
    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return operations / (time.perf_counter() - began)
