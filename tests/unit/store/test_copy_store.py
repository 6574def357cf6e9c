"""A copy of a store that is being written to is complete, of one instant, and keeps the invariants."""

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


def open_store(path: Path) -> SqliteStore:
    return open_sqlite_store(path, clock=lambda: datetime.now(UTC), rng=Random())


async def write_until_stopped(store: SqliteStore, stop: asyncio.Event) -> None:
    """Accept, claim and settle jobs with children and failures until `stop` is set."""
    while not stop.is_set():
        await asyncio.gather(
            *(accept(store, a_new_job("source", payload={"text": "x" * 500})) for _ in range(20))
        )
        for number, claim in enumerate(await claim_all(store, limit=30)):
            outcome = failed(permanent=True) if number % 5 == 0 else ok(emitted())
            await store.settle(claim.job, outcome, POLICY)


def record_steps(steps: list[tuple[int, int]]) -> Callable[[int, int], None]:
    return lambda done, total: steps.append((done, total))


async def test_a_copy_is_whole_whatever_is_written_meanwhile(tmp_path: Path) -> None:
    """A copy has no half transaction, and writes do not make it start again."""
    store = open_store(tmp_path / "state.db")
    large = {"text": "x" * 40_000}  # the copy takes several steps, with writes in between
    before = [await accept(store, a_new_job("source", payload=large)) for _ in range(300)]
    stop = asyncio.Event()
    writer = asyncio.create_task(write_until_stopped(store, stop))
    for number in range(COPIES):
        target = tmp_path / f"copy-{number}"
        steps: list[tuple[int, int]] = []
        await asyncio.to_thread(copy_store, tmp_path / "state.db", target, record_steps(steps))
        assert inspect_copy(target) >= 1
        assert violations(target) == []
        copied_pages = [pages for pages, _ in steps]
        assert len(copied_pages) > 1
        assert copied_pages == sorted(set(copied_pages)), "it began anew"
        assert {total for _, total in steps} == {copied_pages[-1]}, "it grew meanwhile"
    stop.set()
    await writer
    await store.close()
    copy = open_store(tmp_path / "copy-0")
    for job_id in before:  # an accepted job is on disk, so every later copy has it
        assert await copy.get_job(job_id) is not None
    await copy.close()


async def test_a_copy_is_one_file_and_a_store_of_its_own(tmp_path: Path) -> None:
    store = open_store(tmp_path / "state.db")
    await accept(store, a_new_job())
    copy_store(tmp_path / "state.db", tmp_path / "copy", lambda _done, _of: None)
    assert not any((tmp_path / f"copy{suffix}").exists() for suffix in ("-wal", "-shm", "-journal"))
    await accept(store, a_new_job())
    await store.close()
    copy = open_store(tmp_path / "copy")
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
    """A schema that is newer than the program is refused."""
    await open_store(tmp_path / "state.db").close()
    copy_store(tmp_path / "state.db", tmp_path / "copy", lambda _done, _of: None)
    connection = apsw.Connection(str(tmp_path / "copy"))
    connection.execute("PRAGMA user_version = 999").fetchall()
    connection.close()
    with pytest.raises(StoreSchemaError, match="schema version 999"):
        inspect_copy(tmp_path / "copy")
