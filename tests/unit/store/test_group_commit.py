"""What shares a commit, and what the store keeps in memory."""

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
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch ends by its size alone: on a busy machine five milliseconds may pass between two requests."""
    monkeypatch.setattr(writer_module, "MAX_SECONDS", 60)


def ticking() -> Callable[[], datetime]:
    """A clock that the writer reads once for each transaction, so that equal instants mean one commit."""
    ticks = count()
    return lambda: START + timedelta(seconds=next(ticks))


async def idle_store(directory: Path) -> SqliteStore:
    store = open_sqlite(directory / "state.db", clock=ticking(), rng=Random(1))
    await store.enqueue(Submission(jobs=(a_new_job(),)))
    async with asyncio.timeout(60):
        while not store.writer.is_idle:  # noqa: ASYNC110 - nothing signals that the thread is idle
            await asyncio.sleep(0)
    return store


async def test_submissions_in_one_turn_of_the_loop_share_a_commit(tmp_path: Path) -> None:
    """An idle writer is woken at the end of the turn, not by the first submission."""
    store = await idle_store(tmp_path)
    began = threading.Event()

    def first(session: Session) -> str:
        began.set()
        return session.timestamp

    early = store.run_write(Priority.ENQUEUE, first)
    assert not began.wait(0.05)  # this turn is not over
    late = store.run_write(Priority.ENQUEUE, lambda session: session.timestamp)
    assert await early == await late
    await store.close()


async def test_submissions_during_a_burst_share_its_commit(tmp_path: Path) -> None:
    """What was read in the turn after is submitted in the one after that."""
    store = await idle_store(tmp_path)
    began = threading.Event()

    def first(session: Session) -> str:
        began.set()
        return session.timestamp

    crowd = [store.run_write(Priority.ENQUEUE, first) for _ in range(8)]
    for _ in range(2):
        await asyncio.sleep(0)
        assert not began.wait(0.05)
    late = store.run_write(Priority.ENQUEUE, lambda session: session.timestamp)
    assert {await each for each in crowd} == {await late}
    await store.close()


async def test_a_few_submissions_do_not_wait_for_others(tmp_path: Path) -> None:
    """Without a crowd a submission is written when its turn is over."""
    store = await idle_store(tmp_path)
    began = threading.Event()
    few = [store.run_write(Priority.ENQUEUE, lambda _: began.set()) for _ in range(7)]
    await asyncio.sleep(0)
    assert began.wait(60)
    await asyncio.gather(*few)
    await store.close()


async def test_the_pages_kept_in_memory_do_not_grow_with_the_file(tmp_path: Path) -> None:
    """A daemon that has run for a month is as large as one that has run for an hour."""
    store = open_sqlite(tmp_path / "state.db", clock=ticking(), rng=Random(1))
    before = apsw.memory_used()
    for _ in range(24):
        jobs = tuple(a_new_job(payload={"text": "x" * 64 * 1024}) for _ in range(16))
        await store.enqueue(Submission(jobs=jobs))
    grown = apsw.memory_used() - before
    await store.close()
    assert (tmp_path / "state.db").stat().st_size > 16 * 2**20
    assert grown < 6 * 2**20


def an_event(size: int) -> NewEvent:
    payload: JsonObject = {"text": "x" * size}
    return NewEvent(id=make_id(START, RNG), type="t", source="webhook", payload=payload)


async def test_large_submissions_do_not_all_share_a_commit(tmp_path: Path) -> None:
    """A batch ends at 4 MiB, also of what waits to be written: others wait for no more."""
    store = await idle_store(tmp_path)
    events = [an_event(2**20) for _ in range(6)]
    jobs = [a_new_job(payload={"text": "x" * 2**20}) for _ in range(6)]
    submissions = [Submission(jobs=(a_new_job(),), event=event) for event in events]
    submissions += [Submission(jobs=(job,)) for job in jobs]
    await asyncio.gather(*map(store.enqueue, submissions))
    found = [await store.get_event(event.id) for event in events]
    stamps = [each.created_at for each in found if each is not None]
    stamps += [each.created_at for job in jobs if (each := await store.get_job(job.id)) is not None]
    await store.close()
    assert len(stamps) == 12
    assert max(Counter(stamps).values()) <= 4


async def test_a_claim_in_the_commit_that_brings_an_event_finds_it(tmp_path: Path) -> None:
    """The event is still to be written when the claim looks: a plugin without it would be given nothing."""
    store = await idle_store(tmp_path)
    event = an_event(10)
    job = a_new_job("of-an-event", payload=None, source_event_id=event.id)
    _, claimed = await asyncio.gather(
        store.enqueue(Submission(jobs=(job,), event=event)),
        store.claim(owner="me", caps=ROOMY, limit=10, lease=LEASE),
    )
    (claim,) = [each for each in claimed if each.job.id == job.id]
    await store.close()
    assert claim.job.started_at == claim.job.created_at, "they share a commit"
    assert claim.event is not None
    assert claim.event.payload == event.payload


async def test_nothing_of_what_was_written_stays_in_memory(tmp_path: Path) -> None:
    """A statement that is kept for the next time would keep what it wrote the last time."""
    store = open_sqlite(tmp_path / "state.db", clock=ticking(), rng=Random(1))
    await store.enqueue(Submission(jobs=(a_new_job(),), event=an_event(10)))
    before = apsw.memory_used()
    for count_at_once in (1, 2, 3, 5):
        jobs = tuple(a_new_job(payload={"text": "x" * 2**20}) for _ in range(count_at_once))
        await asyncio.gather(
            store.enqueue(Submission(jobs=jobs)),
            *(store.enqueue(Submission(event=an_event(2**20))) for _ in range(count_at_once)),
        )
    grown = apsw.memory_used() - before
    await store.close()
    assert grown < 6 * 2**20  # the pages that are kept


def append_to_ledger(session: Session) -> int:
    """A row that waits in memory until its table is read."""
    seq = session.next_seq("highest_in_ledger")
    session.insert_buffered(
        "insert_ledger",
        {"seq": seq, "at": session.timestamp, "kind": "engine", "data": "{}"}
        | dict.fromkeys(("job_id", "run_id", "token")),
    )
    return seq


def highest_in_ledger(session: Session) -> int:
    found = session.fetch_one("highest_in_ledger")
    return int(str((found or (0,))[0] or 0))


async def test_a_query_finds_rows_that_were_appended_to_its_table(tmp_path: Path) -> None:
    """Also in the same transaction; and more rows than fit into one statement."""
    store = open_sqlite(tmp_path / "state.db", clock=ticking(), rng=Random(1))

    def append_and_look(session: Session) -> tuple[int, int, int]:
        before = highest_in_ledger(session)
        appended = [append_to_ledger(session) for _ in range(150)]
        return before, appended[-1], highest_in_ledger(session)

    before, last, seen = await store.run_write(Priority.MAINTENANCE, append_and_look)
    assert (last, seen) == (before + 150, before + 150)
    assert await store.run_write(Priority.MAINTENANCE, highest_in_ledger) == seen
    await store.close()


async def test_as_many_rows_are_written_as_were_appended(tmp_path: Path) -> None:
    """A statement has room for more rows than it may be given; what is left empty is no row."""
    store = open_sqlite(tmp_path / "state.db", clock=ticking(), rng=Random(1))

    def append_and_count(session: Session) -> list[tuple[int, int]]:
        found = []
        for size in (*range(1, 67), 127, 128, 129):
            before = len(session.fetch_all("ledger_after", after=0, limit=100_000))
            for _ in range(size):
                append_to_ledger(session)
            found.append((size, len(session.fetch_all("ledger_after", after=0, limit=100_000)) - before))
        return found

    found = await store.run_write(Priority.MAINTENANCE, append_and_count)
    assert [written for _, written in found] == [appended for appended, _ in found]
    await store.close()


async def test_rows_that_a_failed_request_appended_are_dropped(tmp_path: Path) -> None:
    """Its rows are not written with those of the next request, and their numbers are used again."""
    store = open_sqlite(tmp_path / "state.db", clock=ticking(), rng=Random(1))
    await store.enqueue(Submission(jobs=(a_new_job(),)))
    before = await store.run_write(Priority.MAINTENANCE, highest_in_ledger)

    def append_and_fail(session: Session) -> int:
        append_to_ledger(session)
        raise StoreError("it failed")

    failing = store.run_write(Priority.MAINTENANCE, append_and_fail)
    working = store.run_write(Priority.MAINTENANCE, append_to_ledger)
    with pytest.raises(StoreError, match="it failed"):
        await failing
    assert await working == before + 1
    assert await store.run_write(Priority.MAINTENANCE, highest_in_ledger) == before + 1
    await store.close()


async def test_numbers_follow_what_another_connection_has_written(tmp_path: Path) -> None:
    """The writer remembers how far it has counted, as long as it is alone."""
    path = tmp_path / "state.db"
    store = open_sqlite(path, clock=ticking(), rng=Random(1))
    ours = [await store.run_write(Priority.MAINTENANCE, append_to_ledger) for _ in range(2)]
    other = apsw.Connection(str(path))
    other.execute("INSERT INTO ledger (seq, at, kind, data) SELECT max(seq) + 1, at, kind, data FROM ledger")
    other.close()
    after = await store.run_write(Priority.MAINTENANCE, lambda session: session.next_seq("highest_in_ledger"))
    await store.close()
    assert ours[1] == ours[0] + 1
    assert after == ours[1] + 2
