"""A write-ahead log with a damaged frame is detected and kept, although SQLite ignores the frames after
it.
"""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from builders.jobs import a_new_job
from builders.stores import accept
from ductile.store.sqlite.connection import wal_path
from ductile.store.sqlite.store import SqliteStore, open_sqlite_store
from ductile.store.sqlite.wal_damage import WalDamage, find_wal_damage

FRAME = 24 + 4096
HEADER = 32


def open_store(path: Path) -> SqliteStore:
    return open_sqlite_store(path, clock=lambda: datetime.now(UTC), rng=Random(1))


async def store_of_killed_process(directory: Path, jobs: int) -> tuple[Path, list[str]]:
    """Return the path of the store of a killed process, and the ids of the jobs that it had accepted."""
    store = open_store(directory / "writing" / "state.db")
    ids = [await accept(store, a_new_job()) for _ in range(jobs)]
    path = directory / "left" / "state.db"
    path.parent.mkdir(parents=True)
    for name in ("state.db", "state.db-wal"):
        shutil.copy(directory / "writing" / name, path.with_name(name))
    await store.close()
    return path, ids


async def count_known(store: SqliteStore, ids: list[str]) -> int:
    return sum([await store.get_job(job_id) is not None for job_id in ids])


def count_frames(log: bytes) -> int:
    return len(log.rstrip(b"\0")) // FRAME


def damage_byte(log: Path, offset: int) -> None:
    content = bytearray(log.read_bytes())
    content[offset] ^= 0xFF
    log.write_bytes(bytes(content))


async def test_the_log_of_a_killed_process_is_whole(tmp_path: Path) -> None:
    path, ids = await store_of_killed_process(tmp_path, 5)
    assert find_wal_damage(wal_path(path)) is None
    store = open_store(path)
    assert store.damaged_wal is None
    assert await count_known(store, ids) == 5
    await store.close()


async def test_a_log_that_ends_in_the_middle_of_a_frame_is_whole(tmp_path: Path) -> None:
    """The process was killed during a write that was not acknowledged."""
    path, _ = await store_of_killed_process(tmp_path, 3)
    content = wal_path(path).read_bytes()
    end = len(content.rstrip(b"\0"))
    for cut in (0, 10, HEADER, HEADER + 7, end // 2, end - 4000, end - 1):
        wal_path(path).write_bytes(content[:cut])
        assert find_wal_damage(wal_path(path)) is None


async def test_a_damaged_frame_is_found_wherever_it_is_but_in_the_last_transaction(tmp_path: Path) -> None:
    """If SQLite drops more than one transaction, the damage is reported.

    Every ninth frame of the migrations is damaged, and every frame of the jobs.
    """
    empty, _ = await store_of_killed_process(tmp_path / "empty", 0)
    migration_frames = count_frames(wal_path(empty).read_bytes())
    path, ids = await store_of_killed_process(tmp_path, 12)
    file, content = path.read_bytes(), wal_path(path).read_bytes()
    rng = Random(5)
    for frame in (*range(0, migration_frames, 9), *range(migration_frames, count_frames(content))):
        path.write_bytes(file)
        wal_path(path).write_bytes(content)
        damage_byte(wal_path(path), HEADER + frame * FRAME + rng.randrange(FRAME))
        damage = find_wal_damage(wal_path(path))
        damaged = wal_path(path).read_bytes()
        try:
            store = open_store(path)
        except Exception:  # noqa: BLE001 - not a store any more: refused and unchanged
            assert wal_path(path).read_bytes() == damaged
            continue
        lost = 12 - await count_known(store, ids)
        assert damage is not None or lost <= 1, frame
        if damage is not None:
            assert damage.transactions >= lost - 1
            assert store.damaged_wal is not None
            assert store.damaged_wal.path.read_bytes() == damaged
            assert store.damaged_wal.path.stat().st_mode & 0o777 == 0o600
            (kept_path,) = (await store.stats()).damaged_wals
            assert kept_path == str(store.damaged_wal.path)
            store.damaged_wal.path.unlink()
        await store.close()


@pytest.mark.parametrize("offset", [0, 9, 16, 24])
async def test_a_damaged_header_is_found(tmp_path: Path, offset: int) -> None:
    path, _ = await store_of_killed_process(tmp_path, 3)
    damage_byte(wal_path(path), offset)
    damage = find_wal_damage(wal_path(path))
    assert isinstance(damage, WalDamage)
    assert damage.transactions >= 3


async def test_a_log_that_was_begun_anew_is_whole(tmp_path: Path) -> None:
    """Behind the end are frames of an earlier round, with other salts."""
    store = open_store(tmp_path / "state.db")
    for _ in range(200):
        await accept(store, a_new_job(payload={"x": "y" * 20_000}))
    assert find_wal_damage(tmp_path / "state.db-wal") is None
    await store.close()
    assert find_wal_damage(tmp_path / "state.db-wal") is None
