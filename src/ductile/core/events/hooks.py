"""Hooks: the pipelines with `on-hook` that the end of a job starts, and their payload."""

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
from ductile.core.events.routing import Hook
from ductile.core.ids import make_id
from ductile.core.jobs.ledger import LedgerEntry
from ductile.core.jobs.model import Job, JobStatus, SubmittedBy
from ductile.core.json import JsonObject
from ductile.core.policy import Policy
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.runs.state import NewRun
from ductile.struct import Value, replace


class JobEnding(Value):
    """How a job ended, as far as hooks report it."""

    status: JobStatus
    timed_out: bool
    error: str | None
    attempt: int
    duration: timedelta


def fire_hooks(
    job: Job, ending: JobEnding, baggage: JsonObject, policy: Policy, now: datetime, rng: Random
) -> Fanout:
    """Return the runs that the end of the job starts, each with its own event."""
    if not _notifies(job, policy):
        return EMPTY_FANOUT
    if ending.status is JobStatus.SUCCEEDED:
        hook = Hook.COMPLETED
    else:
        hook = Hook.TIMED_OUT if ending.timed_out else Hook.FAILED
    source = job.command if job.plugin == RUN_PLUGIN else job.plugin
    pipelines = policy.pipelines.hooked(hook, source)
    if not pipelines:
        return EMPTY_FANOUT
    producer = EventProducer(
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
    if producer.hops > policy.max_hops:
        event = NewEvent(id=make_id(now, rng), type=hook, source=source, payload=payload)
        return Fanout(ledger=(dropped_event_entry(producer, event, (), pipelines),))
    runs: list[NewRun] = []
    ledger: list[LedgerEntry] = []
    for pipeline in pipelines:
        event = NewEvent(id=make_id(now, rng), type=hook, source=source, payload=payload)
        started = start_pipeline(producer, OutgoingEvent(event=event), pipeline, policy, now, rng)
        if not isinstance(started, NewRun):
            ledger.append(started)
            continue
        if job.status is not JobStatus.RUNNING:
            # A job that ended without running has no execution that tells this end from an earlier one.
            started = replace(started, job=replace(started.job, origin=None))
        runs.append(replace(started, event_is_new=True))
    return Fanout(runs=tuple(runs), ledger=tuple(ledger))


def _notifies(job: Job, policy: Policy) -> bool:
    """Return whether the job's end fires hooks.

    Root jobs and runs with `notify_on_complete` do; jobs that a hook or the core started do not.
    """
    if job.submitted_by in (SubmittedBy.HOOK, SubmittedBy.CORE):
        return False
    if job.plugin == RUN_PLUGIN:
        pipeline = policy.pipelines.by_name.get(job.command)
        return pipeline is not None and pipeline.notify_on_complete
    is_root = job.parent_job_id is None and job.run_id is None
    return is_root and policy.plugin(job.plugin).notify_on_complete


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
