"""Following the log."""

from __future__ import annotations

import asyncio
from pathlib import Path

from builders.engines import an_engine
from ductile.core.json import JsonObject
from ductile.operations.jobs.log import follow_ledger, follow_log
from ductile.store.model.maintenance import Retention
from ductile.telemetry.signals import Signal


async def test_no_patience_is_not_the_usual_patience(tmp_path: Path) -> None:
    """A follower with `timeout: 0s` is answered at once, with what there is."""
    async with an_engine(tmp_path, "  echo: {}\n") as bench:
        await bench.started()
        async with asyncio.timeout(20):
            assert await follow_log(bench.context, {"timeout": "0s"}) == {"logs": [], "stopping": False}
        await bench.submit()
        await bench.until(Signal.JOB_SUCCEEDED)
        async with asyncio.timeout(20):
            found = (await follow_log(bench.context, {"timeout": "0s"}))["logs"]
        assert isinstance(found, list)
        assert len(found) == 1


async def test_what_was_swept_away_since_a_follower_asked_is_told_as_a_gap(tmp_path: Path) -> None:
    """Retention waits for nobody; a follower that has missed nothing is told of no gap."""
    async with an_engine(tmp_path, "  echo: {}\n") as bench:
        await bench.started()
        await bench.submit()
        await bench.until(Signal.JOB_SUCCEEDED)
        _, highest = await bench.store.ledger_range()
        given: JsonObject = {"after": 1, "timeout": "0s"}
        assert (await follow_ledger(bench.context, given))["gap"] is None
        await bench.store.prune(Retention(ledger_rows=1))
        told = await follow_ledger(bench.context, given)
        assert told["gap"] == {
            "oldest": highest,
            "message": f"events before {highest} are no longer held",
        }
        assert (await follow_ledger(bench.context, given | {"after": highest - 1}))["gap"] is None
        assert (await follow_ledger(bench.context, given | {"after": highest}))["gap"] is None
