"""The PostgreSQL adapter of the store's port."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from random import Random
from typing import TypeVar

import psycopg

from ductile.config.snapshot import describe_server
from ductile.core.ids import make_id
from ductile.errors import StoreBusyError
from ductile.store.model.maintenance import StoreStats
from ductile.store.port import Priority, Store, WriteHint
from ductile.store.postgres.cluster import PostgresCluster
from ductile.store.postgres.connection import connect, translate_at_start
from ductile.store.postgres.migrate import migrate, newest_version
from ductile.store.postgres.poolers import refuse_shared_sessions
from ductile.store.postgres.read_pool import PostgresReadPool
from ductile.store.postgres.session import PostgresSession, load_postgres_queries
from ductile.store.postgres.store_lock import share_store
from ductile.store.postgres.write_connection import PostgresWriteConnection
from ductile.store.session import Session
from ductile.store.writer import Writer, is_still_full

R = TypeVar("R")

#: How long a migration, or waiting for the migration of another node, may take.
_MIGRATION_SECONDS = 3600.0


class PostgresStore(Store):
    """`ductile.store.port.Store` on a PostgreSQL server. Made by `open_postgres_store`."""

    def __init__(
        self,
        store_id: str,
        schema: int,
        url: str,
        queries: dict[str, str],
        clock: Callable[[], datetime],
        rng: Random,
    ) -> None:
        super().__init__(store_id)
        self.cluster: PostgresCluster
        self._name = describe_server(url)
        self._readers = PostgresReadPool(url, queries, clock)
        self._is_closing = False
        # The channel contains the schema: a copy of the store in another schema has the same id.
        channel, sender = f"ductile_{store_id}_{schema}", make_id(clock(), rng)
        self._connection = PostgresWriteConnection(
            url,
            queries,
            clock=clock,
            rng=rng,
            is_closing=lambda: self._is_closing,
            channel=channel,
            sender=sender,
        )
        self.writer = Writer(self._connection, self.notifier)
        self._connection.on_unavailable = self.writer.report_unavailable
        self.cluster = PostgresCluster(
            url,
            queries,
            self.notifier,
            clock=clock,
            read=self.run_read,
            channel=channel,
            sender=sender,
            is_blocked=lambda: self._connection.is_hanging,
        )

    def run_read(self, work: Callable[[Session], R]) -> Awaitable[R]:
        if self._connection.is_unreachable:
            raise _unreachable("cannot be reached")
        return self._readers.read(work)

    def run_write(
        self, priority: Priority, work: Callable[[Session], R], hint: WriteHint = None
    ) -> Awaitable[R]:
        if priority is Priority.ENQUEUE:
            self._refuse_if_unreachable()
        return self.writer.submit(priority, work, hint)

    def _refuse_if_unreachable(self) -> None:
        """Raise `StoreBusyError` if the server cannot be reached or hangs, so that no caller waits for it."""
        if self._connection.is_unreachable:
            raise _unreachable("cannot be reached")
        if self._connection.is_hanging:
            raise _unreachable("does not answer")

    async def close(self) -> None:
        self._is_closing = True
        await self.writer.close()
        await self.cluster.close()
        self._connection.close()
        self._readers.close()

    async def check_files(self) -> None:
        """Raise `StoreBusyError` too, while the server cannot be reached: there are no files to check."""
        self.writer.check()
        self._refuse_if_unreachable()

    async def is_full(self) -> bool:
        return await is_still_full(self, self.writer)

    async def stats(self) -> StoreStats:
        return await self.run_read(self._read_stats)

    def _read_stats(self, session: Session) -> StoreStats:
        return StoreStats(
            path=self._name,
            size=int(session.fetch_value("store_size")),
            wal_size=0,
            schema_version=int(session.fetch_value("get_meta", key="schema_version")),
            newest_schema=newest_version(),
            filesystem=None,
            damage=(),
        )


def open_postgres_store(url: str, *, clock: Callable[[], datetime], rng: Random) -> PostgresStore:
    """Connect to the store; creates or migrates its tables as needed."""
    queries = load_postgres_queries()
    try:
        with connect(url, application_name="ductile start", answer_seconds=_MIGRATION_SECONDS) as connection:
            refuse_shared_sessions(connection, url)
            migrate(connection, queries)
            share_store(connection, queries)
            session = PostgresSession(connection, queries, rng, clock())
            # Made with the store and kept for good. Two nodes that create it at once agree on one.
            session.execute("insert_meta_if_absent", key="store_id", value=make_id(session.now, session.rng))
            store_id: str = session.fetch_value("get_meta", key="store_id")
            schema: int = session.fetch_value("schema_of_store")
    except psycopg.Error as error:
        raise translate_at_start(error) from error
    return PostgresStore(store_id, schema, url, queries, clock, rng)


def _unreachable(fault: str) -> StoreBusyError:
    return StoreBusyError(
        f"the PostgreSQL server {fault}", hint="Try again in a moment: Ductile connects again by itself."
    )
