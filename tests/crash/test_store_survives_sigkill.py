"""Killed at any instant, the store has all of a verb or none of it."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import apsw
import pytest

from builders.invariants import violations
from ductile.core.jobs.model import TERMINAL, JobStatus
from ductile.store.sqlite.store import open_sqlite_store

WORKER = Path(__file__).with_name("store_worker.py")
ROUNDS = 12


def run_until_killed(path: Path, *, seed: int, lines: int) -> list[list[str]]:
    """Run a worker on the store, kill it after so many acknowledgements, and return all of them."""
    with subprocess.Popen(
        [sys.executable, str(WORKER), str(path), str(seed)], stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        head = [worker.stdout.readline() for _ in range(lines)]
        worker.kill()
        rest = worker.stdout.read()
    assert worker.returncode == -9, "the worker ended before it was killed"
    # The kill may cut the last line, which is left out then.
    whole = b"".join(head) + rest[: rest.rfind(b"\n") + 1]
    return [line.split() for line in whole.decode().splitlines()]


def unreported(path: Path) -> list[tuple[object, ...]]:
    """Return the jobs of plugins with a state webhook that have no delivery of their state `queued`."""
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        return connection.execute(
            """
            SELECT id FROM job_queue WHERE plugin IN ('source', 'sink') AND NOT EXISTS (
              SELECT 1 FROM state_deliveries WHERE job_id = job_queue.id AND state = 'queued'
                AND sequence = 1 AND url = 'http://configured.invalid/'
            )"""
        ).fetchall()


def unlinked(path: Path) -> list[tuple[object, ...]]:
    """Return the reruns without an entry in the ledger."""
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        return connection.execute(
            """
            SELECT id FROM job_queue WHERE rerun_of IS NOT NULL AND NOT EXISTS (
              SELECT 1 FROM ledger WHERE kind = 'job.rerun' AND job_id = rerun_of
                AND json_extract(data, '$.rerun_job_id') = job_queue.id
            )"""
        ).fetchall()


async def check_acknowledged(path: Path, reports: list[list[str]]) -> None:
    store = open_sqlite_store(path, clock=lambda: datetime.now(UTC), rng=Random(0))
    try:
        for kind, job_id, *rest in reports:
            job = await store.get_job(job_id)
            assert job is not None, f"{kind} {job_id} was acknowledged and is gone"
            if kind == "claimed":
                assert job.execution >= int(rest[0])
            if kind == "settled":
                executions = {row.execution: row for row in await store.list_executions(job_id)}
                assert int(rest[0]) in executions, f"the result of {job_id} was acknowledged and is gone"
                if JobStatus(rest[1]) in TERMINAL:
                    assert job.status is JobStatus(rest[1])
    finally:
        await store.close()


@pytest.mark.parametrize("seed", range(4))
def test_acknowledged_writes_survive_kill_after_kill(tmp_path: Path, seed: int) -> None:
    """Every acknowledged job, claim and result is found after each of many kills on the same store."""
    path = tmp_path / "state.db"
    rng = Random(seed)
    reports: list[list[str]] = []
    for number in range(ROUNDS):
        reports += run_until_killed(path, seed=seed * 1000 + number, lines=rng.randrange(1, 120))
        assert violations(path) == []
        assert unreported(path) == []
        assert unlinked(path) == []
    kinds = {line[0] for line in reports}
    assert {"accepted", "claimed", "settled", "recovered"} <= kinds, "the rounds did not reach every verb"
    asyncio.run(check_acknowledged(path, reports))
