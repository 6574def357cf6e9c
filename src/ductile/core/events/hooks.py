"""Telling pipelines that a job has ended: which hook, for whom, and what they are given."""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random

from ductile.core.events.dispatch import (
    EMPTY_FANOUT,
    EventProducer,
    Fanout,
    dropped_event_entry,
    start_pipeline,
)
from ductile.core.events.model import NewEvent, OutgoingEvent
from ductile.core.ids import make_id
from ductile.core.jobs.ledger import LedgerEntry
from ductile.core.jobs.model import Job, JobStatus, NewJob, SubmittedBy
from ductile.core.json import JsonObject
from ductile.core.policy import Policy
from ductile.core.runs.graph import RUN_PLUGIN, Hook
from ductile.core.runs.state import NewRun
from ductile.struct import Value, replace


class JobEnding(Value):
    """How a job ended, as far as a hook tells it."""

    status: JobStatus
    timed_out: bool
    error: str | None
    attempt: int
    duration: timedelta


def fire_hooks(
    job: Job, ending: JobEnding, baggage: JsonObject, rules: Policy, now: datetime, rng: Random
) -> Fanout:
    """The runs that this end starts, each with an event of its own; `baggage` is what the job carried."""
    if not _notifies(job, rules):
        return EMPTY_FANOUT
    hook = _hook_for(ending)
    source = job.command if job.plugin == RUN_PLUGIN else job.plugin
    pipelines = rules.pipelines.hooked(hook, source)
    if not pipelines:
        return EMPTY_FANOUT
    sender = EventProducer(
        submitted_by=SubmittedBy.HOOK,
        detail=hook,
        job_id=job.id,
        execution=job.execution,
        context_id=job.event_context_id,
        baggage=baggage,
        hops=job.hops + 1,
        trace_id=job.trace_id,
    )
    payload = _payload(job, ending)
    if sender.hops > rules.max_hops:
        event = NewEvent(id=make_id(now, rng), type=hook, source=source, payload=payload)
        return Fanout(ledger=(dropped_event_entry(sender, event, (), pipelines),))
    runs: list[NewRun] = []
    ledger: list[LedgerEntry] = []
    for pipeline in pipelines:
        event = NewEvent(id=make_id(now, rng), type=hook, source=source, payload=payload)
        started = start_pipeline(sender, OutgoingEvent(event=event), pipeline, rules, now, rng)
        if isinstance(started, NewRun):
            runs.append(replace(started, job=_named(started.job, job), event_is_new=True))
        else:
            ledger.append(started)
    return Fanout(runs=tuple(runs), ledger=tuple(ledger))


def _named(started: NewJob, ended: Job) -> NewJob:
    """A job that ended without running has no execution to tell this end from an earlier one."""
    return started if ended.status is JobStatus.RUNNING else replace(started, origin=None)


def _notifies(job: Job, rules: Policy) -> bool:
    """Root jobs of plugins and runs of pipelines that say so. What a hook started starts no hook again."""
    if job.submitted_by in (SubmittedBy.HOOK, SubmittedBy.CORE):
        return False
    if job.plugin == RUN_PLUGIN:
        pipeline = rules.pipelines.by_name.get(job.command)
        return pipeline is not None and pipeline.notify_on_complete
    is_root = job.parent_job_id is None and job.run_id is None
    return is_root and rules.plugin(job.plugin).notify_on_complete


def _hook_for(ending: JobEnding) -> Hook:
    if ending.status is JobStatus.SUCCEEDED:
        return Hook.COMPLETED
    return Hook.TIMED_OUT if ending.timed_out else Hook.FAILED


def _payload(job: Job, ending: JobEnding) -> JsonObject:
    pipeline = job.command if job.plugin == RUN_PLUGIN else None
    name = f"pipeline {pipeline}" if pipeline is not None else f"{job.plugin}.{job.command}"
    message = f"{name} {ending.status}" + (f": {ending.error}" if ending.error else "")
    return {
        "job_id": job.id,
        "plugin": job.plugin,
        "command": job.command,
        "status": ending.status.value,
        "attempt": ending.attempt,
        "error": ending.error,
        "message": message,
        "text": message,
        "duration_ms": round(ending.duration.total_seconds() * 1000, 3),
        "pipeline": pipeline,
    }
