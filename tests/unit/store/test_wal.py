"""The write-ahead log: what a killed process leaves behind is recovered, and the file stays bounded."""

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

#: Versions up to 1.0 kept the file longer than its content, by zeros behind the last frame.
ZEROS = bytes(64 * 1024)


def opened(path: Path) -> SqliteStore:
    return open_sqlite_store(path, clock=lambda: datetime.now(UTC), rng=Random(1))


@pytest.mark.parametrize("padding", [b"", ZEROS])
async def test_the_log_of_a_killed_daemon_is_recovered(tmp_path: Path, padding: bytes) -> None:
    store = opened(tmp_path / "state.db")
    accepted = [await accept(store, a_new_job()) for _ in range(30)]
    left = tmp_path / "left"
    left.mkdir()
    for name in ("state.db", "state.db-wal"):
        shutil.copy(tmp_path / name, left / name)
    await store.close()
    with (left / "state.db-wal").open("ab") as log:
        log.write(padding)
    again = opened(left / "state.db")
    assert [(await stored(again, job_id)).id for job_id in accepted] == accepted
    await accept(again, a_new_job())
    await again.close()
    checked = apsw.Connection(str(left / "state.db")).execute("PRAGMA integrity_check").fetchall()
    assert checked == [("ok",)]


async def test_a_log_of_zeros_is_an_empty_log(tmp_path: Path) -> None:
    await opened(tmp_path / "state.db").close()
    (tmp_path / "state.db-wal").write_bytes(ZEROS)
    store = opened(tmp_path / "state.db")
    job_id = await accept(store, a_new_job())
    assert (await stored(store, job_id)).id == job_id
    await store.close()


async def test_the_log_does_not_grow_without_bound(tmp_path: Path) -> None:
    """A checkpoint every thousand pages lets SQLite begin again in the same file."""
    store = opened(tmp_path / "state.db")
    longest = 0
    for _ in range(600):
        await accept(store, a_new_job(payload={"text": "x" * 20_000}))
        longest = max(longest, (tmp_path / "state.db-wal").stat().st_size)
    await store.close()
    assert longest < 8 * 1024 * 1024
