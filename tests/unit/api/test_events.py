"""Event streams: a new subscriber misses no row, and a slow subscriber is disconnected."""

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
    sqlite_store = open_sqlite(tmp_path / "state.db", clock=lambda: datetime.now(UTC), rng=Random(1))
    yield sqlite_store
    await sqlite_store.close()


async def enqueue(store: Store, count: int) -> None:
    for _ in range(count):
        await store.enqueue(Submission(jobs=(a_new_job(),)))


async def test_nothing_is_missed_between_replay_and_following(store: Store) -> None:
    """A row that is written during the replay is sent once, in order."""
    feed = LedgerStream(store)
    await enqueue(store, 3)
    await feed.start_reading()
    seqs: list[int] = []
    with feed.subscribed() as follower:
        await enqueue(store, 2)
        async for rows in feed.replay(0, follower.start_seq):
            seqs += [row.seq for row in rows]
        while len(seqs) < 5:
            seqs += [row.seq for row in await follower.next()]
    assert seqs == [1, 2, 3, 4, 5]


async def test_a_subscriber_that_falls_behind_is_cut_off(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow reader costs bounded memory and does not delay others."""
    monkeypatch.setattr(events, "MAX_WAITING_ROWS", 3)
    feed = LedgerStream(store)
    await feed.start_reading()
    with feed.subscribed() as slow, feed.subscribed() as quick:
        row_count = 0
        for _ in range(5):
            await enqueue(store, 1)
            row_count += len(await quick.next())
        assert row_count == 5
        with pytest.raises(SubscriberDisconnectedError):
            await slow.next()


async def test_a_quiet_stream_is_kept_alive(store: Store) -> None:
    """The comments keep proxies from closing a silent connection."""
    streams = EventStreams(store, keep_alive=0.01)
    sent: list[Any] = []
    kept_alive_twice = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message)
        if [entry.get("body") for entry in sent].count(b": keep-alive\nid: 0\n\n") == 2:
            kept_alive_twice.set()

    stream = (await streams.open(EventFilter()))(send)
    await kept_alive_twice.wait()
    streams.close()
    await stream
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


async def test_a_stream_that_is_filtered_is_kept_alive_and_moves_on(store: Store) -> None:
    """Rows that the filter excludes advance the position; otherwise the reader would resume before the
    oldest row.
    """
    streams = EventStreams(store, keep_alive=0.01)
    text = b""
    position_sent = asyncio.Event()

    async def send(message: Any) -> None:
        nonlocal text
        text += message.get("body", b"")
        if b": keep-alive\nid: 3\n\n" in text:
            position_sent.set()

    stream = (await streams.open(EventFilter(kinds=frozenset({LedgerKind.CONFIG_LOADED}))))(send)
    await enqueue(store, 3)
    await position_sent.wait()
    streams.close()
    await stream
    assert b"event:" not in text


async def test_a_busy_ledger_does_not_silence_a_filtered_stream(store: Store) -> None:
    """A keep-alive is due after a silence of the stream, not of the ledger."""
    streams = EventStreams(store, keep_alive=0.05)
    kept_alive = asyncio.Event()

    async def send(message: Any) -> None:
        if message.get("body", b"").startswith(b": keep-alive"):
            kept_alive.set()

    stream = (await streams.open(EventFilter(kinds=frozenset({LedgerKind.CONFIG_LOADED}))))(send)
    async with asyncio.timeout(PATIENCE):
        while not kept_alive.is_set():
            await enqueue(store, 1)
    streams.close()
    await stream


async def test_a_reader_that_has_seen_more_at_another_node_sees_nothing_twice(tmp_path: Path) -> None:
    """A node that has not read the last entry of the reader yet reports no gap."""
    url = store_url(tmp_path)
    local_store, remote_store = (
        open_postgres_store(url, clock=lambda: datetime.now(UTC), rng=Random(seed)) for seed in (1, 2)
    )
    streams = EventStreams(local_store)
    text = b""
    other_began, complete, stream_began = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def send(message: Any) -> None:
        nonlocal text
        text += message.get("body", b"")
        if b"retry: " in text:
            stream_began.set()
        if b"id: 4" in text:
            complete.set()

    async def send_to_other(message: Any) -> None:
        if b"id: 1" in message.get("body", b""):
            other_began.set()

    await enqueue(local_store, 1)
    other_stream = (await streams.open(EventFilter(after=0)))(send_to_other)
    await other_began.wait()
    await enqueue(remote_store, 2)
    stream = (await streams.open(EventFilter(after=3)))(send)
    await stream_began.wait()
    await enqueue(local_store, 1)
    async with asyncio.timeout(PATIENCE):
        await complete.wait()
    streams.close()
    await asyncio.gather(stream, other_stream)
    await asyncio.gather(local_store.close(), remote_store.close())
    assert b"gap" not in text
    assert re.findall(rb"^id: (\d+)", text, re.MULTILINE) == [b"4"]


async def test_an_id_that_is_no_longer_held_is_a_gap(store: Store) -> None:
    """The stream sends `event: gap` with the oldest number, and then all rows that are held."""
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
    """An error in the format of the API is impossible after the response has begun."""

    class Broken:
        async def ledger_range(self) -> tuple[int, int]:
            raise StoreFailedError("the disk is gone")

    broken_store: Any = Broken()
    streams = EventStreams(broken_store)
    with pytest.raises(StoreFailedError):
        await streams.open(EventFilter())
    assert streams.count == 0


async def read_up_to(
    last: bytes,
    streams: EventStreams,
    event_filter: EventFilter,
    meanwhile: Callable[[Any, bytes], Awaitable[None]],
) -> bytes:
    """Return everything that is sent up to `last`; `meanwhile` gets each message and all text so far."""
    text = b""
    complete = asyncio.Event()

    async def send(message: Any) -> None:
        nonlocal text
        text += message.get("body", b"")
        await meanwhile(message, text)
        if last in text:
            complete.set()

    stream = (await streams.open(event_filter))(send)
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
    """A gap covers every missing number, also if no row is left to replay."""
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
    for seq, (number, kind) in zip(before, entries[1:], strict=False):
        assert kind == b"gap" or int(number) == seq + 1
    assert before[-1] == 8
