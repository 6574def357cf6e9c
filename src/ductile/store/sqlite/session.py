"""A transaction on an SQLite connection, as the verbs see it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from random import Random
from typing import cast

import apsw

from ductile.core.instants import format_instant
from ductile.errors import StoreError
from ductile.store.session import Cell


class SqliteSession:
    """Named queries on one connection. `begin_at` sets the instant of the transaction that follows."""

    __slots__ = ("_connection", "_execute", "_last_stamp", "_queries", "dice", "now", "stamp")

    def __init__(
        self, connection: apsw.Connection, queries: Mapping[str, str], dice: Random, now: datetime
    ) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._queries = queries
        self._last_stamp = ""
        self.dice = dice
        self.now = now
        self.stamp = format_instant(now)

    def begin_at(self, now: datetime) -> None:
        self.now = now
        self.stamp = self._last_stamp = max(format_instant(now), self._last_stamp)

    def never_before(self, stamp: str) -> None:
        """Instants written from now on are not earlier than this one."""
        self._last_stamp = max(self._last_stamp, stamp)

    def one(self, query: str, /, **values: Cell) -> tuple[Cell, ...] | None:
        # All rows are fetched even for one: a statement that has not run to its end blocks the commit.
        rows = self._execute(self._queries[query], values).fetchall()
        return cast("tuple[Cell, ...]", rows[0]) if rows else None

    def all(self, query: str, /, **values: Cell) -> list[tuple[Cell, ...]]:
        return cast("list[tuple[Cell, ...]]", self._execute(self._queries[query], values).fetchall())

    def insert(self, query: str, /, **values: Cell) -> int | None:
        # RETURNING would do it too, but builds a table for its rows: it doubled the cost of an insert.
        self._execute(self._queries[query], values)
        return self._connection.last_insert_rowid() if self._connection.changes() else None

    def run(self, query: str, /, **values: Cell) -> None:
        self._execute(self._queries[query], values)

    def change(self, query: str, /, **values: Cell) -> None:
        self._execute(self._queries[query], values)
        if (changed := self._connection.changes()) != 1:
            raise StoreError(f"{query} changed {changed} rows and not one")
