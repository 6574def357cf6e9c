"""The response of a retry describes the retry, not later changes of the job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builders.engines import an_engine
from builders.jobs import a_new_job, failed, some_policy
from builders.stores import accept, claim_one, run_next, stored
from ductile.core.jobs.model import JobReason, JobStatus
from ductile.errors import ConflictError
from ductile.operations.context import OperationContext
from ductile.operations.jobs.change import ChangeJob, RetriedJob, retry_job
from ductile.struct import replace


class ClaimingStore:
    """A store that claims a job right after its retry."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._store, verb)

    async def retry(self, *args: Any, **kwargs: Any) -> Any:
        result = await self._store.retry(*args, **kwargs)
        await claim_one(self._store)
        return result


class RacingStore(ClaimingStore):
    """A store in which another caller retries and cancels the job before the retry."""

    async def retry(self, *args: Any, **kwargs: Any) -> Any:
        await self._store.retry(*args)
        await self._store.cancel(*args)
        return await self._store.retry(*args, **kwargs)


async def test_a_cancel_after_the_caller_looked_is_kept(tmp_path: Path) -> None:
    async with an_engine(tmp_path, "  echo: {}\n") as harness:
        job_id = await accept(harness.store.real, a_new_job("echo", "poll", max_attempts=1))
        await run_next(harness.store.real, failed(permanent=True), some_policy())
        context: OperationContext = replace(harness.context, store=RacingStore(harness.store))
        with pytest.raises(ConflictError, match="has ended again"):
            await retry_job(context, ChangeJob(job_id=job_id))
        job = await stored(harness.store.real, job_id)
        assert (job.status, job.reason) == (JobStatus.DEAD, JobReason.CANCELLED)


async def test_the_answer_is_queued_though_the_job_runs_already(tmp_path: Path) -> None:
    async with an_engine(tmp_path, "  echo: {}\n") as harness:
        job_id = await accept(harness.store.real, a_new_job("echo", "poll", max_attempts=1))
        await run_next(harness.store.real, failed(permanent=True), some_policy())
        context: OperationContext = replace(harness.context, store=ClaimingStore(harness.store))
        response = await retry_job(context, ChangeJob(job_id=job_id))
        assert response == RetriedJob(job_id=job_id, status=JobStatus.QUEUED, reason=JobReason.MANUAL_RETRY)
        assert (await stored(harness.store.real, job_id)).status is JobStatus.RUNNING
