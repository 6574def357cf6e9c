"""The session of a verb on an SQLite connection, and the buffer of rows that are inserted together.

Each statement releases and takes the GIL, which costs a busy daemon more than the statement
itself; so rows of the busiest tables wait in an `InsertBuffer` until a query reads their table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from operator import itemgetter
from random import Random
from time import thread_time
from typing import cast

import apsw

from ductile.core.expressions.regex import MatchBudget
from ductile.core.timestamps import format_timestamp
from ductile.errors import ContendedError, StoreError
from ductile.store.notifier import Change
from ductile.store.session import SqlValue, buffered_tables_in

#: The first value must be a parameter: with a constant, a padding row would not begin with NULL.
_INSERT = re.compile(r"(INSERT INTO (\w+) .*?)\bVALUES\s*(\(\s*:[^()]*\))(.*)", re.DOTALL)
_PARAMETER = re.compile(r":([a-z_]+)")
_MAX_ROWS = 64
#: The columns that count towards the size of a batch. The others are small.
_SIZE_COLUMNS = ("payload", "result", "stderr")


class InsertBuffer:
    """The waiting rows of one query, which inserts one row.

    The rows are padded with all-NULL rows to a power of two, so that only seven statements exist. The WHERE
    clause drops the padding, so the first column of a real row must never be NULL.
    """

    def __init__(self, sql: str) -> None:
        match = _INSERT.fullmatch(sql)
        if match is None:
            raise StoreError(f"not an INSERT of one row: {sql}")
        self._sql_prefix, self.table, row, self._sql_suffix = match.groups()
        names = tuple(_PARAMETER.findall(row))
        self._row_placeholders = _PARAMETER.sub("?", row)
        self._padding_row: tuple[SqlValue, ...] = (None,) * len(names)
        self._bind: Callable[[Mapping[str, SqlValue]], tuple[SqlValue, ...]] = itemgetter(*names)
        self._size_columns = tuple(names.index(name) for name in _SIZE_COLUMNS if name in names)
        self._statements: dict[int, str] = {}
        self._rows: list[tuple[SqlValue, ...]] = []
        #: Characters in the large columns of the waiting rows.
        self.size = 0

    def add(self, values: Mapping[str, SqlValue]) -> int:
        """Add a row. Returns the characters in its large columns."""
        row = self._bind(values)
        if row[0] is None:
            raise StoreError(f"the first column of a row for {self.table} is NULL")
        self._rows.append(row)
        size = 0
        for column in self._size_columns:
            if (text := row[column]) is not None:
                size += len(text)
        self.size += size
        return size

    def discard(self) -> None:
        self._rows, self.size = [], 0

    def take(self) -> Iterator[tuple[str, tuple[SqlValue, ...]]]:
        """Empty the buffer. Yields statements with their values."""
        waiting = self._rows
        self.discard()
        while waiting:
            rows, waiting = waiting[:_MAX_ROWS], waiting[_MAX_ROWS:]
            capacity = 1 << (len(rows) - 1).bit_length()
            rows += [self._padding_row] * (capacity - len(rows))
            if capacity not in self._statements:
                places = ", ".join([self._row_placeholders] * capacity)
                # SQLite calls the first column of a list of values `column1`.
                rows_in_use = f"SELECT * FROM (VALUES {places}) WHERE column1 IS NOT NULL"  # noqa: S608 - our own query
                self._statements[capacity] = f"{self._sql_prefix}{rows_in_use}{self._sql_suffix}"
            yield self._statements[capacity], tuple(chain.from_iterable(rows))


#: Statements for larger rows are not cached: SQLite keeps the values that were bound last with the statement.
_LARGEST_CACHED = 64 * 1024


class SqliteSession:
    """Named queries on one connection. The writer has one for its whole life, a reader one for each verb."""

    def __init__(
        self, connection: apsw.Connection, queries: Mapping[str, str], rng: Random, now: datetime
    ) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._queries = queries
        self._last_timestamp = ""
        self._budget: MatchBudget | None = None
        #: The buffers by query.
        self._buffers: dict[str, InsertBuffer] = {}
        #: The tables that have rows in a buffer.
        self._buffered_tables: set[str] = set()
        #: The highest number given out, by the query that reads it.
        self._seqs: dict[str, int] = {}
        #: SQLite's version of the file after our last commit. Another process has written if it differs.
        self._data_version = -1
        #: The changes that the current request publishes when it is committed.
        self.changes: list[Change] = []
        #: Characters in the large columns of all rows inserted by `insert_buffered`, in any transaction.
        self.written_size = 0
        self.rng = rng
        self.now = now
        self.timestamp = format_timestamp(now)

    def begin_transaction(self, now: datetime) -> None:
        """Set the instant of the transaction that begins."""
        if self._connection.data_version() != self._data_version:
            self._seqs.clear()
        self.now = now
        self.timestamp = self._last_timestamp = max(format_timestamp(now), self._last_timestamp)

    def begin_request(self) -> None:
        """Begin the next write request of the batch, in the same transaction."""
        self._budget = None
        self.changes = []

    def committed(self) -> None:
        """Note the version of the file after a commit."""
        self._data_version = self._connection.data_version()

    def set_min_timestamp(self, timestamp: str) -> None:
        """Let no transaction have an earlier timestamp than this one."""
        self._last_timestamp = max(self._last_timestamp, timestamp)

    @property
    def regex_budget(self) -> MatchBudget:
        if self._budget is None:
            self._budget = MatchBudget(thread_time)
        return self._budget

    def fetch_one(self, query: str, /, **values: SqlValue) -> tuple[SqlValue, ...] | None:
        # All rows are fetched even for one: a statement that has not run to its end blocks the commit.
        rows = self.fetch_all(query, **values)
        return rows[0] if rows else None

    def fetch_value(self, query: str, /, **values: SqlValue) -> SqlValue:
        rows = self.fetch_all(query, **values)
        return rows[0][0] if rows else None

    def fetch_all(self, query: str, /, **values: SqlValue) -> list[tuple[SqlValue, ...]]:
        sql = self._sql_after_flush(query)
        return cast("list[tuple[SqlValue, ...]]", self._execute(sql, values).fetchall())

    def fetch_each(
        self, calls: Sequence[tuple[str, Mapping[str, SqlValue]]], /
    ) -> list[list[tuple[SqlValue, ...]]]:
        return [self.fetch_all(query, **values) for query, values in calls]

    def claim_jobs(self, numbers: Mapping[int, int], /, **values: SqlValue) -> list[tuple[SqlValue, ...]]:
        calls = [
            ("claim_job", {**values, "seq": seq, "claim_seq": number}) for seq, number in numbers.items()
        ]
        return [row for rows in self.fetch_each(calls) for row in rows]

    def settle_job(self, **values: SqlValue) -> bool | None:
        rows = self._execute(self._sql_after_flush("settle_job"), values).fetchall()
        return bool(rows[0][0]) if rows else None

    def insert(self, query: str, /, **values: SqlValue) -> bool:
        # RETURNING would build a table for its rows, which doubles the cost of an insert.
        self.execute(query, **values)
        return self._connection.changes() > 0

    def execute(self, query: str, /, **values: SqlValue) -> None:
        self._execute(self._sql_after_flush(query), values)

    def update_one(self, query: str, /, **values: SqlValue) -> None:
        self.execute(query, **values)
        if (changed := self._connection.changes()) != 1:
            raise ContendedError(f"{query} changed {changed} rows instead of one")

    def next_seq(self, max_seq_query: str, /) -> int:
        highest = self._seqs.get(max_seq_query)
        if highest is None:
            highest = self.fetch_value(max_seq_query) or 0
        self._seqs[max_seq_query] = highest + 1
        return highest + 1

    def insert_buffered(self, query: str, values: Mapping[str, SqlValue], /) -> None:
        buffer = self._buffers.get(query)
        if buffer is None:
            buffer = self._buffers[query] = InsertBuffer(self._queries[query])
        self.written_size += buffer.add(values)
        self._buffered_tables.add(buffer.table)

    def publish(self, change: Change, /) -> None:
        self.changes.append(change)

    def _sql_after_flush(self, query: str) -> str:
        """Return the text of a query, after writing the buffered rows of the tables that it names."""
        sql = self._queries[query]
        tables = buffered_tables_in(sql)
        if not self._buffered_tables.isdisjoint(tables):
            self._flush_tables(self._buffered_tables & tables)
        return sql

    def flush(self) -> None:
        """Write the buffered rows. Must be called before the commit."""
        if self._buffered_tables:
            self._flush_tables(set(self._buffered_tables))

    def _flush_tables(self, tables: set[str]) -> None:
        self._buffered_tables -= tables
        for buffer in self._buffers.values():
            if buffer.table in tables:
                can_cache = buffer.size < _LARGEST_CACHED
                for sql, values in buffer.take():
                    self._execute(sql, values, can_cache=can_cache)

    def discard(self) -> None:
        """Drop the buffered rows: the transaction, or the savepoint, was rolled back."""
        self._buffered_tables.clear()
        self._seqs.clear()
        for buffer in self._buffers.values():
            buffer.discard()
