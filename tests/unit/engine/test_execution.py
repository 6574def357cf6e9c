"""One job from its claim to its result, where the loop hears of its process late."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders.engines import an_engine
from ductile.core.jobs import Callback
from ductile.runner import helpers, spawn
from ductile.telemetry.signals import Signal


async def test_who_is_told_of_a_job_hears_that_it_works_although_it_has_ended_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC 9.3: every state, in order, also where a process is heard of only when it has ended."""
    monkeypatch.setattr(spawn, "_BUSY", 0)
    monkeypatch.setattr(helpers, "_UNTOLD", 10_000)
    async with an_engine(tmp_path, "  echo: {}\n") as bench:
        await bench.started()
        job_id = await bench.submit(callback=Callback(url="http://127.0.0.1:1/"))
        await bench.until(Signal.JOB_SUCCEEDED)
        (started,) = [each for each in bench.told if each.signal is Signal.JOB_STARTED]
        assert isinstance(ago := started.data["ms_ago"], float)
        assert ago > 0
        told = (await bench.store.real.deliveries(job_id=job_id, limit=9)).rows
        assert [each.state for each in reversed(told)] == ["queued", "loading", "working", "done"]
