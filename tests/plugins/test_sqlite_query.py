"""sqlite_query on real databases."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from builders.shipped import PluginResult, ask

#: A query that counts for longer than any test waits.
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "a ?#%.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(
            "CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT UNIQUE, weight REAL, picture BLOB);"
            "INSERT INTO people VALUES (1, 'Ada', 1.5, x'00ff'), (2, 'Bob', 9e999, NULL),"
            "(9007199254740993, 'C', 0, NULL);"
        )
    return path


def run(database: Path, sql: str, command: str = "query", **parameters: Any) -> PluginResult:
    config = {"database": str(database), "allow_any_query": True, "write": True}
    return ask("sqlite_query", command, config=config, payload={"sql": sql, "parameters": parameters})


def rows_of(database: Path) -> list[Any]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute("SELECT id, name FROM people ORDER BY id").fetchall()


def test_a_named_query_gets_its_parameters_bound(database: Path) -> None:
    """A parameter is never read as SQL."""
    config = {
        "database": str(database),
        "queries": {"by_name": "SELECT id, name FROM people WHERE name = :name"},
    }
    response = ask("sqlite_query", "handle", config=config, payload={"parameters": {"name": "Ada"}})
    payload = {"query": "by_name", "parameters": {"name": "' OR 1=1; DROP TABLE people --"}}
    injected = ask("sqlite_query", "query", config=config, payload=payload)
    rows = [{"id": 1, "name": "Ada"}]
    assert response.answer["result"] == {
        "columns": ["id", "name"],
        "rows": rows,
        "row_count": 1,
        "truncated": False,
    }
    assert response.events[0]["payload"] == {"query": None, "rows": rows, "row_count": 1, "truncated": False}
    assert injected.answer["result"]["rows"] == []
    assert len(rows_of(database)) == 3


def test_values_of_every_kind_become_json(database: Path) -> None:
    response = run(database, "SELECT picture, weight, weight, id, NULL AS n FROM people ORDER BY id")
    assert response.answer["result"]["columns"] == ["picture", "weight", "weight_2", "id", "n"]
    first, second, third = response.answer["result"]["rows"]
    assert first == {"picture": {"base64": "AP8="}, "weight": 1.5, "weight_2": 1.5, "id": 1, "n": None}
    assert second["weight"] == "inf"
    assert third["id"] == 2**53 + 1


def test_a_list_is_bound_as_json_and_the_job_is_known(database: Path) -> None:
    ids = "SELECT value FROM json_each(:ids)"
    sql = f"SELECT name, :job_id AS job, ':no' AS text FROM people WHERE id IN ({ids})"  # noqa: S608 - constants
    assert run(database, sql, ids=[2]).answer["result"]["rows"] == [
        {"name": "Bob", "job": "j1", "text": ":no"}
    ]


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO people (name) VALUES ('x')",
        "UPDATE people SET name = 'x'",
        "DELETE FROM people",
        "UPDATE sqlite_master SET sql = ''",
        "DROP TABLE people",
        "CREATE TABLE x (a)",
        "CREATE TEMP TABLE x (a)",
        "ATTACH '{other}' AS other",
        "VACUUM INTO '{other}'",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA writable_schema = 1",
        "SELECT load_extension('x')",
        "SELECT 1; DELETE FROM people",
        "BEGIN",
    ],
)
def test_a_query_can_only_read(database: Path, sql: str) -> None:
    """Writes, other files, settings, extensions and second statements are permanent failures."""
    other_file = database.with_name("other.db")
    before = rows_of(database)
    response = run(database, sql.replace("{other}", str(other_file)))
    assert response.failed_for_good(""), response
    assert rows_of(database) == before
    assert not other_file.exists()


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE people",
        "CREATE TABLE x (a)",
        "ALTER TABLE people ADD COLUMN x",
        "ATTACH '{other}' AS other",
        "VACUUM INTO '{other}'",
        "PRAGMA user_version = 5",
        "UPDATE sqlite_master SET sql = ''",
        "DELETE FROM sqlite_master",
    ],
)
def test_a_statement_changes_rows_and_nothing_else(database: Path, sql: str) -> None:
    other_file = database.with_name("other.db")
    assert run(database, sql.replace("{other}", str(other_file)), "execute").failed_for_good("")
    assert not other_file.exists()
    assert len(rows_of(database)) == 3


def test_a_statement_runs_only_if_writing_is_switched_on(database: Path) -> None:
    statements = {"add": "INSERT INTO people (name) VALUES (:name) RETURNING name"}
    config = {"database": str(database), "statements": statements}
    payload = {"statement": "add", "parameters": {"name": "Dan"}}
    refusal = ask("sqlite_query", "execute", config=config, payload=payload)
    succeeded = ask("sqlite_query", "execute", config={**config, "write": True}, payload=payload)
    repeated = ask("sqlite_query", "execute", config={**config, "write": True}, payload=payload)
    assert refusal.failed_for_good("`write: true`")
    assert refusal.exit_code == 78
    assert (succeeded.answer["result"]["changes"], succeeded.answer["result"]["rows"]) == (
        1,
        [{"name": "Dan"}],
    )
    assert repeated.failed_for_good("UNIQUE constraint failed")
    assert [name for _, name in rows_of(database)] == ["Ada", "Bob", "C", "Dan"]


def test_a_query_is_ended_when_its_time_is_over(database: Path) -> None:
    """The timeout of the query or the deadline of the job ends it, before the process is killed."""
    config = {"database": str(database), "queries": {"endless": ENDLESS}}
    own_limit = ask("sqlite_query", "query", config={**config, "timeout": 0.2}, payload={})
    job_limit = ask("sqlite_query", "query", config=config, payload={}, seconds=3)
    assert own_limit.failed_for_good("takes longer than 0.2 s")
    assert job_limit.failed_for_good("or than the job may run")


@pytest.mark.parametrize(("limit", "rows"), [({"max_rows": 2}, 2), ({"max_bytes": 20}, 1)])
def test_rows_beyond_the_limits_are_left_out(database: Path, limit: dict[str, int], rows: int) -> None:
    config = {"database": str(database), "queries": {"all": "SELECT name FROM people"}, **limit}
    result = ask("sqlite_query", "query", config=config, payload={}).answer["result"]
    assert (result["row_count"], result["truncated"]) == (rows, True)


def test_a_database_that_is_being_written_to_is_read_later(database: Path) -> None:
    """A lock passes, so the failure is temporary."""
    with closing(sqlite3.connect(database, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        config = {"database": str(database), "queries": {"all": "SELECT name FROM people"}, "timeout": 0.2}
        response = ask("sqlite_query", "query", config=config, payload={})
        writer.execute("ROLLBACK")
    assert response.may_be_tried_again("locked")


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({}, "`query` is missing; the plugin's config has: a, b"),
        ({"query": "c"}, "there is no query 'c'"),
        ({"query": "a"}, "`parameters` lacks x"),
        ({"query": "a", "parameters": [1]}, "`parameters` has to be"),
        ({"query": "a", "parameters": {"x": 2**70}}, "too large"),
        ({"sql": "SELECT 1"}, "allow_any_query"),
    ],
)
def test_a_payload_that_cannot_be_run_is_refused(
    database: Path, payload: dict[str, Any], message: str
) -> None:
    config = {"database": str(database), "queries": {"a": "SELECT :x", "b": "SELECT 1"}}
    assert ask("sqlite_query", "query", config=config, payload=payload).failed_for_good(message)


@pytest.mark.parametrize(
    "config",
    [
        {"database": "relative.db"},
        {"database": "/nowhere/at/all.db"},
        {"queries": ["SELECT 1"]},
        {"queries": {"a": "SELECT nothing FROM people"}},
        {"queries": {"a": "DELETE FROM people"}},
        {"max_rows": 0},
    ],
)
def test_faults_of_the_configuration_end_with_status_78(database: Path, config: dict[str, Any]) -> None:
    """`health` finds every fault without running a query, and creates no file."""
    response = ask("sqlite_query", "health", config={"database": str(database), **config})
    assert response.failed_for_good("")
    assert response.exit_code == 78
    assert not Path("relative.db").exists()


def test_a_file_that_is_no_database_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_text("hello " * 1000)
    assert run(tmp_path / "a.db", "SELECT 1 FROM sqlite_master").failed_for_good("not a database")


def test_a_database_in_wal_mode_can_be_read_while_it_is_written_to(database: Path) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM people")
        assert run(database, "SELECT count(*) AS n FROM people").answer["result"]["rows"] == [{"n": 3}]
        writer.execute("ROLLBACK")
