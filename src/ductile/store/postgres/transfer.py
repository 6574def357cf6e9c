"""A whole PostgreSQL store as rows: one that is copied, and an empty schema that is filled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from random import Random

import psycopg
from psycopg import sql

from ductile.errors import StoreBusyError, StoreFailedError, StoreSchemaError
from ductile.store.postgres.connection import Connection, connect, translate_at_start
from ductile.store.postgres.migrate import migrate, newest_version, schema_version
from ductile.store.postgres.session import PostgresSession, load_postgres_queries, restored_row, storable_row
from ductile.store.postgres.store_lock import take_store
from ductile.store.transfer import CopiedTable, Row
from ductile.store.verbs.maintenance import SEARCHABLE_CHARACTERS, SEARCHABLE_UNTIL

#: A statement reads a whole table.
_ANSWER_SECONDS = 3600.0
#: Executions that one statement indexes.
_INDEXED_ROWS = 5000


class PostgresRows:
    """`ductile.store.transfer.StoreTarget` on one connection; a source uses the reading half."""

    def __init__(self, connection: Connection, queries: Mapping[str, str], now: datetime) -> None:
        self._connection = connection
        self.session = PostgresSession(connection, queries, Random(0), now)

    def count(self, table: CopiedTable) -> int:
        query = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table.name))
        row = self._connection.execute(query).fetchone()
        return 0 if row is None else int(row[0])

    def read(self, table: CopiedTable) -> Iterator[Row]:
        query = sql.SQL("COPY (SELECT {} FROM {} ORDER BY {}) TO STDOUT").format(
            _identifiers(table.columns), sql.Identifier(table.name), _identifiers(table.key)
        )
        head = sql.SQL("SELECT {} FROM {} LIMIT 0").format(
            _identifiers(table.columns), sql.Identifier(table.name)
        )
        description = self._connection.execute(head).description or ()
        with self._connection.cursor() as cursor, cursor.copy(query) as rows:
            rows.set_types([column.type_code for column in description])
            for row in rows.rows():
                yield restored_row(row)

    def last_numbers(self) -> Mapping[str, int]:
        last_numbers = {}
        for table, _, sequence in self._numbered():
            qualified_name = sql.Identifier(*(part.strip('"') for part in sequence.split(".")))
            query = sql.SQL("SELECT last_value, is_called FROM {}").format(qualified_name)
            row = self._connection.execute(query).fetchone()
            if row is not None and row[1]:
                last_numbers[table] = int(row[0])
        return last_numbers

    def write(self, table: CopiedTable, rows: Iterable[Row]) -> None:
        query = sql.SQL("COPY {} ({}) FROM STDIN").format(
            sql.Identifier(table.name), _identifiers(table.columns)
        )
        with self._connection.cursor() as cursor, cursor.copy(query) as target:
            for row in rows:
                target.write_row(storable_row(row))
        # The plans of the checks need to know how many rows there are.
        self._connection.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(table.name)))

    def continue_numbers(self, last_numbers: Mapping[str, int]) -> None:
        for table, column, sequence in self._numbered():
            query = sql.SQL("SELECT max({}) FROM {}").format(sql.Identifier(column), sql.Identifier(table))
            row = self._connection.execute(query).fetchone()
            newest = (None if row is None else row[0]) or 0
            if number := max(last_numbers.get(table, 0), newest):
                self._connection.execute("SELECT setval(CAST(%s AS regclass), %s)", (sequence, number))

    def build_search_index(self, on_rows: Callable[[int], None]) -> None:
        """Fill the full-text index from the log."""
        values = {"characters": SEARCHABLE_CHARACTERS, "limit": _INDEXED_ROWS}
        last = 0
        while batch := self.session.fetch_one("index_copied_log", after=last, **values):
            rows, newest = batch
            if not rows:
                break
            last = newest
            on_rows(rows)
        self.session.execute("put_meta", key=SEARCHABLE_UNTIL, value=str(last))

    def _numbered(self) -> list[tuple[str, str, str]]:
        """Return the name, the numbered column and the sequence of each table that has a sequence."""
        return self.session.fetch_all("numbered_tables")


def _identifiers(names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


@contextmanager
def open_source(url: str, now: datetime, *, exclusive: bool) -> Iterator[PostgresRows]:
    """Open a store of the newest version for reading, as it is now.

    `exclusive`: raises `ConflictError` while a process writes to the store, and keeps others from writing.
    """
    with _connected(url) as (connection, queries):
        if exclusive:
            take_store(connection, queries)
        version, newest = schema_version(connection), newest_version()
        if version == 0:
            raise StoreSchemaError(
                "there is no store of Ductile in this database",
                hint="Check the database and the schema (search_path).",
            )
        if version != newest:
            raise StoreSchemaError(
                f"the store has schema version {version}; this Ductile reads version {newest}",
                hint="Use the Ductile that its nodes run, or start this one on it once: that migrates it.",
            )
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield PostgresRows(connection, queries, now)


@contextmanager
def open_target(url: str, now: datetime) -> Iterator[PostgresRows]:
    """Create or migrate a store, in one transaction that is committed at the end.

    Raises `ConflictError` while a process uses the store. If this process dies, the database is as it was.
    """
    with _connected(url) as (connection, queries):
        take_store(connection, queries)
        connection.execute("BEGIN")
        migrate(connection, queries)
        connection.execute(queries["forget_own_meta"])
        yield PostgresRows(connection, queries, now)
        try:
            connection.execute("COMMIT")
        except psycopg.Error as error:
            raise StoreFailedError(
                "the connection was lost while the copy was being committed",
                hint="If it then says that the target is not empty, the copy is complete.",
            ) from error


@contextmanager
def inspect_target(url: str, now: datetime) -> Iterator[PostgresRows | None]:
    """Check that a store can be created there, without doing it. Yields None if there are no tables yet."""
    with _connected(url) as (connection, queries):
        take_store(connection, queries)
        connection.execute("BEGIN READ ONLY")
        yield PostgresRows(connection, queries, now) if schema_version(connection) else None


@contextmanager
def _connected(url: str) -> Iterator[tuple[Connection, dict[str, str]]]:
    """Yield a connection and the queries, and translate errors. An open transaction is rolled back."""
    try:
        connection = connect(url, application_name="ductile move-store", answer_seconds=_ANSWER_SECONDS)
        try:
            # A long copy is no idle transaction, whatever limits the server has for those.
            connection.execute("SET idle_in_transaction_session_timeout = 0")
            connection.execute("SET statement_timeout = 0")
            yield connection, load_postgres_queries()
        finally:
            with suppress(psycopg.Error):
                connection.close()
    except psycopg.Error as error:
        translated = translate_at_start(error)
        if isinstance(translated, StoreBusyError):
            translated.hint = "Check that the server runs, and that the URL is right."
        raise translated from error
