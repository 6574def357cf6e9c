"""A transaction on an SQLite connection, as the verbs see it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from random import Random
from time import thread_time
from typing import cast

import apsw

from ductile.core.expressions.regex import MatchBudget
from ductile.core.timestamps import format_timestamp
from ductile.errors import StoreError
from ductile.store.session import Cell
from ductile.store.sqlite.insert_buffer import InsertBuffer
from ductile.store.sqlite.statements import Statement

#: Rows that weigh more are written by a statement that is not kept: with it would be kept what it wrote.
_KEPT = 64 * 1024


class SqliteSession:
    """Named queries on one connection. `begin_at` sets the instant of the transaction that follows."""

    __slots__ = (
        "_appended",
        "_budget",
        "_connection",
        "_execute",
        "_last_stamp",
        "_numbers",
        "_queries",
        "_rows",
        "_version",
        "now",
        "outbox_dirty",
        "rng",
        "stamp",
        "weight",
    )

    def __init__(
        self, connection: apsw.Connection, queries: Mapping[str, Statement], rng: Random, now: datetime
    ) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._queries = queries
        self._last_stamp = ""
        self._budget: MatchBudget | None = None
        #: By query, and the tables for which some wait.
        self._rows: dict[str, InsertBuffer] = {}
        self._appended: set[str] = set()
        #: The highest number of a table, by the query that tells it.
        self._numbers: dict[str, int] = {}
        #: Of the whole file, after the last commit of ours.
        self._version = -1
        #: Whether the transaction has made a delivery due.
        self.outbox_dirty = False
        #: Of all that was appended so far, in whatever transaction.
        self.weight = 0
        self.rng = rng
        self.now = now
        self.stamp = format_timestamp(now)

    def begin_unit(self) -> None:
        """Another verb's work begins; a batch has many."""
        self._budget = None

    @property
    def budget(self) -> MatchBudget:
        if self._budget is None:
            self._budget = MatchBudget(thread_time)
        return self._budget

    def begin_at(self, now: datetime) -> None:
        self.outbox_dirty = False
        if self._connection.data_version() != self._version:
            self._numbers.clear()  # somebody else has written since
        self.now = now
        self.stamp = self._last_stamp = max(format_timestamp(now), self._last_stamp)

    def committed(self) -> None:
        self._version = self._connection.data_version()

    def set_floor(self, stamp: str) -> None:
        """Instants written from now on are not earlier than this one."""
        self._last_stamp = max(self._last_stamp, stamp)

    def one(self, query: str, /, **values: Cell) -> tuple[Cell, ...] | None:
        # All rows are fetched even for one: a statement that has not run to its end blocks the commit.
        rows = self.all(query, **values)
        return rows[0] if rows else None

    def all(self, query: str, /, **values: Cell) -> list[tuple[Cell, ...]]:
        sql, in_order, tables, _ = self._queries[query]
        if not self._appended.isdisjoint(tables):
            self._write(self._appended & tables)
        return cast("list[tuple[Cell, ...]]", self._execute(sql, in_order(values)).fetchall())

    def insert(self, query: str, /, **values: Cell) -> int | None:
        # RETURNING would do it too, but builds a table for its rows: it doubled the cost of an insert.
        self.run(query, **values)
        return self._connection.last_insert_rowid() if self._connection.changes() else None

    def run(self, query: str, /, **values: Cell) -> None:
        sql, in_order, tables, _ = self._queries[query]
        if not self._appended.isdisjoint(tables):
            self._write(self._appended & tables)
        self._execute(sql, in_order(values))

    def number(self, highest: str, /) -> int:
        known = self._numbers.get(highest)
        if known is None:
            found = self.one(highest)
            known = (found[0] if found else None) or 0
        self._numbers[highest] = known + 1
        return known + 1

    def append(self, query: str, values: Mapping[str, Cell], /) -> None:
        rows = self._rows.get(query)
        if rows is None:
            rows = self._rows[query] = InsertBuffer(self._queries[query].text)
        self.weight += rows.add(values)
        self._appended.add(rows.table)

    def flush(self) -> None:
        """Write what was appended. To be called before the transaction is committed."""
        if self._appended:
            self._write(set(self._appended))

    def _write(self, tables: set[str]) -> None:
        self._appended -= tables
        for rows in self._rows.values():
            if rows.table in tables:
                kept = rows.weight < _KEPT
                for sql, values in rows.take():
                    self._execute(sql, values, can_cache=kept)

    def discard(self) -> None:
        """Forget what was appended: the transaction was rolled back, or a part of it."""
        self._appended.clear()
        self._numbers.clear()
        for rows in self._rows.values():
            rows.discard()

    def outbox_grew(self) -> None:
        self.outbox_dirty = True

    def change(self, query: str, /, **values: Cell) -> None:
        self.run(query, **values)
        if (changed := self._connection.changes()) != 1:
            raise StoreError(f"{query} changed {changed} rows and not one")
