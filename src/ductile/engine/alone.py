"""Running one job and what it leads to, without a daemon: no scheduler, no listeners, nobody else's jobs."""

from __future__ import annotations

from ductile.engine.dispatcher import LEASE
from ductile.engine.execution import Executor
from ductile.store.port import Store
from ductile.store.values import Accepted, SettleAnswer, Settled


class TreeRunner:
    """Claims the jobs of one tree as they come into being, one after the other (ENGINE 3)."""

    def __init__(self, store: Store, owner: str) -> None:
        self._store = store
        self._owner = owner
        self._waiting: list[str] = []

    def follow(self, answer: SettleAnswer) -> None:
        """Called with each settlement: what was started belongs to the tree."""
        if isinstance(answer, Settled):
            self._waiting += [child.job_id for child in answer.started if isinstance(child, Accepted)]

    async def run(self, executor: Executor, job_id: str) -> None:
        """Run the job and everything below it that is ready; retries are left to the daemon."""
        self._waiting.append(job_id)
        while self._waiting:
            batch, self._waiting = self._waiting, []
            for each in batch:  # one by one: what is claimed and not yet run would be an orphan of a crash
                for claim in await self._store.claim_these([each], owner=self._owner, lease=LEASE):
                    await executor.execute(claim)
