"""A store that another process writes can be looked at, and is not written to."""

from __future__ import annotations

import threading
from pathlib import Path

import apsw
import pytest

from builders.jobs import Clock, a_new_job, ok, some_policy, some_rng
from builders.stores import accept, claim_one
from ductile.core.jobs.model import JobStatus
from ductile.errors import StoreBusyError, StoreFailedError, StoreSchemaError
from ductile.store.model.jobs import Submission
from ductile.store.model.records import JobFilter
from ductile.store.sqlite.store import open_sqlite_store, open_sqlite_store_read_only


async def test_it_shows_what_is_committed_while_the_other_goes_on(tmp_path: Path) -> None:
    """Each read sees the last commit; closing it disturbs no other reader."""
    path = tmp_path / "state.db"
    writing = open_sqlite_store(path, clock=Clock(), rng=some_rng())
    looking = open_sqlite_store_read_only(path, clock=Clock())
    assert looking.store_id == writing.store_id
    job = a_new_job()
    await accept(writing, job)
    assert [each.id for each in (await looking.list_jobs(JobFilter(), limit=9)).rows] == [job.id]
    claimed = await claim_one(writing)
    await looking.close()
    await writing.settle(claimed, ok(), some_policy())
    looking = open_sqlite_store_read_only(path, clock=Clock())
    found = await looking.get_job(job.id)
    assert found is not None
    assert found.status is JobStatus.SUCCEEDED
    await looking.close()
    await writing.close()


async def test_it_refuses_to_write(tmp_path: Path) -> None:
    """The error says to try again: another process has the store."""
    path = tmp_path / "state.db"
    writing = open_sqlite_store(path, clock=Clock(), rng=some_rng())
    looking = open_sqlite_store_read_only(path, clock=Clock())
    with pytest.raises(StoreBusyError, match="another process writes"):
        await looking.enqueue(Submission(jobs=(a_new_job(),)))
    with pytest.raises(StoreBusyError):
        await looking.release_due()
    await looking.close()
    await writing.close()


async def test_another_version_is_not_looked_at(tmp_path: Path) -> None:
    """Our queries would not fit, and bringing it up to date is not for who may only look."""
    path = tmp_path / "state.db"
    writing = open_sqlite_store(path, clock=Clock(), rng=some_rng())
    await writing.close()
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", 1)
    connection.close()
    with pytest.raises(StoreSchemaError, match="has schema version 1"):
        open_sqlite_store_read_only(path, clock=Clock())
    with pytest.raises(StoreFailedError):
        open_sqlite_store_read_only(tmp_path / "nowhere.db", clock=Clock())


async def test_without_a_thread_a_read_is_refused_for_now(tmp_path: Path) -> None:
    """A shortage of the machine, which ends neither the daemon nor the store."""
    store = open_sqlite_store(tmp_path / "state.db", clock=Clock(), rng=some_rng())
    job = a_new_job()
    await accept(store, job)
    usual = threading.stack_size(2**46)  # more bytes than any address space has
    try:
        with pytest.raises(StoreBusyError):
            await store.get_job(job.id)
    finally:
        threading.stack_size(usual)
    assert await store.get_job(job.id) is not None
    await store.close()
