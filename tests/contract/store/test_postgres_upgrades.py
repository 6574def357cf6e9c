"""Several versions of Ductile on one PostgreSQL store: none migrates it while another one uses it."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from builders.jobs import Clock, a_new_job, some_rng
from builders.postgres import END_WRITER, store_url
from builders.stores import accept
from ductile.errors import ConflictError, StoreFailedError, StoreSchemaError
from ductile.store.postgres.migrate import newest_version
from ductile.store.postgres.store import PostgresStore, open_postgres_store

SET_VERSION = "UPDATE store_meta SET value = %s WHERE key = 'schema_version'"


def open_at(directory: Path) -> PostgresStore:
    return open_postgres_store(store_url(directory), clock=Clock(), rng=some_rng())


def set_version(directory: Path, version: int) -> None:
    with psycopg.connect(store_url(directory), autocommit=True) as connection:
        connection.execute(SET_VERSION, (str(version),))


async def test_a_store_that_is_in_use_is_not_migrated(tmp_path: Path) -> None:
    """A newer version that starts while an older one runs is refused, and the older one goes on."""
    older = open_at(tmp_path)
    try:
        await accept(older, a_new_job())
        set_version(tmp_path, newest_version() - 1)
        with pytest.raises(ConflictError) as refused:
            open_at(tmp_path)
        assert f"from schema version {newest_version() - 1} to {newest_version()}" in refused.value.message
        assert "ductile writer" in refused.value.message
        assert "ductile system stop" in str(refused.value.hint)
        await accept(older, a_new_job())
    finally:
        set_version(tmp_path, newest_version())
        await older.close()


async def test_a_node_that_was_away_during_a_migration_stops(tmp_path: Path) -> None:
    older = open_at(tmp_path)
    try:
        await accept(older, a_new_job())
        set_version(tmp_path, newest_version() + 1)
        with psycopg.connect(store_url(tmp_path), autocommit=True) as connection:
            connection.execute(END_WRITER)
        with pytest.raises(StoreFailedError, match="was migrated to schema version"):
            await accept(older, a_new_job())
        with pytest.raises(StoreFailedError, match="was migrated to schema version"):
            await older.check_files()
    finally:
        await older.close()


async def test_an_older_version_does_not_open_a_newer_store(tmp_path: Path) -> None:
    await open_at(tmp_path).close()
    set_version(tmp_path, newest_version() + 1)
    with pytest.raises(StoreSchemaError, match="this Ductile knows versions up to"):
        open_at(tmp_path)
