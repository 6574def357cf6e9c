"""Followers of the log and the ledger."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

from builders.engines import an_engine
from ductile.operations.jobs.log import (
    FollowLedger,
    FollowLog,
    LedgerGap,
    NewExecutions,
    follow_ledger,
    follow_log,
)
from ductile.store.model.maintenance import Retention
from ductile.struct import replace
from ductile.telemetry.signals import Signal

AT_ONCE = timedelta(0)


async def test_a_timeout_of_zero_is_not_the_default_timeout(tmp_path: Path) -> None:
    """A follower with `timeout: 0s` is answered at once."""
    async with an_engine(tmp_path, "  echo: {}\n") as harness:
        await harness.start_and_wait()
        async with asyncio.timeout(60):
            assert await follow_log(harness.context, FollowLog(timeout=AT_ONCE)) == NewExecutions(
                logs=[], live_output=[], position=0, stopping=False
            )
        await harness.submit()
        await harness.until(Signal.JOB_SUCCEEDED)
        async with asyncio.timeout(60):
            logs = (await follow_log(harness.context, FollowLog(timeout=AT_ONCE))).logs
        assert len(logs) == 1


async def test_rows_pruned_since_a_follower_asked_are_reported_as_a_gap(tmp_path: Path) -> None:
    """A follower gets a gap only if retention has removed entries that it has not seen."""
    async with an_engine(tmp_path, "  echo: {}\n") as harness:
        await harness.start_and_wait()
        await harness.submit()
        await harness.until(Signal.JOB_SUCCEEDED)
        _, highest = await harness.store.ledger_range()
        request = FollowLedger(after=1, timeout=AT_ONCE)
        assert (await follow_ledger(harness.context, request)).gap is None
        await harness.store.prune(Retention(ledger_rows=1))
        message = f"events before {highest} are no longer held"
        gap = (await follow_ledger(harness.context, request)).gap
        assert gap == LedgerGap(oldest=highest, message=message)
        for after in (highest - 1, highest):
            assert (await follow_ledger(harness.context, replace(request, after=after))).gap is None
