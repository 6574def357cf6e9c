"""Copies of a store that is being written to: each is one instant, whole, and keeps the rules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import apsw
import pytest

from builders.invariants import violations
from builders.jobs import a_new_job, a_route, emitted, failed, ok, some_policy
from builders.stores import accept, claim_all
from ductile.core.jobs.model import JobStatus
from ductile.errors import StoreError, StoreFailedError, StoreSchemaError
from ductile.store.model.records import JobFilter
from ductile.store.sqlite.backup import copy_store, inspect_copy
from ductile.store.sqlite.store import SqliteStore, open_sqlite_store

COPIES = 5
POLICY = some_policy(a_route())


def opened(path: Path) -> SqliteStore:
    return open_sqlite_store(path, clock=lambda: datetime.now(UTC), rng=Random())


async def work(store: SqliteStore, stop: asyncio.Event) -> None:
    """Accept, claim and settle as fast as it goes, with children and failures."""
    while not stop.is_set():
        await asyncio.gather(
            *(accept(store, a_new_job("source", payload={"text": "x" * 500})) for _ in range(20))
        )
        for number, claim in enumerate(await claim_all(store, limit=30)):
            outcome = failed(permanent=True) if number % 5 == 0 else ok(emitted())
            await store.settle(claim.job, outcome, POLICY)


def _into(steps: list[tuple[int, int]]) -> Callable[[int, int], None]:
    return lambda done, of: steps.append((done, of))


async def test_a_copy_is_whole_whatever_is_written_meanwhile(tmp_path: Path) -> None:
    """No copy sees half a transaction, and none has to begin anew because of a write."""
    store = opened(tmp_path / "state.db")
    large = {"text": "x" * 40_000}  # several steps of the copying, with writes in between
    before = [await accept(store, a_new_job("source", payload=large)) for _ in range(300)]
    stop = asyncio.Event()
    working = asyncio.create_task(work(store, stop))
    for number in range(COPIES):
        target = tmp_path / f"copy-{number}"
        steps: list[tuple[int, int]] = []
        await asyncio.to_thread(copy_store, tmp_path / "state.db", target, _into(steps))
        assert inspect_copy(target) >= 1
        assert violations(target) == []
        done = [pages for pages, _ in steps]
        assert len(done) > 1
        assert done == sorted(set(done)), "it began anew"
        assert {of for _, of in steps} == {done[-1]}, "it grew meanwhile"
    stop.set()
    await working
    await store.close()
    copy = opened(tmp_path / "copy-0")
    for job_id in before:  # accepted means on disk, and so in every copy that was made later
        assert await copy.get_job(job_id) is not None
    await copy.close()


async def test_a_copy_is_one_file_and_a_store_of_its_own(tmp_path: Path) -> None:
    store = opened(tmp_path / "state.db")
    await accept(store, a_new_job())
    copy_store(tmp_path / "state.db", tmp_path / "copy", lambda _done, _of: None)
    assert not any((tmp_path / f"copy{more}").exists() for more in ("-wal", "-shm", "-journal"))
    await accept(store, a_new_job())
    await store.close()
    copy = opened(tmp_path / "copy")
    assert len((await copy.list_jobs(JobFilter(status=JobStatus.QUEUED), limit=10)).rows) == 1
    await copy.close()


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        copy_store(tmp_path / "nowhere", tmp_path / "copy", lambda _done, _of: None)
    (tmp_path / "text").write_text("not a database" * 100)
    with pytest.raises(StoreFailedError, match="damaged"):
        inspect_copy(tmp_path / "text")
    connection = apsw.Connection(str(tmp_path / "other.db"))
    connection.execute("CREATE TABLE theirs (x)").fetchall()
    connection.close()
    with pytest.raises(StoreSchemaError, match="not a Ductile store"):
        inspect_copy(tmp_path / "other.db")


async def test_a_store_of_a_newer_version_is_named_as_such(tmp_path: Path) -> None:
    """A newer schema than the program is refused."""
    await opened(tmp_path / "state.db").close()
    copy_store(tmp_path / "state.db", tmp_path / "copy", lambda _done, _of: None)
    connection = apsw.Connection(str(tmp_path / "copy"))
    connection.execute("PRAGMA user_version = 999").fetchall()
    connection.close()
    with pytest.raises(StoreSchemaError, match="schema version 999"):
        inspect_copy(tmp_path / "copy")
