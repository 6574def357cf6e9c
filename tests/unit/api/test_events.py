"""Event streams: a new subscriber misses no row, a slow one is cut off."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from builders.daemons import PATIENCE
from builders.jobs import a_new_job
from builders.postgres import store_url
from builders.stores import open_sqlite
from ductile.api import events
from ductile.api.events import EventFilter, EventStreams, LedgerStream, SubscriberDisconnectedError
from ductile.core.jobs.model import LedgerKind
from ductile.errors import StoreFailedError
from ductile.store.model.jobs import Submission
from ductile.store.model.maintenance import Retention
from ductile.store.port import Store
from ductile.store.postgres.store import open_postgres_store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = open_sqlite(tmp_path / "state.db", clock=lambda: datetime.now(UTC), rng=Random(1))
    yield opened
    await opened.close()


async def enqueue(store: Store, count: int) -> None:
    for _ in range(count):
        await store.enqueue(Submission(jobs=(a_new_job(),)))


async def test_nothing_is_missed_between_replay_and_following(store: Store) -> None:
    """What is written while the past is read comes once, in its place."""
    feed = LedgerStream(store)
    await enqueue(store, 3)
    await feed.start_reading()
    seen: list[int] = []
    with feed.subscribed() as follower:
        await enqueue(store, 2)
        async for rows in feed.replay(0, follower.start_seq):
            seen += [row.seq for row in rows]
        while len(seen) < 5:
            seen += [row.seq for row in await follower.next()]
    assert seen == [1, 2, 3, 4, 5]


async def test_a_subscriber_that_falls_behind_is_cut_off(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow reader costs bounded memory and does not delay others."""
    monkeypatch.setattr(events, "MAX_WAITING_ROWS", 3)
    feed = LedgerStream(store)
    await feed.start_reading()
    with feed.subscribed() as slow, feed.subscribed() as quick:
        taken = 0
        for _ in range(5):
            await enqueue(store, 1)
            taken += len(await quick.next())
        assert taken == 5
        with pytest.raises(SubscriberDisconnectedError):
            await slow.next()


async def test_a_quiet_stream_is_kept_alive(store: Store) -> None:
    """A comment now and then, so that nothing in between takes the silence for an end."""
    streams = EventStreams(store, keep_alive=0.01)
    sent: list[Any] = []
    twice = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message)
        if [each.get("body") for each in sent].count(b": keep-alive\nid: 0\n\n") == 2:
            twice.set()

    stream = (await streams.open(EventFilter()))(send)
    await twice.wait()
    streams.close()
    await stream
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


async def test_a_stream_that_is_filtered_is_kept_alive_and_moves_on(store: Store) -> None:
    """What is not for the reader moves its place; else it would resume where nothing is held."""
    streams = EventStreams(store, keep_alive=0.01)
    text = b""
    moved = asyncio.Event()

    async def send(message: Any) -> None:
        nonlocal text
        text += message.get("body", b"")
        if b": keep-alive\nid: 3\n\n" in text:
            moved.set()

    stream = (await streams.open(EventFilter(kinds=frozenset({LedgerKind.CONFIG_LOADED}))))(send)
    await enqueue(store, 3)
    await moved.wait()
    streams.close()
    await stream
    assert b"event:" not in text


async def test_a_busy_ledger_does_not_silence_a_filtered_stream(store: Store) -> None:
    """The silence that counts is the reader's, not the ledger's."""
    streams = EventStreams(store, keep_alive=0.05)
    kept = asyncio.Event()

    async def send(message: Any) -> None:
        if message.get("body", b"").startswith(b": keep-alive"):
            kept.set()

    stream = (await streams.open(EventFilter(kinds=frozenset({LedgerKind.CONFIG_LOADED}))))(send)
    async with asyncio.timeout(PATIENCE):
        while not kept.is_set():
            await enqueue(store, 1)
    streams.close()
    await stream


async def test_a_reader_that_has_seen_more_at_another_node_sees_nothing_twice(tmp_path: Path) -> None:
    """This node has not read the entry yet with which the reader comes: that is no gap."""
    url = store_url(tmp_path)
    here, there = (
        open_postgres_store(url, clock=lambda: datetime.now(UTC), rng=Random(seed)) for seed in (1, 2)
    )
    streams = EventStreams(here)
    text = b""
    reads, complete, began = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def send(message: Any) -> None:
        nonlocal text
        text += message.get("body", b"")
        if b"retry: " in text:
            began.set()
        if b"id: 4" in text:
            complete.set()

    async def send_to_other(message: Any) -> None:
        if b"id: 1" in message.get("body", b""):
            reads.set()

    await enqueue(here, 1)
    other = (await streams.open(EventFilter(after=0)))(send_to_other)
    await reads.wait()
    await enqueue(there, 2)
    stream = (await streams.open(EventFilter(after=3)))(send)
    await began.wait()
    await enqueue(here, 1)
    async with asyncio.timeout(PATIENCE):
        await complete.wait()
    streams.close()
    await asyncio.gather(stream, other)
    await asyncio.gather(here.close(), there.close())
    assert b"gap" not in text
    assert re.findall(rb"^id: (\d+)", text, re.MULTILINE) == [b"4"]


async def test_an_id_that_is_no_longer_held_is_a_gap(store: Store) -> None:
    """`event: gap` with the oldest number, then all that is held."""
    await enqueue(store, 5)
    await store.prune(Retention(ledger_rows=2))
    streams = EventStreams(store)
    text = b""
    complete = asyncio.Event()

    async def send(message: Any) -> None:
        nonlocal text
        text += message.get("body", b"")
        if b"id: 5" in text:
            complete.set()

    stream = (await streams.open(EventFilter(after=1)))(send)
    await complete.wait()
    streams.close()
    await stream
    assert b'id: 3\nevent: gap\ndata: {"oldest":4' in text
    assert text.count(b"event: job.transition") == 2


async def test_a_store_that_cannot_be_read_is_reported_before_a_stream_begins() -> None:
    """Once an answer has begun, it can no longer be an error in our shape."""

    class Broken:
        async def ledger_range(self) -> tuple[int, int]:
            raise StoreFailedError("the disk is gone")

    broken: Any = Broken()
    streams = EventStreams(broken)
    with pytest.raises(StoreFailedError):
        await streams.open(EventFilter())
    assert streams.count == 0


async def read_up_to(
    last: bytes,
    streams: EventStreams,
    wanted: EventFilter,
    meanwhile: Callable[[Any, bytes], Awaitable[None]],
) -> bytes:
    """Everything sent up to this text; `meanwhile` gets each message and everything so far."""
    text = b""
    complete = asyncio.Event()

    async def send(message: Any) -> None:
        nonlocal text
        text += message.get("body", b"")
        await meanwhile(message, text)
        if last in text:
            complete.set()

    stream = (await streams.open(wanted))(send)
    async with asyncio.timeout(PATIENCE):
        await complete.wait()
    streams.close()
    await stream
    return text


async def test_a_sweep_between_two_pages_is_a_gap(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that retention removes during a replay are reported as a gap."""
    monkeypatch.setattr(events, "PAGE_ROWS", 2)
    await enqueue(store, 9)

    async def sweep(_message: Any, text: bytes) -> None:
        if text.endswith(b"\n\n") and b"id: 2\n" in text and b"id: 3" not in text:
            await store.prune(Retention(ledger_rows=3))

    streams = EventStreams(store)
    text = await read_up_to(b"id: 9", streams, EventFilter(after=0), sweep)
    ids = [int(line[4:]) for line in text.splitlines() if line.startswith(b"id: ")]
    assert ids == [1, 2, 6, 7, 8, 9]
    assert b'id: 6\nevent: gap\ndata: {"oldest":7' in text
    assert text.count(b"event: gap") == 1


async def test_a_sweep_of_all_that_was_behind_is_a_gap_too(store: Store) -> None:
    """Also if nothing is left to replay; every missing number is covered by a gap."""
    await enqueue(store, 5)

    async def grow_and_sweep(message: Any, _text: bytes) -> None:
        if message["type"] == "http.response.start":  # the reader has joined, and has read nothing yet
            await enqueue(store, 3)
            await store.prune(Retention(ledger_rows=2))

    streams = EventStreams(store)
    text = await read_up_to(b"id: 8", streams, EventFilter(after=3), grow_and_sweep)
    assert b'id: 5\nevent: gap\ndata: {"oldest":6' in text
    entries = re.findall(rb"id: (\d+)\nevent: (\S+)", text)
    before = [int(number) for number, _ in entries]
    for place, (number, kind) in zip(before, entries[1:], strict=False):
        assert kind == b"gap" or int(number) == place + 1
    assert before[-1] == 8
