"""Callers that wait for a job while the daemon stops."""

from __future__ import annotations

import asyncio
from pathlib import Path

from builders.clocks import SimulatedClock
from builders.jobs import some_rng
from builders.stores import open_sqlite
from ductile.engine.waiters import POLL_INTERVAL, Waiters


async def test_a_caller_that_comes_after_the_stop_does_not_wait() -> None:
    """The caller of a job that is accepted at the last moment is answered with the id."""
    waiters = Waiters()
    with waiters.waiting_for("early") as early:
        waiters.close()
        assert early.done()
    with waiters.waiting_for("late") as late:
        async with asyncio.timeout(60):
            await late


async def test_the_poll_outlives_a_store_that_cannot_be_read_now(tmp_path: Path) -> None:
    """The poll only supplements the notifier, so its error must not stop the daemon."""
    clock, waiters = SimulatedClock(), Waiters()
    store = open_sqlite(tmp_path / "state.db", clock=clock, rng=some_rng(1))
    await store.close()
    polling = asyncio.create_task(waiters.poll_forever(store, clock))
    with waiters.waiting_for("job"):
        async with asyncio.timeout(60):
            await clock.advance(seconds=2 * POLL_INTERVAL.total_seconds())
    assert not polling.done()
    polling.cancel()
    await asyncio.wait({polling})
