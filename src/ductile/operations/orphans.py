"""Jobs that count as running although whoever ran them has died: how that is told, and what becomes of them.

The next start of the daemon settles them (SPEC 4.8). Until then the store says `running`, and nobody may
be led to believe it.
"""

from __future__ import annotations

from ductile.core.jobs import Job, JobStatus
from ductile.core.json_values import JsonObject
from ductile.core.pipelines import RUN_PLUGIN
from ductile.operations.desk import Desk
from ductile.operations.shown import shown_job

#: How a process that runs a job without a daemon calls itself when it claims one.
_RUN_OWNER = "cli:"


def is_orphan(desk: Desk, job: Job) -> bool:
    return job.status is JobStatus.RUNNING and desk.nobody_runs


def shown_at(desk: Desk, job: Job) -> JsonObject:
    """The job as lists show it; one that nobody runs any more is marked."""
    return {**shown_job(job), "orphaned": True} if is_orphan(desk, job) else shown_job(job)


async def orphans(desk: Desk) -> int:
    """How many jobs count as running that nobody runs."""
    return (await desk.store.counts()).running if desk.nobody_runs else 0


def who_died(job: Job) -> str:
    return "the `ductile run` that ran it" if (job.owner or "").startswith(_RUN_OWNER) else "the daemon"


def fate_of(job: Job) -> str:
    """What the next start does with it."""
    if job.cancel_requested_at is not None:
        return "The next start ends it as cancelled."
    if job.plugin == RUN_PLUGIN:
        return "It goes on with the next start."
    if job.attempt >= job.max_attempts:
        return "That was its last attempt: the next start ends it as dead."
    return f"The next start takes it up again, as attempt {job.attempt + 1} of {job.max_attempts}."
