"""Short blocking work in threads: what came of it is returned or abandoned, never lost."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ductile.runner import helpers as helpers_module
from ductile.runner.helpers import Helpers


async def test_who_waits_has_its_own_before_the_end_of_all_is_told() -> None:
    """Whoever closes then finds everything that was made."""
    helpers, order = Helpers(1, "test"), list[str]()

    async def waits() -> None:
        await helpers.do(lambda: None, abandoned=lambda _: None)
        order.append("made")

    waiting = asyncio.create_task(waits())
    await asyncio.sleep(0)
    await helpers.close()
    order.append("closed")
    await waiting
    assert order == ["made", "closed"]


async def test_what_comes_in_the_turn_in_which_its_caller_is_cancelled_is_abandoned() -> None:
    """Cancelled after it was there and before it could be taken: somebody has to end it all the same."""
    helpers, abandoned = Helpers(1, "test"), list[str]()
    waiting = asyncio.create_task(helpers.do(lambda: "made", abandoned=abandoned.append))
    await asyncio.sleep(0)
    done, helpers._ended = helpers._ended, lambda: (done(), waiting.cancel())  # type: ignore[method-assign,assignment]
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert abandoned == ["made"]
    await helpers.close()


async def test_what_comes_for_somebody_who_has_gone_is_abandoned() -> None:
    helpers, abandoned = Helpers(1, "test"), list[str]()
    waiting = asyncio.create_task(helpers.do(lambda: "made", abandoned=abandoned.append))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await helpers.close()
    assert abandoned == ["made"]


async def test_what_somebody_else_tells_of_is_had_when_it_is_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop is not woken for it: that is what it is for."""
    monkeypatch.setattr(helpers_module, "_UNTOLD", 10_000)
    helpers, can_be_had = Helpers(1, "test"), threading.Event()

    def is_told(_made: str) -> bool:
        can_be_had.set()
        return True

    waiting = asyncio.create_task(helpers.do(lambda: "made", abandoned=lambda _: None, is_told=is_told))
    await asyncio.to_thread(can_be_had.wait, 20)
    # Work that is told of comes after it, by the same thread; that alone wakes the loop.
    assert await helpers.do(lambda: "loud", abandoned=lambda _: None) == "loud"
    assert await waiting == "made"
    await helpers.close()


async def test_what_nobody_tells_of_is_found_all_the_same() -> None:
    helpers = Helpers(1, "test")
    found = helpers.do(lambda: "made", abandoned=lambda _: None, is_told=lambda _: True)
    assert await asyncio.wait_for(found, 20) == "made"
    await helpers.close()


async def test_a_fault_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helpers_module, "_UNTOLD", 10_000)
    helpers = Helpers(1, "test")
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(
            helpers.do(lambda: 1 / 0, abandoned=lambda _: None, is_told=lambda _: True), 20
        )
    await helpers.close()
