"""The write-ahead log is kept longer than what is in it, and nobody takes the room for content."""

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
from ductile.store.sqlite.wal_room import WalRoom


def opened(path: Path) -> SqliteStore:
    return open_sqlite_store(path, clock=lambda: datetime.now(UTC), rng=Random(1))


async def test_commits_write_over_what_is_there_already(tmp_path: Path) -> None:
    store = opened(tmp_path / "state.db")
    log = tmp_path / "state.db-wal"
    await accept(store, a_new_job())
    lengths = set()
    for _ in range(20):
        await accept(store, a_new_job())
        lengths.add(log.stat().st_size)
    await store.close()
    assert len(lengths) <= 2, "it grows in large steps, not with each commit"


async def test_it_is_the_log_of_the_file_that_a_link_leads_to(tmp_path: Path) -> None:
    """SQLite follows links, and puts its log beside the file itself."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "state.db").symlink_to(tmp_path / "disk" / "state.db")
    (tmp_path / "disk" / "state.db").touch()
    store = opened(tmp_path / "state.db")
    await accept(store, a_new_job())
    room = (tmp_path / "disk" / "state.db-wal").stat().st_size
    await store.close()
    assert room > 500_000


async def test_what_a_killed_daemon_leaves_behind_is_read_as_it_was_written(tmp_path: Path) -> None:
    """With room behind the last frame, as the file lies there after a SIGKILL."""
    store = opened(tmp_path / "state.db")
    accepted = [await accept(store, a_new_job()) for _ in range(30)]
    left = tmp_path / "left"
    left.mkdir()
    for name in ("state.db", "state.db-wal"):
        shutil.copy(tmp_path / name, left / name)
    await store.close()
    assert (left / "state.db-wal").read_bytes().endswith(bytes(4096))
    again = opened(left / "state.db")
    assert [(await stored(again, job_id)).id for job_id in accepted] == accepted
    await accept(again, a_new_job())
    await again.close()
    checked = apsw.Connection(str(left / "state.db")).execute("PRAGMA integrity_check").fetchall()
    assert checked == [("ok",)]


async def test_room_in_a_log_without_a_single_frame_is_an_empty_log(tmp_path: Path) -> None:
    await opened(tmp_path / "state.db").close()
    (tmp_path / "state.db-wal").touch()
    WalRoom(str(tmp_path / "state.db-wal"), 4096).preallocate(0)
    assert (tmp_path / "state.db-wal").stat().st_size > 4096
    store = opened(tmp_path / "state.db")
    job_id = await accept(store, a_new_job())
    assert (await stored(store, job_id)).id == job_id
    await store.close()


async def test_the_log_does_not_grow_for_ever(tmp_path: Path) -> None:
    """It begins anew in the same file: a checkpoint every thousand pages, and the room behind them."""
    store = opened(tmp_path / "state.db")
    longest = 0
    for _ in range(600):
        await accept(store, a_new_job(payload={"text": "x" * 20_000}))
        longest = max(longest, (tmp_path / "state.db-wal").stat().st_size)
    await store.close()
    assert longest < 8 * 1024 * 1024


def test_no_room_is_only_slower(tmp_path: Path) -> None:
    WalRoom(str(tmp_path / "nowhere" / "state.db-wal"), 4096).preallocate(10)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("pages", [0, 1, 5])
def test_what_is_in_the_log_stays_as_it_is(tmp_path: Path, pages: int) -> None:
    frames = b"f" * (32 + pages * 4120)
    log = tmp_path / "state.db-wal"
    log.write_bytes(frames)
    WalRoom(str(tmp_path / "state.db-wal"), 4096).preallocate(pages)
    kept = log.read_bytes()
    assert kept.startswith(frames)
    assert set(kept[len(frames) :]) == {0}
