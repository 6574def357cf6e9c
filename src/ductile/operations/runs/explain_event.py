"""Explaining an event before it is sent: what it would start, what not, and why. Nothing is run or stored."""

from __future__ import annotations

from itertools import count
from typing import Annotated, Any

from msgspec import Meta

from ductile.config.names import EXTERNAL_SOURCES
from ductile.config.snapshot import Snapshot
from ductile.core.events.explain import StartOutcome, TargetExplanation, TargetKind
from ductile.core.events.explain import explain_event as explain_targets
from ductile.core.events.model import IndexedEvent, NewEvent
from ductile.core.events.routing import EventProducer, fan_out
from ductile.core.ids import make_id
from ductile.core.jobs.admission import KeyNamespace, namespaced_key
from ductile.core.jobs.model import NewJob, SubmittedBy
from ductile.core.json import nests_too_deep
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.suggest import did_you_mean
from ductile.errors import NotFoundError
from ductile.operations.context import OperationContext
from ductile.operations.request import refused
from ductile.operations.response import Id, Response, from_record
from ductile.operations.runs.start import with_regex_time_limit
from ductile.struct import Value, about, field, replace

#: Types of Ductile's own events; they cannot be published.
RESERVED_TYPES = "ductile."
MAX_TYPE_LENGTH = 255
_MAX_QUOTED = 100
_MAX_HOPS = 1 << 31


class DecidingComparison(Value):
    """Values are quoted as JSON, shortened, and masked under keys that look secret."""

    path: str
    op: str
    expected: str
    found: Annotated[str | None, about("Null if there is no value at the path.")]
    holds: bool


class EventTarget(Value):
    """A route, pipeline or hook, and whether the event starts it."""

    target: Annotated[str, about("`PLUGIN.COMMAND` or `pipeline:NAME`.")]
    kind: TargetKind
    key: Annotated[str | None, about("Of a route: its key in the configuration, such as `routes[0]`.")]
    starts: bool
    outcome: Annotated[StartOutcome, about("`starts`, or what prevents it.")]
    reason: str
    comparisons: Annotated[list[DecidingComparison], about("Those that decided.")]
    duplicate_of: Annotated[Id | None, about("The job with the same key, if it is a duplicate.")]
    warning: Annotated[str | None, about("Why it would fail after its start: its plugin cannot run.")]


class ExplainedEvent(Response):
    type: str
    source: str
    would_start: Annotated[list[str], about("The targets that start.")]
    targets: Annotated[list[EventTarget], about("Every route, pipeline and hook; those that start first.")]
    hops: Annotated[int, about("The hops of what it starts.")]
    max_hops: int


class ExplainEvent(Value, kw_only=True):
    type: Annotated[
        str,
        Meta(
            description="The event's type.",
            extra_json_schema={"minLength": 1, "maxLength": MAX_TYPE_LENGTH},
        ),
    ]
    source: Annotated[
        str | None,
        about(
            "Where it comes from: a plugin that emits it, `api`, `cli` or `webhook`; for hooks, the plugin "
            "or pipeline whose job ends. The source of this request if absent."
        ),
    ] = field(name="from", default=None)
    payload: Annotated[dict[str, Any] | None, about("Its payload.")] = None
    context: Annotated[dict[str, Any] | None, about("The baggage that it carries.")] = None
    dedupe_key: Annotated[str | None, about("Its dedupe key.")] = None
    hops: Annotated[
        int, Meta(ge=0, le=_MAX_HOPS, description="The hops of the job that emits it, if a plugin does.")
    ] = 0


async def explain_event(context: OperationContext, request: ExplainEvent) -> ExplainedEvent:
    """Explain what the event would start. Raises `NotFoundError` for an unknown source."""
    snapshot = context.snapshot()
    source = request.source if request.source is not None else str(context.source.submitted_by)
    is_external = source in EXTERNAL_SOURCES or source == context.source.submitted_by
    if not is_external and source not in snapshot.plugins and source not in snapshot.pipelines:
        known = {*snapshot.plugins, *snapshot.pipelines, *EXTERNAL_SOURCES}
        hint = did_you_mean(source, known) or "A plugin, a pipeline, or one of api, cli and webhook."
        raise NotFoundError(f"there is no source {source}", hint=hint)
    event_type = read_event_type(request.type) if is_external else request.type.strip()
    for name, value in (("payload", request.payload), ("context", request.context)):
        if value is not None and nests_too_deep(value):
            raise refused(name, f"{name} nests too deep")
    event = NewEvent(
        id=make_id(context.now(), context.rng), type=event_type, source=source, payload=request.payload or {}
    )
    producer = EventProducer(
        submitted_by=SubmittedBy.API if is_external else SubmittedBy.ROUTE,
        baggage=request.context or {},
        hops=0 if is_external else request.hops + 1,
    )
    return await explain_start(
        context, event, producer, namespaced_key(KeyNamespace.EXPLICIT, request.dedupe_key)
    )


def read_event_type(text: str) -> str:
    """Return the type of an event from outside. Raises `RefusedError` if it cannot be published."""
    event_type = text.strip()
    if len(event_type) > MAX_TYPE_LENGTH:
        raise refused("type", f"an event type has at most {MAX_TYPE_LENGTH} characters")
    if not event_type or event_type.startswith(RESERVED_TYPES):
        hint = f"Types that begin with {RESERVED_TYPES} are reserved."
        raise refused("type", f"an event cannot be of type {event_type[:_MAX_QUOTED]!r}", hint)
    return event_type


async def explain_start(
    context: OperationContext,
    event: NewEvent,
    producer: EventProducer,
    dedupe_key: str | None,
    dedupe_ttl: float | None = None,
) -> ExplainedEvent:
    """Explain what the event would start now, by the functions that publish events. Reads the store."""
    snapshot = context.snapshot()
    policy = with_regex_time_limit(snapshot.policy)
    explained = explain_targets(producer, event, snapshot.routes, policy)
    policy = with_regex_time_limit(snapshot.policy)  # another time limit, which begins now
    planned = fan_out(producer, (IndexedEvent(event=event),), policy, context.now(), context.rng)
    jobs = [
        replace(job, dedupe_key=dedupe_key, dedupe_ttl=dedupe_ttl)
        for job in (*planned.jobs, *(run.job for run in planned.runs))
    ]
    existing_ids = await context.store.find_duplicates(jobs, snapshot.service.dedupe_ttl)
    duplicates = {
        target_of(job): job_id for job, job_id in zip(jobs, existing_ids, strict=True) if job_id is not None
    }
    indexes = count()  # every route is explained once, in the order of the configuration
    targets = [
        _target(
            explanation,
            duplicates,
            snapshot,
            key=f"routes[{next(indexes)}]" if explanation.kind is TargetKind.ROUTE else None,
        )
        for explanation in explained
    ]
    ranks = list(StartOutcome)
    return ExplainedEvent(
        type=event.type,
        source=event.source,
        would_start=[target.target for target in targets if target.starts],
        targets=sorted(targets, key=lambda target: ranks.index(target.outcome)),
        hops=producer.hops,
        max_hops=policy.max_hops,
    )


def target_of(job: NewJob) -> str:
    """Return the target of the job: `PLUGIN.COMMAND` or `pipeline:NAME`."""
    return f"pipeline:{job.command}" if job.plugin == RUN_PLUGIN else f"{job.plugin}.{job.command}"


def _target(
    explanation: TargetExplanation, duplicates: dict[str, str], snapshot: Snapshot, *, key: str | None
) -> EventTarget:
    """Return the explanation of a target as a response. `duplicates` has job ids by target."""
    outcome, reason, duplicate_of = explanation.outcome, explanation.reason, None
    # The run of a hook has no dedupe key.
    if outcome is StartOutcome.STARTS and explanation.kind is not TargetKind.HOOK:
        duplicate_of = duplicates.get(explanation.target)
        if duplicate_of is not None:
            outcome, reason = StartOutcome.DUPLICATE, f"the job {duplicate_of} has the same dedupe key"
    starts = outcome is StartOutcome.STARTS
    return EventTarget(
        target=explanation.target,
        kind=explanation.kind,
        key=key,
        starts=starts,
        outcome=outcome,
        reason=reason,
        comparisons=[
            from_record(DecidingComparison, comparison, holds=comparison.is_true)
            for comparison in explanation.deciding
        ],
        duplicate_of=duplicate_of,
        warning=_warning(explanation.target, snapshot) if starts else None,
    )


def _warning(target: str, snapshot: Snapshot) -> str | None:
    """Return why the target would fail after its start: a plugin that it uses is disabled or refused."""
    pipeline = target.removeprefix("pipeline:")
    if pipeline == target:
        used = [target.partition(".")[0]]
    else:
        used = sorted(snapshot.policy.pipelines.by_name[pipeline].graph.plugins)
    for plugin in (snapshot.plugins[name] for name in used if name in snapshot.plugins):
        if not plugin.enabled:
            return f"the plugin {plugin.name} is disabled"
        if plugin.refused is not None:
            return f"the plugin {plugin.name} cannot run: {plugin.refused.reason}"
    return None
