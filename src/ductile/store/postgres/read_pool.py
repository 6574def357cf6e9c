"""The read pool: threads with a connection each. A read sees one snapshot with every commit before it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from random import Random
from typing import TypeVar

import psycopg

from ductile.errors import StoreBusyError
from ductile.store.postgres.connection import Connection, connect, is_connection_lost, translate
from ductile.store.postgres.session import PostgresSession

R = TypeVar("R")

_THREADS = 2


class PostgresReadPool:
    def __init__(self, url: str, queries: Mapping[str, str], clock: Callable[[], datetime]) -> None:
        self._url = url
        self._queries = queries
        self._clock = clock
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="ductile-reader")
        #: The connection of each thread.
        self._of_thread = threading.local()
        self._opened: list[Connection] = []
        self._closed = False

    def read(self, work: Callable[[PostgresSession], R]) -> asyncio.Future[R]:
        """Run `work` on one consistent snapshot of the store."""
        if self._closed:
            raise StoreBusyError("the store is closed", hint="Try again when the daemon is back.")
        try:
            return asyncio.get_running_loop().run_in_executor(self._pool, self._run, work)
        except RuntimeError as error:
            message = "no thread can be started that reads the store"
            raise StoreBusyError(message, hint="The machine is short of processes or memory.") from error

    def _run(self, work: Callable[[PostgresSession], R]) -> R:
        try:
            try:
                return self._run_once(work)
            except psycopg.Error as error:
                if not is_connection_lost(error):
                    raise
                # The server was restarted, or it ended an idle connection: try again on a new one.
                self._drop_connection()
                return self._run_once(work)
        except (psycopg.Error, UnicodeEncodeError) as error:
            raise translate(error) from error

    def _run_once(self, work: Callable[[PostgresSession], R]) -> R:
        connection: Connection | None = getattr(self._of_thread, "connection", None)
        if connection is None or connection.closed:
            connection = self._of_thread.connection = connect(self._url, application_name="ductile reader")
            self._opened.append(connection)
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            return work(PostgresSession(connection, self._queries, Random(0), self._clock()))
        finally:
            with suppress(psycopg.Error):
                connection.execute("ROLLBACK")

    def _drop_connection(self) -> None:
        connection: Connection | None = getattr(self._of_thread, "connection", None)
        if connection is not None:
            self._of_thread.connection = None
            self._opened.remove(connection)
            connection.close()

    def close(self) -> None:
        self._closed = True
        self._pool.shutdown()
        for connection in self._opened:
            connection.close()
