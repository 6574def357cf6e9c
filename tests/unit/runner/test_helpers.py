"""Short blocking work in threads: what came of it is returned or abandoned, never lost."""

from __future__ import annotations

import asyncio

import pytest

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
