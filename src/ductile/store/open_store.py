"""Opens the store that the configuration names. An adapter and its driver are imported only if used."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from random import Random
from typing import TYPE_CHECKING

from ductile.config.snapshot import PostgresLocation, SqliteLocation, StateLocation
from ductile.errors import ConfigError

if TYPE_CHECKING:
    from ductile.store.postgres.store import PostgresStore
    from ductile.store.sqlite.store import SqliteStore


def open_store(
    location: StateLocation, *, clock: Callable[[], datetime], rng: Random, check_integrity: bool = False
) -> SqliteStore | PostgresStore:
    """Open the store; creates or migrates it as needed.

    `check_integrity` looks for damage of a file; a server checks its own files. Raises `ConfigError` if
    the driver of the database is not installed, and `StoreError` if the store cannot be opened.
    """
    match location:
        case SqliteLocation():
            from ductile.store.sqlite.store import open_sqlite_store  # noqa: PLC0415

            return open_sqlite_store(location.path, clock=clock, rng=rng, check_integrity=check_integrity)
        case PostgresLocation():
            require_driver(location)
            from ductile.store.postgres.store import open_postgres_store  # noqa: PLC0415

            return open_postgres_store(location.url.reveal(), clock=clock, rng=rng)


def require_driver(location: StateLocation) -> None:
    """Raise `ConfigError` if the driver of the database is not installed."""
    if isinstance(location, PostgresLocation):
        try:
            import psycopg  # noqa: F401, PLC0415
        except ImportError as error:
            raise ConfigError(
                "state.url needs the PostgreSQL driver, which is not installed",
                hint="Install it: pip install 'ductile-runtime[postgres]'",
            ) from error
