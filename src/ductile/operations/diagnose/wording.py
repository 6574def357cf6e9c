"""Phrases for explanations and findings: instants, spans, jobs, and the first line of an error."""

from __future__ import annotations

from datetime import datetime, timedelta

from ductile.core.jobs.model import Job, JobStatus
from ductile.core.runs.graph import RUN_PLUGIN

_MAX_LINE = 200


def first_line(text: str | None) -> str | None:
    lines = (text or "").strip().splitlines()
    return lines[0][:_MAX_LINE] if lines else None


def as_sentence(text: str) -> str:
    """Return the first line of a text, with a full stop if it ends without one."""
    line = first_line(text) or text
    return line if line.endswith((".", "!", "?")) else f"{line}."


def time_text(at: datetime | None) -> str:
    return "-" if at is None else f"{at:%Y-%m-%dT%H:%M:%SZ}"


def span_text(span: timedelta) -> str:
    """Return a span such as `5s`, `3m20s`, `2h05m` or `3d04h`."""
    minutes, seconds = divmod(max(0, int(span.total_seconds())), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02d}h"
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{seconds:02d}s" if minutes else f"{seconds}s"


def attempt_text(job: Job) -> str:
    return f"attempt {job.attempt} of {job.max_attempts}"


def status_since(job: Job, now: datetime) -> str:
    """Return `running since … (for 5m)`, or the same for a queued job."""
    at = job.started_at if job.status is JobStatus.RUNNING and job.started_at else job.created_at
    return f"{job.status} since {time_text(at)} (for {span_text(now - at)})"


def command_text(job: Job) -> str:
    """Return what a job runs."""
    return f"run of pipeline {job.command}" if job.plugin == RUN_PLUGIN else f"{job.plugin} {job.command}"


def job_text(job: Job, now: datetime) -> str:
    """Return a job with its id, what it runs, and since when it has its status."""
    return f"job {job.id} ({command_text(job)}, {status_since(job, now)})"


def step_text(job: Job) -> str:
    return f"step {job.step_path} ({job.plugin} {job.command}, job {job.id})"
