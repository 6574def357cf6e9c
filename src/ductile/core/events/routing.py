"""Event routing: the jobs and runs that events start, and the runs that the end of a job starts (hooks)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from random import Random

from ductile.core.events.model import EventRoute, Hook, IndexedEvent, NewEvent, Pipeline, visible_event
from ductile.core.expressions.conditions import (
    ConditionError,
    ConditionResult,
    condition_result_to_json,
    evaluate_condition,
    explain_condition,
)
from ductile.core.expressions.paths import EvalContext
from ductile.core.ids import make_id
from ductile.core.jobs.admission import KeyNamespace, namespaced_key
from ductile.core.jobs.model import Job, JobStatus, LedgerEntry, LedgerKind, NewJob, Origin, SubmittedBy
from ductile.core.json import JsonObject, JsonValue
from ductile.core.policy import Policy
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.runs.state import NewRun
from ductile.struct import Value, field, replace


class EventProducer(Value):
    """The origin of an event. The jobs and runs that the event starts inherit from it."""

    submitted_by: SubmittedBy
    #: The `submitted_detail` of new jobs; None for the source and type of the event.
    detail: str | None = None
    #: The job and execution that emitted the event; None for an event from outside.
    job_id: str | None = None
    execution: int = 0
    run_id: str | None = None
    context_id: str | None = None
    baggage: JsonObject = field(default_factory=dict)
    #: The hops of the new jobs: one more than the producer's.
    hops: int = 0
    trace_id: str | None = None
    #: The access token that the producer was started with.
    token: str | None = None


class Fanout(Value):
    """The jobs and runs that events start, and ledger entries for those that do not start."""

    jobs: tuple[NewJob, ...] = ()
    runs: tuple[NewRun, ...] = ()
    ledger: tuple[LedgerEntry, ...] = ()


EMPTY_FANOUT = Fanout()


def fan_out(
    producer: EventProducer, events: Sequence[IndexedEvent], policy: Policy, now: datetime, rng: Random
) -> Fanout:
    """Return everything that the events start through routes and pipelines."""
    jobs: list[NewJob] = []
    runs: list[NewRun] = []
    ledger: list[LedgerEntry] = []
    for indexed_event in events:
        event = indexed_event.event
        routes = policy.routes.matching(event.source, event.type)
        pipelines = policy.pipelines.started_by(event.type, event.source)
        if not routes and not pipelines:
            continue
        if exceeds_hops(producer, policy):
            ledger.append(dropped_event_entry(producer, event, routes, pipelines))
            continue
        jobs += [
            _new_job(producer, indexed_event, route.plugin, route.command, route.target, policy, now, rng)
            for route in routes
        ]
        for pipeline in pipelines:
            started = start_pipeline(producer, indexed_event, pipeline, policy, now, rng)
            if isinstance(started, NewRun):
                runs.append(started)
            else:
                ledger.append(started)
    return Fanout(jobs=tuple(jobs), runs=tuple(runs), ledger=tuple(ledger))


def start_pipeline(
    producer: EventProducer,
    indexed_event: IndexedEvent,
    pipeline: Pipeline,
    policy: Policy,
    now: datetime,
    rng: Random,
) -> NewRun | LedgerEntry:
    """Return a run of the pipeline, or the ledger entry with the reason why it does not start."""
    event = indexed_event.event
    if (refusal := start_refusal(pipeline, event, producer, policy)) is not None:
        data: JsonObject = {"pipeline": pipeline.name, "event_type": event.type, **refusal}
        return LedgerEntry(
            kind=LedgerKind.CONDITION_FALSE, job_id=producer.job_id, run_id=producer.run_id, data=data
        )
    target = f"pipeline:{pipeline.name}"
    job = _new_job(producer, indexed_event, RUN_PLUGIN, pipeline.name, target, policy, now, rng)
    return NewRun(job=job, graph=pipeline.graph, event=event)


def start_refusal(
    pipeline: Pipeline, event: NewEvent, producer: EventProducer, policy: Policy
) -> JsonObject | None:
    """Return why the pipeline's own `if` prevents a start, as ledger data; None if it does not."""
    decision = decide_start(pipeline, event, producer, policy)
    if decision.error is not None:
        return {"error": decision.error}
    if decision.result is None or decision.result.is_true:
        return None
    return {
        "explanation": explain_condition(decision.result),
        "verdict": condition_result_to_json(decision.result),
    }


class StartDecision(Value):
    """The value of the `if` of a pipeline, which decides whether a run starts; empty without an `if`."""

    result: ConditionResult | None = None
    error: str | None = None

    @property
    def starts(self) -> bool:
        return self.error is None and (self.result is None or self.result.is_true)


def decide_start(
    pipeline: Pipeline, event: NewEvent, producer: EventProducer, policy: Policy
) -> StartDecision:
    """Evaluate the `if` of a pipeline for an event."""
    if pipeline.condition is None:
        return StartDecision()
    context = EvalContext(
        payload=event.payload,
        context=producer.baggage,
        event=visible_event(event),
        run={"pipeline": pipeline.name, "payload": event.payload},
    )
    try:
        result = evaluate_condition(
            pipeline.condition, context, is_secret=policy.is_secret, budget=policy.budget
        )
    except ConditionError as error:
        return StartDecision(error=str(error))
    return StartDecision(result=result)


def exceeds_hops(producer: EventProducer, policy: Policy) -> bool:
    """Return whether jobs that the event starts would be too many hops from the first submission."""
    return producer.hops > policy.max_hops


def _new_job(
    producer: EventProducer,
    indexed_event: IndexedEvent,
    plugin: str,
    command: str,
    target: str,
    policy: Policy,
    now: datetime,
    rng: Random,
) -> NewJob:
    event = indexed_event.event
    origin = None
    if producer.job_id is not None:
        origin = Origin(
            job_id=producer.job_id,
            execution=producer.execution,
            event_index=indexed_event.index,
            target=target,
        )
    return NewJob(
        id=make_id(now, rng),
        plugin=plugin,
        command=command,
        submitted_by=producer.submitted_by,
        submitted_detail=producer.detail or f"{event.source}:{event.type}",
        max_attempts=1 if plugin == RUN_PLUGIN else policy.plugin(plugin).retry.max_attempts,
        dedupe_key=namespaced_key(KeyNamespace.EXPLICIT, event.dedupe_key),
        parent_job_id=producer.job_id,
        source_event_id=event.id,
        event_context_id=producer.context_id,
        hops=producer.hops,
        trace_id=producer.trace_id,
        token=producer.token,
        origin=origin,
        configured_callback=policy.state_webhook(plugin, command, event.payload),
    )


def dropped_event_entry(
    producer: EventProducer, event: NewEvent, routes: Sequence[EventRoute], pipelines: Sequence[Pipeline]
) -> LedgerEntry:
    """Return the ledger entry of an event that exceeds the hop limit, with its targets."""
    targets: list[JsonValue] = [route.target for route in routes]
    targets += [f"pipeline:{pipeline.name}" for pipeline in pipelines]
    data: JsonObject = {
        "event_id": event.id,
        "event_type": event.type,
        "targets": targets,
        "error": f"the event had crossed {producer.hops - 1} hops, the limit (service.max_hops)",
    }
    return LedgerEntry(
        kind=LedgerKind.EVENT_DROPPED, job_id=producer.job_id, run_id=producer.run_id, data=data
    )


class JobEnding(Value):
    """The end of a job, as the event of a hook reports it."""

    status: JobStatus
    timed_out: bool
    error: str | None
    attempt: int
    duration: timedelta


def fire_hooks(
    job: Job, ending: JobEnding, baggage: JsonObject, policy: Policy, now: datetime, rng: Random
) -> Fanout:
    """Return the runs that the end of the job starts, each with its own event."""
    if not _fires_hooks(job, policy):
        return EMPTY_FANOUT
    if ending.status is JobStatus.SUCCEEDED:
        hook = Hook.COMPLETED
    else:
        hook = Hook.TIMED_OUT if ending.timed_out else Hook.FAILED
    source = job.command if job.plugin == RUN_PLUGIN else job.plugin
    pipelines = policy.pipelines.started_by_hook(hook, source)
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
        token=job.token,
    )
    payload = _hook_payload(job, ending)
    if exceeds_hops(producer, policy):
        event = NewEvent(id=make_id(now, rng), type=hook, source=source, payload=payload)
        return Fanout(ledger=(dropped_event_entry(producer, event, (), pipelines),))
    runs: list[NewRun] = []
    ledger: list[LedgerEntry] = []
    for pipeline in pipelines:
        event = NewEvent(id=make_id(now, rng), type=hook, source=source, payload=payload)
        started = start_pipeline(producer, IndexedEvent(event=event), pipeline, policy, now, rng)
        if not isinstance(started, NewRun):
            ledger.append(started)
            continue
        if job.status is not JobStatus.RUNNING:
            # A job that ended without running has no execution that tells its ends apart.
            started = replace(started, job=replace(started.job, origin=None))
        runs.append(replace(started, event_is_new=True))
    return Fanout(runs=tuple(runs), ledger=tuple(ledger))


def _fires_hooks(job: Job, policy: Policy) -> bool:
    """Return whether the job's end fires hooks.

    Root jobs and runs with `notify_on_complete` do; jobs that a hook or Ductile itself started do not.
    """
    if job.submitted_by in (SubmittedBy.HOOK, SubmittedBy.CORE):
        return False
    if job.plugin == RUN_PLUGIN:
        return _run_notifies(job.command, policy)
    is_root = job.parent_job_id is None and job.run_id is None
    return is_root and policy.plugin(job.plugin).notify_on_complete


def can_fire_hooks(source: str, policy: Policy) -> bool:
    """Return whether jobs of the plugin, or runs of the pipeline, of this name can fire hooks."""
    return policy.plugin(source).notify_on_complete or _run_notifies(source, policy)


def _run_notifies(name: str, policy: Policy) -> bool:
    pipeline = policy.pipelines.by_name.get(name)
    return pipeline is not None and pipeline.notify_on_complete


def _hook_payload(job: Job, ending: JobEnding) -> JsonObject:
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
