"""SPEC 11: following the log."""

from __future__ import annotations

import asyncio
from pathlib import Path

from builders.engines import an_engine
from ductile.operations.log import follow_log
from ductile.telemetry.signals import Signal


async def test_no_patience_is_not_the_usual_patience(tmp_path: Path) -> None:
    """A follower with `timeout: 0s` is answered at once, with what there is."""
    async with an_engine(tmp_path, "  echo: {}\n") as bench:
        await bench.started()
        async with asyncio.timeout(20):
            assert await follow_log(bench.desk, {"timeout": "0s"}) == {"logs": [], "stopping": False}
        await bench.submit()
        await bench.until(Signal.JOB_SUCCEEDED)
        async with asyncio.timeout(20):
            found = (await follow_log(bench.desk, {"timeout": "0s"}))["logs"]
        assert isinstance(found, list)
        assert len(found) == 1
