"""The CHECKs of the tables list exactly the values of the enumerations in the core."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import apsw
import pytest

from builders.jobs import Clock, some_rng
from ductile.core.jobs.failures import BreakerReason, BreakerState
from ductile.core.jobs.model import (
    EDGES,
    STORED_STATUSES,
    Hold,
    JobReason,
    JobStatus,
    LedgerKind,
    SubmittedBy,
)
from ductile.core.jobs.settlement import LogStatus, WebhookState
from ductile.core.schedules.planner import OccurrenceOutcome
from ductile.store.model.deliveries import DeliveryStatus
from ductile.store.model.jobs import InitStatus
from ductile.store.model.maintenance import ConfigOrigin
from ductile.store.sqlite.store import open_sqlite_store

ALL = [None, *JobStatus]


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    path: Path = tmp_path_factory.mktemp("schema") / "state.db"

    async def create() -> None:
        await open_sqlite_store(path, clock=Clock(), rng=some_rng()).close()

    asyncio.run(create())
    connection = apsw.Connection(str(path))
    yield connection
    connection.close()


def is_accepted(connection: apsw.Connection, table: str, **row: object) -> bool:
    """Return whether the table accepts the row, which is rolled back."""
    names, marks = ", ".join(row), ", ".join("?" * len(row))
    connection.execute("BEGIN")
    try:
        connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(row.values()))  # noqa: S608 - the test's own names and values
    except apsw.ConstraintError:
        accepted = False
    else:
        accepted = True
    connection.execute("ROLLBACK")
    return accepted


AT = "2026-02-08T10:00:00.000000Z"


@pytest.mark.parametrize("source", ALL, ids=str)
@pytest.mark.parametrize("target", [*JobStatus, "nonsense"], ids=str)
def test_transitions_are_exactly_the_edges(
    connection: apsw.Connection, source: JobStatus | None, target: JobStatus
) -> None:
    """The edges of the code are CHECKed in SQL."""
    accepted = is_accepted(
        connection,
        "job_transitions",
        job_id="j",
        seq=1,
        execution=0,
        from_status=source,
        to_status=target,
        reason="x",
        at=AT,
    )
    assert accepted == ((source, target) in EDGES)


def a_queue_row(**row: object) -> dict[str, object]:
    defaults: dict[str, object] = {
        "id": "j",
        "plugin": "p",
        "command": "c",
        "status": "queued",
        "reason": "submitted",
        "max_attempts": 1,
        "submitted_by": "api",
        "created_at": AT,
    }
    return defaults | row


@pytest.mark.parametrize("status", [*JobStatus, "nonsense"], ids=str)
def test_a_job_rests_in_exactly_the_resting_states(connection: apsw.Connection, status: str) -> None:
    ended = status in ("succeeded", "failed", "dead")
    row = a_queue_row(status=status, started_at=AT, completed_at=AT if ended else None)
    assert is_accepted(connection, "job_queue", **row) == (status in STORED_STATUSES)


@pytest.mark.parametrize("hold", [*Hold, "nonsense"], ids=str)
def test_holds_are_those_of_the_core(connection: apsw.Connection, hold: str) -> None:
    row = a_queue_row(hold=hold, next_retry_at=AT if hold == Hold.RETRY else None)
    assert is_accepted(connection, "job_queue", **row) == (hold in set(Hold))


@pytest.mark.parametrize("source", [*SubmittedBy, "nonsense"], ids=str)
def test_sources_are_those_of_the_core(connection: apsw.Connection, source: str) -> None:
    assert is_accepted(connection, "job_queue", **a_queue_row(submitted_by=source)) == (
        source in set(SubmittedBy)
    )


@pytest.mark.parametrize(
    "row",
    [
        {"status": "running"},
        {"hold": "retry"},
        {"next_retry_at": AT},
        {"completed_at": AT},
        {"status": "succeeded"},
        {"status": "running", "started_at": AT, "hold": "key"},
        {"attempt": 0},
        {"max_attempts": 0},
        {"suspect": 2},
    ],
    ids=str,
)
def test_rows_that_make_no_sense_are_refused(connection: apsw.Connection, row: dict[str, object]) -> None:
    assert not is_accepted(connection, "job_queue", **a_queue_row(**row))


def checked_words(connection: apsw.Connection, table: str, column: str) -> set[str]:
    """Return the words that the CHECK of a table lists for a column."""
    ((value,),) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,)).fetchall()
    sql = str(value)
    start = re.search(rf"^\s*{column}\s+TEXT.*?CHECK \(", sql, re.MULTILINE)
    assert start is not None
    depth, end = 1, start.end()
    while depth:
        depth += {"(": 1, ")": -1}.get(sql[end], 0)
        end += 1
    return set(re.findall(r"'([a-z_]+)'", sql[start.end() : end]))


@pytest.mark.parametrize(
    ("table", "column", "words"),
    [
        ("job_queue", "hold", Hold),
        ("job_queue", "submitted_by", SubmittedBy),
        ("job_log", "status", LogStatus),
        ("occurrences", "outcome", OccurrenceOutcome),
        ("circuit_breakers", "state", BreakerState),
        ("circuit_breaker_transitions", "from_state", BreakerState),
        ("circuit_breaker_transitions", "to_state", BreakerState),
        ("circuit_breaker_transitions", "reason", BreakerReason),
        ("config_snapshots", "origin", ConfigOrigin),
        ("state_deliveries", "state", WebhookState),
        ("state_deliveries", "status", DeliveryStatus),
        ("plugin_inits", "status", InitStatus),
    ],
)
def test_enumerations_in_sql_are_those_in_code(
    connection: apsw.Connection, table: str, column: str, words: type[StrEnum]
) -> None:
    assert checked_words(connection, table, column) == set(words)


def test_words_that_are_not_checked_are_no_sql_words() -> None:
    """Reasons and ledger kinds are not CHECKed, because they grow; each is a word."""
    for words in (JobReason, LedgerKind):
        assert all(re.fullmatch(r"[a-z_.]+", word) for word in words)


def test_tables_are_strict(connection: apsw.Connection) -> None:
    """A strict table refuses a number in a text column."""
    rows = connection.execute(
        "SELECT name, strict, type FROM pragma_table_list WHERE schema = 'main'"
    ).fetchall()
    loose = {str(name) for name, strict, kind in rows if not strict and kind == "table"}
    assert {name for name in loose if not name.startswith("sqlite_")} == set()
