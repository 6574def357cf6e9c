"""A stop: nothing new is started, and running jobs get their grace."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from builders import engines
from builders.engines import an_engine
from builders.plugins import a_plugin
from ductile.core.jobs.model import JobStatus
from ductile.core.json import JsonObject
from ductile.engine.clock import SystemClock
from ductile.errors import TooBusyError
from ductile.operations import table
from ductile.telemetry.signals import Signal

#: Waits until a file `go` lies beside it.
GATED = """#!/bin/sh
cat > /dev/null
while [ ! -e "$(dirname "$0")/go" ]; do sleep 0.02; done
echo '{"status": "ok", "result": "done"}'
"""


async def test_no_schedule_fires_while_running_jobs_have_their_time_to_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even with `if_running: cancel`, which would end the job and queue another that cannot start."""
    monkeypatch.setattr(engines, "SERVICE", "service: {max_workers: 2, shutdown_grace: 5m}\n")
    go = a_plugin(tmp_path / "plugins", "gated", script=GATED) / "go"
    async with an_engine(tmp_path, "  gated: {schedule: {every: 3s, if_running: cancel}}\n") as bench:
        await bench.start_and_wait()
        job_id = (await bench.until(Signal.JOB_STARTED)).job_id
        assert job_id is not None
        bench.engine.stop()
        (entry,) = await bench.store.real.list_schedules()
        assert entry.next_at is not None
        await SystemClock().wait(entry.next_at + timedelta(seconds=0.5), asyncio.Event())
        go.touch()
        await bench.wait_until_stopped()
        assert (await bench.job(job_id)).status is JobStatus.SUCCEEDED
        assert (await bench.store.real.queue_counts()).depth == 0


@pytest.mark.parametrize(
    ("operation", "given"),
    [
        ("plugin.run", {"plugin": "gated", "command": "poll"}),
        ("event.send", {"type": "found", "payload": {}}),
        ("schedule.run", {"plugin": "gated"}),
    ],
)
async def test_nothing_is_taken_in_meanwhile_whatever_the_door(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, given: JsonObject
) -> None:
    """Those of the command line too: the job and its caller would wait for the next start."""
    monkeypatch.setattr(engines, "SERVICE", "service: {max_workers: 2, shutdown_grace: 5m}\n")
    go = a_plugin(tmp_path / "plugins", "gated", script=GATED) / "go"
    async with an_engine(tmp_path, "  gated: {schedule: {every: 1h}}\n") as bench:
        await bench.start_and_wait()
        await bench.until(Signal.JOB_STARTED)
        bench.engine.stop()
        with pytest.raises(TooBusyError, match="stopping") as refused:
            await table.OPERATIONS[operation].run(bench.context, given)
        assert refused.value.exit_status == 75
        go.touch()
        await bench.wait_until_stopped()
        assert (await bench.store.real.queue_counts()).depth == 0
