"""A job is cancelled before its process starts, or after the job has ended."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from builders.engines import an_engine
from ductile.core.jobs.model import JobReason, JobStatus
from ductile.core.timestamps import format_timestamp
from ductile.store.port import Priority
from ductile.telemetry.signals import Signal


async def test_a_step_whose_run_was_cancelled_is_claimed_and_not_started(tmp_path: Path) -> None:
    """A large run is cancelled in batches: a job that is claimed between two batches must not run."""
    async with an_engine(tmp_path, "  echo: {}\n") as harness:
        harness.store.full.add("claim")
        await harness.start_and_wait()
        job = await harness.job(await harness.submit())
        at = format_timestamp(job.created_at)
        await harness.store.real.run_write(
            Priority.SETTLE, lambda session: session.execute("request_cancel", seq=job.seq, at=at)
        )
        harness.store.full.clear()
        harness.engine.dispatcher.prepare_claim()
        assert (await harness.until(Signal.JOB_DEAD)).job_id == job.id
        ended = await harness.job(job.id)
        assert (ended.status, ended.reason) == (JobStatus.DEAD, JobReason.CANCELLED)
        assert Signal.JOB_STARTED not in {event.signal for event in harness.emitted}


async def test_a_cancel_that_comes_too_late_does_not_meet_the_next_execution(tmp_path: Path) -> None:
    """The job ends before its process is stopped; after a retry it runs."""
    failing = '#!/bin/sh\necho \'{"status": "error", "error": "no", "retry": false}\'\n'
    async with an_engine(tmp_path, "  echo: {}\n") as harness:
        entrypoint = next(
            path for path in (tmp_path / "plugins" / "echo").iterdir() if path.suffix != ".yaml"
        )
        entrypoint.write_text(failing)
        await harness.start_and_wait()
        job_id = await harness.submit()
        await harness.until(Signal.JOB_FAILED)
        await harness.engine.stop_job(job_id)
        await harness.store.real.retry(job_id, harness.engine.snapshot().policy)
        await harness.until(Signal.JOB_FAILED)
        assert Signal.JOB_INTERRUPTED not in {event.signal for event in harness.emitted}
        assert (await harness.job(job_id)).execution == 2


#: A plugin that ends when a line is written to the pipe beside it.
WAITING = """#!/bin/sh
cat > /dev/null
read -r _ < "$0.pipe"
echo '{"status": "ok", "result": "done"}'
"""


async def test_a_cancel_that_is_passed_on_late_does_not_stop_the_execution_of_a_retry(tmp_path: Path) -> None:
    """The cancelled execution has ended, and the job was retried; the new execution is not stopped."""
    async with an_engine(tmp_path, "  echo: {}\n") as harness:
        entrypoint = tmp_path / "plugins" / "echo" / "run.sh"
        entrypoint.write_text(WAITING)
        os.mkfifo(f"{entrypoint}.pipe")
        await harness.start_and_wait()
        policy = harness.engine.snapshot().policy
        job_id = await harness.submit()
        await harness.until(Signal.JOB_STARTED)
        (stopping,) = (await harness.store.real.cancel(job_id, policy)).stopping
        await harness.engine.stop_job(stopping)
        await harness.until(Signal.JOB_DEAD)
        await harness.store.real.retry(job_id, policy)
        await harness.until(Signal.JOB_STARTED)
        await harness.engine.stop_job(stopping)
        await asyncio.to_thread(Path(f"{entrypoint}.pipe").write_text, "go\n")
        await harness.until(Signal.JOB_SUCCEEDED)
        assert (await harness.job(job_id)).execution == 2
