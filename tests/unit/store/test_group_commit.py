"""Requests that share a commit, and the memory of the store."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from random import Random

import apsw
import pytest

from builders.jobs import START, a_new_job
from builders.stores import LEASE, ROOMY, open_sqlite
from ductile.core.events.model import NewEvent
from ductile.core.ids import make_id
from ductile.core.json import JsonObject
from ductile.errors import StoreError
from ductile.store import writer as writer_module
from ductile.store.model.jobs import Submission
from ductile.store.port import Priority
from ductile.store.session import Session
from ductile.store.sqlite.store import SqliteStore

RNG = Random(7)


@pytest.fixture(autouse=True)
def _no_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch ends by its size alone: on a busy machine five milliseconds may pass between two requests."""
    monkeypatch.setattr(writer_module, "MAX_SECONDS", 60)


def ticking_clock() -> Callable[[], datetime]:
    """Return a clock that the writer reads once per transaction, so equal instants mean one commit."""
    ticks = count()
    return lambda: START + timedelta(seconds=next(ticks))


async def idle_store(directory: Path) -> SqliteStore:
    store = open_sqlite(directory / "state.db", clock=ticking_clock(), rng=Random(1))
    await store.enqueue(Submission(jobs=(a_new_job(),)))
    async with asyncio.timeout(60):
        while not store.writer.is_idle:  # noqa: ASYNC110 - nothing signals that the thread is idle
            await asyncio.sleep(0)
    return store


async def test_submissions_in_one_turn_of_the_loop_share_a_commit(tmp_path: Path) -> None:
    """An idle writer is woken at the end of the turn, not by the first submission."""
    store = await idle_store(tmp_path)
    started = threading.Event()

    def write_first(session: Session) -> str:
        started.set()
        return session.timestamp

    early_write = store.run_write(Priority.ENQUEUE, write_first)
    assert not started.wait(0.05)  # the turn is not over
    late_write = store.run_write(Priority.ENQUEUE, lambda session: session.timestamp)
    assert await early_write == await late_write
    await store.close()


async def test_submissions_during_a_burst_share_its_commit(tmp_path: Path) -> None:
    """A request that is read in the next turn is submitted in the turn after it."""
    store = await idle_store(tmp_path)
    started = threading.Event()

    def write_first(session: Session) -> str:
        started.set()
        return session.timestamp

    burst = [store.run_write(Priority.ENQUEUE, write_first) for _ in range(8)]
    for _ in range(2):
        await asyncio.sleep(0)
        assert not started.wait(0.05)
    late_write = store.run_write(Priority.ENQUEUE, lambda session: session.timestamp)
    assert {await write for write in burst} == {await late_write}
    await store.close()


async def test_a_few_submissions_do_not_wait_for_others(tmp_path: Path) -> None:
    """Without a burst, a submission is written at the end of its turn."""
    store = await idle_store(tmp_path)
    started = threading.Event()
    writes = [store.run_write(Priority.ENQUEUE, lambda _: started.set()) for _ in range(7)]
    await asyncio.sleep(0)
    assert started.wait(60)
    await asyncio.gather(*writes)
    await store.close()


async def test_the_pages_kept_in_memory_do_not_grow_with_the_file(tmp_path: Path) -> None:
    """The memory of a daemon does not depend on the size of its store."""
    store = open_sqlite(tmp_path / "state.db", clock=ticking_clock(), rng=Random(1))
    before = apsw.memory_used()
    for _ in range(24):
        jobs = tuple(a_new_job(payload={"text": "x" * 64 * 1024}) for _ in range(16))
        await store.enqueue(Submission(jobs=jobs))
    growth = apsw.memory_used() - before
    await store.close()
    assert (tmp_path / "state.db").stat().st_size > 16 * 2**20
    assert growth < 6 * 2**20


def an_event(size: int) -> NewEvent:
    payload: JsonObject = {"text": "x" * size}
    return NewEvent(id=make_id(START, RNG), type="t", source="webhook", payload=payload)


async def test_large_submissions_do_not_all_share_a_commit(tmp_path: Path) -> None:
    """A batch ends at 4 MiB, including rows that are buffered."""
    store = await idle_store(tmp_path)
    events = [an_event(2**20) for _ in range(6)]
    jobs = [a_new_job(payload={"text": "x" * 2**20}) for _ in range(6)]
    submissions = [Submission(jobs=(a_new_job(),), event=event) for event in events]
    submissions += [Submission(jobs=(job,)) for job in jobs]
    await asyncio.gather(*map(store.enqueue, submissions))
    stored_events = [await store.get_event(event.id) for event in events]
    stamps = [row.created_at for row in stored_events if row is not None]
    stamps += [row.created_at for job in jobs if (row := await store.get_job(job.id)) is not None]
    await store.close()
    assert len(stamps) == 12
    assert max(Counter(stamps).values()) <= 4


async def test_a_claim_in_the_commit_that_brings_an_event_finds_it(tmp_path: Path) -> None:
    """The event is buffered when the claim looks for it; without it the plugin would get no payload."""
    store = await idle_store(tmp_path)
    event = an_event(10)
    job = a_new_job("of-an-event", payload=None, source_event_id=event.id)
    _, claims = await asyncio.gather(
        store.enqueue(Submission(jobs=(job,), event=event)),
        store.claim(owner="me", caps=ROOMY, limit=10, lease=LEASE),
    )
    (claim,) = [candidate for candidate in claims if candidate.job.id == job.id]
    await store.close()
    assert claim.job.started_at == claim.job.created_at, "they share a commit"
    assert claim.event is not None
    assert claim.event.payload == event.payload


async def test_nothing_of_what_was_written_stays_in_memory(tmp_path: Path) -> None:
    """A cached statement must not keep its last values."""
    store = open_sqlite(tmp_path / "state.db", clock=ticking_clock(), rng=Random(1))
    await store.enqueue(Submission(jobs=(a_new_job(),), event=an_event(10)))
    before = apsw.memory_used()
    for batch_size in (1, 2, 3, 5):
        jobs = tuple(a_new_job(payload={"text": "x" * 2**20}) for _ in range(batch_size))
        await asyncio.gather(
            store.enqueue(Submission(jobs=jobs)),
            *(store.enqueue(Submission(event=an_event(2**20))) for _ in range(batch_size)),
        )
    growth = apsw.memory_used() - before
    await store.close()
    assert growth < 6 * 2**20  # the cached pages


def append_to_ledger(session: Session) -> int:
    """Buffer a row of the ledger until its table is read, and return its number."""
    seq = session.next_seq("highest_in_ledger")
    session.insert_buffered(
        "insert_ledger",
        {"seq": seq, "at": session.timestamp, "kind": "engine", "data": "{}"}
        | dict.fromkeys(("job_id", "run_id", "token")),
    )
    return seq


def highest_in_ledger(session: Session) -> int:
    row = session.fetch_one("highest_in_ledger")
    return int(str((row or (0,))[0] or 0))


async def test_a_query_finds_rows_that_were_appended_to_its_table(tmp_path: Path) -> None:
    """This holds in the same transaction, and for more rows than one statement takes."""
    store = open_sqlite(tmp_path / "state.db", clock=ticking_clock(), rng=Random(1))

    def append_and_read(session: Session) -> tuple[int, int, int]:
        before = highest_in_ledger(session)
        appended = [append_to_ledger(session) for _ in range(150)]
        return before, appended[-1], highest_in_ledger(session)

    before, last, highest = await store.run_write(Priority.MAINTENANCE, append_and_read)
    assert (last, highest) == (before + 150, before + 150)
    assert await store.run_write(Priority.MAINTENANCE, highest_in_ledger) == highest
    await store.close()


async def test_as_many_rows_are_written_as_were_appended(tmp_path: Path) -> None:
    """A statement has more places than rows; an empty place writes no row."""
    store = open_sqlite(tmp_path / "state.db", clock=ticking_clock(), rng=Random(1))

    def append_and_count(session: Session) -> list[tuple[int, int]]:
        counts = []
        for size in (*range(1, 67), 127, 128, 129):
            before = len(session.fetch_all("ledger_after", after=0, limit=100_000))
            for _ in range(size):
                append_to_ledger(session)
            counts.append((size, len(session.fetch_all("ledger_after", after=0, limit=100_000)) - before))
        return counts

    counts = await store.run_write(Priority.MAINTENANCE, append_and_count)
    assert [row_count for _, row_count in counts] == [appended for appended, _ in counts]
    await store.close()


async def test_rows_that_a_failed_request_appended_are_dropped(tmp_path: Path) -> None:
    """The rows are not written with those of the next request, and their numbers are used again."""
    store = open_sqlite(tmp_path / "state.db", clock=ticking_clock(), rng=Random(1))
    await store.enqueue(Submission(jobs=(a_new_job(),)))
    before = await store.run_write(Priority.MAINTENANCE, highest_in_ledger)

    def append_and_fail(session: Session) -> int:
        append_to_ledger(session)
        raise StoreError("it failed")

    failing = store.run_write(Priority.MAINTENANCE, append_and_fail)
    succeeding = store.run_write(Priority.MAINTENANCE, append_to_ledger)
    with pytest.raises(StoreError, match="it failed"):
        await failing
    assert await succeeding == before + 1
    assert await store.run_write(Priority.MAINTENANCE, highest_in_ledger) == before + 1
    await store.close()


async def test_numbers_follow_what_another_connection_has_written(tmp_path: Path) -> None:
    """The writer caches the last number only while no other connection writes."""
    path = tmp_path / "state.db"
    store = open_sqlite(path, clock=ticking_clock(), rng=Random(1))
    own_seqs = [await store.run_write(Priority.MAINTENANCE, append_to_ledger) for _ in range(2)]
    other = apsw.Connection(str(path))
    other.execute("INSERT INTO ledger (seq, at, kind, data) SELECT max(seq) + 1, at, kind, data FROM ledger")
    other.close()
    after = await store.run_write(Priority.MAINTENANCE, lambda session: session.next_seq("highest_in_ledger"))
    await store.close()
    assert own_seqs[1] == own_seqs[0] + 1
    assert after == own_seqs[1] + 2
