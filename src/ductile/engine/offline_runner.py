"""Running one job and what it leads to, without a daemon: no scheduler, no listeners, nobody else's jobs.

A plugin that is met on the way and has not been initialised in its present version is, before its job.
"""

from __future__ import annotations

from collections.abc import Callable

from ductile.core.jobs.model import TERMINAL, Job, JobStatus
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.engine.dispatcher import LEASE
from ductile.engine.executor import Executor
from ductile.store.model.jobs import InitStatus, NewInit, Settled, SettleResult
from ductile.store.model.submission import Accepted
from ductile.store.port import Store


class OfflineRunner:
    """Claims the jobs of one tree as they come into being, one after the other."""

    def __init__(
        self,
        store: Store,
        owner: str,
        init_of: Callable[[str], NewInit | None],
        ended: Callable[[Job], None] = lambda _job: None,
    ) -> None:
        """`init_of` tells which init a plugin asks for, if any; `ended` is told of each job that has."""
        self._store = store
        self._owner = owner
        self._init_of = init_of
        self._ended = ended
        self._waiting: list[str] = []
        self._initialised: set[str] = set()

    def follow(self, answer: SettleResult) -> None:
        """Called with each settlement: what was started belongs to the tree."""
        if isinstance(answer, Settled):
            self._waiting += [child.job_id for child in answer.started if isinstance(child, Accepted)]

    async def run(self, executor: Executor, job_id: str) -> None:
        """Run the job and everything below it that is ready; retries are left to the daemon."""
        self._waiting += await self._entrance(job_id)
        while self._waiting:
            batch, self._waiting = self._waiting, []
            for each in batch:  # one by one: what is claimed and not yet run would be an orphan of a crash
                await self._initialise(executor, each)
                await self._run_one(executor, each)
                job = await self._store.job(each)
                if job is not None and job.status in TERMINAL:
                    self._ended(job)

    async def _entrance(self, job_id: str) -> list[str]:
        """Where running begins: a pipeline run has no process of its own, but first steps."""
        job = await self._store.job(job_id)
        if job is None or job.plugin != RUN_PLUGIN:
            return [job_id]
        record = await self._store.run(job_id)
        members = () if record is None else record.members
        return [member.id for member in members if member.status is JobStatus.QUEUED]

    async def _run_one(self, executor: Executor, job_id: str) -> None:
        for claim in await self._store.claim_by_id([job_id], owner=self._owner, lease=LEASE):
            await executor.execute(claim)

    async def _initialise(self, executor: Executor, job_id: str) -> None:
        """A failed init marks its plugin and holds nothing up."""
        job = await self._store.job(job_id)
        if job is None or job.plugin in self._initialised:
            return
        self._initialised.add(job.plugin)
        if (init := self._init_of(job.plugin)) is None:
            return
        answer = await self._store.begin_init(init.key, init.job)
        if answer.status is InitStatus.PENDING and answer.job_id is not None:
            await self._run_one(executor, answer.job_id)
