"""Callers who wait, when the daemon is about to go."""

from __future__ import annotations

import asyncio

from ductile.engine.waiters import Waiters


async def test_a_caller_that_comes_after_the_stop_does_not_wait() -> None:
    """A job that is accepted in the last moment: its caller is answered with the id, and not left hanging."""
    waiters = Waiters()
    with waiters.waiting_for("early") as early:
        waiters.close()
        assert early.done()
    with waiters.waiting_for("late") as late:
        async with asyncio.timeout(10):
            await late
