"""Streamed responses release their resources, however they end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ductile.http.responses import Stream, send_response


async def receive() -> Any:
    await asyncio.Event().wait()


async def send(_message: object) -> None: ...


class Resource:
    """A resource of a stream, such as an open file."""

    def __init__(self) -> None:
        self.history: list[str] = []

    async def run(self, _send: object) -> None:
        self.history.append("sent")

    async def never_send(self, _send: object) -> None:
        await asyncio.Event().wait()

    def close(self) -> None:
        self.history.append("closed")


async def test_a_stream_is_closed_at_its_end() -> None:
    resource = Resource()
    await send_response(send, receive, Stream(run=resource.run, close=resource.close))
    assert resource.history == ["sent", "closed"]


async def test_a_stream_is_closed_if_cancelled_before_its_first_byte() -> None:
    resource = Resource()
    answering = asyncio.create_task(
        send_response(send, receive, Stream(run=resource.never_send, close=resource.close))
    )
    await asyncio.sleep(0)
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert resource.history == ["closed"]


async def test_a_stream_is_closed_if_cancelled_twice() -> None:
    """The second cancel comes while the first one is handled."""
    resource, ending = Resource(), asyncio.Event()

    async def ignore_cancel(_send: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await asyncio.Event().wait()

    answering = asyncio.create_task(
        send_response(send, receive, Stream(run=ignore_cancel, close=resource.close))
    )
    await asyncio.sleep(0)
    answering.cancel()
    await asyncio.wait_for(ending.wait(), 60)
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert resource.history == ["closed"]
