"""What a caller is told whose run is not done in time (SPEC 7.7)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from random import Random

from builders.clocks import SimulatedClock
from builders.jobs import a_job
from ductile.operations.run_answers import still_running
from ductile.store.sqlite.store import open_sqlite_store


async def test_why_the_waiting_ended_does_not_depend_on_the_clock(tmp_path: Path) -> None:
    """SPEC 7.7: `timeout_exceeded` unless the daemon stops, also where the clock was set back meanwhile."""
    store = open_sqlite_store(tmp_path / "state.db", clock=SimulatedClock(), dice=Random(1))
    told = {
        (stopping, seconds): await still_running(
            store,
            a_job(),
            allowed=timedelta(seconds=30),
            elapsed=timedelta(seconds=seconds),
            stopping=stopping,
            partial=False,
            cancels=False,
        )
        for stopping in (True, False)
        for seconds in (-3600, 1, 30)
    }
    await store.close()
    assert {case: answer["timeout_exceeded"] for case, answer in told.items()} == {
        (True, -3600): False,
        (True, 1): False,
        (True, 30): True,
        (False, -3600): True,
        (False, 1): True,
        (False, 30): True,
    }
    assert "stopping" in str(told[True, 1]["message"])
    assert "stopping" not in str(told[False, 1]["message"])
