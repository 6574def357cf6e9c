"""Faults of SQLite and of the disk, on a real file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

from builders.invariants import violations
from builders.jobs import Clock, a_new_job, ok, some_rng
from builders.stores import accept, claim_all, claim_one, settle, stored, submit
from ductile.errors import (
    RefusedError,
    StoreBusyError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    StoreSchemaError,
)
from ductile.store import writer as writer_module
from ductile.store.model.jobs import Accepted, Deduplicated
from ductile.store.model.records import JobFilter, LogFilter
from ductile.store.port import Priority
from ductile.store.session import Session
from ductile.store.sqlite import connection as connection_module
from ductile.store.sqlite.connection import APPLICATION_ID, wal_path
from ductile.store.sqlite.file_identities import Rescue
from ductile.store.sqlite.migrate import _apply, migrations, schema_version
from ductile.store.sqlite.session import SqliteSession
from ductile.store.sqlite.store import SqliteStore, open_sqlite_store


def open_store(path: Path) -> SqliteStore:
    return open_sqlite_store(path, clock=Clock(), rng=some_rng())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = open_store(path)
    yield store
    await store.close()
    assert violations(path) == []


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """End batches only by their size, so that tests know which requests share one."""
    monkeypatch.setattr(writer_module, "MAX_SECONDS", 60)


class Gate:
    """Holds the writer inside a transaction, so that a test decides which requests wait for the next one."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._reached = threading.Event()
        self._open = threading.Event()

    def _wait(self, session: Session) -> None:
        assert isinstance(session, SqliteSession)
        # So large that the batch ends with it: requests that wait behind it share the next one.
        session.written_size += writer_module.MAX_BYTES
        self._reached.set()
        self._open.wait(timeout=60)

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Collect the requests of the block in one batch, which is committed when the block ends."""
        waiting = asyncio.ensure_future(self._store.run_write(Priority.SETTLE, self._wait))
        await asyncio.to_thread(self._reached.wait, 60)
        try:
            yield
            for _ in range(5):  # the callers inside have put their requests on the queues
                await asyncio.sleep(0)
        finally:
            self._open.set()
        await waiting


async def together(store: SqliteStore, *verbs: Any) -> list[Any]:
    """Run verbs in one batch, and return results and errors in order."""
    async with Gate(store).held():
        tasks = [asyncio.ensure_future(verb) for verb in verbs]
    return await asyncio.gather(*tasks, return_exceptions=True)


async def broken_request(store: SqliteStore, error: Exception) -> None:
    def fail(session: Session) -> None:
        session.execute("put_meta", key="broken", value="half")
        raise error

    await store.run_write(Priority.ENQUEUE, fail)


# --------------------------------------------------------------------------------------- group commit


async def test_a_failing_unit_leaves_its_neighbours_alone(store: SqliteStore) -> None:
    """A violated constraint undoes only its own request."""
    twin = a_new_job()
    jobs = [a_new_job() for _ in range(4)]
    results = await together(
        store,
        submit(store, jobs[0]),
        submit(store, jobs[1], twin, twin),
        submit(store, jobs[2]),
        broken_request(store, RuntimeError("defect")),
        submit(store, jobs[3]),
    )
    assert [type(result).__name__ for result in results] == [
        "tuple",
        "StoreError",
        "tuple",
        "StoreError",
        "tuple",
    ]
    stored_jobs = [await store.get_job(job.id) for job in jobs]
    assert [job is not None for job in stored_jobs] == [True, False, True, True]
    assert await store.get_job(twin.id) is None
    assert store.connection.execute("SELECT 1 FROM store_meta WHERE key = 'broken'").fetchall() == []


async def test_answers_are_those_of_the_run_that_was_committed(store: SqliteStore) -> None:
    """Requests may run twice before they are committed; callers get the committed result."""
    jobs = [a_new_job() for _ in range(3)]
    twin = a_new_job()
    results = await together(
        store, *(submit(store, job) for job in jobs[:2]), submit(store, twin, twin), submit(store, jobs[2])
    )
    for job, result in zip(jobs, [results[0], results[1], results[3]], strict=True):
        (accepted,) = result
        assert isinstance(accepted, Accepted)
        assert (await stored(store, job.id)).seq == accepted.seq


async def test_no_subscriber_is_notified_before_the_commit(store: SqliteStore) -> None:
    """Callers continue after COMMIT has returned."""
    job = a_new_job()
    async with Gate(store).held():
        task = asyncio.ensure_future(submit(store, job))
        await asyncio.sleep(0)
        assert not task.done()
        assert await store.get_job(job.id) is None
    await task
    assert await store.get_job(job.id) is not None


async def test_a_cancelled_callers_unit_is_committed_all_the_same(store: SqliteStore) -> None:
    job = a_new_job()
    async with Gate(store).held():
        task = asyncio.ensure_future(submit(store, job))
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await accept(store, a_new_job())
    assert await store.get_job(job.id) is not None


async def test_a_claim_comes_into_the_next_batch_however_many_submit(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims are chosen for a batch before submissions, and run after them."""
    monkeypatch.setattr(writer_module, "MAX_REQUESTS", 3)
    order: list[str] = []

    async def note(priority: Priority, name: str) -> None:
        await store.run_write(priority, lambda _session: order.append(name))

    submissions = [note(Priority.ENQUEUE, str(number)) for number in range(9)]
    await together(store, *submissions, note(Priority.CLAIM, "claim"))
    assert order[3] == "claim"


async def test_a_claim_is_not_lost_with_what_failed_before_it(store: SqliteStore) -> None:
    """A batch with a failed submission runs again, request by request, with its claims."""

    def fail(_session: object) -> None:
        raise RefusedError("this one is wrong")

    async def claim() -> str:
        return await store.run_write(Priority.CLAIM, lambda _session: "claimed")

    async def submit_wrongly() -> None:
        await store.run_write(Priority.ENQUEUE, fail)

    wrong, claimed = await together(store, submit_wrongly(), claim())
    assert isinstance(wrong, RefusedError)
    assert claimed == "claimed"


@pytest.mark.parametrize("priority", [Priority.CONFIGURE, Priority.MAINTENANCE], ids=str)
async def test_requests_behind_a_claim_are_not_lost_when_it_fails(
    store: SqliteStore, priority: Priority
) -> None:
    """The claim finds the disk full; a reload or a sweep after it has its own result."""

    def fail(_session: object) -> None:
        raise apsw.FullError("database or disk is full")

    async def claim() -> None:
        await store.run_write(Priority.CLAIM, fail)

    async def later() -> str:
        return await store.run_write(priority, lambda _session: "done")

    async with asyncio.timeout(60):
        first, second = await together(store, claim(), later())
    assert isinstance(first, StoreFullError)
    assert second == "done"


async def test_finishing_work_goes_first(store: SqliteStore) -> None:
    """The order is settle, enqueue, claim, maintenance. If a configuration is among the requests, claims
    under the previous one come before it.
    """
    order: list[Priority] = []

    async def note(priority: Priority) -> None:
        await store.run_write(priority, lambda _session: order.append(priority))

    most = [priority for priority in sorted(Priority, reverse=True) if priority is not Priority.CONFIGURE]
    await together(store, *(note(priority) for priority in most))
    assert order == [Priority.SETTLE, Priority.ENQUEUE, Priority.CLAIM, Priority.MAINTENANCE]
    order.clear()
    await together(store, *(note(priority) for priority in sorted(Priority, reverse=True)))
    assert order == [
        Priority.SETTLE,
        Priority.CLAIM,
        Priority.CONFIGURE,
        Priority.ENQUEUE,
        Priority.MAINTENANCE,
    ]


async def test_a_batch_is_bounded(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of requests of a batch is limited, and all requests are served."""
    monkeypatch.setattr(writer_module, "MAX_REQUESTS", 3)
    results = await together(store, *(submit(store, a_new_job()) for _ in range(10)))
    assert all(isinstance(result, tuple) for result in results)


async def test_more_submissions_than_the_queue_holds_are_refused(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is limited, but settlements are never refused."""
    await accept(store, a_new_job())
    job = await claim_one(store)
    monkeypatch.setattr(writer_module, "CAPACITY", 2)
    results = await together(store, *(submit(store, a_new_job()) for _ in range(3)), settle(store, job, ok()))
    assert [type(result).__name__ for result in results] == ["tuple", "tuple", "StoreBusyError", "Settled"]


async def test_closing_commits_what_waits_and_refuses_what_comes(path: Path) -> None:
    store = open_store(path)
    jobs = [a_new_job() for _ in range(20)]
    tasks = [asyncio.ensure_future(submit(store, job)) for job in jobs]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*tasks)
    with pytest.raises(StoreBusyError):
        await submit(store, a_new_job())
    store = open_store(path)
    assert len((await store.list_jobs(JobFilter(), limit=50)).rows) == 20
    await store.close()


async def test_reading_a_closed_store_is_an_error_of_ours(path: Path) -> None:
    """Verbs raise only errors of Ductile."""
    store = open_store(path)
    await store.close()
    with pytest.raises(StoreError):
        await store.queue_counts()


async def test_closing_twice_is_harmless(path: Path) -> None:
    store = open_store(path)
    await store.close()
    await store.close()


def size(path: Path) -> int:
    return path.stat().st_size


async def test_the_write_ahead_log_stays_bounded(store: SqliteStore, path: Path) -> None:
    """The writer checkpoints between batches, while other connections read."""
    largest = 0
    for _ in range(120):
        await asyncio.gather(
            submit(store, *[a_new_job(payload={"x": "y" * 4000}) for _ in range(20)]),
            store.queue_counts(),
        )
        largest = max(largest, size(Path(f"{path}-wal")))
    written = size(path)
    assert written > 8 * 1024 * 1024
    assert largest < written


# ------------------------------------------------------------------------------------------ full disk


def pages(store: SqliteStore) -> int:
    return int(store.connection.pragma("page_count"))


def limit_pages(store: SqliteStore, count: int) -> None:
    store.connection.pragma("max_page_count", count)


async def test_a_full_disk_is_reported_and_loses_nothing(store: SqliteStore) -> None:
    """The error is StoreFullError, nothing is half-written, and the store works again when there is room."""
    kept_id = await accept(store, a_new_job())
    limit_pages(store, pages(store))
    big = a_new_job(payload={"x": "y" * 200_000})
    with pytest.raises(StoreFullError) as caught:
        await submit(store, big)
    assert caught.value.hint
    assert await store.get_job(big.id) is None
    assert await store.list_transitions(big.id) == ()
    assert await store.get_job(kept_id) is not None
    limit_pages(store, 1_000_000)
    await accept(store, big)


async def test_a_full_disk_is_known_until_something_is_written_again(store: SqliteStore) -> None:
    """Without submissions, a small write checks the disk."""
    assert not await store.is_full()
    limit_pages(store, pages(store))
    with pytest.raises(StoreFullError):
        await submit(store, a_new_job(payload={"x": "y" * 200_000}))
    assert await claim_all(store) == []  # an empty commit does not check the disk
    assert await store.is_full()
    assert await store.is_full()
    limit_pages(store, 1_000_000)
    assert not await store.is_full()
    assert store.connection.execute("SELECT 1 FROM store_meta WHERE key = 'filling'").fetchall() == []


async def test_neighbours_of_the_one_that_found_the_disk_full_are_served(store: SqliteStore) -> None:
    """A full disk rolls back the whole transaction; the other requests run again in a new one."""
    for _ in range(30):  # some room inside the existing pages
        await accept(store, a_new_job())
    limit_pages(store, pages(store) + 4)
    small = [a_new_job() for _ in range(4)]
    big = a_new_job(payload={"x": "y" * 400_000})
    results = await together(
        store,
        submit(store, small[0]),
        submit(store, small[1]),
        submit(store, big),
        submit(store, small[2]),
        submit(store, small[3]),
    )
    assert isinstance(results[2], StoreFullError)
    served = [results[index] for index in (0, 1, 3, 4)]
    assert all(isinstance(result, tuple) for result in served), served
    assert [await store.get_job(job.id) is not None for job in (*small, big)] == [True] * 4 + [False]


async def test_a_full_disk_never_answers_wrongly(store: SqliteStore) -> None:
    """With any amount of room, an accepted job is on disk and a refused one is not."""
    for room in range(0, 40, 3):
        limit_pages(store, pages(store) + room)
        jobs = [a_new_job(payload={"x": "y" * 5000 * n}) for n in range(8)]
        results = await together(store, *(submit(store, job) for job in jobs))
        for job, result in zip(jobs, results, strict=True):
            assert isinstance(result, tuple | StoreFullError)
            assert (await store.get_job(job.id) is not None) == isinstance(result, tuple)
        limit_pages(store, 1_000_000)


# -------------------------------------------------------------------------------------------- locked


LOCKER = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def locked_elsewhere(path: Path) -> Iterator[None]:
    """Let another process hold the write lock until the block ends."""
    with subprocess.Popen(
        [sys.executable, "-c", LOCKER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as locker:
        assert locker.stdout is not None
        assert locker.stdout.readline() == b"locked\n"
        try:
            yield
        finally:
            locker.communicate()


async def test_a_store_locked_by_another_process_is_busy_and_recovers(path: Path) -> None:
    store = open_store(path)
    store.connection.set_busy_timeout(20)
    kept_id = await accept(store, a_new_job())
    with locked_elsewhere(path):
        refused_job = a_new_job()
        with pytest.raises(StoreBusyError) as caught:
            await submit(store, refused_job)
        assert str(path) in caught.value.message
        assert await store.get_job(kept_id) is not None, "reads never wait for a writer"
    assert await store.get_job(refused_job.id) is None
    await accept(store, a_new_job())
    await store.close()


def test_a_lock_at_start_is_busy(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "BUSY_TIMEOUT_MS", 20)
    with locked_elsewhere(path), pytest.raises(StoreBusyError):
        open_store(path)


# ------------------------------------------------------------------------------- files that are not ours


def open_refused(path: Path, kind: type[StoreError]) -> StoreError:
    """Check that opening fails with this error and does not change the file, and return the error."""
    before = path.read_bytes()
    with pytest.raises(kind) as caught:
        open_store(path)
    assert path.read_bytes() == before
    assert str(path) in caught.value.message
    assert caught.value.hint
    return caught.value


def test_a_garbage_file_is_refused_untouched(path: Path) -> None:
    path.write_bytes(b"this is no database, but it is a file of some use\n" * 200)
    open_refused(path, StoreFailedError)


def test_a_foreign_database_is_refused_untouched(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE photos (id INTEGER PRIMARY KEY, name TEXT)")
    connection.close()
    open_refused(path, StoreSchemaError)


async def test_a_store_of_the_first_version_is_brought_up_to_date(path: Path) -> None:
    """Migrations are applied at the start, and the rows are kept."""
    connection = apsw.Connection(str(path))
    (first, sql), *_ = migrations()
    _apply(connection, first, sql)
    connection.execute(
        "INSERT INTO pipeline_runs (run_id, pipeline, fingerprint, created_at) VALUES ('r', 'p', 'f', 'now')"
    )
    connection.close()
    store = open_store(path)
    await accept(store, a_new_job())
    await store.close()
    connection = apsw.Connection(str(path))
    assert schema_version(connection) == migrations()[-1][0] > first
    assert connection.execute("SELECT run_id, deadline_wait FROM pipeline_runs").fetchall() == [("r", None)]
    connection.close()


def a_job_row(connection: apsw.Connection, seq: int, key: str, status: str, hold: str | None = None) -> None:
    ended = "2026-02-08T10:00:00.000000Z" if status == "succeeded" else None
    connection.execute(
        "INSERT INTO job_queue (seq, id, plugin, command, status, reason, hold, submitted_by, dedupe_key, "
        "created_at, completed_at, max_attempts) "
        "VALUES (?, ?, 'echo', 'handle', ?, 'submitted', ?, 'route', ?, '2026-02-08T09:00:00.000000Z', ?, 1)",
        (seq, f"job-{seq}", status, hold, key, ended),
    )


def a_second_version(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    for version, sql in migrations()[:2]:
        _apply(connection, version, sql)
    return connection


async def test_keys_of_a_second_version_go_on_deduplicating(path: Path) -> None:
    """Keys of events and of callers become one kind. The live key of an event that a live job of a caller has
    too stays separate.
    """
    connection = a_second_version(path)
    for seq, (key, status, hold) in enumerate(
        (
            ("event:done", "succeeded", None),
            ("event:live", "queued", None),
            ("event:live", "queued", "key"),
            ("event:both", "queued", None),
            ("event:both", "queued", "key"),
            ("key:both", "queued", None),
            ("idem:admin:k", "succeeded", None),
        ),
        start=1,
    ):
        a_job_row(connection, seq, key, status, hold)
    connection.close()
    store = open_store(path)
    for key in ("key:done", "key:live", "key:both", "idem:admin:k"):
        (result,) = await submit(
            store,
            a_new_job("echo", "handle", dedupe_key=key, dedupe_ttl=1e10),
            dedupe_window=timedelta(days=9999),
        )
        assert isinstance(result, Deduplicated), key
    await store.close()
    connection = apsw.Connection(str(path))
    keys = [key for (key,) in connection.execute("SELECT dedupe_key FROM job_queue ORDER BY seq")]
    connection.close()
    assert keys == [
        *("key:done", "key:live", "key:live"),
        *("event:both", "event:both", "key:both"),
        "idem:admin:k",
    ]


@pytest.mark.parametrize("index", ["job_queue_ended", "job_queue_prunable"])
async def test_a_second_version_of_either_kind_gets_its_index(path: Path, index: str) -> None:
    """Some stores were created before the second version had its index."""
    connection = a_second_version(path)
    if index == "job_queue_ended":
        connection.execute("DROP INDEX job_queue_prunable")
        connection.execute("CREATE INDEX job_queue_ended ON job_queue (status, completed_at)")
    connection.close()
    await open_store(path).close()
    connection = apsw.Connection(str(path))
    indexes = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'index'").fetchall()
    connection.close()
    assert ("job_queue_prunable",) in indexes
    assert ("job_queue_ended",) not in indexes


#: Columns by the names that are documented for readers of the file.
NAMED = {
    "job_log": "last_error",
    "plugin_facts": "id",
    "circuit_breaker_transitions": "id",
}


def columns_of(connection: apsw.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_xinfo({table})")]


async def test_columns_have_the_documented_names(path: Path) -> None:
    await open_store(path).close()
    connection = apsw.Connection(str(path))
    assert all(name in columns_of(connection, table) for table, name in NAMED.items())
    assert "seq" in columns_of(connection, "plugin_facts")
    connection.close()


async def test_a_newer_schema_is_refused_untouched(path: Path) -> None:
    """The error names the versions."""
    await open_store(path).close()
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", 999)
    connection.close()
    assert "999" in open_refused(path, StoreSchemaError).message


def damage(path: Path, *, page: int, after: int = 0) -> None:
    """Overwrite a page of the file."""
    content = bytearray(path.read_bytes())
    content[(page - 1) * 4096 + after : page * 4096] = b"\xff" * (4096 - after)
    path.write_bytes(bytes(content))


async def test_a_damaged_file_is_refused(path: Path) -> None:
    store = open_store(path)
    for _ in range(50):
        await accept(store, a_new_job(payload={"x": "y" * 2000}))
    await store.close()
    damage(path, page=1, after=100)
    with pytest.raises(StoreFailedError) as caught:
        open_store(path)
    assert caught.value.hint


async def test_damage_found_later_stops_the_store(path: Path) -> None:
    """Nothing more is written to a damaged file."""
    store = open_store(path)
    await accept(store, a_new_job())
    ((page,),) = store.connection.execute(
        "SELECT rootpage FROM sqlite_schema WHERE name = 'job_queue_by_plugin'"
    ).fetchall()
    await store.close()
    damage(path, page=int(str(page)))
    store = open_store(path)
    for _ in range(2):
        with pytest.raises(StoreFailedError) as caught:
            await submit(store, a_new_job())
        assert caught.value.hint
    await store.close()


async def test_a_store_that_has_failed_leaves_its_log_as_it_is(path: Path) -> None:
    """To close it must not copy the write-ahead log into a damaged file and remove the log."""
    store = open_store(path)
    await accept(store, a_new_job())
    ((page,),) = store.connection.execute(
        "SELECT rootpage FROM sqlite_schema WHERE name = 'job_queue_by_plugin'"
    ).fetchall()
    await store.close()
    damage(path, page=int(str(page)))
    store = open_store(path)
    with pytest.raises(StoreFailedError):
        await submit(store, a_new_job())
    log = wal_path(path).read_bytes()
    await store.close()
    assert wal_path(path).read_bytes() == log


@pytest.mark.parametrize("crashed", [False, True])
async def test_damage_in_the_middle_of_the_file_is_refused_untouched(path: Path, crashed: bool) -> None:
    """The file is checked at the start of a daemon, and after a crash by every command."""
    store = open_store(path)
    await accept(store, a_new_job())
    ((page,),) = store.connection.execute(
        "SELECT rootpage FROM sqlite_schema WHERE name = 'job_log_by_plugin'"
    ).fetchall()
    if crashed:
        # A page in the log is read from there, so all pages are moved into the file first.
        store.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        await accept(store, a_new_job())
        path = a_crashed_copy(path)
    await store.close()
    damage(path, page=int(str(page)))
    before = {file.name: file.read_bytes() for file in (path, wal_path(path)) if file.exists()}
    for _ in range(2):
        with pytest.raises(StoreFailedError) as caught:
            open_sqlite_store(path, clock=Clock(), rng=some_rng(), check_integrity=not crashed)
        assert "is damaged: " in caught.value.message
        assert "restore" in (caught.value.hint or "")
    assert {file.name: file.read_bytes() for file in (path, wal_path(path)) if file.exists()} == before


def a_crashed_copy(path: Path) -> Path:
    """Copy the files of an open store, as a killed process would leave them."""
    copy = path.parent / "crashed" / path.name
    copy.parent.mkdir()
    shutil.copy(path, copy)
    # SQLite's locks are on the database, not on the log.
    shutil.copy(wal_path(path), wal_path(copy))
    return copy


async def run_and_index(store: SqliteStore, text: str) -> None:
    await accept(store, a_new_job())
    await settle(store, await claim_one(store), ok(stderr=text))
    while await store.index_log():
        pass


def damage_search_index(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE job_log_text_data SET block = zeroblob(8) WHERE id > 10").fetchall()
    assert connection.changes()
    connection.close()


async def count_found(store: SqliteStore, query: str) -> int:
    return len((await store.list_log(LogFilter(query=query), limit=10)).rows)


async def fill_index(store: SqliteStore) -> None:
    while await store.index_log():
        pass


async def test_a_damaged_search_index_is_built_anew_and_is_no_damaged_store(
    store: SqliteStore, path: Path
) -> None:
    for number in range(3):
        await run_and_index(store, f"needle straw{number}")
    damage_search_index(path)
    stats = await store.stats()
    assert stats.damage == ()
    assert stats.search_damage
    await fill_index(store)
    assert await count_found(store, "needle") == 3
    stats = await store.stats()
    assert (stats.damage, stats.search_damage) == ((), ())


async def test_searching_a_damaged_index_has_it_built_anew(store: SqliteStore, path: Path) -> None:
    await run_and_index(store, "needle")
    damage_search_index(path)
    with pytest.raises(StoreBusyError, match="built anew"):
        await count_found(store, "needle")
    await fill_index(store)
    assert await count_found(store, "needle") == 1


async def test_adding_to_a_damaged_index_does_not_stop_the_store(store: SqliteStore, path: Path) -> None:
    await run_and_index(store, "needle")
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE job_log_text_data SET block = x'ff' WHERE id = 10").fetchall()
    connection.close()
    await accept(store, a_new_job())
    await settle(store, await claim_one(store), ok(stderr="needle"))
    with pytest.raises(StoreBusyError, match="index for searching"):
        await store.index_log()
    await fill_index(store)
    assert await count_found(store, "needle") == 2
    await accept(store, a_new_job())


async def test_a_damaged_search_index_does_not_keep_a_store_from_opening(path: Path) -> None:
    store = open_store(path)
    await run_and_index(store, "needle")
    await store.close()
    damage_search_index(path)
    store = open_sqlite_store(path, clock=Clock(), rng=some_rng(), check_integrity=True)
    await fill_index(store)
    assert await count_found(store, "needle") == 1
    await store.close()


@pytest.fixture
def empty(path: Path) -> Path:
    path.touch()
    return path


async def test_an_empty_file_is_a_new_store(empty: Path) -> None:
    path = empty
    store = open_store(path)
    await accept(store, a_new_job())
    await store.close()
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    assert connection.pragma("application_id") == APPLICATION_ID
    assert connection.pragma("journal_mode") == "wal"
    connection.close()


async def test_a_new_store_is_private(tmp_path: Path) -> None:
    """Directories have mode 0700 and files 0600, also those beside the database."""
    path = tmp_path / "new" / "state.db"
    store = open_store(path)
    await accept(store, a_new_job())
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
    await store.close()


async def test_safe_settings(store: SqliteStore) -> None:
    """The settings are WAL, foreign keys on and synchronous FULL."""
    connection = store.connection
    assert connection.pragma("journal_mode") == "wal"
    assert connection.pragma("synchronous") == 2
    assert connection.pragma("foreign_keys") == 1


@pytest.mark.parametrize("place", ["directory", "below_a_file", "proc"])
async def test_a_place_that_cannot_hold_a_store_is_reported(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    path = {
        "directory": tmp_path,
        "below_a_file": tmp_path / "file" / "state.db",
        "proc": Path("/proc/ductile/state.db"),
    }[place]
    with pytest.raises(StoreFailedError) as caught:
        open_store(path)
    assert str(path) in caught.value.message
    assert caught.value.hint


UNPRIVILEGED = """
import os, sys
from pathlib import Path
from ductile.errors import StoreFailedError
from ductile.store.sqlite.connection import open_writer
open_writer(Path(sys.argv[2])).close()  # loads what can only be read while we are root
os.setgid(65534), os.setuid(65534)
try:
    open_writer(Path(sys.argv[1]))
except StoreFailedError as error:
    print(error.message, error.hint)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user with fewer rights")
@pytest.mark.parametrize("exists", [True, False])
def test_an_unwritable_place_is_reported(tmp_path: Path, exists: bool) -> None:
    directory = tmp_path / "sealed"
    directory.mkdir()
    path = directory / "state.db"
    if exists:
        asyncio.run(create_store(path))
        path.chmod(0o444)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    directory.chmod(0o555)
    process = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED, str(path), str(tmp_path / "other.db")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "cannot be opened for writing" in process.stdout
    assert "writable by the user" in process.stdout


async def create_store(path: Path) -> None:
    await open_store(path).close()


# ----------------------------------------------------------------------------------------- I/O errors


class FaultyFile(apsw.VFSFile):
    def __init__(self, vfs: FaultyDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__("unix", name, flags)
        self._vfs = vfs

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        self._vfs.meet("sync")
        super().xSync(flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - SQLite's name
        self._vfs.meet("write")
        super().xWrite(data, offset)


class FaultyDisk(apsw.VFS):
    """The real disk, except for one operation that fails."""

    def __init__(self) -> None:
        super().__init__("ductile-faulty", "unix", makedefault=True)
        self.fails: str | None = None
        self.after = 0
        self.once = False

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's name
        return FaultyFile(self, name, flags)

    def repair(self) -> None:
        """Make all later files use the real disk."""
        self.fails = None
        self.unregister()

    def meet(self, operation: str) -> None:
        if self.fails == operation:
            if self.after > 0:
                self.after -= 1
                return
            if self.once:
                self.fails = None
            raise apsw.IOError("injected")


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    disk = FaultyDisk()
    yield disk
    disk.repair()


async def close_quietly(store: SqliteStore) -> None:
    """Close a store whose disk has failed, and ignore a further error."""
    with contextlib.suppress(apsw.Error):
        await store.close()


@pytest.mark.parametrize("once", [True, False], ids=["once", "from then on"])
@pytest.mark.parametrize("operation", ["sync", "write"])
async def test_an_io_error_stops_the_store_for_every_caller(
    path: Path, disk: FaultyDisk, operation: str, once: bool
) -> None:
    """The store never retries after an I/O error. After a restart it has all acknowledged jobs."""
    store = open_store(path)
    kept_ids = [await accept(store, a_new_job()) for _ in range(5)]
    disk.fails, disk.once = operation, once
    failed_jobs = [a_new_job() for _ in range(4)]
    results = await together(store, *(submit(store, job) for job in failed_jobs))
    assert [type(result) for result in results] == [StoreFailedError] * len(failed_jobs)
    disk.fails = None
    with pytest.raises(StoreFailedError) as caught:
        await submit(store, a_new_job())
    assert caught.value.hint
    await close_quietly(store)
    disk.repair()
    reopened = open_store(path)
    assert all([await reopened.get_job(job_id) is not None for job_id in kept_ids])
    await accept(reopened, a_new_job())
    await reopened.close()
    assert violations(path) == []


async def test_the_caller_of_a_failed_commit_learns_that_it_may_be_on_disk(
    path: Path, disk: FaultyDisk, tmp_path: Path
) -> None:
    """The commit was written, and its fsync failed. After a crash at this moment the job is stored."""
    store = open_store(path)
    job = a_new_job()
    disk.fails, disk.once = "sync", True
    with pytest.raises(StoreFailedError) as caught:
        await submit(store, job)
    copy = tmp_path / "left"
    copy.mkdir()
    for name in ("state.db", "state.db-wal"):
        shutil.copy(path.with_name(name), copy)
    await close_quietly(store)
    disk.repair()
    reopened = open_store(copy / "state.db")
    assert await reopened.get_job(job.id) is not None
    await reopened.close()
    assert "may be on disk or not" in str(caught.value.hint)


@pytest.mark.parametrize("operation", ["sync", "write"])
@pytest.mark.parametrize("after", [0, 1, 2, 3])
async def test_an_io_error_while_a_batch_runs_again_acknowledges_nothing_that_is_lost(
    path: Path, disk: FaultyDisk, operation: str, after: int
) -> None:
    """A failed request makes its batch run again; a job that is accepted then is on disk."""
    store = open_store(path)
    jobs = [a_new_job(payload={"x": "y" * 3000}) for _ in range(6)]

    async def break_then_fail() -> None:
        """Raise a harmless error, so that the batch runs again, and make the disk fail from then on."""

        def work(_session: Session) -> None:
            disk.fails, disk.after = operation, after
            raise RuntimeError("harmless")

        await store.run_write(Priority.ENQUEUE, work)

    verbs = [submit(store, job) for job in jobs]
    results = await together(store, *verbs[:3], break_then_fail(), *verbs[3:])
    del results[3]
    await close_quietly(store)
    disk.repair()
    reopened = open_store(path)
    for job, result in zip(jobs, results, strict=True):
        if not isinstance(result, Exception):
            assert await reopened.get_job(job.id) is not None, "acknowledged and lost"
    await reopened.close()
    assert violations(path) == []


async def test_an_io_error_inside_a_unit_of_a_batch_that_runs_again_fails_all_of_it(path: Path) -> None:
    """Here SQLite has rolled back the whole transaction after the error."""
    store = open_store(path)
    jobs = [a_new_job() for _ in range(4)]
    runs = 0

    def fail_as_the_disk_does(_session: Session) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise RuntimeError("harmless, so that the batch runs again")
        store.connection.execute("ROLLBACK").fetchall()  # what SQLite does by itself after such an error
        raise apsw.IOError("injected")

    results = await together(
        store,
        submit(store, jobs[0]),
        submit(store, jobs[1]),
        store.run_write(Priority.ENQUEUE, fail_as_the_disk_does),
        submit(store, jobs[2]),
        submit(store, jobs[3]),
    )
    del results[2]
    await close_quietly(store)
    reopened = open_store(path)
    acknowledged = [not isinstance(result, Exception) for result in results]
    stored_flags = [await reopened.get_job(job.id) is not None for job in jobs]
    await reopened.close()
    assert [
        (is_acknowledged, is_stored)
        for is_acknowledged, is_stored in zip(acknowledged, stored_flags, strict=True)
        if is_acknowledged and not is_stored
    ] == []


async def test_an_io_error_inside_a_savepoint_stops_the_store(path: Path) -> None:
    """Here the transaction still exists after the error."""
    store = open_store(path)
    runs = 0

    def fail_as_the_disk_does(_session: Session) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise RuntimeError("harmless, so that the batch runs again")
        raise apsw.IOError("injected")

    with pytest.raises(StoreError):
        await store.run_write(Priority.ENQUEUE, fail_as_the_disk_does)
    with pytest.raises(StoreFailedError):
        await submit(store, a_new_job())
    await close_quietly(store)


async def test_a_defect_in_the_writer_fails_every_caller_and_blocks_none(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All waiting and later callers get an error, and the store can be closed."""
    store = open_store(path)
    kept_id = await accept(store, a_new_job())

    def defect(_session: SqliteSession) -> None:
        raise ZeroDivisionError

    async with asyncio.timeout(60):
        monkeypatch.setattr(SqliteSession, "discard", defect)  # a rollback calls it
        others = [submit(store, a_new_job()) for _ in range(3)]
        errors = await together(store, broken_request(store, ValueError()), *others)
        assert all(isinstance(error, StoreError) for error in errors), errors
        assert all(isinstance(error, StoreFailedError) for error in errors[1:]), errors
        with pytest.raises(StoreFailedError, match="ZeroDivisionError"):
            await submit(store, a_new_job())
        await store.close()
    reopened = open_store(path)
    assert [job.id for job in (await reopened.list_jobs(JobFilter(), limit=9)).rows] == [kept_id]
    await reopened.close()


async def test_a_reader_that_opens_the_store_after_its_log_was_removed_is_no_obstacle_to_the_rescue(
    path: Path,
) -> None:
    """SQLite creates an empty log for each new connection that finds none."""
    store = open_store(path)
    job_id = await accept(store, a_new_job())
    wal_path(path).unlink()
    with contextlib.suppress(StoreError):  # what it reads is not what the log has
        await store.get_job(job_id)
    assert wal_path(path).exists(), "the reader has created a log"
    await store.close()
    assert store.rescue == Rescue(path=path, in_place=True)
    assert not wal_path(path).exists()
    reopened = open_store(path)
    assert (await stored(reopened, job_id)).id == job_id
    await reopened.close()


async def test_a_log_that_another_program_has_put_there_is_left_alone(path: Path) -> None:
    """The log may have transactions. The accepted jobs are saved to another file."""
    store = open_store(path)
    job_id = await accept(store, a_new_job())
    wal_path(path).unlink()
    wal_path(path).write_bytes(b"not empty")
    await store.close()
    assert wal_path(path).read_bytes() == b"not empty"
    assert isinstance(store.rescue, Rescue)
    assert not store.rescue.in_place
    rescued = open_store(store.rescue.path)
    assert (await stored(rescued, job_id)).id == job_id
    await rescued.close()
