"""The write-ahead log of a killed process is recovered, and the file stays bounded."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import apsw
import pytest

from builders.jobs import a_new_job
from builders.stores import accept, stored
from ductile.store.sqlite.store import SqliteStore, open_sqlite_store

#: Versions up to 1.0 extended the file by zeros behind the last frame.
ZEROS = bytes(64 * 1024)


def open_store(path: Path) -> SqliteStore:
    return open_sqlite_store(path, clock=lambda: datetime.now(UTC), rng=Random(1))


@pytest.mark.parametrize("padding", [b"", ZEROS])
async def test_the_log_of_a_killed_daemon_is_recovered(tmp_path: Path, padding: bytes) -> None:
    store = open_store(tmp_path / "state.db")
    accepted = [await accept(store, a_new_job()) for _ in range(30)]
    copy_directory = tmp_path / "left"
    copy_directory.mkdir()
    for name in ("state.db", "state.db-wal"):
        shutil.copy(tmp_path / name, copy_directory / name)
    await store.close()
    with (copy_directory / "state.db-wal").open("ab") as log:
        log.write(padding)
    reopened = open_store(copy_directory / "state.db")
    assert [(await stored(reopened, job_id)).id for job_id in accepted] == accepted
    await accept(reopened, a_new_job())
    await reopened.close()
    integrity = apsw.Connection(str(copy_directory / "state.db")).execute("PRAGMA integrity_check").fetchall()
    assert integrity == [("ok",)]


async def test_a_log_of_zeros_is_an_empty_log(tmp_path: Path) -> None:
    await open_store(tmp_path / "state.db").close()
    (tmp_path / "state.db-wal").write_bytes(ZEROS)
    store = open_store(tmp_path / "state.db")
    job_id = await accept(store, a_new_job())
    assert (await stored(store, job_id)).id == job_id
    await store.close()


async def test_the_log_does_not_grow_without_bound(tmp_path: Path) -> None:
    """A checkpoint every thousand pages lets SQLite reuse the file from its beginning."""
    store = open_store(tmp_path / "state.db")
    longest = 0
    for _ in range(600):
        await accept(store, a_new_job(payload={"text": "x" * 20_000}))
        longest = max(longest, (tmp_path / "state.db-wal").stat().st_size)
    await store.close()
    assert longest < 8 * 1024 * 1024
