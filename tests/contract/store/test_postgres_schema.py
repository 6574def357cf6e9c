"""The schema and the queries on PostgreSQL, compared with those on SQLite."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from builders.jobs import Clock, some_rng
from builders.postgres import store_url
from ductile.store.named_sql import load_queries
from ductile.store.postgres.migrate import migrations as postgres_migrations
from ductile.store.postgres.session import load_postgres_queries
from ductile.store.postgres.store import open_postgres_store
from ductile.store.sqlite.migrate import migrations as sqlite_migrations
from ductile.store.sqlite.store import open_sqlite_store

#: The full-text index of SQLite is several tables. Only SQLite has generated columns for old names, and only
#: PostgreSQL has nodes.
_OWN_TABLES = re.compile(r"sqlite_.*|job_log_text.*|nodes")
#: Tables that grow with the number of jobs.
LARGE = (
    "job_queue", "job_log", "job_log_text", "events", "ledger", "job_transitions", "state_deliveries",
    "plugin_facts",
)  # fmt: skip
_OWN_COLUMNS = {("plugin_facts", "seq")}


async def test_both_databases_have_the_same_tables_and_columns(tmp_path: Path) -> None:
    """A migration of one database has its counterpart in the other."""
    assert await _postgres_columns(tmp_path) == await _sqlite_columns(tmp_path)


@pytest.mark.parametrize("migrations", [sqlite_migrations, postgres_migrations])
def test_no_two_migrations_have_one_number(migrations: Callable[[], list[tuple[int, str]]]) -> None:
    """A store with the first one would skip the second one."""
    versions = [version for version, _ in migrations()]
    assert versions == list(range(1, len(versions) + 1))


async def test_postgres_accepts_every_query(tmp_path: Path) -> None:
    """The queries include those that no test of the verbs has run."""
    store = open_postgres_store(store_url(tmp_path), clock=Clock(), rng=some_rng(1))
    await store.close()
    refused = {}
    with psycopg.connect(store_url(tmp_path), autocommit=True) as connection:
        for number, (name, numbered) in enumerate(_queries().items()):
            try:
                connection.execute(f"PREPARE q{number} AS {numbered}".encode())
            except psycopg.Error as error:
                refused[name] = str(error)
    assert refused == {}


@pytest.mark.parametrize(("one", "several"), [("settle_job", "settle_jobs"), ("claim_job", "claim_jobs")])
def test_a_statement_for_several_jobs_changes_the_columns_of_that_for_one(one: str, several: str) -> None:
    def changed(sql: str) -> set[str]:
        assignments = sql.partition(" SET\n")[2].partition("\nWHERE ")[0].partition("\nFROM ")[0]
        return set(re.findall(r"(\w+) = ", assignments))

    columns = changed(load_queries("ductile.store.sqlite")[one])
    assert len(columns) > 3
    assert changed(load_postgres_queries()[several]) == columns


#: This query empties the table.
_READS_WHOLE_TABLES = frozenset({"empty_search_index"})
#: Queries that run for each job and find it by its number.
_BY_NUMBER = ("claim_jobs", "jobs_to_settle", "settle_job", "settle_jobs")


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[psycopg.Connection[Any]]:
    """Return a connection with the settings of the writer. Its plans are generic, for all values."""
    store = open_postgres_store(store_url(tmp_path), clock=Clock(), rng=some_rng(1))
    await store.close()
    with psycopg.connect(store_url(tmp_path), autocommit=True) as connection:
        if connection.info.server_version < 160000:
            pytest.skip("this server explains no plan without values")
        connection.execute(load_postgres_queries()["prepare_writer"], {"milliseconds": "0"})
        yield connection


def test_every_query_on_a_large_table_can_use_an_index(connection: psycopg.Connection[Any]) -> None:
    scans = {
        name: node
        for name, sql in _queries().items()
        if not name.startswith("check_") and name not in _READS_WHOLE_TABLES
        for node in _plan(connection, sql)
        if node["Node Type"] == "Seq Scan" and node["Relation Name"] in LARGE
    }
    assert scans == {}


@pytest.mark.parametrize("name", _BY_NUMBER)
def test_claims_and_ends_look_jobs_up_by_number(connection: psycopg.Connection[Any], name: str) -> None:
    """The plan of the empty table is still used when the table has many rows."""
    indexes = {
        node["Index Name"]: "Index Cond" in node
        for node in _plan(connection, _queries()[name])
        if node.get("Index Name", "").startswith("job_queue_")
    }
    indexes.pop("job_queue_after", None)  # whether jobs wait for the job
    assert indexes in ({"job_queue_pkey": True}, {"job_queue_id_key": True})


def _queries() -> dict[str, str]:
    """Return the queries with numbered parameters."""
    queries = {}
    for name, text in load_queries("ductile.store.postgres").items():
        typed = re.sub(r"(?<!:):([a-z_]+) IS NULL", r"CAST(:\1 AS text) IS NULL", text)
        names = list(dict.fromkeys(re.findall(r"(?<!:):([a-z_]+)", text)))
        for number, parameter in enumerate(names, 1):
            typed = re.sub(rf"(?<!:):{parameter}\b", f"${number}", typed)
        queries[name] = typed
    return queries


def _plan(connection: psycopg.Connection[Any], sql: str) -> Iterator[dict[str, Any]]:
    row = connection.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {sql}".encode()).fetchone()
    assert row is not None
    waiting = [row[0][0]["Plan"]]
    while waiting:
        node = waiting.pop()
        waiting += node.get("Plans", ())
        yield node


async def _postgres_columns(directory: Path) -> set[tuple[str, str]]:
    store = open_postgres_store(store_url(directory), clock=Clock(), rng=some_rng(1))
    await store.close()
    with psycopg.connect(store_url(directory)) as connection:
        rows = connection.execute(
            "SELECT table_name, column_name FROM information_schema.columns "
            "WHERE table_schema = current_schema()"
        ).fetchall()
    return {(table, column) for table, column in rows if not _OWN_TABLES.fullmatch(table)}


async def _sqlite_columns(directory: Path) -> set[tuple[str, str]]:
    store = open_sqlite_store(directory / "state.db", clock=Clock(), rng=some_rng(1))
    await store.close()
    connection = apsw.Connection(str(directory / "state.db"))
    rows = connection.execute(
        "SELECT t.name, c.name FROM sqlite_schema AS t JOIN pragma_table_xinfo(t.name) AS c "
        "WHERE t.type = 'table'"
    ).fetchall()
    connection.close()
    columns = {(str(table), str(column)) for table, column in rows if not _OWN_TABLES.fullmatch(str(table))}
    return columns - _OWN_COLUMNS
