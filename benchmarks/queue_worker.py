"""One node's load on a queue in PostgreSQL, as a process: `python -m benchmarks.queue_worker KIND URL JOBS`.

KIND is the store of Ductile, or a queue as one would write it by hand. Both have up to 64 jobs at once, and
put the same payload on the queue and the same output into it. The process connects, prints a line, and waits
for one; then it submits so many jobs and prints the rate. After one more line it runs jobs until the queue is
empty, and prints how many and when it began and ended, on the clock that all processes share.

Ductile claims for all of its 64 workers when it has handed their results to the store, as the dispatcher
does, and settles each job by itself. The bare queue is one table with an index on its waiting rows. It has 8
threads, each with a connection of its own, on which every statement is a transaction:

- submit: one INSERT for each job;
- claim: one UPDATE of 8 rows that are chosen with FOR UPDATE SKIP LOCKED, which returns their payloads;
- done: for each job one UPDATE with its output; `bare-batch` ends all 8 with one UPDATE instead.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import psycopg

from benchmarks.store_throughput import ANSWER, PAYLOAD, a_job, rate
from ductile.core.ids import make_id
from ductile.core.jobs.admission import Caps
from ductile.core.policy import Policy
from ductile.store.model.jobs import ClaimedJob, Settled, Submission
from ductile.store.postgres.store import open_postgres_store

WORKERS = 8
BATCH = 8
_KINDS = ("ductile", "bare", "bare-batch")
CREATE_TABLE = """
CREATE TABLE jobs (
  seq bigserial PRIMARY KEY, id text NOT NULL UNIQUE, plugin text NOT NULL, payload text NOT NULL,
  status text NOT NULL DEFAULT 'queued', created_at timestamptz NOT NULL DEFAULT now(),
  started_at timestamptz, completed_at timestamptz, result text
);
CREATE INDEX jobs_ready ON jobs (seq) WHERE status = 'queued';
"""
_INSERT = "INSERT INTO jobs (id, plugin, payload) VALUES (%s, %s, %s)"
_CLAIM = """
UPDATE jobs SET status = 'running', started_at = now() WHERE seq IN (
  SELECT seq FROM jobs WHERE status = 'queued' ORDER BY seq LIMIT %s FOR UPDATE SKIP LOCKED
) RETURNING seq, id, plugin, payload"""
_DONE = "UPDATE jobs SET status = 'succeeded', completed_at = now(), result = %s WHERE seq = %s"
_ALL_DONE = "UPDATE jobs SET status = 'succeeded', completed_at = now(), result = %s WHERE seq = ANY(%s)"


def report(**figures: float) -> None:
    print(json.dumps(figures), flush=True)


def wait_for_line() -> None:
    if not sys.stdin.readline():
        raise SystemExit("the process that measures has ended")


async def run_ductile(url: str, jobs: int) -> None:
    rng = Random()
    store = open_postgres_store(url, clock=lambda: datetime.now(UTC), rng=rng)
    owner, policy = make_id(datetime.now(UTC), rng), Policy()
    caps = Caps(workers=WORKERS * BATCH)
    submissions = iter([Submission(jobs=(a_job(rng),)) for _ in range(jobs)])
    done = 0

    async def submit() -> None:
        for submission in submissions:
            await store.enqueue(submission)

    async def work(at_once: int) -> None:
        ending: list[asyncio.Task[None]] = []
        while True:
            claims = await store.claim(owner=owner, caps=caps, limit=at_once, lease=timedelta(minutes=1))
            await asyncio.gather(*ending)
            if not claims:
                return
            # As in the dispatcher, a worker is free when its result is handed to the store.
            ending = [asyncio.create_task(settle(claim)) for claim in claims]
            await asyncio.sleep(0)

    async def settle(claim: ClaimedJob) -> None:
        nonlocal done
        assert isinstance(await store.settle(claim.job, ANSWER, policy), Settled)
        done += 1

    try:
        await store.queue_counts()
        report(ready=1)
        wait_for_line()
        report(rate=await rate(submit, WORKERS * BATCH, jobs))
        wait_for_line()
        began = time.monotonic()
        await work(WORKERS * BATCH)
        report(jobs=done, began=began, ended=time.monotonic())
        wait_for_line()
    finally:
        await store.close()


def run_bare(url: str, jobs: int, *, ends_together: bool) -> None:
    rng, payload, result = Random(), json.dumps(PAYLOAD), ANSWER.evidence.stdout
    connections = [psycopg.connect(url, autocommit=True, prepare_threshold=1) for _ in range(WORKERS)]
    ids = iter([make_id(datetime.now(UTC), rng) for _ in range(jobs)])
    done: list[int] = []

    def submit(connection: psycopg.Connection[Any]) -> None:
        for job_id in ids:
            connection.execute(_INSERT, (job_id, f"plugin-{rng.randrange(5)}", payload))

    def work(connection: psycopg.Connection[Any]) -> None:
        while rows := connection.execute(_CLAIM, (BATCH,)).fetchall():
            if ends_together:
                connection.execute(_ALL_DONE, (result, [row[0] for row in rows]))
            else:
                for row in rows:
                    connection.execute(_DONE, (result, row[0]))
            done.extend(row[0] for row in rows)

    report(ready=1)
    wait_for_line()
    began = time.monotonic()
    in_threads(submit, connections)
    report(rate=jobs / (time.monotonic() - began))
    wait_for_line()
    began = time.monotonic()
    in_threads(work, connections)
    report(jobs=len(done), began=began, ended=time.monotonic())
    wait_for_line()


def in_threads(
    work: Callable[[psycopg.Connection[Any]], None], connections: list[psycopg.Connection[Any]]
) -> None:
    threads = [threading.Thread(target=work, args=(connection,)) for connection in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(kind: str, url: str, jobs: str) -> None:
    assert kind in _KINDS, kind
    if kind == "ductile":
        asyncio.run(run_ductile(url, int(jobs)))
    else:
        run_bare(url, int(jobs), ends_together=kind == "bare-batch")


if __name__ == "__main__":
    main(*sys.argv[1:])
