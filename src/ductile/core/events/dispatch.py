"""Who gets an event: the jobs and pipeline runs that it starts, up to the hop limit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from random import Random

from ductile.core.events.model import NewEvent, OutgoingEvent, visible_event
from ductile.core.events.routing import EventRoute
from ductile.core.expressions.conditions import (
    ConditionError,
    condition_result_to_json,
    evaluate_condition,
    explain_condition,
)
from ductile.core.expressions.paths import EvalContext
from ductile.core.ids import make_id
from ductile.core.jobs.dedupe import KeyNamespace, namespaced_key
from ductile.core.jobs.ledger import LedgerEntry, LedgerKind
from ductile.core.jobs.model import NewJob, Origin, SubmittedBy
from ductile.core.json import JsonObject, JsonValue
from ductile.core.policy import Policy
from ductile.core.runs.graph import RUN_PLUGIN, Pipeline
from ductile.core.runs.state import NewRun
from ductile.struct import Value, field


class EventProducer(Value):
    """Whose event it is, as far as that is handed down to what the event starts."""

    submitted_by: SubmittedBy
    #: None: the event itself is the detail.
    detail: str | None = None
    #: The job that produced the event, and in which of its executions; None for an event from outside.
    job_id: str | None = None
    execution: int = 0
    run_id: str | None = None
    context_id: str | None = None
    #: What the context holds, for conditions that look at it.
    baggage: JsonObject = field(default_factory=dict)
    #: Those of what is started: one more than the producer's.
    hops: int = 0
    trace_id: str | None = None


class Fanout(Value):
    jobs: tuple[NewJob, ...] = ()
    runs: tuple[NewRun, ...] = ()
    ledger: tuple[LedgerEntry, ...] = ()


EMPTY_FANOUT = Fanout()


def fan_out(
    sender: EventProducer, told: Sequence[OutgoingEvent], rules: Policy, now: datetime, rng: Random
) -> Fanout:
    """Everything that these events start through routes and pipelines."""
    jobs: list[NewJob] = []
    runs: list[NewRun] = []
    ledger: list[LedgerEntry] = []
    for one in told:
        routes = rules.routes.matching(one.event.source, one.event.type)
        pipelines = rules.pipelines.started_by(one.event.type, one.event.source)
        if not routes and not pipelines:
            continue
        if sender.hops > rules.max_hops:
            ledger.append(dropped_event_entry(sender, one.event, routes, pipelines))
            continue
        jobs += [_routed_job(sender, one, route, rules, now, rng) for route in routes]
        for pipeline in pipelines:
            started = start_pipeline(sender, one, pipeline, rules, now, rng)
            if isinstance(started, NewRun):
                runs.append(started)
            else:
                ledger.append(started)
    return Fanout(jobs=tuple(jobs), runs=tuple(runs), ledger=tuple(ledger))


def start_pipeline(
    sender: EventProducer, told: OutgoingEvent, pipeline: Pipeline, rules: Policy, now: datetime, rng: Random
) -> NewRun | LedgerEntry:
    """A run of the pipeline, or the entry that says why it does not start."""
    if (why := start_refusal(pipeline, told.event, sender, rules)) is not None:
        data: JsonObject = {"pipeline": pipeline.name, "event_type": told.event.type, **why}
        return LedgerEntry(kind=LedgerKind.SWITCH, job_id=sender.job_id, run_id=sender.run_id, data=data)
    return NewRun(job=new_run_job(sender, told, pipeline, now, rng), graph=pipeline.graph, event=told.event)


def start_refusal(
    pipeline: Pipeline, event: NewEvent, sender: EventProducer, rules: Policy
) -> JsonObject | None:
    """What the pipeline's own `if` says against a start, as the ledger tells it; None if nothing does."""
    if pipeline.condition is None:
        return None
    scope = EvalContext(payload=event.payload, context=sender.baggage, event=visible_event(event))
    try:
        verdict = evaluate_condition(
            pipeline.condition, scope, is_secret=rules.is_secret, budget=rules.budget
        )
    except ConditionError as error:
        return {"error": str(error)}
    if verdict.holds:
        return None
    return {"explanation": explain_condition(verdict), "verdict": condition_result_to_json(verdict)}


def new_run_job(
    sender: EventProducer, told: OutgoingEvent, pipeline: Pipeline, now: datetime, rng: Random
) -> NewJob:
    """The job that stands for a run: its parent is what started it, its key its event's."""
    return NewJob(
        id=make_id(now, rng),
        plugin=RUN_PLUGIN,
        command=pipeline.name,
        submitted_by=sender.submitted_by,
        submitted_detail=sender.detail or f"{told.event.source}:{told.event.type}",
        max_attempts=1,
        dedupe_key=namespaced_key(KeyNamespace.EXPLICIT, told.event.dedupe_key),
        parent_job_id=sender.job_id,
        source_event_id=told.event.id,
        event_context_id=sender.context_id,
        hops=sender.hops,
        trace_id=sender.trace_id,
        origin=_origin(sender, told, f"pipeline:{pipeline.name}"),
    )


def _routed_job(
    sender: EventProducer, told: OutgoingEvent, route: EventRoute, rules: Policy, now: datetime, rng: Random
) -> NewJob:
    return NewJob(
        id=make_id(now, rng),
        plugin=route.plugin,
        command=route.command,
        submitted_by=sender.submitted_by,
        submitted_detail=sender.detail or f"{told.event.source}:{told.event.type}",
        max_attempts=rules.plugin(route.plugin).retry.max_attempts,
        dedupe_key=namespaced_key(KeyNamespace.EXPLICIT, told.event.dedupe_key),
        parent_job_id=sender.job_id,
        source_event_id=told.event.id,
        event_context_id=sender.context_id,
        hops=sender.hops,
        trace_id=sender.trace_id,
        origin=_origin(sender, told, route.target),
    )


def _origin(sender: EventProducer, told: OutgoingEvent, target: str) -> Origin | None:
    if sender.job_id is None:
        return None
    return Origin(job_id=sender.job_id, execution=sender.execution, event_index=told.index, target=target)


def dropped_event_entry(
    sender: EventProducer, event: NewEvent, routes: Sequence[EventRoute], pipelines: Sequence[Pipeline]
) -> LedgerEntry:
    """What is recorded of an event that went too far: for whom it was, and how far it came."""
    targets: list[JsonValue] = [route.target for route in routes]
    targets += [f"pipeline:{pipeline.name}" for pipeline in pipelines]
    data: JsonObject = {
        "event_id": event.id,
        "event_type": event.type,
        "targets": targets,
        "error": f"the event had crossed {sender.hops - 1} hops, the limit (service.max_hops)",
    }
    return LedgerEntry(kind=LedgerKind.EVENT_DROPPED, job_id=sender.job_id, run_id=sender.run_id, data=data)
