"""The schema and the queries on PostgreSQL, compared with those on SQLite."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import apsw
import psycopg
import pytest

from builders.jobs import Clock, some_rng
from builders.postgres import store_url
from ductile.store.named_sql import load_queries
from ductile.store.postgres.migrate import migrations as postgres_migrations
from ductile.store.postgres.store import open_postgres_store
from ductile.store.sqlite.migrate import migrations as sqlite_migrations
from ductile.store.sqlite.store import open_sqlite_store

#: The full-text index of SQLite is several tables. Only SQLite has generated columns for old names, and only
#: PostgreSQL has nodes.
_OWN_TABLES = re.compile(r"sqlite_.*|job_log_text.*|nodes")
_OWN_COLUMNS = {("plugin_facts", "seq")}


async def test_both_databases_have_the_same_tables_and_columns(tmp_path: Path) -> None:
    """A migration of one database has its counterpart in the other."""
    assert await _postgres_columns(tmp_path) == await _sqlite_columns(tmp_path)


@pytest.mark.parametrize("migrations", [sqlite_migrations, postgres_migrations])
def test_no_two_migrations_have_one_number(migrations: Callable[[], list[tuple[int, str]]]) -> None:
    """The second would be skipped where the first was applied before."""
    versions = [version for version, _ in migrations()]
    assert versions == list(range(1, len(versions) + 1))


async def test_postgres_accepts_every_query(tmp_path: Path) -> None:
    """Also those that no verb of the contract suite has run."""
    store = open_postgres_store(store_url(tmp_path), clock=Clock(), rng=some_rng(1))
    await store.close()
    refused = {}
    with psycopg.connect(store_url(tmp_path), autocommit=True) as connection:
        for number, (name, text) in enumerate(load_queries("ductile.store.postgres").items()):
            names = list(dict.fromkeys(re.findall(r"(?<!:):([a-z_]+)", text)))
            typed = re.sub(r"(?<!:):([a-z_]+) IS NULL", r"CAST(:\1 AS text) IS NULL", text)
            numbered = re.sub(r"(?<!:):([a-z_]+)", lambda found: f"${names.index(found[1]) + 1}", typed)  # noqa: B023
            try:
                connection.execute(f"PREPARE q{number} AS {numbered}".encode())
            except psycopg.Error as error:
                refused[name] = str(error)
    assert refused == {}


async def _postgres_columns(place: Path) -> set[tuple[str, str]]:
    store = open_postgres_store(store_url(place), clock=Clock(), rng=some_rng(1))
    await store.close()
    with psycopg.connect(store_url(place)) as connection:
        rows = connection.execute(
            "SELECT table_name, column_name FROM information_schema.columns "
            "WHERE table_schema = current_schema()"
        ).fetchall()
    return {(table, column) for table, column in rows if not _OWN_TABLES.fullmatch(table)}


async def _sqlite_columns(place: Path) -> set[tuple[str, str]]:
    store = open_sqlite_store(place / "state.db", clock=Clock(), rng=some_rng(1))
    await store.close()
    connection = apsw.Connection(str(place / "state.db"))
    rows = connection.execute(
        "SELECT t.name, c.name FROM sqlite_schema AS t JOIN pragma_table_xinfo(t.name) AS c "
        "WHERE t.type = 'table'"
    ).fetchall()
    connection.close()
    found = {(str(table), str(column)) for table, column in rows if not _OWN_TABLES.fullmatch(str(table))}
    return found - _OWN_COLUMNS
