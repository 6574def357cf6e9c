"""Answers that are sent as they come: what they hold is let go of, however they end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ductile.api.application import ApiExchange, _stream
from ductile.api.endpoint import Stream


def an_exchange() -> Any:
    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(_message: object) -> None: ...

    return ApiExchange(scope={}, receive=receive, send=send, peer=None)  # type: ignore[typeddict-item]


class Held:
    """What a stream holds, such as an open file."""

    def __init__(self) -> None:
        self.history: list[str] = []

    async def run(self, _send: object) -> None:
        self.history.append("sent")

    async def never_send(self, _send: object) -> None:
        await asyncio.Event().wait()

    def close(self) -> None:
        self.history.append("closed")


async def test_it_is_closed_when_it_is_over() -> None:
    held = Held()
    await _stream(an_exchange(), Stream(run=held.run, close=held.close))
    assert held.history == ["sent", "closed"]


async def test_it_is_closed_although_its_request_was_cancelled_before_the_first_byte() -> None:
    held = Held()
    answering = asyncio.create_task(_stream(an_exchange(), Stream(run=held.never_send, close=held.close)))
    await asyncio.sleep(0)
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert held.history == ["closed"]


async def test_it_is_closed_although_its_request_was_cancelled_twice() -> None:
    """The second time while what it was sending is being ended."""
    held, ending = Held(), asyncio.Event()

    async def reluctant(_send: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await asyncio.Event().wait()

    answering = asyncio.create_task(_stream(an_exchange(), Stream(run=reluctant, close=held.close)))
    await asyncio.sleep(0)
    answering.cancel()
    await asyncio.wait_for(ending.wait(), 20)
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert held.history == ["closed"]
