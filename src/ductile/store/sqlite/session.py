"""A transaction on an SQLite connection, as the verbs see it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from operator import itemgetter
from random import Random
from typing import NamedTuple, cast

import apsw

from ductile.core.instants import format_instant
from ductile.errors import StoreError
from ductile.store.queries import load_queries
from ductile.store.session import Cell

_NAME = re.compile(r":([a-z_]+)")


class Query(NamedTuple):
    """A query ready to be run: its names are places, which binds in two thirds of the time."""

    sql: str
    #: The values in the order of their places.
    in_order: Callable[[Mapping[str, Cell]], tuple[Cell, ...]]


def compile_query(sql: str) -> Query:
    names = tuple(dict.fromkeys(_NAME.findall(sql)))
    places = {name: f"?{place}" for place, name in enumerate(names, start=1)}
    return Query(sql=_NAME.sub(lambda found: places[found[1]], sql), in_order=_picker(names))


def _picker(names: tuple[str, ...]) -> Callable[[Mapping[str, Cell]], tuple[Cell, ...]]:
    match names:
        case ():
            return lambda _values: ()
        case (name,):  # itemgetter gives no tuple for one
            return lambda values: (values[name],)
        case _:
            return itemgetter(*names)


def load_compiled(package: str) -> dict[str, Query]:
    return {name: compile_query(sql) for name, sql in load_queries(package).items()}


class SqliteSession:
    """Named queries on one connection. `begin_at` sets the instant of the transaction that follows."""

    __slots__ = ("_connection", "_execute", "_last_stamp", "_queries", "dice", "has_mail", "now", "stamp")

    def __init__(
        self, connection: apsw.Connection, queries: Mapping[str, Query], dice: Random, now: datetime
    ) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._queries = queries
        self._last_stamp = ""
        #: Whether the transaction has made a delivery due.
        self.has_mail = False
        self.dice = dice
        self.now = now
        self.stamp = format_instant(now)

    def begin_at(self, now: datetime) -> None:
        self.has_mail = False
        self.now = now
        self.stamp = self._last_stamp = max(format_instant(now), self._last_stamp)

    def never_before(self, stamp: str) -> None:
        """Instants written from now on are not earlier than this one."""
        self._last_stamp = max(self._last_stamp, stamp)

    def one(self, query: str, /, **values: Cell) -> tuple[Cell, ...] | None:
        # All rows are fetched even for one: a statement that has not run to its end blocks the commit.
        sql, in_order = self._queries[query]
        rows = self._execute(sql, in_order(values)).fetchall()
        return cast("tuple[Cell, ...]", rows[0]) if rows else None

    def all(self, query: str, /, **values: Cell) -> list[tuple[Cell, ...]]:
        sql, in_order = self._queries[query]
        return cast("list[tuple[Cell, ...]]", self._execute(sql, in_order(values)).fetchall())

    def insert(self, query: str, /, **values: Cell) -> int | None:
        # RETURNING would do it too, but builds a table for its rows: it doubled the cost of an insert.
        sql, in_order = self._queries[query]
        self._execute(sql, in_order(values))
        return self._connection.last_insert_rowid() if self._connection.changes() else None

    def run(self, query: str, /, **values: Cell) -> None:
        sql, in_order = self._queries[query]
        self._execute(sql, in_order(values))

    def outbox_grew(self) -> None:
        self.has_mail = True

    def change(self, query: str, /, **values: Cell) -> None:
        self.run(query, **values)
        if (changed := self._connection.changes()) != 1:
            raise StoreError(f"{query} changed {changed} rows and not one")
