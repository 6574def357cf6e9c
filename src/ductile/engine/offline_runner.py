"""Run one job and every job it leads to, without a daemon: no scheduler, no listeners, no other jobs.

Before the first job of a plugin, the plugin's init runs if it has not run for this version.
"""

from __future__ import annotations

from collections.abc import Callable

from ductile.core.jobs.model import TERMINAL, Job, JobStatus
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.engine.dispatcher import LEASE
from ductile.engine.executor import Executor
from ductile.store.model.jobs import InitStatus, NewInit, Settled
from ductile.store.model.submission import Accepted
from ductile.store.port import Store


class OfflineRunner:
    """Claims the jobs of one tree as they are created, one after the other."""

    def __init__(
        self,
        store: Store,
        owner: str,
        init_of: Callable[[str], NewInit | None],
        ended: Callable[[Job], None] = lambda _job: None,
    ) -> None:
        """`init_of` returns the init of a plugin, if it has one; `ended` is called for each ended job."""
        self._store = store
        self._owner = owner
        self._init_of = init_of
        self._ended = ended
        self._waiting: list[str] = []
        self._initialised: set[str] = set()

    async def run(self, executor: Executor, job_id: str) -> None:
        """Run the job and every ready job below it. Retries are left to the daemon."""
        self._waiting += await self._first_jobs(job_id)
        while self._waiting:
            batch, self._waiting = self._waiting, []
            # One by one: after a crash, claimed jobs that had not started would be orphans.
            for each in batch:
                await self._initialise(executor, each)
                await self._run_one(executor, each)
                job = await self._store.job(each)
                if job is not None and job.status in TERMINAL:
                    self._ended(job)

    async def _first_jobs(self, job_id: str) -> list[str]:
        """Return the job itself, or for a pipeline run, which has no process, its first steps."""
        job = await self._store.job(job_id)
        if job is None or job.plugin != RUN_PLUGIN:
            return [job_id]
        record = await self._store.run(job_id)
        members = () if record is None else record.members
        return [member.id for member in members if member.status is JobStatus.QUEUED]

    async def _run_one(self, executor: Executor, job_id: str) -> None:
        for claim in await self._store.claim_by_id([job_id], owner=self._owner, lease=LEASE):
            result = await executor.execute(claim)
            if isinstance(result, Settled):
                self._waiting += [each.job_id for each in result.started if isinstance(each, Accepted)]

    async def _initialise(self, executor: Executor, job_id: str) -> None:
        """Run the plugin's init if it is pending. A failed init does not prevent the job."""
        job = await self._store.job(job_id)
        if job is None or job.plugin in self._initialised:
            return
        self._initialised.add(job.plugin)
        if (init := self._init_of(job.plugin)) is None:
            return
        answer = await self._store.begin_init(init.key, init.job)
        if answer.status is InitStatus.PENDING and answer.job_id is not None:
            await self._run_one(executor, answer.job_id)
