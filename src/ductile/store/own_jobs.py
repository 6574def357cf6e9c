"""The store for an access token that may read or change its own jobs only: other jobs do not exist in it.

A verb that is not written here raises `DeniedError`, so a forgotten verb shows nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from ductile.core.events.model import NewContext
from ductile.core.jobs.model import Job, NewJob
from ductile.core.policy import Policy
from ductile.core.runs.graph import Graph
from ductile.core.runs.state import NewRun
from ductile.errors import DeniedError
from ductile.store.model.deliveries import ALL_DELIVERIES, Delivery, DeliveryFilter
from ductile.store.model.jobs import (
    CancelResult,
    CancelStatus,
    EnqueueResult,
    RetryResult,
    StoredEvent,
    Submission,
    TokenCharge,
)
from ductile.store.model.maintenance import ConfigRecord, StoreStats
from ductile.store.model.records import (
    JobDetails,
    JobFilter,
    JobSort,
    LedgerRow,
    LogFilter,
    LogRow,
    LogSort,
    Page,
    RunRecord,
    ShortPayload,
    TransitionRow,
)
from ductile.store.port import Priority, Store, WriteHint
from ductile.store.session import Session
from ductile.store.verbs.jobs.insert import BATCH_SIZE
from ductile.struct import replace

R = TypeVar("R")


class OwnJobs(Store):
    """Verbs about the jobs of one access token, and about jobs that follow from them."""

    def __init__(self, store: Store, token: str) -> None:
        super().__init__(store.store_id)
        self.store = store
        self.token = token
        self.notifier = store.notifier
        self.cluster = store.cluster

    # -- every verb that this class does not override calls one of these

    def run_read(self, work: Callable[[Session], R]) -> Awaitable[R]:  # noqa: ARG002 - it is not run
        raise _denied()

    def run_write(
        self,
        priority: Priority,  # noqa: ARG002 - nothing is written
        work: Callable[[Session], R],  # noqa: ARG002
        hint: WriteHint = None,  # noqa: ARG002
    ) -> Awaitable[R]:
        raise _denied()

    async def close(self) -> None:
        raise _denied()

    async def check_files(self) -> None:
        raise _denied()

    async def is_full(self) -> bool:
        raise _denied()

    async def stats(self) -> StoreStats:
        raise _denied()

    # -- reading jobs

    async def get_job(self, job_id: str) -> Job | None:
        return self._if_own(await self.store.get_job(job_id))

    def _if_own(self, job: Job | None) -> Job | None:
        return job if job is not None and job.token == self.token else None

    async def _is_own(self, job_id: str) -> bool:
        return await self.get_job(job_id) is not None

    async def list_jobs(
        self, where: JobFilter, *, limit: int, cursor: str | None = None, sort: JobSort = JobSort.CREATED
    ) -> Page[Job]:
        own = replace(where, token=self.token)
        return await self.store.list_jobs(own, limit=limit, cursor=cursor, sort=sort)

    async def count_jobs(self, where: JobFilter, *, limit: int) -> int:
        return await self.store.count_jobs(replace(where, token=self.token), limit=limit)

    async def short_payloads(self, job_ids: Sequence[str], *, max_length: int) -> Mapping[str, ShortPayload]:
        own = [job_id for job_id in job_ids if await self._is_own(job_id)]
        return await self.store.short_payloads(own, max_length=max_length)

    async def latest_with_key(self, plugin: str, command: str, dedupe_key: str) -> Job | None:
        return self._if_own(await self.store.latest_with_key(plugin, command, dedupe_key))

    async def find_duplicates(self, jobs: Sequence[NewJob], window: timedelta) -> tuple[str | None, ...]:
        job_ids = await self.store.find_duplicates(jobs, window)
        return tuple(
            [job_id if job_id is not None and await self._is_own(job_id) else None for job_id in job_ids]
        )

    async def blocking_job(self, job_id: str) -> Job | None:
        return self._if_own(await self.store.blocking_job(job_id)) if await self._is_own(job_id) else None

    async def job_ids(self, beginning: str, *, limit: int, token: str | None = None) -> tuple[str, ...]:
        return await self.store.job_ids(beginning, limit=limit, token=self._only_own(token))

    async def job_ids_ending(self, ending: str, *, limit: int, token: str | None = None) -> tuple[str, ...]:
        return await self.store.job_ids_ending(ending, limit=limit, token=self._only_own(token))

    async def job_tree(self, job_id: str, *, limit: int) -> tuple[Job, ...]:
        if not await self._is_own(job_id):
            return ()
        return tuple(job for job in await self.store.job_tree(job_id, limit=limit) if job.token == self.token)

    async def list_transitions(self, job_id: str) -> tuple[TransitionRow, ...]:
        return await self.store.list_transitions(job_id) if await self._is_own(job_id) else ()

    async def list_executions(self, job_id: str) -> tuple[LogRow, ...]:
        return tuple(row for row in await self.store.list_executions(job_id) if row.token == self.token)

    async def list_log(
        self,
        where: LogFilter,
        *,
        limit: int,
        cursor: str | None = None,
        sort: LogSort = LogSort.COMPLETED,
    ) -> Page[LogRow]:
        own = replace(where, token=self.token)
        return await self.store.list_log(own, limit=limit, cursor=cursor, sort=sort)

    async def job_details(self, job_id: str) -> JobDetails | None:
        details = await self.store.job_details(job_id)
        return details if details is not None and details.job.token == self.token else None

    async def get_run(self, run_id: str) -> RunRecord | None:
        run = await self.store.get_run(run_id)
        return run if run is not None and run.job.token == self.token else None

    # The ids of events and contexts are in the jobs that they started.

    async def get_event(self, event_id: str) -> StoredEvent | None:
        return await self.store.get_event(event_id)

    async def get_event_context(self, context_id: str) -> NewContext | None:
        return await self.store.get_event_context(context_id)

    async def config_history(self, *, limit: int) -> tuple[ConfigRecord, ...]:
        return await self.store.config_history(limit=limit)

    # -- the ledger

    async def list_ledger(
        self, *, after: int | None, limit: int, token: str | None = None
    ) -> tuple[LedgerRow, ...]:
        return await self.store.list_ledger(after=after, limit=limit, token=self._only_own(token))

    async def list_job_ledger(self, job_id: str, *, limit: int) -> tuple[LedgerRow, ...]:
        return await self.store.list_job_ledger(job_id, limit=limit) if await self._is_own(job_id) else ()

    async def ledger_range(self) -> tuple[int, int]:
        return await self.store.ledger_range()

    async def index_log(self, *, limit: int = BATCH_SIZE) -> int:
        return await self.store.index_log(limit=limit)

    # -- state webhooks

    async def list_deliveries(
        self, where: DeliveryFilter = ALL_DELIVERIES, *, limit: int, cursor: str | None = None
    ) -> Page[Delivery]:
        own = replace(where, token=self.token)
        return await self.store.list_deliveries(own, limit=limit, cursor=cursor)

    async def count_deliveries(self, where: DeliveryFilter, *, limit: int) -> int:
        return await self.store.count_deliveries(replace(where, token=self.token), limit=limit)

    async def get_delivery(self, delivery_id: str) -> Delivery | None:
        delivery = await self.store.get_delivery(delivery_id)
        return delivery if delivery is not None and await self._is_own(delivery.job_id) else None

    async def resend(self, delivery_id: str) -> bool:
        return await self.get_delivery(delivery_id) is not None and await self.store.resend(delivery_id)

    # -- changing jobs

    async def enqueue(self, submission: Submission) -> tuple[EnqueueResult, ...]:
        return await self.store.enqueue(submission)

    async def cancel(self, job_id: str, policy: Policy, *, limit: int = BATCH_SIZE) -> CancelResult:
        if not await self._is_own(job_id):
            return CancelResult(status=CancelStatus.UNKNOWN_JOB)
        return await self.store.cancel(job_id, policy, limit=limit)

    async def check_retry(self, job_id: str) -> RetryResult:
        return await self.store.check_retry(job_id) if await self._is_own(job_id) else RetryResult.UNKNOWN_JOB

    async def retry(
        self,
        job_id: str,
        policy: Policy,
        *,
        ended_at: datetime | None = None,
        charge: TokenCharge | None = None,
    ) -> RetryResult:
        if not await self._is_own(job_id):
            return RetryResult.UNKNOWN_JOB
        return await self.store.retry(job_id, policy, ended_at=ended_at, charge=charge)

    async def check_rerun(self, run_id: str, step_path: str, graph: Graph) -> RetryResult:
        if not await self._is_own(run_id):
            return RetryResult.UNKNOWN_JOB
        return await self.store.check_rerun(run_id, step_path, graph)

    async def rerun(
        self, run_id: str, step_path: str, run: NewRun, policy: Policy, *, charge: TokenCharge | None = None
    ) -> EnqueueResult | RetryResult:
        if not await self._is_own(run_id):
            return RetryResult.UNKNOWN_JOB
        return await self.store.rerun(run_id, step_path, run, policy, charge=charge)

    def _only_own(self, token: str | None) -> str:
        """Return the token of this store. Raises `DeniedError` for another one."""
        if token not in (None, self.token):
            raise _denied()
        return self.token


def _denied() -> DeniedError:
    return DeniedError(
        "the token may do this with its own jobs only, and this is about all of them",
        hint="It needs a scope such as jobs:ro.",
    )
