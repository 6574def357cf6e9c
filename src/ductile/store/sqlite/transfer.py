"""A whole SQLite store as rows: one that is copied, and a new file that is filled."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime
from functools import cache
from pathlib import Path
from random import Random
from typing import cast

import apsw

from ductile.errors import StoreFailedError
from ductile.store.named_sql import load_queries
from ductile.store.sqlite.connection import BUSY_TIMEOUT_MS, translated
from ductile.store.sqlite.migrate import migrate, refuse_other_version
from ductile.store.sqlite.session import SqliteSession
from ductile.store.transfer import CopiedTable, Row
from ductile.store.verbs.maintenance import index_log

#: Rows that belong to running processes, not to the store.
_NOT_COPIED = frozenset({"nodes"})
_BUILDING_CACHE_KIB = 64 * 1024


@cache
def store_tables() -> tuple[CopiedTable, ...]:
    """Return the tables of a store of the newest version, which have the same columns in every database.

    The full-text index is not among them: it is built from the log.
    """
    with closing(apsw.Connection(":memory:")) as connection:
        migrate(connection, Path(":memory:"))
        rows = connection.execute(
            "SELECT entry.name, field.name, field.pk FROM sqlite_schema AS entry "
            "JOIN pragma_table_xinfo(entry.name) AS field "
            "WHERE entry.type = 'table' AND field.hidden = 0 "
            "AND entry.name NOT GLOB 'sqlite_*' AND entry.name NOT GLOB 'job_log_text*' "
            "ORDER BY entry.name, field.cid"
        ).fetchall()
    fields = cast("list[tuple[str, str, int]]", rows)
    tables = []
    for name in sorted({table for table, _, _ in fields} - _NOT_COPIED):
        columns = [(column, pk) for table, column, pk in fields if table == name]
        key = sorted((pk, column) for column, pk in columns if pk)  # in the order of the primary key
        tables.append(
            CopiedTable(
                name=name,
                columns=tuple(column for column, _ in columns),
                key=tuple(column for _, column in key),
            )
        )
    return tuple(tables)


class SqliteRows:
    """`ductile.store.transfer.StoreTarget` on one connection; a source uses the reading half."""

    def __init__(self, connection: apsw.Connection, now: datetime) -> None:
        self._connection = connection
        self.session = SqliteSession(connection, load_queries("ductile.store.sqlite"), Random(0), now)

    def count(self, table: CopiedTable) -> int:
        ((rows,),) = self._connection.execute(f"SELECT count(*) FROM {table.name}").fetchall()  # noqa: S608 - our names
        return int(cast("int", rows))

    def read(self, table: CopiedTable) -> Iterator[Row]:
        sql = f"SELECT {', '.join(table.columns)} FROM {table.name} ORDER BY {', '.join(table.key)}"  # noqa: S608
        return iter(self._connection.execute(sql))

    def last_numbers(self) -> Mapping[str, int]:
        rows = self._connection.execute("SELECT name, seq FROM sqlite_sequence").fetchall()
        return {str(name): int(cast("int", seq)) for name, seq in rows}

    def write(self, table: CopiedTable, rows: Iterable[Row]) -> None:
        places = ", ".join("?" * len(table.columns))
        sql = f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES ({places})"  # noqa: S608 - our names
        self._connection.execute("BEGIN").fetchall()
        self._connection.executemany(sql, rows)
        self._connection.execute("COMMIT").fetchall()

    def continue_numbers(self, last_numbers: Mapping[str, int]) -> None:
        present = self.last_numbers()
        # The tables whose highest number is stored apart from their rows.
        numbered_tables = self._connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql LIKE '%AUTOINCREMENT%'"
        ).fetchall()
        for name in [str(name) for (name,) in numbered_tables]:
            number = max(last_numbers.get(name, 0), present.get(name, 0))
            self._connection.execute("DELETE FROM sqlite_sequence WHERE name = ?", (name,)).fetchall()
            if number:
                self._connection.execute(
                    "INSERT INTO sqlite_sequence VALUES (?, ?)", (name, number)
                ).fetchall()

    def build_search_index(self, on_rows: Callable[[int], None]) -> None:
        """Fill the full-text index from the log."""
        self._connection.execute("BEGIN").fetchall()
        while done := index_log(self.session):
            on_rows(done)
        self._connection.execute("COMMIT").fetchall()


@contextmanager
def open_source(path: Path, now: datetime) -> Iterator[SqliteRows]:
    """Open a store of the newest version for reading, as it is now.

    The connection could write, because one that cannot would leave an empty log beside the file.
    """
    flags = apsw.SQLITE_OPEN_READWRITE
    with translated(path), closing(apsw.Connection(str(path), flags=flags)) as connection:
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        connection.execute("PRAGMA query_only = ON").fetchall()
        refuse_other_version(connection, path)
        connection.execute("BEGIN").fetchall()
        yield SqliteRows(connection, now)


@contextmanager
def create_target(path: Path, now: datetime) -> Iterator[SqliteRows]:
    """Create a store in a new file, and sync it to disk at the end.

    The file has no journal: if the process dies, it is worthless, and a caller uses it only after the end.
    """
    with translated(path):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as connection:
            for pragma in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_BUILDING_CACHE_KIB}"):
                connection.execute(f"PRAGMA {pragma}").fetchall()
            migrate(connection, path)
            yield SqliteRows(connection, now)
            if (damage := str(connection.pragma("quick_check"))) != "ok":
                raise StoreFailedError(
                    f"the new file is damaged: {damage.partition(chr(10))[0]}", hint="Check the disk."
                )
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
