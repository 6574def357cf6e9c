"""Following the log."""

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


async def test_no_patience_is_not_the_usual_patience(tmp_path: Path) -> None:
    """A follower with `timeout: 0s` is answered at once, with what there is."""
    async with an_engine(tmp_path, "  echo: {}\n") as bench:
        await bench.start_and_wait()
        async with asyncio.timeout(60):
            assert await follow_log(bench.context, FollowLog(timeout=AT_ONCE)) == NewExecutions(
                logs=[], live_output=[], position=0, stopping=False
            )
        await bench.submit()
        await bench.until(Signal.JOB_SUCCEEDED)
        async with asyncio.timeout(60):
            found = (await follow_log(bench.context, FollowLog(timeout=AT_ONCE))).logs
        assert len(found) == 1


async def test_rows_pruned_since_a_follower_asked_are_reported_as_a_gap(tmp_path: Path) -> None:
    """A follower gets a gap only if retention has removed entries that it has not seen."""
    async with an_engine(tmp_path, "  echo: {}\n") as bench:
        await bench.start_and_wait()
        await bench.submit()
        await bench.until(Signal.JOB_SUCCEEDED)
        _, highest = await bench.store.ledger_range()
        request = FollowLedger(after=1, timeout=AT_ONCE)
        assert (await follow_ledger(bench.context, request)).gap is None
        await bench.store.prune(Retention(ledger_rows=1))
        message = f"events before {highest} are no longer held"
        gap = (await follow_ledger(bench.context, request)).gap
        assert gap == LedgerGap(oldest=highest, message=message)
        for after in (highest - 1, highest):
            assert (await follow_ledger(bench.context, replace(request, after=after))).gap is None
