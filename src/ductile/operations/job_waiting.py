"""What a queued job waits for, and the words in which jobs are told of."""

from __future__ import annotations

from datetime import datetime

from ductile.core.jobs import REASONS, Hold, Job, JobStatus
from ductile.core.pipelines import RUN_PLUGIN
from ductile.operations.desk import Desk
from ductile.operations.run_differences import first_line
from ductile.store.values.reading import JobFilter

_PAGE = 200


def attempt_of(job: Job) -> str:
    return f"attempt {job.attempt} of {job.max_attempts}"


def sentence(text: str) -> str:
    """The first line of what a plugin said, with an end."""
    line = first_line(text) or text
    return line if line.endswith((".", "!", "?")) else f"{line}."


def moment_of(at: datetime | None) -> str:
    return "-" if at is None else f"{at:%Y-%m-%dT%H:%M:%SZ}"


async def why_waiting(desk: Desk, job: Job) -> str:
    """What a queued job waits for, and that nobody would start it then."""
    held = await _why_held(desk, job)
    if desk.engine is not None:
        return held or await _why_not_started(desk, job)
    return f"{held} No daemon is running." if held else "no daemon is running."


async def _why_held(desk: Desk, job: Job) -> str | None:
    match job.hold:
        case Hold.RETRY:
            said = sentence(job.last_error or REASONS[job.reason])
            return f"{attempt_of(job)} is due at {moment_of(job.next_retry_at)}. The one before: {said}"
        case Hold.KEY:
            holder = await _key_holder(desk, job)
            return f"{'job ' + holder if holder else 'another job'} with the same dedupe key has not ended."
        case Hold.PREDECESSOR:
            return "the job that it replaces or follows has not ended."
        case Hold.SUSPECT:
            return "it ran when the daemon died, and such jobs are tried one at a time."
        case Hold.RUN:
            return "none of its steps has started yet."
        case None:
            return None


async def _why_not_started(desk: Desk, job: Job) -> str:
    """It is ready: whoever starts it has its hands full."""
    plugin = desk.snapshot().plugins.get(job.plugin)
    running = (await desk.store.jobs(JobFilter(status=JobStatus.RUNNING), limit=_PAGE)).rows
    own = sum(each.plugin == job.plugin for each in running)
    if plugin is not None and own >= plugin.parallelism:
        return f"{own} jobs of {job.plugin} run, and no more may (plugins.{job.plugin}.parallelism)."
    busy = sum(each.plugin != RUN_PLUGIN for each in running)
    if busy >= desk.snapshot().max_workers:
        return f"all {busy} workers are busy (service.max_workers)."
    return "it is about to be started."


async def _key_holder(desk: Desk, job: Job) -> str | None:
    for status in (JobStatus.RUNNING, JobStatus.QUEUED):
        where = JobFilter(plugin=job.plugin, command=job.command, status=status)
        for other in (await desk.store.jobs(where, limit=_PAGE)).rows:
            if other.dedupe_key == job.dedupe_key and other.id != job.id and other.hold is not Hold.KEY:
                return other.id
    return None
