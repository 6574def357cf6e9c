"""Size, schema version, filesystem and damage of the store's file."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ductile.store.model.maintenance import StoreStats
from ductile.store.session import Session
from ductile.store.sqlite.connection import filesystem_of, read_mounts, wal_path
from ductile.store.sqlite.migrate import migrations
from ductile.store.sqlite.wal_damage import damaged_wal_copies
from ductile.struct import Value

_OK = "ok"
#: In every message about damage of the full-text index.
_FTS_MARKER = "fts5"


class StoreDamage(Value):
    file: tuple[str, ...] = ()
    #: Of the full-text index.
    fts: tuple[str, ...] = ()


def find_damage(session: Session) -> StoreDamage:
    """Return the damage that SQLite finds in the file.

    Needs a new connection: one that has searched before may cache parts of the full-text index from an
    earlier snapshot, and report the difference as damage.
    """
    return split_damage(str(row[0]) for row in session.all("check_damage"))


def split_damage(found: Iterable[str]) -> StoreDamage:
    wrong = [line for line in found if line != _OK]
    return StoreDamage(
        file=tuple(line for line in wrong if _FTS_MARKER not in line.lower()),
        fts=tuple(line for line in wrong if _FTS_MARKER in line.lower()),
    )


def read_stats(session: Session, path: Path) -> StoreStats:
    damage = find_damage(session)
    version = session.one("check_schema_version")
    return StoreStats(
        path=str(path),
        size=_size(path),
        wal_size=_size(wal_path(path)),
        schema_version=0 if version is None else int(version[0]),
        newest_schema=migrations()[-1][0],
        filesystem=filesystem_of(path.resolve(), read_mounts()),
        damage=damage.file,
        search_damage=damage.fts,
        damaged_wals=tuple(map(str, damaged_wal_copies(path.resolve()))),
    )


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0
