"""Short blocking work in threads: what came of it is returned or abandoned, never lost."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from ductile.runner.process import spawn_threads as helpers_module
from ductile.runner.process.spawn_threads import SpawnThreads


async def test_who_waits_has_its_own_before_the_end_of_all_is_told() -> None:
    """Whoever closes then finds everything that was made."""
    helpers, order = SpawnThreads(1, "test"), list[str]()

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
    helpers, abandoned = SpawnThreads(1, "test"), list[str]()
    waiting = asyncio.create_task(helpers.do(lambda: "made", abandoned=abandoned.append))
    await asyncio.sleep(0)
    done, helpers._ended = helpers._ended, lambda: (done(), waiting.cancel())  # type: ignore[method-assign,assignment]
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert abandoned == ["made"]
    await helpers.close()


async def test_what_comes_for_somebody_who_has_gone_is_abandoned() -> None:
    helpers, abandoned = SpawnThreads(1, "test"), list[str]()
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
    helpers, second_can_be_had = SpawnThreads(1, "test"), threading.Event()

    def will_be_collected(made: str) -> bool:
        if made == "second":
            second_can_be_had.set()
        return True

    waiting = [
        asyncio.create_task(
            helpers.do(partial(str, made), abandoned=lambda _: None, will_be_collected=will_be_collected)
        )
        for made in ("first", "second")
    ]
    await asyncio.to_thread(second_can_be_had.wait, 20)
    for _ in range(5):  # the one thread is done with the first: had it told, it would have come by now
        await asyncio.sleep(0)
    assert not waiting[0].done()
    helpers.collect()
    assert await asyncio.gather(*waiting) == ["first", "second"]
    await helpers.close()


async def test_what_nobody_tells_of_is_found_all_the_same() -> None:
    helpers = SpawnThreads(1, "test")
    found = helpers.do(lambda: "made", abandoned=lambda _: None, will_be_collected=lambda _: True)
    assert await asyncio.wait_for(found, 20) == "made"
    await helpers.close()


async def test_a_fault_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helpers_module, "_UNTOLD", 10_000)
    helpers = SpawnThreads(1, "test")
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(
            helpers.do(lambda: 1 / 0, abandoned=lambda _: None, will_be_collected=lambda _: True), 20
        )
    await helpers.close()


async def test_one_that_cannot_be_abandoned_keeps_nobody_from_closing() -> None:
    helpers = SpawnThreads(1, "test")
    complaints: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: complaints.append(context["exception"]))
    waiting = asyncio.create_task(helpers.do(lambda: 0, abandoned=lambda made: 1 // made))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait_for(helpers.close(), 20)
    assert [type(each) for each in complaints] == [ZeroDivisionError]


def test_it_can_be_used_again_on_another_loop() -> None:
    """What was to look for results on the first one is gone with it."""
    helpers = SpawnThreads(1, "test")

    async def once(*, will_be_collected: bool) -> str:
        made = helpers.do(
            lambda: "made", abandoned=lambda _: None, will_be_collected=lambda _: will_be_collected
        )
        try:
            return await asyncio.wait_for(made, 20)
        finally:
            await helpers.close()

    assert asyncio.run(once(will_be_collected=False)) == "made"
    assert asyncio.run(once(will_be_collected=True)) == "made"
