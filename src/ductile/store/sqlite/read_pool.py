"""The read pool: threads with a connection each. Reads see the last commit and never wait for the writer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from random import Random
from typing import TypeVar

import apsw

from ductile.errors import RefusedError, StoreBusyError
from ductile.store.sqlite.connection import open_reader, translated
from ductile.store.sqlite.session import SqliteSession

R = TypeVar("R")

_THREADS = 2


class ReadPool:
    def __init__(self, path: Path, queries: Mapping[str, str], clock: Callable[[], datetime]) -> None:
        self.path = path
        self._queries = queries
        self._clock = clock
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="ductile-reader")
        #: The connection of each thread.
        self._of_thread = threading.local()
        self._opened: list[apsw.Connection] = []
        self._closed = False

    async def read(self, work: Callable[[SqliteSession], R]) -> R:
        """Run `work` on one consistent snapshot of the store."""
        return await self._submit(lambda: self._run(work))

    async def read_fresh(self, work: Callable[[SqliteSession], R]) -> R:
        """Run `work` on a connection that has read nothing before."""

        def run() -> R:
            self._drop_connection()
            return self._run(work)

        return await self._submit(run)

    def _submit(self, run: Callable[[], R]) -> asyncio.Future[R]:
        if self._closed:
            raise StoreBusyError("the store is closed", hint="Try again when the daemon is back.")
        try:
            return asyncio.get_running_loop().run_in_executor(self._pool, run)
        except RuntimeError as error:
            message = "no thread can be started that reads the store"
            raise StoreBusyError(message, hint="The machine is short of processes or memory.") from error

    def _run(self, work: Callable[[SqliteSession], R]) -> R:
        with translated(self.path):
            try:
                return self._run_once(work)
            except apsw.CorruptError:
                # Confirmed on a new connection: after this message operators restore backups.
                self._drop_connection()
                return self._run_once(work)

    def _run_once(self, work: Callable[[SqliteSession], R]) -> R:
        connection: apsw.Connection | None = getattr(self._of_thread, "connection", None)
        if connection is None:
            connection = self._of_thread.connection = open_reader(self.path)
            self._opened.append(connection)
        session = SqliteSession(connection, self._queries, Random(0), self._clock())
        connection.execute("BEGIN").fetchall()
        try:
            return work(session)
        except UnicodeEncodeError as error:
            raise RefusedError("this text cannot be in any store: it is not valid Unicode") from error
        finally:
            if connection.in_transaction:
                connection.execute("END").fetchall()

    def _drop_connection(self) -> None:
        connection: apsw.Connection | None = getattr(self._of_thread, "connection", None)
        if connection is not None:
            self._of_thread.connection = None
            self._opened.remove(connection)
            connection.close()

    def close(self) -> None:
        self._closed = True
        self._pool.shutdown()
        for connection in self._opened:
            connection.close()
