"""A caller that waits for a job resumes at its end, whatever ended it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from builders.engines import an_engine
from ductile.core.jobs.model import JobReason, JobStatus
from ductile.core.json import JsonObject
from ductile.operations.jobs.change import ChangeJob, cancel_job
from ductile.operations.jobs.query import WaitForJob, wait_for_job
from ductile.operations.table import OPERATIONS
from ductile.operations.tools.progress import wait_for_progress
from ductile.struct import replace
from ductile.telemetry.signals import Signal


async def test_a_queued_run_that_a_newer_one_replaces(tmp_path: Path) -> None:
    """`if_running: cancel` ends the run in the transaction of the new one; the end is published like any
    other.
    """
    async with an_engine(tmp_path, "  echo: {schedule: {every: 1h, if_running: cancel}}\n") as harness:
        harness.store.full.add("claim")
        await harness.start_and_wait()
        await harness.until(Signal.SCHEDULE_FIRED)
        (entry,) = await harness.store.real.list_schedules()
        assert entry.last_job_id is not None
        with harness.engine.waiters.waiting_for(entry.last_job_id) as ended:
            await harness.engine.scheduler.run_now("echo", "default")
            async with asyncio.timeout(60):
                await ended
        job = await harness.job(entry.last_job_id)
        assert (job.status, job.reason) == (JobStatus.DEAD, JobReason.CANCELLED)
        assert (await harness.until(Signal.JOB_DEAD)).job_id == job.id


async def test_a_waiting_caller_resumes_at_an_end_on_request(tmp_path: Path) -> None:
    """The job never ran: it was cancelled, or purged with the queue."""
    async with an_engine(tmp_path, "  echo: {}\n") as harness:
        harness.store.full.add("claim")
        await harness.start_and_wait()
        for operation in ("job.cancel", "queue.purge"):
            job_id = await harness.submit()
            with harness.engine.waiters.waiting_for(job_id) as ended:
                values: JsonObject = {"job_id": job_id} if operation == "job.cancel" else {"all": True}
                await OPERATIONS[operation].run(harness.context, values)
                assert ended.done()


async def test_a_caller_of_job_wait_is_answered_by_the_end(tmp_path: Path) -> None:
    """The caller is registered before the job is read, so no end is missed; only the end answers."""
    async with an_engine(tmp_path, "  echo: {}\n") as harness:
        harness.store.full.add("claim")
        await harness.start_and_wait()
        job_id = await harness.submit()
        waiting = asyncio.create_task(wait_for_job(harness.context, WaitForJob(job_id=job_id)))
        while not harness.engine.status().waiting_callers:
            await harness.job(job_id)  # the read gives the waiting task time to continue
        assert not waiting.done()
        await cancel_job(harness.context, ChangeJob(job_id=job_id))
        async with asyncio.timeout(60):
            assert (await waiting).status is JobStatus.DEAD
        assert harness.engine.status().waiting_callers == 0


class EndingStore:
    """A store in which a job ends between two reads of a caller that waits for its progress."""

    def __init__(self, store: Any, end_job: Callable[[], Awaitable[object]]) -> None:
        self._store = store
        self._end_job = end_job
        self._reads = 0

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._store, verb)

    async def list_transitions(self, job_id: str) -> Any:
        """Return the history, which is read after the row of the job."""
        self._reads += 1
        if self._reads == 2:
            await self._end_job()
        return await self._store.list_transitions(job_id)


async def test_a_caller_that_waits_for_progress_is_told_of_an_end_during_its_read(tmp_path: Path) -> None:
    """The row that was read still says that the job has not ended."""
    async with an_engine(tmp_path, "  echo: {}\n") as harness:
        harness.store.full.add("claim")
        await harness.start_and_wait()
        job_id = await harness.submit()
        store = EndingStore(harness.store, lambda: cancel_job(harness.context, ChangeJob(job_id=job_id)))
        context = replace(harness.context, store=store)
        async with asyncio.timeout(60):
            job, progress = await wait_for_progress(context, job_id, timedelta(minutes=1), after=9)
        assert (job.status, progress) == (JobStatus.DEAD, None)
