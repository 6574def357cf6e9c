"""What a claim costs when the store is empty, full of finished jobs, or deep in jobs that may not start.

The filling is done with bulk SQL, since a million jobs through the front door would take the morning;
what is measured goes through the store as always.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from statistics import median

import apsw

from benchmarks.store_throughput import ANSWER, a_job
from benchmarks.table import Line, compared
from ductile.core.jobs.admission import Caps
from ductile.core.policy import Policy
from ductile.store.model.jobs import Submission
from ductile.store.model.records import JobFilter, LogFilter
from ductile.store.port import Store
from ductile.store.sqlite.store import SqliteStore, open_sqlite_store

FINISHED = 1_000_000
CLAIMS = 400
#: `capped` is full, so that its hundred thousand ready jobs have to be passed over.
CAPS = Caps(workers=8, plugins={"capped": 0})

_FINISHED_JOBS = """
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :rows)
INSERT INTO job_queue
  (id, plugin, command, payload, status, reason, max_attempts, execution, submitted_by, created_at,
   started_at, completed_at)
SELECT printf('done-%08d', i), 'plugin-' || (i % 5), 'handle', '{}', 'succeeded', 'completed', 4, 1, 'api',
  :at, :at, :at FROM n"""
_FINISHED_LOG = """
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :rows)
INSERT INTO job_log
  (job_id, execution, attempt, max_attempts, plugin, command, status, reason, job_status, job_reason, result,
   submitted_by, created_at, completed_at)
SELECT printf('done-%08d', i), 1, 1, 4, 'plugin-' || (i % 5), 'handle', 'succeeded', 'completed',
  'succeeded', 'completed', '{}', 'api', :at, :at FROM n"""
_QUEUED = """
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :rows)
INSERT INTO job_queue
  (id, plugin, command, status, reason, hold, max_attempts, submitted_by, created_at, dedupe_key,
   next_retry_at, retry_wait)
SELECT printf('%s-%08d', :plugin, i), :plugin, 'handle', 'queued', 'submitted', :hold, 4, 'api', :at, :key,
  CASE WHEN :hold = 'retry' THEN '2099-01-01T00:00:00.000000Z' END, 60.0 FROM n"""
_KEY_HOLDER = """
INSERT INTO job_queue
  (id, plugin, command, status, reason, max_attempts, execution, submitted_by, created_at, started_at,
   dedupe_key)
VALUES ('holder', 'keyed', 'handle', 'running', 'claimed', 4, 1, 'api', :at, :at, 'event:one')"""


def measure(directory: Path, rounds: int) -> list[Line]:
    stores = {
        "empty": open_filled(directory / "empty.db", []),
        "finished": open_filled(
            directory / "finished.db",
            [(_FINISHED_JOBS, {"rows": FINISHED}), (_FINISHED_LOG, {"rows": FINISHED})],
        ),
        "deep": open_filled(
            directory / "deep.db", [(_KEY_HOLDER, {}), *((_QUEUED, values) for values in _deep())]
        ),
    }
    claims: dict[str, list[float]] = {name: [] for name in stores}
    lists: dict[str, list[float]] = {name: [] for name in stores}
    asyncio.run(_measure(stores, claims, lists, rounds))
    return [
        compared(
            f"claim with {FINISHED:,} finished jobs", claims["finished"], claims["empty"], "us", "<= 1.5"
        ),
        compared(
            "claim with 300,000 jobs ahead that may not start",
            claims["deep"],
            claims["empty"],
            "us",
            "<= 1.5",
        ),
        compared(f"lists with {FINISHED:,} finished jobs", lists["finished"], lists["empty"], "us"),
    ]


def _deep() -> list[dict[str, object]]:
    """A capped plugin, one key, and retry waits: a hundred thousand of each."""
    rows = 100_000
    return [
        {"rows": rows, "plugin": "capped", "hold": None, "key": None},
        {"rows": rows, "plugin": "keyed", "hold": "key", "key": "event:one"},
        {"rows": rows, "plugin": "waiting", "hold": "retry", "key": None},
    ]


def open_filled(path: Path, filling: list[tuple[str, dict[str, object]]]) -> SqliteStore:
    fill_store(path, filling)
    return open_sqlite_store(path, clock=lambda: datetime.now(UTC), rng=Random(1))


def fill_store(path: Path, filling: list[tuple[str, dict[str, object]]]) -> None:
    # The tables are made by opening the store once.
    asyncio.run(open_sqlite_store(path, clock=lambda: datetime.now(UTC), rng=Random(0)).close())
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF").fetchall()
    for sql, values in filling:
        connection.execute(sql, {"at": "2026-01-01T00:00:00.000000Z", **values}).fetchall()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()


async def _measure(
    stores: dict[str, SqliteStore], claims: dict[str, list[float]], lists: dict[str, list[float]], rounds: int
) -> None:
    for _ in range(rounds):
        for name, cost in (await claim_costs(stores)).items():
            claims[name].append(cost)
        for name, store in stores.items():
            lists[name].append(await list_cost(store))
    for store in stores.values():
        await store.close()


async def claim_costs(stores: Mapping[str, Store]) -> dict[str, float]:
    """Median microseconds of a durable claim in each store; in turn, so that all meet the same disk."""
    rng, policy = Random(7), Policy()
    costs: dict[str, list[float]] = {name: [] for name in stores}
    for store in stores.values():
        await store.enqueue(Submission(jobs=tuple(a_job(rng) for _ in range(CLAIMS))))
    for _ in range(CLAIMS):
        for name, store in rng.sample(sorted(stores.items(), key=lambda each: each[0]), k=len(stores)):
            began = time.perf_counter()
            (claim,) = await store.claim(owner="bench", caps=CAPS, limit=1, lease=timedelta(minutes=1))
            costs[name].append((time.perf_counter() - began) * 1e6)
            await store.settle(claim.job, ANSWER, policy)
    return {name: median(spent) for name, spent in costs.items()}


async def list_cost(store: SqliteStore) -> float:
    """Median microseconds of the lists that are opened most: newest jobs, one plugin's, failures, the log."""
    costs = []
    for _ in range(20):
        began = time.perf_counter()
        await store.list_jobs(JobFilter(), limit=50)
        await store.list_jobs(JobFilter(plugin="plugin-1"), limit=50)
        await store.list_log(LogFilter(plugin="plugin-1"), limit=50)
        costs.append((time.perf_counter() - began) * 1e6)
    return median(costs)
