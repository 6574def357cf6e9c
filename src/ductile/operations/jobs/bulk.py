"""Changes of many jobs or deliveries: retry or cancel the jobs that match a filter, resend state webhooks.

The matching jobs or deliveries are read first. Then each is changed in a transaction of its own; many of them
share a commit. If the daemon dies in between, some are changed and the others are as they were: the same
request again continues, because changed ones no longer match.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, TypeAlias, TypeVar

from msgspec import UNSET, Meta, UnsetType

from ductile.core.jobs.model import Job, JobReason, JobStatus
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.webhooks.url_policy import redact_url
from ductile.errors import ConflictError, DuctileError, GoneError, NotFoundError, UsageError
from ductile.operations.context import OperationContext
from ductile.operations.diagnose.wording import first_line
from ductile.operations.jobs.change import cancel_all, refuse_retry, refuse_retry_when_draining
from ductile.operations.jobs.filters import (
    JobFilters,
    active_filters,
    refuse_unknown_pipeline,
    resolve_filters,
)
from ductile.operations.jobs.lookup import resolve_filter
from ductile.operations.plugins.lookup import refuse_unknown_plugin
from ductile.operations.request import DryRun
from ductile.operations.response import Id, Response, Timestamp, WasDryRun, from_record
from ductile.store.model.deliveries import Delivery, DeliveryFilter, DeliveryStatus
from ductile.store.model.jobs import CancelStatus
from ductile.store.model.records import LARGEST_PAGE, JobFilter, Page
from ductile.struct import Value, about, replace

Item = TypeVar("Item", Job, Delivery)

DEFAULT_LIMIT = 1_000
MAX_LIMIT = 10_000
#: Requests that wait for the writer at the same time, and share a commit.
_BATCH_SIZE = 50
#: The most refusals, and the most jobs or deliveries, that a response lists. It counts all of them.
_MAX_REFUSALS = 50
_MAX_LISTED = LARGEST_PAGE
#: The most matches that are counted.
_MAX_COUNTED = 1_000_000
_RETRYABLE = (JobStatus.FAILED, JobStatus.DEAD)
_CANCELLABLE = (JobStatus.QUEUED, JobStatus.RUNNING)
_UNDELIVERED = (DeliveryStatus.DROPPED, DeliveryStatus.GONE)

BulkLimit: TypeAlias = Annotated[
    int, Meta(ge=1, le=MAX_LIMIT, description="Change at most this many, the newest that match.")
]


class ChangeJobs(JobFilters):
    """At least one filter is needed."""

    limit: BulkLimit = DEFAULT_LIMIT
    dry_run: DryRun = False


class Refusal(Value):
    """A job or delivery that was not changed, and why."""

    id: Id
    code: Annotated[str, about("The code of the error that a request for this one alone would get.")]
    message: str
    hint: str | None


class MatchedJob(Value):
    """A job that would be changed, with the reason of its status."""

    job_id: Id
    plugin: str
    command: str
    status: JobStatus
    reason: JobReason
    created_at: Timestamp
    completed_at: Timestamp | None
    error: Annotated[str | None, about("The first line of its last error.")]


class MatchedDelivery(Value):
    """A delivery that would be sent again."""

    id: Id
    job_id: Id
    state: str
    url: Annotated[str, about("Its scheme and host only: the rest may be secret.")]
    status: DeliveryStatus
    created_at: Timestamp
    last_error: str | None


class Changed(Response):
    """How many of the matches were changed. `matched` = `changed` + `refused` + `remaining`."""

    matched: Annotated[int, about("How many matched the filter; at most a million are counted.")]
    changed: Annotated[int, about("How many were changed; in a dry run, how many would be.")]
    refused: Annotated[int, about("How many could not be.")]
    remaining: Annotated[int, about("How many are left for the next request: `limit` was smaller.")]
    refusals: Annotated[list[Refusal], about("The first 50 that were refused.")]
    stopped: Annotated[str | None, about("The error that ended the work early; ask again to continue.")]

    @property
    def http_message(self) -> str | None:
        if self.stopped is not None:
            return f"{self.changed} of {self.matched} were changed, then: {self.stopped}"
        if getattr(self, "dry_run", UNSET) is True:
            return super().http_message
        return f"{self.changed} of {self.matched} were changed."


class ChangedJobs(Changed):
    jobs: Annotated[list[MatchedJob] | UnsetType, about("In a dry run: the first 200, oldest first.")] = UNSET
    dry_run: WasDryRun = UNSET


class ResentDeliveries(Changed):
    deliveries: Annotated[
        list[MatchedDelivery] | UnsetType, about("In a dry run: the first 200, oldest first.")
    ] = UNSET
    dry_run: WasDryRun = UNSET


class _BulkResult(Value):
    """The result of changing the selected jobs or deliveries."""

    changed: int
    refusals: list[Refusal]
    stopped: DuctileError | None

    def counts(self, matched: int) -> dict[str, object]:
        """Return the fields of `Changed`."""
        return {
            "matched": matched,
            "changed": self.changed,
            "refused": len(self.refusals),
            "remaining": max(0, matched - self.changed - len(self.refusals)),
            "refusals": self.refusals[:_MAX_REFUSALS],
            "stopped": None if self.stopped is None else self.stopped.message,
        }


# --------------------------------------------------------------------------------------- retry and cancel


async def retry_jobs(context: OperationContext, request: ChangeJobs) -> ChangedJobs:
    """Queue again all failed and dead jobs that match. Raises `UsageError` without a filter.

    A job that was retried and has ended again since it was read is refused.
    """

    async def check(job: Job) -> None:
        await refuse_retry_when_draining(context, job)
        refuse_retry(await context.store.check_retry(job.id), job)

    async def retry(job: Job) -> None:
        await refuse_retry_when_draining(context, job)
        policy = context.snapshot().policy
        retried = await context.store.retry(job.id, policy, ended_at=job.completed_at, charge=context.charge)
        refuse_retry(retried, job)

    return await _change_jobs(context, request, _RETRYABLE, check if request.dry_run else retry)


async def cancel_jobs(context: OperationContext, request: ChangeJobs) -> ChangedJobs:
    """End all queued and running jobs that match. Raises `UsageError` without a filter.

    A pipeline run is ended with its steps.
    """
    ended_runs: set[str] = set()

    async def check(_job: Job) -> None:
        """Every queued or running job can be cancelled."""

    async def cancel(job: Job) -> None:
        if job.run_id in ended_runs:
            return  # ended with its run, which was cancelled before
        result = await cancel_all(context, job.id)
        if result in (CancelStatus.UNKNOWN_JOB, CancelStatus.ALREADY_ENDED):
            raise ConflictError("the job has ended since it was read")
        if job.plugin == RUN_PLUGIN:
            ended_runs.add(job.id)

    return await _change_jobs(context, request, _CANCELLABLE, check if request.dry_run else cancel)


async def _change_jobs(
    context: OperationContext,
    request: ChangeJobs,
    changeable: tuple[JobStatus, ...],
    change: Callable[[Job], Awaitable[None]],
) -> ChangedJobs:
    """Apply `change` to the jobs that match the filters and have one of the statuses in `changeable`."""
    _require_filter(active_filters(request, JobFilters))
    job_filter = await resolve_filters(context, request)
    if job_filter.status is not None and job_filter.status not in changeable:
        raise UsageError(
            f"only jobs that are {' or '.join(changeable)} can be changed in this way, "
            f"not {job_filter.status} ones"
        )
    matched, matches = 0, dict[str, Job]()
    for status in changeable if job_filter.status is None else (job_filter.status,):
        of_status: JobFilter = replace(job_filter, status=status)
        rows = await _read_pages(
            partial(context.store.list_jobs, of_status, limit=LARGEST_PAGE), request.limit
        )
        is_all = len(rows) < request.limit
        matched += len(rows) if is_all else await context.store.count_jobs(of_status, limit=_MAX_COUNTED)
        # A job that is claimed between two of these reads is in the results of both.
        matched -= sum(job.id in matches for job in rows)
        matches |= {job.id: job for job in rows}
    # A run is older than its steps, so it comes before them: cancelling it ends them too.
    selected = sorted(matches.values(), key=lambda job: job.seq)[-request.limit :]
    result = await _change_all(selected, change, needs_own_batch=lambda job: job.plugin == RUN_PLUGIN)
    counts = result.counts(max(matched, len(selected)))
    if not request.dry_run:
        return ChangedJobs(**counts)  # type: ignore[arg-type]
    refused = {refusal.id for refusal in result.refusals}
    jobs = [
        from_record(MatchedJob, job, job_id=job.id, error=first_line(job.last_error))
        for job in selected
        if job.id not in refused
    ]
    return ChangedJobs(**counts, jobs=jobs[:_MAX_LISTED], dry_run=True)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------- deliveries


class DeliveryFilters(Value):
    """A delivery matches if every filter that is set applies to it."""

    job_id: Annotated[str | None, about("Only those of this job.")] = None
    status: Annotated[DeliveryStatus | None, about("Only those in this status.")] = None
    plugin: Annotated[str | None, about("Only those about jobs of this plugin.")] = None
    command: Annotated[str | None, about("Only those about jobs of this command.")] = None
    pipeline: Annotated[str | None, about("Only those about runs of this pipeline.")] = None
    reason: Annotated[JobReason | None, about("Only those about jobs that changed for this reason.")] = None
    query: Annotated[str | None, about("Only those with this text in their last error.")] = None
    since: Annotated[
        datetime | None,
        about("Written at or after this time, such as 2026-02-08T10:00:00Z, 2026-02-08 or 1h."),
    ] = None
    until: Annotated[datetime | None, about("Written before this time.")] = None


class ResendDeliveries(DeliveryFilters):
    """At least one filter is needed."""

    limit: BulkLimit = DEFAULT_LIMIT
    dry_run: DryRun = False


async def resend_deliveries(context: OperationContext, request: ResendDeliveries) -> ResentDeliveries:
    """Send all matching state webhooks again: dropped and gone ones, unless another status is requested.

    Raises `UsageError` without a filter.
    """
    _require_filter(active_filters(request, DeliveryFilters))
    await refuse_unknown_plugin(context, request.plugin)
    await refuse_unknown_pipeline(context, request.pipeline)
    if request.status is DeliveryStatus.PENDING:
        raise UsageError("pending deliveries will be sent anyway", hint="Choose dropped, gone or delivered.")
    delivery_filter = DeliveryFilter(
        job_id=await resolve_filter(context, request.job_id),
        plugin=request.plugin,
        command=request.command,
        pipeline=request.pipeline,
        reason=request.reason,
        query=request.query,
        created_from=request.since,
        created_before=request.until,
    )
    matched, deliveries = 0, list[Delivery]()
    for status in _UNDELIVERED if request.status is None else (request.status,):
        of_status: DeliveryFilter = replace(delivery_filter, status=status)
        rows = await _read_pages(
            partial(context.store.list_deliveries, of_status, limit=LARGEST_PAGE), request.limit
        )
        is_all = len(rows) < request.limit
        matched += (
            len(rows) if is_all else await context.store.count_deliveries(of_status, limit=_MAX_COUNTED)
        )
        deliveries += [replace(row, body="") for row in rows]  # bodies may be large
    selected = sorted(deliveries, key=lambda delivery: delivery.seq)[-request.limit :]

    async def resend(delivery: Delivery) -> None:
        if not request.dry_run and not await context.store.resend(delivery.id):
            raise ConflictError("the delivery is pending: it will be sent anyway")

    result = await _change_all(selected, resend, needs_own_batch=lambda _delivery: False)
    counts = result.counts(max(matched, len(selected)))
    if not request.dry_run:
        return ResentDeliveries(**counts)  # type: ignore[arg-type]
    listed = [from_record(MatchedDelivery, row, url=redact_url(row.url)) for row in selected[:_MAX_LISTED]]
    return ResentDeliveries(**counts, deliveries=listed, dry_run=True)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ steps


def _require_filter(filters: Sequence[str]) -> None:
    """Raise `UsageError` if there is no filter."""
    if not filters:
        raise UsageError(
            "no filter was given, and that would mean everything",
            hint="Give at least one, such as --plugin NAME, --status STATUS or --since 1h.",
        )


async def _read_pages(read: Callable[..., Awaitable[Page[Item]]], limit: int) -> list[Item]:
    """Read pages until there are `limit` rows or no more."""
    selected: list[Item] = []
    cursor: str | None = None
    while len(selected) < limit:
        page = await read(cursor=cursor)
        selected += page.rows
        cursor = page.next_cursor
        if cursor is None:
            break
    return selected[:limit]


async def _change_all(
    selected: Sequence[Item],
    change: Callable[[Item], Awaitable[None]],
    *,
    needs_own_batch: Callable[[Item], bool],
) -> _BulkResult:
    """Change the selected items in batches: those of a batch at the same time, the batches in order.

    An error that is not a refusal ends the work after its batch.
    """
    changed, refusals, stopped = 0, list[Refusal](), None
    for batch in batches(selected, needs_own_batch, _BATCH_SIZE):
        errors = await asyncio.gather(*(_change_one(change, item) for item in batch))
        for item, error in zip(batch, errors, strict=True):
            match error:
                case None:
                    changed += 1
                case ConflictError() | GoneError() | NotFoundError():
                    refusals.append(
                        Refusal(id=item.id, code=error.code, message=error.message, hint=error.hint)
                    )
                case _:
                    stopped = stopped or error
        if stopped is not None:
            break
    return _BulkResult(changed=changed, refusals=refusals, stopped=stopped)


async def _change_one(change: Callable[[Item], Awaitable[None]], item: Item) -> DuctileError | None:
    """Change one item. Returns the error, so that the other changes of its batch are completed."""
    try:
        await change(item)
    except DuctileError as error:
        return error
    return None


def batches(items: Sequence[Item], needs_own_batch: Callable[[Item], bool], size: int) -> list[list[Item]]:
    """Return the items in order, in batches of at most `size`.

    An item for which `needs_own_batch` is true is a batch of its own.
    """
    batched: list[list[Item]] = []
    is_open = False
    for item in items:
        is_alone = needs_own_batch(item)
        if is_open and not is_alone and len(batched[-1]) < size:
            batched[-1].append(item)
        else:
            batched.append([item])
        is_open = not is_alone
    return batched
