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
_OTHERS = 2


def refuse_shared_sessions(connection: Connection, url: str) -> None:
    """Raise `StoreFailedError` if the server's session of this connection is given to others as well.

    A pooler tells its clients another process id than the server. Only then is it tried whether transactions
    of this connection move to another session while others are open.
    """
    own = _backend(connection)
    if own == connection.info.backend_pid:
        return
    with ExitStack() as stack:
        for _ in range(_OTHERS):
            other = stack.enter_context(connect(url, application_name="ductile pooler check"))
            try:
                other.execute("BEGIN")
            except psycopg.Error as error:
                if "statement pooling" not in str(error):
                    raise
                raise _refusal("statement") from error
            if _backend(other) == own or _backend(connection) != own:
                raise _refusal("transaction")


def _refusal(mode: str) -> StoreFailedError:
    return StoreFailedError(
        f"state.url leads to a connection pooler in {mode} mode, which breaks locks and notifications",
        hint="Name the PostgreSQL server itself in state.url, or set the pooler to session mode "
        "for this database (PgBouncer: pool_mode=session).",
    )


def _backend(connection: Connection) -> int:
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None  # noqa: S101 - the query has no FROM
    return int(row[0])
