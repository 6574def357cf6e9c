"""Health checks run without the queue: they wait for no worker and occupy none."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from builders.engines import an_engine
from ductile.core.jobs.model import JobStatus
from ductile.operations.plugins.health import CheckHealth, check_health
from ductile.telemetry.signals import Signal

#: A plugin that is healthy when a line is written to the pipe beside it.
WAITING = """#!/bin/sh
cat > /dev/null
read -r _ < "$0.pipe"
echo '{"status": "ok", "result": "done"}'
"""


async def test_one_health_check_at_a_time_for_each_plugin(tmp_path: Path) -> None:
    """Concurrent callers share one check; a later caller gets a new one."""
    async with an_engine(tmp_path, "  echo: {}\n") as harness:
        entrypoint = tmp_path / "plugins" / "echo" / "run.sh"
        entrypoint.write_text(WAITING)
        pipe = Path(f"{entrypoint}.pipe")
        os.mkfifo(pipe)
        await harness.start_and_wait()
        first = asyncio.create_task(check_health(harness.context, CheckHealth()))
        await harness.until(Signal.JOB_STARTED)
        second = asyncio.create_task(check_health(harness.context, CheckHealth(plugin="echo")))
        # A caller that is cancelled does not cancel the check of the others.
        cancelled_caller = asyncio.create_task(check_health(harness.context, CheckHealth()))
        for _ in range(3):  # turns in which both callers join the check
            await asyncio.sleep(0)
        cancelled_caller.cancel()
        await asyncio.to_thread(pipe.write_text, "go\n")
        answers = await asyncio.gather(first, second)
        assert answers[0] == answers[1]
        assert [signal.signal for signal in harness.emitted].count(Signal.JOB_STARTED) == 1
        third = asyncio.create_task(check_health(harness.context, CheckHealth()))
        await asyncio.to_thread(pipe.write_text, "go\n")
        assert (await third).health != answers[0].health


async def test_a_job_beside_the_queue_takes_no_worker(tmp_path: Path) -> None:
    """With two workers and one check, two jobs run, and the check does not add a worker."""
    async with an_engine(tmp_path, "  echo: {}\n") as harness:
        entrypoint = tmp_path / "plugins" / "echo" / "run.sh"
        entrypoint.write_text(WAITING)
        os.mkfifo(f"{entrypoint}.pipe")
        await harness.start_and_wait()
        jobs = [await harness.submit(max_attempts=1) for _ in range(2)]
        for _ in jobs:
            await harness.until(Signal.JOB_STARTED)
        checking = asyncio.create_task(check_health(harness.context, CheckHealth()))
        started = await harness.until(Signal.JOB_STARTED)
        assert started.job_id not in jobs
        assert (await harness.job(started.job_id or "")).status is JobStatus.RUNNING
        checking.cancel()
