"""Following the ledger: who joins misses nothing, who falls behind is cut off (ENGINE 6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from builders.jobs import a_new_job
from ductile.api.events import EventStreams, Wanted
from ductile.operations import feed as feed_module
from ductile.operations.feed import LedgerFeed, TooFarBehindError
from ductile.store.port import Store
from ductile.store.sqlite.store import open_sqlite_store
from ductile.store.values.submitting import Submission
from ductile.telemetry.news import News
from ductile.telemetry.signals import Happening, Level, Signal

SOMETHING = Happening(signal=Signal.JOB_ACCEPTED, level=Level.DEBUG, message="")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = open_sqlite_store(tmp_path / "state.db", clock=lambda: datetime.now(UTC), dice=Random(1))
    yield opened
    await opened.close()


async def enqueue(store: Store, count: int) -> None:
    for _ in range(count):
        await store.enqueue(Submission(jobs=(a_new_job(),)))


async def test_nothing_is_missed_between_replay_and_following(store: Store) -> None:
    """ENGINE 6: what is written while the past is read comes once, in its place."""
    news = News()
    feed = LedgerFeed(store, news)
    await enqueue(store, 3)
    await feed.start_reading()
    seen: list[int] = []
    with feed.joined() as follower:
        await enqueue(store, 2)
        news(SOMETHING)
        async for rows in feed.replay(0, follower.joined_at):
            seen += [row.seq for row in rows]
        while len(seen) < 5:
            seen += [row.seq for row in await follower.next()]
    assert seen == [1, 2, 3, 4, 5]


async def test_who_falls_behind_is_cut_off(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENGINE 6: a slow reader costs bounded memory, and holds up nobody."""
    monkeypatch.setattr(feed_module, "WAITING_ROWS", 3)
    news = News()
    feed = LedgerFeed(store, news)
    await feed.start_reading()
    with feed.joined() as slow, feed.joined() as quick:
        taken = 0
        for _ in range(5):
            await enqueue(store, 1)
            news(SOMETHING)
            taken += len(await quick.next())
        assert taken == 5
        with pytest.raises(TooFarBehindError):
            await slow.next()


async def test_a_quiet_stream_is_kept_alive(store: Store) -> None:
    """SPEC 8: a comment now and then, so that nothing in between takes the silence for an end."""
    streams = EventStreams(store, LedgerFeed(store, News()), keep_alive=0.01)
    sent: list[Any] = []
    twice = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message)
        if [each.get("body") for each in sent].count(b": keep-alive\n\n") == 2:
            twice.set()

    stream = streams.opened(Wanted())(send)
    await twice.wait()
    streams.close()
    await stream
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


async def test_an_id_before_the_oldest_is_a_gap(store: Store) -> None:
    """ENGINE 6: `event: gap` with the oldest number, then all that is held."""
    await enqueue(store, 2)
    streams = EventStreams(store, LedgerFeed(store, News()))
    text: list[bytes] = []
    complete = asyncio.Event()

    async def send(message: Any) -> None:
        text.append(message.get("body", b""))
        if b"id: 2" in b"".join(text):
            complete.set()

    stream = streams.opened(Wanted(after=99))(send)
    await complete.wait()
    streams.close()
    await stream
    assert b'event: gap\ndata: {"oldest":1' in b"".join(text)
