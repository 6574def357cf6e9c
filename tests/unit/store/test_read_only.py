"""A store that another process writes can be read, and is not written to."""

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
    """Each read sees the last commit; closing disturbs no other reader."""
    path = tmp_path / "state.db"
    writer = open_sqlite_store(path, clock=Clock(), rng=some_rng())
    reader = open_sqlite_store_read_only(path, clock=Clock())
    assert reader.store_id == writer.store_id
    job = a_new_job()
    await accept(writer, job)
    assert [row.id for row in (await reader.list_jobs(JobFilter(), limit=9)).rows] == [job.id]
    claimed = await claim_one(writer)
    await reader.close()
    await writer.settle(claimed, ok(), some_policy())
    reader = open_sqlite_store_read_only(path, clock=Clock())
    settled_job = await reader.get_job(job.id)
    assert settled_job is not None
    assert settled_job.status is JobStatus.SUCCEEDED
    await reader.close()
    await writer.close()


async def test_it_refuses_to_write(tmp_path: Path) -> None:
    """The error says to try again, because another process has the store."""
    path = tmp_path / "state.db"
    writer = open_sqlite_store(path, clock=Clock(), rng=some_rng())
    reader = open_sqlite_store_read_only(path, clock=Clock())
    with pytest.raises(StoreBusyError, match="another process writes"):
        await reader.enqueue(Submission(jobs=(a_new_job(),)))
    with pytest.raises(StoreBusyError):
        await reader.release_due()
    await reader.close()
    await writer.close()


async def test_another_version_is_not_looked_at(tmp_path: Path) -> None:
    """The queries do not fit another schema, and a reader must not migrate it."""
    path = tmp_path / "state.db"
    writer = open_sqlite_store(path, clock=Clock(), rng=some_rng())
    await writer.close()
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", 1)
    connection.close()
    with pytest.raises(StoreSchemaError, match="has schema version 1"):
        open_sqlite_store_read_only(path, clock=Clock())
    with pytest.raises(StoreFailedError):
        open_sqlite_store_read_only(tmp_path / "nowhere.db", clock=Clock())


async def test_without_a_thread_a_read_is_refused_for_now(tmp_path: Path) -> None:
    """A shortage of threads ends neither the daemon nor the store."""
    store = open_sqlite_store(tmp_path / "state.db", clock=Clock(), rng=some_rng())
    job = a_new_job()
    await accept(store, job)
    default_size = threading.stack_size(2**46)  # more bytes than any address space has
    try:
        with pytest.raises(StoreBusyError):
            await store.get_job(job.id)
    finally:
        threading.stack_size(default_size)
    assert await store.get_job(job.id) is not None
    await store.close()
