"""The file that the store is: its size, its format, where it lies, and what SQLite finds wrong with it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ductile.store.session import Session
from ductile.store.sqlite.connection import filesystem_of, read_mounts
from ductile.store.sqlite.migrate import migrations
from ductile.store.values.upkeep import StoreVitals

_SOUND = "ok"


def read_vitals(session: Session, path: Path) -> StoreVitals:
    found = [str(row[0]) for row in session.all("check_damage")]
    version = session.one("check_schema_version")
    return StoreVitals(
        place=str(path),
        size=_size(path),
        log_size=_size(path.with_name(f"{path.name}-wal")),
        schema_version=0 if version is None else int(version[0]),
        newest_schema=migrations()[-1][0],
        filesystem=filesystem_of(path.resolve(), read_mounts()),
        damage=() if found == [_SOUND] else tuple(found),
    )


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0
