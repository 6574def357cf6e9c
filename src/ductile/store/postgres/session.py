"""The session of a verb on a PostgreSQL connection."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from random import Random
from time import thread_time

from ductile.core.expressions.regex import MatchBudget
from ductile.core.timestamps import format_timestamp
from ductile.errors import ContendedError
from ductile.store.named_sql import load_queries
from ductile.store.notifier import Change
from ductile.store.postgres.connection import Connection
from ductile.store.session import SqlValue, buffered_tables_in

#: `:name`, but not the cast `::type`.
_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")
#: An optional filter, all of which are text. PostgreSQL does not infer the type of a value that is only
#: compared with NULL.
_OPTIONAL = re.compile(r"(?<!:):([a-z_]+) IS NULL")
#: PostgreSQL text cannot hold NUL, which a plugin may print. It is stored as this noncharacter and a zero,
#: and the noncharacter itself as it and a one.
_ESCAPE = "\ufdd0"
#: The columns that count towards the size of a batch. The others are small.
_SIZE_COLUMNS = ("payload", "result", "stderr")


def load_postgres_queries() -> dict[str, str]:
    """Return the queries with the placeholders of the driver."""
    return {name: _to_driver(sql) for name, sql in load_queries("ductile.store.postgres").items()}


def _to_driver(sql: str) -> str:
    typed = _OPTIONAL.sub(r"CAST(:\1 AS text) IS NULL", sql.replace("%", "%%"))
    return _PARAMETER.sub(r"%(\1)s", typed)


class PostgresSession:
    """Named queries on one connection. The writer has one for its whole life, a reader one for each verb."""

    def __init__(
        self, connection: Connection | None, queries: Mapping[str, str], rng: Random, now: datetime
    ) -> None:
        #: Replaced when the connection was lost.
        self.connection = connection
        self._queries = queries
        self._budget: MatchBudget | None = None
        #: Rows that wait to be inserted, by query.
        self._rows: dict[str, list[Mapping[str, SqlValue]]] = {}
        self._buffered_tables: set[str] = set()
        #: The highest number given out in this transaction, by the query that reads it.
        self._seqs: dict[str, int] = {}
        self.changes: list[Change] = []
        self.written_size = 0
        self.rng = rng
        self.now = now
        self.timestamp = format_timestamp(now)

    def begin_transaction(self, now: datetime, min_timestamp: str) -> None:
        """Set the instant of the transaction; no timestamp is earlier than `min_timestamp`."""
        self._seqs.clear()
        self.now = now
        self.timestamp = max(format_timestamp(now), min_timestamp)

    def begin_request(self) -> None:
        self._budget = None
        self.changes = []

    @property
    def regex_budget(self) -> MatchBudget:
        if self._budget is None:
            self._budget = MatchBudget(thread_time)
        return self._budget

    def fetch_one(self, query: str, /, **values: SqlValue) -> tuple[SqlValue, ...] | None:
        rows = self.fetch_all(query, **values)
        return rows[0] if rows else None

    def value(self, query: str, /, **values: SqlValue) -> SqlValue:
        rows = self.fetch_all(query, **values)
        return rows[0][0] if rows else None

    def fetch_all(self, query: str, /, **values: SqlValue) -> list[tuple[SqlValue, ...]]:
        with self._connected.cursor() as cursor:
            cursor.execute(self._sql_after_flush(query), _storable(values))
            return [restored_row(row) for row in cursor.fetchall()] if cursor.description else []

    def insert(self, query: str, /, **values: SqlValue) -> bool:
        return self._change(query, values) > 0

    def execute(self, query: str, /, **values: SqlValue) -> None:
        self._change(query, values)

    def update_one(self, query: str, /, **values: SqlValue) -> None:
        if (changed := self._change(query, values)) != 1:
            raise ContendedError(f"{query} changed {changed} rows instead of one")

    def next_seq(self, max_seq_query: str, /) -> int:
        known = self._seqs.get(max_seq_query)
        if known is None:
            known = self.value(max_seq_query) or 0
        self._seqs[max_seq_query] = known + 1
        return known + 1

    def insert_buffered(self, query: str, values: Mapping[str, SqlValue], /) -> None:
        self._rows.setdefault(query, []).append(values)
        self._buffered_tables |= buffered_tables_in(self._queries[query])
        self.written_size += sum(
            len(text) for name in _SIZE_COLUMNS if (text := values.get(name)) is not None
        )

    def publish(self, change: Change, /) -> None:
        self.changes.append(change)

    def flush(self) -> None:
        """Insert the buffered rows, in one round trip for each query."""
        waiting, self._rows = self._rows, {}
        self._buffered_tables.clear()
        for query, rows in waiting.items():
            with self._connected.cursor() as cursor:
                cursor.executemany(self._queries[query], [_storable(values) for values in rows])

    def discard(self) -> None:
        self._rows.clear()
        self._buffered_tables.clear()
        self._seqs.clear()

    @property
    def _connected(self) -> Connection:
        assert self.connection is not None  # noqa: S101 - set when a transaction begins
        return self.connection

    def _change(self, query: str, values: Mapping[str, SqlValue]) -> int:
        with self._connected.cursor() as cursor:
            return cursor.execute(self._sql_after_flush(query), _storable(values)).rowcount

    def _sql_after_flush(self, query: str) -> str:
        sql = self._queries[query]
        if not self._buffered_tables.isdisjoint(buffered_tables_in(sql)):
            self.flush()
        return sql


def _storable(values: Mapping[str, SqlValue]) -> Mapping[str, SqlValue]:
    """Return the values with text that PostgreSQL can hold."""
    if any(isinstance(value, str) and ("\x00" in value or _ESCAPE in value) for value in values.values()):
        return dict(zip(values, storable_row(tuple(values.values())), strict=True))
    return values


def storable_row(row: tuple[SqlValue, ...]) -> tuple[SqlValue, ...]:
    """Return a row with text that PostgreSQL can hold."""
    if any(isinstance(value, str) and ("\x00" in value or _ESCAPE in value) for value in row):
        return tuple(
            value.replace(_ESCAPE, f"{_ESCAPE}1").replace("\x00", f"{_ESCAPE}0")
            if isinstance(value, str)
            else value
            for value in row
        )
    return row


def restored_row(row: tuple[SqlValue, ...]) -> tuple[SqlValue, ...]:
    """Return a row as it was before `storable_row`."""
    if any(isinstance(value, str) and _ESCAPE in value for value in row):
        return tuple(
            value.replace(f"{_ESCAPE}0", "\x00").replace(f"{_ESCAPE}1", _ESCAPE)
            if isinstance(value, str)
            else value
            for value in row
        )
    return row
