"""Detection of connection poolers that share one session of the server between clients.

Locks and notifications belong to a session. A pooler in transaction mode, such as PgBouncer, gives each
transaction another one: locks are then lost or never released, and no notification arrives.
"""

from __future__ import annotations

from contextlib import ExitStack

import psycopg

from ductile.errors import StoreFailedError
from ductile.store.postgres.connection import Connection, connect

#: Connections that are opened beside one that comes from a pooler.
_TEST_CONNECTIONS = 2


def refuse_shared_sessions(connection: Connection, url: str) -> None:
    """Raise `StoreFailedError` if a pooler shares the server's session of this connection between clients.

    A pooler reports another process id to its clients than the server does. If the ids differ, further
    connections are opened, to see whether they get the session of this one or move it to another session.
    """
    own_pid = _session_pid(connection)
    if own_pid == connection.info.backend_pid:
        return
    with ExitStack() as stack:
        for _ in range(_TEST_CONNECTIONS):
            other = stack.enter_context(connect(url, application_name="ductile pooler check"))
            try:
                other.execute("BEGIN")
            except psycopg.Error as error:
                if "statement pooling" not in str(error):
                    raise
                raise _refusal("statement") from error
            if _session_pid(other) == own_pid or _session_pid(connection) != own_pid:
                raise _refusal("transaction")


def _refusal(mode: str) -> StoreFailedError:
    return StoreFailedError(
        f"state.url leads to a connection pooler in {mode} mode, which breaks locks and notifications",
        hint="Name the PostgreSQL server itself in state.url, or set the pooler to session mode "
        "for this database (PgBouncer: pool_mode=session).",
    )


def _session_pid(connection: Connection) -> int:
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None  # noqa: S101 - the query has no FROM
    return int(row[0])
