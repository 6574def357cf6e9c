"""Waits for a job, and reports its progress whenever that changes."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Annotated, Any

from ductile.core.durations import format_duration
from ductile.core.jobs.model import TERMINAL
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.operations.context import OperationContext
from ductile.operations.diagnose.explain_run import describe_steps
from ductile.operations.jobs.query import FullJob, WaitForJob, wait_for_job
from ductile.operations.tools.task import SHORT_WAIT, StepProgress, describe_job, measure_progress
from ductile.struct import Value, about

#: The longest wait of one call. A caller that waits longer calls again, so a lost caller is noticed.
MAX_CALL_WAIT = timedelta(seconds=30)
#: Changes within this time are reported together.
_MERGE_SECONDS = 0.5


class WaitProgress(Value):
    """The progress of a job that has not ended, for a caller that continues to wait."""

    done: Annotated[
        int, about("Begins with 1, and grows with the start and the end of each step or attempt.")
    ]
    total: Annotated[int | None, about("Of a run: what `done` is when each of its steps has ended.")]
    message: str
    wait_left: Annotated[str, about("What is left of the time to wait: the `wait` of the next call.")]


async def wait_for_progress(
    context: OperationContext, job_id: str, wait: timedelta, after: int
) -> tuple[FullJob, WaitProgress | None]:
    """Wait until the job has ended or its `done` is more than `after`; if that is 0, for a moment.

    The progress is None if the caller need not go on waiting: the job has ended, the time is up, or the
    daemon stops.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait.total_seconds()
    job = await _read(context, job_id, min(wait, SHORT_WAIT) if after == 0 else timedelta())
    call_deadline = min(deadline, loop.time() + MAX_CALL_WAIT.total_seconds())
    waiters = context.require_engine().waiters
    with waiters.waiting_for(job.job_id) as ended, waiters.ledger_changes() as changed:
        while True:
            changed.clear()
            # Checked before the job is read: a job that ends during the read is read again.
            must_respond = ended.done() or loop.time() >= deadline
            job = await _read(context, job.job_id, timedelta())
            if job.status in TERMINAL or must_respond:
                return job, None
            progress = await step_progress(context, job)
            if progress.done > after or loop.time() >= call_deadline:
                left = timedelta(seconds=round(max(deadline - loop.time(), 0), 1))
                return job, WaitProgress(
                    done=progress.done,
                    total=progress.total,
                    message=progress.text or describe_job(job),
                    wait_left=format_duration(left),
                )
            await _wait_for_change(ended, changed, call_deadline - loop.time())


async def _wait_for_change(ended: asyncio.Future[None], changed: asyncio.Event, seconds: float) -> None:
    """Wait for the end of the job or a change of the ledger, until the time is up.

    After a change it waits a moment longer, so that changes in quick succession are one.
    """
    change = asyncio.create_task(changed.wait())
    either: set[asyncio.Future[Any]] = {ended, change}
    try:
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        change.cancel()
    await asyncio.wait({ended}, timeout=min(seconds, _MERGE_SECONDS))


async def _read(context: OperationContext, job_id: str, wait: timedelta) -> FullJob:
    return await wait_for_job(context, WaitForJob(job_id=job_id, timeout=wait))


async def step_progress(context: OperationContext, job: FullJob) -> StepProgress:
    """Return how far the job is; of a run, how many of its steps have ended."""
    run = await context.store.get_run(job.job_id) if job.plugin == RUN_PLUGIN else None
    return measure_progress(job, () if run is None else describe_steps(run))
