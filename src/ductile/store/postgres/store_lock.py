"""The lock of a store: processes that write share it, one that copies the whole store takes it alone."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ductile.errors import ConflictError, StoreBusyError
from ductile.store.postgres.connection import Connection

#: The most connections that a message names.
_MAX_LISTED = 5
#: How long the server may take to notice that a process has ended, and how often it is asked.
_NOTICE_SECONDS = 2.0
_ASK_SECONDS = 0.1


def share_store(connection: Connection, queries: Mapping[str, str]) -> None:
    """Hold the store as one of several writers, as long as the connection lasts.

    Raises `StoreBusyError` while a command moves or restores the store.
    """
    row = connection.execute(queries["share_store"]).fetchone()
    if row == (False,):
        raise StoreBusyError(
            "the store is being moved or restored by `ductile system move-store`",
            hint="Try again when that command has ended.",
        )


def take_store(connection: Connection, queries: Mapping[str, str]) -> None:
    """Hold the store alone, as long as the connection lasts. Raises `ConflictError` while others hold it.

    A process that has just ended holds it until the server has noticed that.
    """
    deadline = time.monotonic() + _NOTICE_SECONDS
    while connection.execute(queries["take_store"]).fetchone() == (False,):
        users = connection.execute(queries["store_holders"], {"limit": _MAX_LISTED}).fetchall()
        if time.monotonic() > deadline:
            names = "; ".join(
                f"{name or 'a program'} from {host} (server process {pid})" for pid, host, name in users
            )
            raise ConflictError(
                f"the PostgreSQL store is in use: {names}"
                if names
                else "the PostgreSQL store was in use a moment ago",
                hint="Stop the daemon on every node with `ductile system stop`, then try again. A connection "
                "of a machine that is gone can be ended with SELECT pg_terminate_backend(PROCESS).",
                details={"server_processes": [pid for pid, _, _ in users]},
            )
        time.sleep(_ASK_SECONDS)
