"""Every named query reads the large tables through an index, or has a reason here."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import ductile.store
from builders.jobs import Clock, some_rng
from ductile.store.named_sql import load_queries
from ductile.store.sqlite.store import open_sqlite_store

QUERIES = load_queries("ductile.store.sqlite")
LARGE = ("job_queue", "job_log", "events", "ledger", "job_transitions", "state_deliveries", "plugin_facts")

#: Queries of `system doctor` that read a whole table, as those of the invariants do.
ON_REQUEST = frozenset({"failing_receivers"})
#: Queries that walk a large table along its primary key and stop at their LIMIT, with the reason.
WALKS = {
    "ledger_after": "reads on from a number, so many rows",
    "latest_instant": "the last row",
    "newest_ledger": "the last rows",
    "jobs_newest": "newest first, one page; other filters are checked on the rows read",
    "log_newest": "newest first, one page",
    "deliveries": "newest first, one page",
    "job_ids_ending": "walks an index of ids, for a person who typed the end of one",
    "unindexed_log": "reads on from a number, one batch",
    "prunable_log": "the oldest rows, one batch",
    **dict.fromkeys(
        ("count_job_log", "count_facts", "count_ledger"), "counts the rows that `system sweep` would remove"
    ),
    "prune_facts": "the oldest rows, one batch",
    "prune_ledger": "the oldest rows, one batch",
}


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    """Yield a connection to the schema of a store, opened like the reader of the store."""
    path: Path = tmp_path_factory.mktemp("plans") / "state.db"

    async def create() -> None:
        await open_sqlite_store(path, clock=Clock(), rng=some_rng()).close()

    asyncio.run(create())
    connection = apsw.Connection(str(path))
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    yield connection
    connection.close()


def plan(connection: apsw.Connection, sql: str) -> list[str]:
    values = dict.fromkeys(re.findall(r":([a-z_]+)", sql))
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]


def aliases(sql: str) -> dict[str, str]:
    """Return the names that stand for a large table in this query."""
    tables = "|".join(LARGE)
    matches = re.findall(rf"\b({tables})\s+AS\s+([a-z_]+)", sql)
    return {name: table for table, name in matches} | {table: table for table in LARGE}


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_no_query_scans_a_large_table(connection: apsw.Connection, name: str) -> None:
    """A scan without an index is allowed only along the primary key with a limit."""
    if name.startswith("check_") or name in ON_REQUEST:
        return  # it is read when a person asks for it, and no job waits for it
    sql = QUERIES[name]
    for step in plan(connection, sql):
        scanned = re.match(r"SCAN (\w+)(.*)", step)
        if scanned is None or scanned[1] not in aliases(sql):
            continue
        by_index = "USING" in scanned[2] and "INDEX" in scanned[2]
        assert by_index or name in WALKS, f"{name}: {step}"


@pytest.mark.parametrize("name", sorted(WALKS))
def test_a_query_that_scans_has_a_limit_and_sorts_nothing(connection: apsw.Connection, name: str) -> None:
    sql = QUERIES[name]
    assert "LIMIT" in sql
    assert not [step for step in plan(connection, sql) if "TEMP B-TREE" in step]


@pytest.mark.parametrize(
    "name",
    [
        "ready_heads", "next_head", "claim_job", "job_by_id", "settle_job", "key_holder",
        "first_key_follower", "live_match", "succeeded_match", "due_waiting", "next_due", "successors",
        "active_suspect", "first_held_suspect", "running_counts", "outstanding", "log_status",
        "due_deliveries", "plugin_state", "breaker", "child_by_origin", "live_status",
    ],
)  # fmt: skip
def test_the_hot_path_searches_and_never_sorts(connection: apsw.Connection, name: str) -> None:
    """A query that runs for each job costs the same at any queue depth."""
    steps = plan(connection, QUERIES[name])
    assert not [step for step in steps if "TEMP B-TREE FOR ORDER BY" in step], steps


def test_partial_indexes_are_used_where_they_are_meant(connection: apsw.Connection) -> None:
    expected = {
        "ready_heads": "job_queue_ready",
        "due_waiting": "job_queue_waiting",
        "key_holder": "job_queue_key_holder",
        "first_key_follower": "job_queue_key_followers",
        "successors": "job_queue_after",
        "first_held_suspect": "job_queue_suspects",
        "running_counts": "job_queue_by_status",
        "due_receivers": "state_deliveries_of_receiver",
        "due_deliveries": "state_deliveries_of_receiver",
        "next_delivery_at": "state_deliveries_due",
    }
    for name, index in expected.items():
        assert index in " ".join(plan(connection, QUERIES[name])), name


def test_every_query_that_is_named_in_code_exists() -> None:
    """A missing query would fail only when it is used."""
    source = Path(ductile.store.__file__).parent
    call_pattern = re.compile(
        r"session\.(?:fetch_one|fetch_all|execute|value|insert|change)\(\s*\"([a-z_]+)\""
    )
    named = {
        name
        for file in (*source.glob("verbs/*.py"), *source.glob("sqlite/*.py"))
        for name in call_pattern.findall(file.read_text(encoding="utf-8"))
    }
    assert len(named) > 40
    assert named <= set(QUERIES)
