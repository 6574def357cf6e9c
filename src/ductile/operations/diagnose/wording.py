"""Phrases for explanations and findings: instants, spans, jobs, and the first line of an error."""

from __future__ import annotations

from datetime import datetime, timedelta

from ductile.core.jobs.model import Job, JobStatus
from ductile.core.runs.graph import RUN_PLUGIN

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_MAX_LINE = 200


def first_line(text: str | None) -> str | None:
    lines = (text or "").strip().splitlines()
    return lines[0][:_MAX_LINE] if lines else None


def as_sentence(text: str) -> str:
    """The first line of a text, with a full stop if it ends without one."""
    line = first_line(text) or text
    return line if line.endswith((".", "!", "?")) else f"{line}."


def time_text(at: datetime | None) -> str:
    return "-" if at is None else f"{at:%Y-%m-%dT%H:%M:%SZ}"


def span_text(span: timedelta) -> str:
    """`5s`, `3m20s`, `2h05m`, `3d04h`."""
    seconds = max(0, int(span.total_seconds()))
    if seconds < _MINUTE:
        return f"{seconds}s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE}m{seconds % _MINUTE:02d}s"
    if seconds < _DAY:
        return f"{seconds // _HOUR}h{seconds % _HOUR // _MINUTE:02d}m"
    return f"{seconds // _DAY}d{seconds % _DAY // _HOUR:02d}h"


def attempt_text(job: Job) -> str:
    return f"attempt {job.attempt} of {job.max_attempts}"


def status_since(job: Job, now: datetime) -> str:
    """`running since … (for 5m)`, or the same for a queued job."""
    at = job.started_at if job.status is JobStatus.RUNNING and job.started_at else job.created_at
    return f"{job.status} since {time_text(at)} (for {span_text(now - at)})"


def job_text(job: Job, now: datetime) -> str:
    """A job with its id, what it runs, and since when it has its status."""
    what = f"run of pipeline {job.command}" if job.plugin == RUN_PLUGIN else f"{job.plugin} {job.command}"
    return f"job {job.id} ({what}, {status_since(job, now)})"
