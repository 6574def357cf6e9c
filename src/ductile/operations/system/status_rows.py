"""The rows of `status`: what runs now, and the plugins with those in trouble first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from ductile.core.jobs.model import JobStatus
from ductile.core.jobs.settlement import LogStatus
from ductile.core.json import JsonObject, JsonValue
from ductile.operations.context import OperationContext
from ductile.operations.jobs.documents import instant, milliseconds
from ductile.operations.jobs.orphaned import is_orphaned
from ductile.store.model.records import LARGEST_PAGE, JobFilter

_GOOD = frozenset({LogStatus.SUCCEEDED.value})


async def running_jobs(context: OperationContext) -> list[JsonValue]:
    """The jobs and runs that run, the one that has run longest first; at most one page of them."""
    page = await context.store.jobs(JobFilter(status=JobStatus.RUNNING), limit=LARGEST_PAGE)
    jobs = sorted(page.rows, key=lambda job: job.started_at or job.created_at)
    names: dict[str, str] = {}
    for run_id in {job.run_id for job in jobs if job.run_id is not None}:
        run = await context.store.job(run_id)
        names[run_id] = "" if run is None else run.command
    now = context.now()
    return [
        {
            "job_id": job.id,
            "plugin": job.plugin,
            "command": job.command,
            "pipeline": None if job.run_id is None else names[job.run_id],
            "run_id": job.run_id,
            "step": job.step_path,
            "started_at": instant(job.started_at),
            "running_ms": milliseconds(max(timedelta(0), now - (job.started_at or job.created_at))),
            "attempt": job.attempt,
            "max_attempts": job.max_attempts,
            "orphaned": is_orphaned(context, job),
        }
        for job in jobs
    ]


def troubled_first(plugins: Sequence[JsonObject]) -> list[JsonValue]:
    """Refused, broken or failing plugins first, disabled ones last; else in the configured order."""
    return [*sorted(plugins, key=_rank)]


def _rank(plugin: JsonObject) -> int:
    if not plugin["enabled"]:
        return 3
    if plugin["refused"] is not None or plugin["unhealthy"] is not None or _has_open_breaker(plugin):
        return 0
    last = plugin["last_run"]
    failed = isinstance(last, dict) and last["status"] not in _GOOD
    return 1 if failed or plugin["health"] not in (None, *_GOOD) else 2


def _has_open_breaker(plugin: JsonObject) -> bool:
    breakers = plugin["breakers"]
    rows = breakers.values() if isinstance(breakers, dict) else ()
    return any(isinstance(row, dict) and row["state"] != "closed" for row in rows)
