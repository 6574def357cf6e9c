"""Cancelling at awkward moments: before the process is there, and after the job has gone."""

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
    """A large run is cancelled in sweeps: a job claimed between two sweeps must not run."""
    async with an_engine(tmp_path, "  echo: {}\n") as bench:
        bench.store.full.add("claim")
        await bench.start_and_wait()
        job = await bench.job(await bench.submit())
        at = format_timestamp(job.created_at)
        await bench.store.real.run_write(
            Priority.SETTLE, lambda session: session.execute("request_cancel", seq=job.seq, at=at)
        )
        bench.store.full.clear()
        bench.engine.dispatcher.prepare_claim()
        assert (await bench.until(Signal.JOB_DEAD)).job_id == job.id
        ended = await bench.job(job.id)
        assert (ended.status, ended.reason) == (JobStatus.DEAD, JobReason.CANCELLED)
        assert Signal.JOB_STARTED not in {event.signal for event in bench.emitted}


async def test_a_cancel_that_comes_too_late_does_not_meet_the_next_execution(tmp_path: Path) -> None:
    """The job had ended when its process was to be ended; tried again, it runs."""
    failing = '#!/bin/sh\necho \'{"status": "error", "error": "no", "retry": false}\'\n'
    async with an_engine(tmp_path, "  echo: {}\n") as bench:
        entrypoint = next(
            path for path in (tmp_path / "plugins" / "echo").iterdir() if path.suffix != ".yaml"
        )
        entrypoint.write_text(failing)
        await bench.start_and_wait()
        job_id = await bench.submit()
        await bench.until(Signal.JOB_FAILED)
        await bench.engine.stop_job(job_id)
        await bench.store.real.retry(job_id, bench.engine.snapshot().policy)
        await bench.until(Signal.JOB_FAILED)
        assert Signal.JOB_INTERRUPTED not in {event.signal for event in bench.emitted}
        assert (await bench.job(job_id)).execution == 2


#: Ends when a line is written to the pipe beside it.
WAITING = """#!/bin/sh
cat > /dev/null
read -r _ < "$0.pipe"
echo '{"status": "ok", "result": "done"}'
"""


async def test_a_cancel_that_is_passed_on_late_does_not_stop_the_execution_of_a_retry(tmp_path: Path) -> None:
    """The execution that was cancelled has ended, the job was retried and runs: that run is let alone."""
    async with an_engine(tmp_path, "  echo: {}\n") as bench:
        entrypoint = tmp_path / "plugins" / "echo" / "run.sh"
        entrypoint.write_text(WAITING)
        os.mkfifo(f"{entrypoint}.pipe")
        await bench.start_and_wait()
        policy = bench.engine.snapshot().policy
        job_id = await bench.submit()
        await bench.until(Signal.JOB_STARTED)
        (stopping,) = (await bench.store.real.cancel(job_id, policy)).stopping
        await bench.engine.stop_job(stopping)
        await bench.until(Signal.JOB_DEAD)
        await bench.store.real.retry(job_id, policy)
        await bench.until(Signal.JOB_STARTED)
        await bench.engine.stop_job(stopping)
        await asyncio.to_thread(Path(f"{entrypoint}.pipe").write_text, "go\n")
        await bench.until(Signal.JOB_SUCCEEDED)
        assert (await bench.job(job_id)).execution == 2
