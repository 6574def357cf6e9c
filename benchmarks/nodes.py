"""Several nodes on one PostgreSQL server, beside a queue written by hand on the same server.

`benchmarks.queue_worker` says what the bare queue does.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from statistics import quantiles
from typing import Any

import psycopg

from benchmarks import api, store_depth
from benchmarks.pg_server import new_schema, running_server
from benchmarks.plugins import write_plugins
from benchmarks.queue_worker import CREATE_TABLE
from benchmarks.table import Line, compared
from ductile.store.postgres.store import PostgresStore, open_postgres_store

NODES = (1, 2, 3)
JOBS = 3_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    submitted: float
    done: float


def measure(directory: Path, rounds: int) -> list[Line]:
    with running_server(directory / "pg") as server:
        return [
            *throughput(server, rounds),
            *depth(server, rounds),
            *accepted(server, directory, rounds),
            *waits(server, directory, rounds),
            *idle_load(server, directory),
        ]


# -- jobs per second at the store


def throughput(server: str, rounds: int) -> list[Line]:
    kinds = [(kind, nodes) for nodes in NODES for kind in ("bare", "bare-batch", "ductile")]
    measured: dict[tuple[str, int], list[Rates]] = {kind_and_nodes: [] for kind_and_nodes in kinds}
    for _ in range(rounds):
        for kind, nodes in kinds:
            measured[kind, nodes].append(queue_rates(server, kind, nodes))
    done = {kind: [rates.done for rates in measured[kind]] for kind in kinds}
    lines = [
        compared(
            f"PostgreSQL: claim + settle, {nodes} nodes",
            done["ductile", nodes],
            done["bare", nodes],
            "jobs/s",
            ">= 0.5" if nodes == 1 else "",
        )
        for nodes in NODES
    ]
    lines += [
        compared(
            f"PostgreSQL: claim + settle, {nodes} nodes beside one",
            done["ductile", nodes],
            done["ductile", 1],
            "jobs/s",
            ">= 1" if nodes == 2 else "",
        )
        for nodes in NODES[1:]
    ]
    one = "PostgreSQL: claim + settle, 1 node, beside 8 ends in one statement"
    lines.append(compared(one, done["ductile", 1], done["bare-batch", 1], "jobs/s"))
    submitted = {kind: [rates.submitted for rates in measured[kind, 1]] for kind in ("ductile", "bare")}
    lines.append(
        compared("PostgreSQL: enqueue, 64 callers", submitted["ductile"], submitted["bare"], "jobs/s")
    )
    return lines


def queue_rates(server: str, kind: str, nodes: int) -> Rates:
    """The rates of so many processes on an empty queue: all submit, and then all work until it is empty."""
    url = new_schema(server)
    if kind == "ductile":
        asyncio.run(open_store(url).close())
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(CREATE_TABLE)
    with ExitStack() as stack:
        words = [sys.executable, "-m", "benchmarks.queue_worker", kind, url, str(JOBS // nodes)]
        processes = [
            stack.enter_context(
                subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(nodes)
        ]
        try:
            answers(processes)
            proceed(processes)
            submitted = sum(answer["rate"] for answer in answers(processes))
            proceed(processes)
            ran = answers(processes)
            proceed(processes)
        finally:
            for process in processes:
                if process.poll() is None and process.stdin is not None:
                    process.stdin.close()
    jobs = sum(run["jobs"] for run in ran)
    assert jobs == JOBS // nodes * nodes, ran
    seconds = max(run["ended"] for run in ran) - min(run["began"] for run in ran)
    return Rates(submitted=submitted, done=jobs / seconds)


def proceed(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def answers(processes: list[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    """The next line of each process."""
    lines = []
    for process in processes:
        assert process.stdout is not None
        lines.append(json.loads(process.stdout.readline()))
    return lines


# -- the cost of a claim beside many finished jobs

_FINISHED = """
INSERT INTO job_queue
  (seq, id, plugin, command, payload, status, reason, max_attempts, execution, submitted_by, created_at,
   started_at, completed_at)
SELECT i, 'done-' || lpad(i::text, 8, '0'), 'plugin-' || (i %% 5), 'handle', '{}', 'succeeded', 'completed',
  4, 1, 'api', at, at, at
FROM generate_series(1, %(rows)s) AS i, (SELECT '2026-01-01T00:00:00.000000Z') AS one (at);
"""
_FINISHED_LOG = """
INSERT INTO job_log
  (job_id, execution, attempt, max_attempts, plugin, command, status, reason, job_status, job_reason, result,
   submitted_by, created_at, completed_at)
SELECT 'done-' || lpad(i::text, 8, '0'), 1, 1, 4, 'plugin-' || (i %% 5), 'handle', 'succeeded', 'completed',
  'succeeded', 'completed', '{}', 'api', at, at
FROM generate_series(1, %(rows)s) AS i, (SELECT '2026-01-01T00:00:00.000000Z') AS one (at);
"""


def depth(server: str, rounds: int) -> list[Line]:
    stores = {"empty": open_store(new_schema(server)), "finished": open_store(filled(server))}
    costs: dict[str, list[float]] = {name: [] for name in stores}

    async def run() -> None:
        for _ in range(rounds):
            for name, cost in (await store_depth.claim_costs(stores)).items():
                costs[name].append(cost)
        for store in stores.values():
            await store.close()

    asyncio.run(run())
    what = f"PostgreSQL: claim with {store_depth.FINISHED:,} finished jobs"
    return [compared(what, costs["finished"], costs["empty"], "us", "<= 1.5")]


def filled(server: str) -> str:
    """Return the URL of a store with many finished jobs."""
    url = new_schema(server)
    asyncio.run(open_store(url).close())
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in (_FINISHED, _FINISHED_LOG):
            connection.execute(statement, {"rows": store_depth.FINISHED})
        connection.execute("VACUUM ANALYZE")
    return url


def open_store(url: str) -> PostgresStore:
    return open_postgres_store(url, clock=lambda: datetime.now(UTC), rng=Random(1))


# -- daemons

_CONFIG = """\
service: {{max_workers: {workers}, log_level: info, shutdown_grace: 0s, node: {name}}}
{state}
api:
  enabled: true
  listen: 127.0.0.1:0
  auth: {{tokens: [{{name: bench, token: {token}, scopes: ["*"]}}]}}
plugins:
  sleeper: {{}}
  sh: {{}}
"""
_LISTENING = {"api": api.LISTENING["api"]}
#: Requests to each group of daemons in each round.
_REQUESTS = 40
_IDLE_SECONDS = 60


@contextmanager
def daemons(directory: Path, url: str | None, count: int, *, workers: int = 4) -> Iterator[list[int]]:
    """Start so many daemons on one store; without a URL, one with a file. Yields their ports."""
    with ExitStack() as stack:
        ports = []
        for number in range(count):
            config_dir = directory / f"daemons-{next(_directories)}"
            config = _CONFIG.format(
                workers=workers,
                name=f"node-{number}",
                state="" if url is None else f"state: {{url: '{url}'}}",
                token=api.TOKEN,
            )
            plugin = write_plugins(config_dir, workers=workers)["sh"].parent
            with (plugin / "manifest.yaml").open("a", encoding="utf-8") as manifest:
                manifest.write("execution_mode: synchronous\n")
            api.write_config(config_dir, config)
            ports.append(stack.enter_context(api.running_daemon(config_dir, _LISTENING))["api"])
        yield ports


_directories = itertools.count()


def accepted(server: str, directory: Path, rounds: int) -> list[Line]:
    """Jobs accepted over HTTP, beside SQLite. The only worker sleeps meanwhile."""
    ours, beside = [], []
    with (
        daemons(directory, new_schema(server), 1, workers=1) as [port],
        daemons(directory, None, 1, workers=1) as [sqlite_port],
    ):
        for _ in range(rounds):
            beside.append(api.load(sqlite_port, api.job_request())["rate"])
            ours.append(api.load(port, api.job_request())["rate"])
    what = "PostgreSQL: jobs accepted over HTTP, 64 connections, beside SQLite"
    return [compared(what, ours, beside, "jobs/s")]


def waits(server: str, directory: Path, rounds: int) -> list[Line]:
    """Milliseconds from the submission of a job to the answer with its result, asked of each node in turn."""
    with ExitStack() as stack:
        groups = {0: stack.enter_context(daemons(directory, None, 1))}
        for nodes in NODES:
            groups[nodes] = stack.enter_context(daemons(directory, new_schema(server), nodes))
        spent: dict[int, list[float]] = {nodes: [] for nodes in groups}
        callers = {
            nodes: itertools.cycle([http.client.HTTPConnection("127.0.0.1", port) for port in ports])
            for nodes, ports in groups.items()
        }
        for nodes, connections in callers.items():
            for _ in range(3 * max(nodes, 1)):  # the first few connect and prepare
                run_job(next(connections))
        for _ in range(rounds * _REQUESTS):
            for nodes, connections in callers.items():
                spent[nodes].append(run_job(next(connections)))
    beside = quantiles(spent[0], n=100)
    lines = []
    for nodes in NODES:
        cuts = quantiles(spent[nodes], n=100)
        lines += [
            Line(
                what=f"PostgreSQL: submit to done over HTTP, sh plugin, {nodes} nodes, {name}, beside SQLite",
                ours=f"{cuts[cut]:.1f} ms",
                bare=f"{beside[cut]:.1f} ms",
                ratio=cuts[cut] / beside[cut],
            )
            for name, cut in (("p50", 49), ("p95", 94))
        ]
    return lines


def run_job(connection: http.client.HTTPConnection) -> float:
    headers = {"Authorization": f"Bearer {api.TOKEN}", "Content-Type": "application/json"}
    began = time.perf_counter()
    connection.request("POST", "/trigger/sh/handle", b'{"payload": {"name": "Ada"}}', headers)
    response = connection.getresponse()
    body = response.read()
    spent = (time.perf_counter() - began) * 1000
    assert response.status == 200, body
    return spent


def idle_load(server: str, directory: Path) -> list[Line]:
    """Transactions per second on the server while so many daemons have nothing to do."""
    lines = []
    for nodes in (1, 3):
        with daemons(directory, new_schema(server), nodes):
            time.sleep(_IDLE_SECONDS / 4)  # what a start leaves behind
            before = transactions(server)
            time.sleep(_IDLE_SECONDS)
            rate = (transactions(server) - before) / _IDLE_SECONDS
        what = f"PostgreSQL: transactions per second of {nodes} idle nodes"
        lines.append(Line(what=what, ours=f"{rate:.2f}", bare="", ratio=rate, goal=f"<= {nodes}"))
    return lines


def transactions(server: str) -> int:
    query = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
    with psycopg.connect(server, autocommit=True) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])
