"""Jobs that count as running although whoever ran them has died: how that is told, and what becomes of them.

The next start of the daemon settles them. Until then the store says `running`, and nobody may
be led to believe it.
"""

from __future__ import annotations

from ductile.core.jobs.model import Job, JobStatus
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.operations.context import OperationContext

#: How a process that runs a job without a daemon calls itself when it claims one.
_RUN_OWNER = "cli:"


def is_orphaned(context: OperationContext, job: Job) -> bool:
    return job.status is JobStatus.RUNNING and context.has_no_runner


async def count_orphaned(context: OperationContext) -> int:
    """How many jobs count as running that nobody runs."""
    return (await context.store.counts()).running if context.has_no_runner else 0


def dead_owner(job: Job) -> str:
    return "the `ductile run` that ran it" if (job.owner or "").startswith(_RUN_OWNER) else "the daemon"


def recovery_text(job: Job) -> str:
    """What the next start does with it."""
    if job.cancel_requested_at is not None:
        return "The next start ends it as cancelled."
    if job.plugin == RUN_PLUGIN:
        return "It goes on with the next start."
    if job.attempt >= job.max_attempts:
        return "That was its last attempt: the next start ends it as dead."
    return f"The next start takes it up again, as attempt {job.attempt + 1} of {job.max_attempts}."
