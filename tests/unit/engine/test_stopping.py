"""A stop starts no job, and running jobs get their grace period."""

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

#: A plugin that waits until a file `go` lies beside it.
GATED = """#!/bin/sh
cat > /dev/null
while [ ! -e "$(dirname "$0")/go" ]; do sleep 0.02; done
echo '{"status": "ok", "result": "done"}'
"""


async def test_no_schedule_fires_while_running_jobs_have_their_time_to_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`if_running: cancel` does not fire either; it would end the job and queue one that cannot start."""
    monkeypatch.setattr(engines, "SERVICE", "service: {max_workers: 2, shutdown_grace: 5m}\n")
    go = a_plugin(tmp_path / "plugins", "gated", script=GATED) / "go"
    async with an_engine(tmp_path, "  gated: {schedule: {every: 3s, if_running: cancel}}\n") as harness:
        await harness.start_and_wait()
        job_id = (await harness.until(Signal.JOB_STARTED)).job_id
        assert job_id is not None
        harness.engine.stop()
        (entry,) = await harness.store.real.list_schedules()
        assert entry.next_at is not None
        await SystemClock().wait(entry.next_at + timedelta(seconds=0.5), asyncio.Event())
        go.touch()
        await harness.wait_until_stopped()
        assert (await harness.job(job_id)).status is JobStatus.SUCCEEDED
        assert (await harness.store.real.queue_counts()).depth == 0


@pytest.mark.parametrize(
    ("operation", "values"),
    [
        ("plugin.run", {"plugin": "gated", "command": "poll"}),
        ("event.send", {"type": "found", "payload": {}}),
        ("schedule.run", {"plugin": "gated"}),
    ],
)
async def test_no_submission_is_accepted_while_the_daemon_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, values: JsonObject
) -> None:
    """This holds for the command line too: the job and its caller would wait for the next start."""
    monkeypatch.setattr(engines, "SERVICE", "service: {max_workers: 2, shutdown_grace: 5m}\n")
    go = a_plugin(tmp_path / "plugins", "gated", script=GATED) / "go"
    async with an_engine(tmp_path, "  gated: {schedule: {every: 1h}}\n") as harness:
        await harness.start_and_wait()
        await harness.until(Signal.JOB_STARTED)
        harness.engine.stop()
        with pytest.raises(TooBusyError, match="stopping") as excinfo:
            await table.OPERATIONS[operation].run(harness.context, values)
        assert excinfo.value.exit_status == 75
        go.touch()
        await harness.wait_until_stopped()
        assert (await harness.store.real.queue_counts()).depth == 0
