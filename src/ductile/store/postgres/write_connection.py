"""The connection of the writer: transactions that exclude the writers of other nodes.

A transaction holds one advisory lock from its beginning to its end. So transactions of all nodes follow one
another: no decision is made on rows that another node changes meanwhile, and the numbers of the ledger
become visible in their order. Nodes share the cost, because each commits many requests together.

A connection can be lost during COMMIT, and then it is unknown whether the server has committed. The
transaction's id answers that: the connection is opened again and asks the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from random import Random
from typing import Any, LiteralString, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus

from ductile.errors import StoreBusyError, StoreFailedError
from ductile.store.notifier import Change
from ductile.store.postgres.connection import (
    WRITE_ANSWER_SECONDS,
    Connection,
    connect,
    is_connection_lost,
    translate,
)
from ductile.store.postgres.migrate import refuse_other_schema
from ductile.store.postgres.notifications import encode_changes
from ductile.store.postgres.poolers import refuse_shared_sessions
from ductile.store.postgres.session import PostgresSession
from ductile.store.postgres.store_lock import share_store

Row: TypeAlias = tuple[Any, ...]

#: How often an unreachable server is asked for the result of a commit.
ASK_INTERVAL_SECONDS = 0.5
#: A transaction without statements for this long is ended by the server: its node is stopped or cut off, and
#: the other nodes wait for the lock that it holds.
IDLE_MILLISECONDS = 5_000
#: How long submissions are refused after an attempt to connect has failed.
RECONNECT_SECONDS = 1.0
#: A server that has not completed a transaction for this long hangs, and submissions are refused.
HANGING_SECONDS = 5.0


def was_committed(connection: Connection, transaction_id: str) -> bool | None:
    """Return whether the server has committed a transaction; None while it is still open on the server.

    False also after a failover to a server that does not have the transaction: it then does not know the id,
    or has not given it out yet.
    """
    query = "SELECT pg_xact_status(CAST(%s AS xid8))"
    try:
        row = connection.execute(query, (transaction_id,)).fetchone()
    except psycopg.errors.InvalidParameterValue:
        return False
    status = None if row is None else row[0]
    return None if status == "in progress" else bool(status == "committed")


class PostgresWriteConnection:
    """`ductile.store.writer.WriteConnection` on a PostgreSQL server."""

    def __init__(
        self,
        url: str,
        queries: Mapping[str, str],
        *,
        clock: Callable[[], datetime],
        rng: Random,
        is_closing: Callable[[], bool],
        channel: str,
        sender: str,
    ) -> None:
        """Each commit is announced to other nodes on `channel`, as one of `sender`."""
        self._url = url
        self._queries = queries
        self._clock = clock
        self._is_closing = is_closing
        self._channel = channel
        self._sender = sender
        self.session = PostgresSession(None, queries, rng, clock())
        #: The id of the current transaction.
        self._transaction_id = ""
        self.has_written = False
        #: When the last attempt to connect failed, on the monotonic clock; None if it succeeded.
        self._failed_at: float | None = None
        #: Called when the server cannot be asked for the result of a commit.
        self.on_unavailable: Callable[[StoreBusyError], None] = lambda _: None
        #: Since when the thread of the writer waits for the server.
        self._busy_since: float | None = None

    @property
    def is_unreachable(self) -> bool:
        """Return whether connecting has failed, and the next attempt would only make its caller wait."""
        failed_at, is_trying = self._failed_at, self._busy_since is not None
        return failed_at is not None and (is_trying or time.monotonic() < failed_at + RECONNECT_SECONDS)

    @property
    def is_hanging(self) -> bool:
        """Return whether the server has not answered for a while."""
        busy_since = self._busy_since
        return busy_since is not None and time.monotonic() > busy_since + HANGING_SECONDS

    @property
    def in_transaction(self) -> bool:
        connection = self.session.connection
        return connection is not None and connection.info.transaction_status in (
            TransactionStatus.INTRANS,
            TransactionStatus.INERROR,
        )

    def begin(self, seqs_to_settle: Callable[[], Sequence[int]]) -> None:
        self.has_written = False
        self._busy_since = time.monotonic()
        seqs = list(seqs_to_settle())
        is_new = self.session.connection is None
        try:
            start, jobs = self._begin_on(self._open(), seqs)
        except psycopg.Error as error:
            self._drop_if_lost(error)
            if is_new or not is_connection_lost(error):
                raise
            # The server was restarted, or it ended an idle connection: try again on a new one.
            start, jobs = self._begin_on(self._open(), seqs)
        self._transaction_id, min_timestamp, highest_in_ledger, highest_in_queue = start
        highest = {"highest_in_ledger": highest_in_ledger, "highest_in_queue": highest_in_queue}
        self.session.begin_transaction(self._clock(), min_timestamp, highest, jobs)

    def _begin_on(self, connection: Connection, seqs: list[int]) -> tuple[Row, list[Row]]:
        """Send all statements in one round trip. Those that read have a snapshot taken under the lock.

        Returns the row of `transaction_start`, and the rows of the jobs with these numbers.
        """
        with connection.pipeline():
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED", prepare=False)
            connection.execute(self._queries["lock_store"])
            start = connection.execute(self._queries["transaction_start"])
            jobs = connection.execute(self._queries["jobs_to_settle"], {"seqs": seqs}) if seqs else None
        row = start.fetchone()
        assert row is not None  # noqa: S101 - the query has no condition
        return row, jobs.fetchall() if jobs else []

    def commit(self, changes: Iterable[Change]) -> None:
        connection = self.session.connection
        assert connection is not None  # noqa: S101 - a transaction has begun
        try:
            with connection.pipeline():
                self.session.send_buffered()
                for payload in encode_changes(self._sender, changes):
                    connection.execute(
                        self._queries["notify"], {"channel": self._channel, "payload": payload}
                    )
                connection.execute("COMMIT", prepare=False)
        except psycopg.Error as error:
            if not is_connection_lost(error):
                raise
            self._drop()
            if not self._ask_until_known(self._transaction_id):
                raise
        self.has_written = True

    def _ask_until_known(self, transaction_id: str) -> bool:
        """Return whether the server has committed the transaction; asks until it answers.

        Raises `StoreFailedError` if the store is closed meanwhile.
        """
        while True:
            with suppress(psycopg.Error, StoreBusyError):
                committed = was_committed(self._open(), transaction_id)
                if committed is not None:
                    return committed
            if self._is_closing():
                # Fatal, so that the batch does not run again: it may have been committed.
                raise StoreFailedError(
                    "the connection was lost during a commit, and the server has not answered since",
                    hint="What was submitted then may be on the queue or not: look before sending it again.",
                )
            self.on_unavailable(
                StoreBusyError("the PostgreSQL server cannot be reached, and is asked for the last commit")
            )
            self._drop()
            time.sleep(ASK_INTERVAL_SECONDS)

    def roll_back(self) -> None:
        self._undo("ROLLBACK")

    def savepoint(self) -> None:
        self._execute("SAVEPOINT request")

    def release_savepoint(self) -> None:
        self._execute("RELEASE SAVEPOINT request")

    def roll_back_to_savepoint(self) -> None:
        self._undo("ROLLBACK TO SAVEPOINT request")
        self._undo("RELEASE SAVEPOINT request")

    def is_fatal(self, error: BaseException) -> bool:
        return isinstance(error, StoreFailedError)

    def translate(self, error: BaseException) -> BaseException:
        return translate(error)

    def after_batch(self) -> None:
        """Note that the server has answered; it maintains itself."""
        self._busy_since = None

    def check(self) -> None:
        """Do nothing: the connection is opened again when the server can be reached."""

    def close(self) -> None:
        self._drop()

    def _open(self) -> Connection:
        """Return the connection; connects and checks the store again if it was lost."""
        connection = self.session.connection
        if connection is not None and not connection.closed:
            return connection
        try:
            connection = connect(
                self._url, application_name="ductile writer", answer_seconds=WRITE_ANSWER_SECONDS
            )
            try:
                refuse_shared_sessions(connection, self._url)
                connection.execute(self._queries["prepare_writer"], {"milliseconds": str(IDLE_MILLISECONDS)})
                share_store(connection, self._queries)
                refuse_other_schema(connection)
            except BaseException:
                connection.close()
                raise
        except (psycopg.Error, StoreBusyError):
            self._failed_at = time.monotonic()
            raise
        self.session.connection = connection
        self._failed_at = None
        return connection

    def _execute(self, statement: LiteralString) -> None:
        connection = self.session.connection
        assert connection is not None  # noqa: S101 - a transaction has begun
        connection.execute(statement, prepare=False)

    def _undo(self, statement: LiteralString) -> None:
        """Execute a statement that rolls back; if the connection is lost, nothing is left to roll back."""
        try:
            self._execute(statement)
        except psycopg.Error as error:
            self._drop_if_lost(error)
            if not is_connection_lost(error):
                raise

    def _drop_if_lost(self, error: BaseException) -> None:
        if is_connection_lost(error):
            self._drop()

    def _drop(self) -> None:
        if self.session.connection is not None:
            with suppress(psycopg.Error):
                self.session.connection.close()
            self.session.connection = None
