"""One document with everything that is stored about a chain of jobs, for a report or an archive.

The chain is the first job, which no other job led to, and all its descendants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from ductile.core.jobs.model import Job
from ductile.core.webhooks.url_policy import redact_url
from ductile.errors import TooLargeError
from ductile.operations.context import OperationContext
from ductile.operations.diagnose.comparison import config_at
from ductile.operations.jobs.documents import (
    JobTransition,
    LedgerEvent,
    ListedJob,
    LoggedExecution,
    job_transition,
    job_values,
    ledger_event,
    logged_execution,
)
from ductile.operations.jobs.lookup import OneJob, resolve_job
from ductile.operations.jobs.query import MAX_TREE_JOBS
from ductile.operations.response import Id, Response, Timestamp, from_record, timestamp
from ductile.operations.webhooks.manage import ListedDelivery
from ductile.store.model.deliveries import DeliveryFilter
from ductile.store.model.maintenance import ConfigRecord
from ductile.store.model.records import LARGEST_PAGE
from ductile.struct import Value, about

#: Incremented when a key of the document is removed or changes its meaning; not for a new key.
EXPORT_VERSION = 1
#: The document is built in memory as a whole.
MAX_EXPORT_BYTES = 64 * 1024 * 1024
_CONFIGS = 1000
_LEDGER_ENTRIES = 10_000


class ExportJob(OneJob):
    below: Annotated[bool, about("Only this job and what it led to, without the jobs before it.")] = False


class ExportedEvent(Value):
    id: Id
    type: str
    source: str
    created_at: Timestamp


class ExportedJob(ListedJob, kw_only=True):
    """Everything that is stored about one job."""

    payload: dict[str, Any] | None
    event: Annotated[ExportedEvent | None, about("The event that started it.")]
    context: Annotated[dict[str, Any] | None, about("The baggage that it was given.")]
    config: Annotated[str | None, about("The hash of the configuration when it last started.")]
    executions: list[LoggedExecution]
    transitions: list[JobTransition]
    ledger: Annotated[list[LedgerEvent], about("Its ledger entries other than transitions, as far as kept.")]
    deliveries: Annotated[list[ListedDelivery], about("Its state webhooks, oldest first.")]


class ExportedConfig(Value):
    """A configuration that a job of the chain started with."""

    hash: str
    loaded_at: Timestamp


class JobExport(Response):
    """A chain of jobs as one document."""

    version: Annotated[int, about("The version of this shape: 1.")]
    exported_at: Timestamp
    requested_job_id: Id
    root_job_id: Annotated[Id, about("The first job of the chain, or the requested one with `below`.")]
    configs: list[ExportedConfig]
    jobs: Annotated[list[ExportedJob], about("Oldest first; a job comes after the one that led to it.")]


async def export_job(context: OperationContext, request: ExportJob) -> JobExport:
    """Export the chain of a job. Raises `TooLargeError` beyond 10,000 jobs or 64 MiB."""
    job = await resolve_job(context, request.job_id)
    root, seen = job, {job.id}
    # From the job to the first one of the chain that is still stored.
    while not request.below and root.parent_job_id is not None and root.parent_job_id not in seen:
        parent = await context.store.get_job(root.parent_job_id)
        if parent is None:
            break
        seen.add(parent.id)
        root = parent
    jobs = await context.store.job_tree(root.id, limit=MAX_TREE_JOBS + 1)
    if len(jobs) > MAX_TREE_JOBS:
        raise _too_large(f"the chain has more than {MAX_TREE_JOBS:,} jobs", job)
    configs = await context.store.config_history(limit=_CONFIGS)
    exported: list[ExportedJob] = []
    size = 0
    for chain_job in jobs:
        exported.append(await _export_one(context, chain_job, configs))
        size += len(msgspec.json.encode(exported[-1]))
        if size > MAX_EXPORT_BYTES:
            raise _too_large("the chain has more than 64 MiB of input and output", job)
    used = {member.config for member in exported}
    return JobExport(
        version=EXPORT_VERSION,
        exported_at=timestamp(context.now()),
        requested_job_id=job.id,
        root_job_id=root.id,
        configs=[
            ExportedConfig(hash=config.hash, loaded_at=timestamp(config.loaded_at))
            for config in reversed(configs)
            if config.hash in used
        ],
        jobs=exported,
    )


def _too_large(message: str, job: Job) -> TooLargeError:
    return TooLargeError(
        message, hint=f"Export a part of it, from a later job on: ductile job export {job.id} --below"
    )


async def _export_one(context: OperationContext, job: Job, configs: Sequence[ConfigRecord]) -> ExportedJob:
    """Read everything that is stored about one job. `configs` are all loads of configurations."""
    store = context.store
    event = None if job.source_event_id is None else await store.get_event(job.source_event_id)
    event_context = (
        None if job.event_context_id is None else await store.get_event_context(job.event_context_id)
    )
    config = config_at(configs, job.started_at)
    entries = await store.list_job_ledger(job.id, limit=_LEDGER_ENTRIES)
    executions = await store.list_executions(job.id)
    transitions = await store.list_transitions(job.id)
    deliveries: list[ListedDelivery] = []  # newest first
    of_job, cursor = DeliveryFilter(job_id=job.id), None
    while True:
        page = await store.list_deliveries(of_job, limit=LARGEST_PAGE, cursor=cursor)
        deliveries += [from_record(ListedDelivery, row, url=redact_url(row.url)) for row in page.rows]
        cursor = page.next_cursor
        if cursor is None:
            break
    return from_record(
        ExportedJob,
        job,
        **job_values(context, job),
        event=None if event is None else from_record(ExportedEvent, event),
        context=None if event_context is None else dict(event_context.baggage),
        config=None if config is None else config.hash,
        executions=[logged_execution(row) for row in executions],
        transitions=[job_transition(row) for row in transitions],
        ledger=[ledger_event(row) for row in entries],
        deliveries=deliveries[::-1],
    )
