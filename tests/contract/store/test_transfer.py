"""Copies of a whole store to another database: every row, the numbers of new rows, the full text."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from shutil import copytree
from subprocess import run
from typing import Any

import pytest

from builders.filled_stores import ODD_TEXT, fill, read_everything
from builders.invariants import violations
from builders.jobs import START, a_new_job, ok, some_policy
from builders.postgres import store_url
from builders.stores import POSTGRES, SQLITE, StoreFactory, StoreKind, accept, claim_all, settle
from ductile.admin.move_store import MoveRequest, move_store
from ductile.admin.store_rows import UNFINISHED_SUFFIX, copy_to_file, open_source, open_target, store_tables
from ductile.config.secrets import Secret
from ductile.config.snapshot import PostgresLocation, SqliteLocation, StateLocation
from ductile.core.policy import FactRule
from ductile.engine.store_lock import lock_store
from ductile.errors import ConflictError, DuctileError, NotFoundError, StoreBusyError, StoreFailedError
from ductile.store.transfer import CopiedTable, Row, copy_rows

#: The tables that the store of these tests has rows in.
FILLED = {
    "circuit_breaker_transitions", "circuit_breakers", "config_snapshots", "event_context", "events",
    "failure_groups", "failure_notices", "job_log", "job_queue", "job_transitions", "ledger", "occurrences",
    "pipeline_runs", "pipeline_versions", "plugin_facts", "plugin_inits", "plugin_state", "run_leaves",
    "run_members", "run_scopes", "schedule_entries", "state_deliveries", "state_subscriptions", "store_meta",
}  # fmt: skip
POLICY = some_policy(facts={"source": (FactRule(command="poll", fact_type="seen"),)})


def quiet(_step: str, rows: int, total: int) -> None:
    assert 0 <= rows <= total


def location(kind: StoreKind, directory: Path) -> StateLocation:
    if kind is SQLITE:
        return SqliteLocation(path=directory / "state.db")
    return PostgresLocation(url=Secret(store_url(directory)), directory=directory)


def a_request(source: StateLocation, target: StateLocation, *, dry_run: bool = False) -> MoveRequest:
    return MoveRequest(source=source, target=target, now=START, dry_run=dry_run)


def move(source: StateLocation, target: StateLocation) -> dict[str, Any]:
    return move_store(a_request(source, target), quiet)


def all_rows(location: StateLocation) -> dict[str, list[Row]]:
    with open_source(location, START) as source:
        return {table.name: list(source.read(table)) for table in store_tables()}


def store_id(rows: list[Row]) -> str:
    return next(str(value) for key, value in rows if key == "store_id")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("template")
    asyncio.run(fill(StoreFactory(kind=SQLITE, directory=directory)))
    return directory


@pytest.fixture
def filled(template: Path, tmp_path: Path) -> Path:
    """Return a directory with a filled SQLite store."""
    return Path(copytree(template, tmp_path / "filled"))


def content(kind: StoreKind, directory: Path) -> list[Any]:
    async def read() -> list[Any]:
        factory = StoreFactory(kind=kind, directory=directory)
        try:
            return await read_everything(await factory.open())
        finally:
            await factory.close()

    return asyncio.run(read())


def test_a_store_survives_the_way_to_postgres_and_back(filled: Path, tmp_path: Path) -> None:
    """All rows of all tables are equal in each database, and so are the results of reading verbs."""
    postgres_directory, sqlite_directory = tmp_path / "there", tmp_path / "back"
    locations = [
        location(SQLITE, filled),
        location(POSTGRES, postgres_directory),
        location(SQLITE, sqlite_directory),
    ]
    before = all_rows(locations[0])
    report = move(locations[0], locations[1])
    move(locations[1], locations[2])
    counts = {name: len(rows) for name, rows in before.items()} | {"store_meta": 1}
    assert {table["table"]: table["rows"] for table in report["tables"]} == counts
    assert {name for name, rows in before.items() if rows} >= FILLED
    assert ODD_TEXT in [row[column] for row in before["job_log"] for column in range(len(row))]
    for copy in locations[1:]:
        after = all_rows(copy)
        # A database has the version of its schema and of its full text there; the id of the store is copied.
        assert store_id(after.pop("store_meta")) == store_id(before["store_meta"])
        assert after == {name: rows for name, rows in before.items() if name != "store_meta"}
    expected = content(SQLITE, filled)
    assert content(POSTGRES, postgres_directory) == expected
    assert content(SQLITE, sqlite_directory) == expected
    assert len(expected[6]) == 1  # found by a word of its output


def test_new_rows_get_numbers_above_all_that_were_given_out(filled: Path, tmp_path: Path) -> None:
    """This holds although the newest rows were removed. The next job has a number and a ledger entry."""
    postgres_directory, sqlite_directory = tmp_path / "there", tmp_path / "back"

    async def newest_fact(kind: StoreKind, directory: Path) -> int:
        factory = StoreFactory(kind=kind, directory=directory)
        store = await factory.open()
        job_id = await accept(store, a_new_job("source", "poll"))
        claims = {claim.job.id: claim.job for claim in await claim_all(store)}
        await settle(store, claims[job_id], ok(state={"n": 1}), POLICY)
        (fact, *_) = (await store.list_facts("source", limit=9)).rows
        await factory.close()
        return fact.seq

    move(location(SQLITE, filled), location(POSTGRES, postgres_directory))
    assert asyncio.run(newest_fact(POSTGRES, postgres_directory)) == 901
    POSTGRES.run_sql(postgres_directory, "DELETE FROM plugin_facts WHERE id = 901")
    move(location(POSTGRES, postgres_directory), location(SQLITE, sqlite_directory))
    assert asyncio.run(newest_fact(SQLITE, sqlite_directory)) == 902


async def test_a_backup_of_a_busy_store_is_one_instant_of_it(tmp_path: Path) -> None:
    """Jobs are submitted and run meanwhile; the rows of the copy violate no rule."""
    factory = StoreFactory(kind=POSTGRES, directory=tmp_path)
    store = await factory.open()
    source, copy = location(POSTGRES, tmp_path), tmp_path / "copy.db"
    assert isinstance(source, PostgresLocation)
    copying = asyncio.create_task(asyncio.to_thread(copy_to_file, source, copy, START, quiet))
    while not copying.done():
        await accept(store, a_new_job("source", "poll"))
        for claim in await claim_all(store):
            await settle(store, claim.job, ok(state={"n": 1}), POLICY)
    await copying
    await factory.close()
    assert violations(copy) == []


# ------------------------------------------------------------------------------------------- refusals


def rows_of_postgres(directory: Path) -> list[tuple[Any, ...]]:
    return POSTGRES.run_sql(directory, "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema()")


def test_a_target_with_rows_is_refused(filled: Path, tmp_path: Path) -> None:
    """Nothing is overwritten, also in a dry run. An empty store may be a target."""
    source, target = location(SQLITE, filled), location(POSTGRES, tmp_path)
    content(POSTGRES, tmp_path)
    move_store(a_request(source, target, dry_run=True), quiet)
    move(source, target)
    for dry_run in (True, False):
        with pytest.raises(ConflictError, match="not empty"):
            move_store(a_request(source, target, dry_run=dry_run), quiet)
        with pytest.raises(ConflictError, match=r"already exists.*not overwritten"):
            move_store(a_request(target, source, dry_run=dry_run), quiet)
    assert all_rows(source)["ledger"] == all_rows(target)["ledger"]


def test_a_dry_run_creates_nothing(filled: Path, tmp_path: Path) -> None:
    postgres_directory = tmp_path / "there"
    request = a_request(location(SQLITE, filled), location(POSTGRES, postgres_directory), dry_run=True)
    report: dict[str, Any] = move_store(request, quiet)
    assert report["moved"] is False
    assert {"table": "failure_notices", "rows": 1} in report["tables"]
    assert rows_of_postgres(postgres_directory) == [(0,)]
    target = SqliteLocation(path=filled / "other.db")
    move_store(a_request(location(SQLITE, filled), target, dry_run=True), quiet)
    assert not target.path.exists()


@pytest.mark.parametrize("direction", ["from", "to"])
async def test_a_postgres_store_in_use_is_refused(filled: Path, tmp_path: Path, direction: str) -> None:
    """A process on any machine has it open for writing; the error names the connection."""
    factory = StoreFactory(kind=POSTGRES, directory=tmp_path)
    store = await factory.open()
    await accept(store, a_new_job())
    postgres, other = location(POSTGRES, tmp_path), SqliteLocation(path=tmp_path / "new.db")
    locations = (postgres, other) if direction == "from" else (location(SQLITE, filled), postgres)
    with pytest.raises(ConflictError, match=r"in use: ductile writer from .* \(server process \d+\)"):
        await asyncio.to_thread(move, *locations)
    await factory.close()
    assert not other.path.exists()


def test_an_sqlite_store_in_use_is_refused(filled: Path, tmp_path: Path) -> None:
    lock = lock_store(location(SQLITE, filled))
    try:
        with pytest.raises(ConflictError, match="uses this store already"):
            move(location(SQLITE, filled), location(POSTGRES, tmp_path))
    finally:
        lock.release()
    assert rows_of_postgres(tmp_path) == [(0,)]


async def test_no_daemon_can_open_a_store_that_is_being_moved(tmp_path: Path) -> None:
    """This holds for source and target, so that the copy has every accepted job."""
    postgres = location(POSTGRES, tmp_path)
    factory = StoreFactory(kind=POSTGRES, directory=tmp_path)
    with open_target(postgres, START), pytest.raises(StoreBusyError, match="being moved"):
        await factory.open()
    store = await factory.open()
    with open_source(postgres, START), pytest.raises(StoreBusyError, match="being moved"):
        await accept(store, a_new_job())
    await factory.close()


def test_there_must_be_a_store_to_move(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no store"):
        move(location(SQLITE, tmp_path), location(POSTGRES, tmp_path))
    with pytest.raises(DuctileError, match="there is no store"):
        move(location(POSTGRES, tmp_path), location(SQLITE, tmp_path))


# ---------------------------------------------------------------------------------- when it goes wrong


class ForgetfulTarget:
    """A target that loses or changes a row."""

    def __init__(self, fault: str) -> None:
        self._fault = fault
        self._rows: dict[str, list[Row]] = {}

    def count(self, table: CopiedTable) -> int:
        return len(self._rows[table.name])

    def read(self, table: CopiedTable) -> Iterator[Row]:
        rows = self._rows[table.name]
        if self._fault == "loses" and table.name == "ledger":
            return iter(rows[1:])
        if self._fault == "changes" and table.name == "ledger":
            return iter([(*rows[0][:-1], "{}"), *rows[1:]])
        return iter(reversed(rows))

    def write(self, table: CopiedTable, rows: Iterable[Row]) -> None:
        self._rows[table.name] = list(rows)

    def last_numbers(self) -> dict[str, int]:
        return {}

    def continue_numbers(self, last_numbers: Any) -> None:
        assert last_numbers["plugin_facts"] == 900

    session: Any = None


@pytest.mark.parametrize("fault", ["loses", "changes", "nothing"])
def test_a_copy_with_other_rows_is_found(filled: Path, fault: str) -> None:
    """Number and content are compared; the order of rows does not matter."""
    with open_source(location(SQLITE, filled), START) as source:
        if fault == "nothing":
            copy_rows(source, ForgetfulTarget(fault), store_tables(), quiet)
            return
        with pytest.raises(StoreFailedError, match="the copy of ledger differs"):
            copy_rows(source, ForgetfulTarget(fault), store_tables(), quiet)


_KILLED = """
import os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
from ductile.admin.move_store import MoveRequest, move_store, parse_store
from ductile.config.snapshot import SqliteLocation

source, target, step = sys.argv[1:]

def die(now, done, of):
    if now == step and done:
        os.kill(os.getpid(), signal.SIGKILL)

configured = SqliteLocation(path=Path("unused"))
stores = [parse_store(each, "--to", os.environ, configured) for each in (source, target)]
move_store(MoveRequest(source=stores[0], target=stores[1], now=datetime.now(UTC)), die)
"""


@pytest.mark.parametrize(
    ("kind", "step"),
    [(SQLITE, "copying"), (SQLITE, "indexing the log"), (POSTGRES, "copying"), (POSTGRES, "comparing")],
)
def test_a_command_that_is_killed_leaves_no_copy_behind(
    filled: Path, tmp_path: Path, kind: StoreKind, step: str
) -> None:
    """The source is unchanged, the target does not exist, and the command can run again."""
    target_directory = tmp_path / "there"
    target_directory.mkdir()
    source, target = location(SQLITE, filled), location(kind, target_directory)
    before = all_rows(source)
    addresses = [
        filled / "state.db",
        target_directory / "state.db" if kind is SQLITE else store_url(target_directory),
    ]
    killed = run([sys.executable, "-c", _KILLED, *map(str, addresses), step], env=os.environ, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert all_rows(source) == before
    if kind is SQLITE:
        assert not (target_directory / "state.db").exists()
        assert (target_directory / f"state.db{UNFINISHED_SUFFIX}").exists()
    else:
        wait_until_unused(target_directory)
        assert rows_of_postgres(target_directory) == [(0,)]
    move(source, target)
    assert all_rows(target)["ledger"] == before["ledger"]
    assert not (target_directory / f"state.db{UNFINISHED_SUFFIX}").exists()


def wait_until_unused(directory: Path) -> None:
    """Wait until the server has seen the end of a client, which releases its locks."""
    POSTGRES.run_sql(
        directory,
        "SELECT pg_advisory_lock(17526, number), pg_advisory_unlock(17526, number) "
        "FROM (SELECT CAST(oid AS int) AS number FROM pg_namespace WHERE nspname = current_schema()) AS own",
    )
