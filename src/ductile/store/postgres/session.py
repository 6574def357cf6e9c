"""The session of a verb on a PostgreSQL connection, and the buffer of rows that are written together.

Every wait for the server costs more than most statements, and the other nodes wait as well: the transaction
holds the lock of the store. Rows are therefore sent many at a time, as one JSON text for each statement, and
together with the next query that reads their table, or with the commit. The rows of jobs that are about to
end are read when the transaction begins, so that most ends are decided without asking the server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from random import Random
from time import thread_time
from typing import Any

import msgspec
import psycopg

from ductile.core.expressions.regex import MatchBudget
from ductile.core.jobs.model import Job
from ductile.core.timestamps import format_timestamp
from ductile.errors import ContendedError, StoreError
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
#: An INSERT of one row: its beginning, the table, the columns, the values and the end.
_INSERT = re.compile(
    r"\s*INSERT INTO (\w+) \(([^()]*)\)\s*VALUES \((.*?)\)\s*((?:ON CONFLICT.*)?)", re.DOTALL
)
_PLACEHOLDER = re.compile(r"%\((\w+)\)s")
_CHANGES_JOBS = re.compile(r"\b(UPDATE|DELETE FROM) job_queue\b")
#: The columns that count towards the size of a batch. The others are small.
_SIZE_COLUMNS = ("payload", "result", "stderr")


def load_postgres_queries() -> dict[str, str]:
    """Return the queries with the placeholders of the driver."""
    queries = {}
    for name, sql in load_queries("ductile.store.postgres").items():
        typed = _OPTIONAL.sub(r"CAST(:\1 AS text) IS NULL", sql.replace("%", "%%"))
        queries[name] = _PARAMETER.sub(r"%(\1)s", typed)
    return queries


class RowBuffer:
    """The waiting rows of one statement, which takes any number of them as JSON."""

    def __init__(self, sql: str, columns: Mapping[str, str]) -> None:
        """`columns` are those of a row, with the values that fill them.

        `sql` has the parameter `rows`, and may have `seqs`: the numbers of the rows.
        """
        self.sql = sql
        self._columns = tuple(columns.items())
        self._rows: list[dict[str, SqlValue]] = []

    def add(self, values: Mapping[str, SqlValue]) -> None:
        values = _storable(values)
        self._rows.append({column: values[name] for column, name in self._columns})

    def take(self) -> dict[str, SqlValue]:
        """Empty the buffer. Returns the parameters of the statement."""
        rows, self._rows = self._rows, []
        return {"rows": msgspec.json.encode(rows).decode(), "seqs": [row.get("seq") for row in rows]}

    def discard(self) -> None:
        self._rows.clear()


def _insert_buffer(sql: str) -> RowBuffer:
    """Return a buffer that inserts many rows, for a query that inserts one."""
    insert = _INSERT.fullmatch(sql)
    if insert is None:
        raise StoreError(f"not an INSERT of one row: {sql}")
    table, columns, values, suffix = insert.groups()
    expressions, names = [], {}
    for column, value in zip(columns.split(","), values.split(","), strict=True):
        name = _PLACEHOLDER.fullmatch(value.strip())
        if name is not None:
            names[column.strip()] = name[1]
        expressions.append(value if name is None else f"added.{column.strip()}")
    rows = f"json_populate_recordset(CAST(NULL AS {table}), CAST(%(rows)s AS json)) AS added"
    # The WHERE keeps ON CONFLICT from being read as a condition of a join.
    return RowBuffer(
        f"INSERT INTO {table} ({columns}) SELECT {', '.join(expressions)} FROM {rows} WHERE true {suffix}",  # noqa: S608 - our own query
        names,
    )


class PostgresSession:
    """Named queries on one connection. The writer has one for its whole life, a reader one for each verb."""

    def __init__(
        self, connection: Connection | None, queries: Mapping[str, str], rng: Random, now: datetime
    ) -> None:
        #: Replaced after the connection was lost.
        self.connection = connection
        self._queries = queries
        self._budget: MatchBudget | None = None
        #: The buffers by query, and of these the ones that have rows.
        self._buffers: dict[str, RowBuffer] = {}
        self._waiting: dict[str, RowBuffer] = {}
        self._buffered_tables: set[str] = set()
        #: Jobs that may end in this transaction, by number, as they were when it began.
        self._jobs_to_settle: dict[int, tuple[SqlValue, ...]] = {}
        #: The highest number given out in this transaction, by the query that reads it.
        self._seqs: dict[str, int] = {}
        self.changes: list[Change] = []
        self.written_size = 0
        self.rng = rng
        self.now = now
        self.timestamp = format_timestamp(now)

    def begin_transaction(
        self,
        now: datetime,
        min_timestamp: str,
        highest: Mapping[str, int],
        jobs: Iterable[tuple[SqlValue, ...]],
    ) -> None:
        """Set the instant of the transaction, which has no timestamp earlier than `min_timestamp`.

        `highest` has the highest numbers in use, by the query that reads each. `jobs` are rows of jobs that
        may end in the transaction.
        """
        self._seqs = dict(highest)
        self._jobs_to_settle = {row[0]: restored_row(row[1:]) for row in jobs}
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

    def fetch_value(self, query: str, /, **values: SqlValue) -> SqlValue:
        rows = self.fetch_all(query, **values)
        return rows[0][0] if rows else None

    def fetch_all(self, query: str, /, **values: SqlValue) -> list[tuple[SqlValue, ...]]:
        with self._run(query, values) as cursor:
            return _rows_of(cursor)

    def fetch_each(
        self, calls: Sequence[tuple[str, Mapping[str, SqlValue]]], /
    ) -> list[list[tuple[SqlValue, ...]]]:
        with self._connected.pipeline():
            cursors = [self._run(query, values) for query, values in calls]
        return [_rows_of(cursor) for cursor in cursors]

    def insert(self, query: str, /, **values: SqlValue) -> bool:
        return self._change(query, values) > 0

    def execute(self, query: str, /, **values: SqlValue) -> None:
        self._change(query, values)

    def update_one(self, query: str, /, **values: SqlValue) -> None:
        if (changed := self._change(query, values)) != 1:
            raise ContendedError(f"{query} changed {changed} rows instead of one")

    def claim_jobs(self, numbers: Mapping[int, int], /, **values: SqlValue) -> list[tuple[SqlValue, ...]]:
        rows = self.fetch_all("claim_jobs", **values, seqs=list(numbers), numbers=list(numbers.values()))
        return sorted(rows, key=lambda row: row[_CLAIM_SEQ])

    def settle_job(self, **values: SqlValue) -> bool | None:
        job = self._jobs_to_settle.pop(values["seq"], None)
        if job is None:
            row = self.fetch_one("settle_job", **values)
            return None if row is None else bool(row[0])
        *stored, has_successors = job
        if stored != [values[name] for name in _DECIDED_ON]:
            return None
        self._buffer("settle_jobs", values)
        return bool(has_successors)

    def next_seq(self, max_seq_query: str, /) -> int:
        highest = self._seqs.get(max_seq_query)
        if highest is None:
            highest = self.fetch_value(max_seq_query) or 0
        self._seqs[max_seq_query] = highest + 1
        return highest + 1

    def insert_buffered(self, query: str, values: Mapping[str, SqlValue], /) -> None:
        self._forget_jobs_to_settle(self._queries[query], values)
        self._buffer(query, values)
        self.written_size += sum(
            len(text) for name in _SIZE_COLUMNS if (text := values.get(name)) is not None
        )

    def publish(self, change: Change, /) -> None:
        self.changes.append(change)

    def flush(self) -> None:
        """Send the buffered rows, in one round trip."""
        if self._waiting:
            with self._connected.pipeline():
                self.send_buffered()

    def send_buffered(self) -> None:
        """Send the buffered rows in the current pipeline, which raises the server's errors when it ends."""
        waiting, self._waiting = self._waiting, {}
        self._buffered_tables.clear()
        for buffer in waiting.values():
            self._connected.execute(buffer.sql, buffer.take())

    def discard(self) -> None:
        # All buffers: if one could not be sent, the buffers after it still have their rows.
        for buffer in self._buffers.values():
            buffer.discard()
        self._waiting.clear()
        self._buffered_tables.clear()
        self._seqs.clear()
        self._jobs_to_settle.clear()

    @property
    def _connected(self) -> Connection:
        assert self.connection is not None  # noqa: S101 - set when a transaction begins
        return self.connection

    def _buffer(self, query: str, values: Mapping[str, SqlValue]) -> None:
        buffer = self._waiting.get(query)
        if buffer is None:
            if query not in self._buffers:
                sql = self._queries[query]
                self._buffers[query] = (
                    RowBuffer(sql, _SETTLED_COLUMNS) if query == "settle_jobs" else _insert_buffer(sql)
                )
            buffer = self._waiting[query] = self._buffers[query]
            self._buffered_tables |= buffered_tables_in(buffer.sql)
        buffer.add(values)

    def _change(self, query: str, values: Mapping[str, SqlValue]) -> int:
        with self._run(query, values) as cursor:
            return cursor.rowcount

    def _run(self, query: str, values: Mapping[str, SqlValue]) -> Cursor:
        """Send a query, with the buffered rows of its tables before it. Returns the cursor of its result."""
        sql = self._queries[query]
        self._forget_jobs_to_settle(sql, values)
        cursor = self._connected.cursor()
        if self._buffered_tables.isdisjoint(buffered_tables_in(sql)):
            return cursor.execute(sql, _storable(values))
        with self._connected.pipeline():
            self.send_buffered()
            return cursor.execute(sql, _storable(values))

    def _forget_jobs_to_settle(self, sql: str, values: Mapping[str, SqlValue]) -> None:
        """Forget the rows of jobs before a statement changes these jobs or the jobs that wait for them."""
        if self._jobs_to_settle and (values.get("after_job_id") is not None or _changes_jobs(sql)):
            self._jobs_to_settle.clear()


Cursor = psycopg.Cursor[tuple[Any, ...]]
#: The column of `job_columns` that has the number of a claim.
_CLAIM_SEQ = Job.__struct_fields__.index("claim_seq")
#: The values that the end of a job was decided on, in the order of `jobs_to_settle`; and the columns that it
#: changes.
_DECIDED_ON = ("id", "from_status", "execution", "cancel_requested_at", "callback_url")
_SETTLED_COLUMNS = {
    name: name
    for name in (
        "seq",
        "status",
        "reason",
        "hold",
        "attempt",
        "completed_at",
        "next_retry_at",
        "retry_wait",
        "last_error",
        "suspect",
        "artifacts",
        "cost",
    )
}


@cache
def _changes_jobs(sql: str) -> bool:
    return _CHANGES_JOBS.search(sql) is not None


def _rows_of(cursor: Cursor) -> list[tuple[SqlValue, ...]]:
    return [restored_row(row) for row in cursor.fetchall()] if cursor.description else []


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
