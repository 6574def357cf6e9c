"""Publishing events: what an event starts, in one transaction."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Annotated, Any

from msgspec import Meta

from ductile.core.events.model import IndexedEvent, NewEvent
from ductile.core.events.routing import EventProducer, fan_out
from ductile.core.jobs.model import JobStatus, LedgerKind, NewJob
from ductile.core.suggest import did_you_mean
from ductile.operations.context import OperationContext
from ductile.operations.request import in_local_call
from ductile.operations.response import Id, Response
from ductile.operations.runs.explain_event import (
    MAX_TYPE_LENGTH,
    ExplainedEvent,
    explain_start,
    read_event_type,
    target_of,
)
from ductile.operations.runs.start import make_event, with_regex_time_limit
from ductile.operations.submission import (
    BaseSubmissionRequest,
    read_submission_options,
    refuse_changed_payload,
    refuse_reused_key,
)
from ductile.store.model.jobs import Accepted, Deduplicated, EnqueueResult, Submission
from ductile.struct import Value, about, asdict, replace


class PublishEvent(BaseSubmissionRequest, kw_only=True):
    type: Annotated[
        str,
        Meta(
            description="The event's type.",
            extra_json_schema={"minLength": 1, "maxLength": MAX_TYPE_LENGTH},
        ),
    ]
    dry_run: Annotated[bool, about("Explain what it would start, and start nothing.")] = False
    headers: Annotated[
        dict[str, Any] | None, in_local_call("Headers of a webhook that the event was made from.")
    ] = None


class DuplicateTarget(Value):
    job_id: Id
    target: str


class StartedTarget(DuplicateTarget):
    status: JobStatus
    error: str | None


class DroppedTarget(Value):
    target: str | list[str] | None
    reason: str | None


class Published(Response):
    STATUS = 202

    event_id: Id
    type: str
    started: Annotated[
        list[StartedTarget],
        about("What it started: `PLUGIN.COMMAND` or `pipeline:NAME`. Queued, unless it ended as it began."),
    ]
    deduplicated: Annotated[
        list[DuplicateTarget], about("What would have been a duplicate, with the existing job.")
    ]
    dropped: Annotated[list[DroppedTarget], about("Targets that were not started, and why.")]
    message: str


class PlannedEvent(ExplainedEvent):
    """The response to a dry run: the targets that the event would start."""

    STATUS = HTTPStatus.OK

    event_id: Annotated[Id, about("Of no stored event: nothing was published.")]
    dry_run: bool = True


async def publish_event(context: OperationContext, request: PublishEvent) -> Published | PlannedEvent:
    """Publish an event and submit everything that it starts, in one transaction.

    Raises `RefusedError` for a type that cannot be published.
    """
    snapshot, source = context.snapshot(), context.source
    event_type = read_event_type(request.type)
    options = await read_submission_options(context, request)
    event = make_event(context, event_type, request)
    producer = EventProducer(
        submitted_by=source.submitted_by, detail=source.detail, hops=options.hops, trace_id=options.trace_id
    )
    if request.dry_run:
        explained = await explain_start(context, event, producer, options.dedupe_key, options.dedupe_ttl)
        return PlannedEvent(**asdict(explained), event_id=event.id)
    policy = with_regex_time_limit(snapshot.policy)
    started = fan_out(producer, (IndexedEvent(event=event),), policy, context.now(), context.rng)

    def with_key(job: NewJob) -> NewJob:
        return replace(job, dedupe_key=options.dedupe_key, dedupe_ttl=options.dedupe_ttl)

    submission = Submission(
        jobs=tuple(with_key(job) for job in started.jobs),
        runs=tuple(replace(run, job=with_key(run.job)) for run in started.runs),
        event=event,
        policy=snapshot.policy,
        ledger=started.ledger,
        dedupe_window=snapshot.service.dedupe_ttl,
    )
    jobs = [*submission.jobs, *(run.job for run in submission.runs)]
    await refuse_reused_key(context, options, jobs)
    results = await context.enqueue(submission)
    if options.idempotent and results and all(isinstance(result, Deduplicated) for result in results):
        # Not if something was started: a caller that is refused assumes that nothing was.
        refuse_changed_payload(options, await context.store.get_job(results[0].job_id))
    return _published(context, event, submission, zip(jobs, results, strict=True))


def _published(
    context: OperationContext,
    event: NewEvent,
    submission: Submission,
    results: Iterable[tuple[NewJob, EnqueueResult]],
) -> Published:
    """Return the response: the targets that were started, were duplicates or were dropped."""
    started: list[StartedTarget] = []
    deduplicated: list[DuplicateTarget] = []
    for job, result in results:
        job_id, target = result.job_id, target_of(job)
        if isinstance(result, Deduplicated):
            deduplicated.append(DuplicateTarget(job_id=job_id, target=target))
            continue
        # Queued, unless it is a run that has ended already: no step could be created, or none has to run.
        status, error = JobStatus.QUEUED, None
        for ended in result.ended if isinstance(result, Accepted) else ():
            if ended.id == job_id:
                status, error = ended.status, ended.error
        started.append(StartedTarget(job_id=job_id, target=target, status=status, error=error))
    dropped = [
        DroppedTarget(
            target=entry.data.get("pipeline") or entry.data.get("targets"),  # type: ignore[arg-type]  # names
            reason=entry.data.get("explanation") or entry.data.get("error"),  # type: ignore[arg-type]  # text
        )
        for entry in submission.ledger
        if entry.kind in (LedgerKind.EVENT_DROPPED, LedgerKind.CONDITION_FALSE)
    ]
    if started:
        message = "The event was published."
    elif deduplicated:
        message = "This is a duplicate: what it starts exists already."
    elif dropped:
        message = "Nothing was started: `dropped` has the reasons."
    else:
        message = _explain_no_target(context, event.type)
    return Published(
        event_id=event.id,
        type=event.type,
        started=started,
        deduplicated=deduplicated,
        dropped=dropped,
        message=message,
    )


def _explain_no_target(context: OperationContext, event_type: str) -> str:
    """Return the message for an event that no route or pipeline takes, with the type that may be meant."""
    source, snapshot = context.source.submitted_by, context.snapshot()
    known = {route.event_type for route in snapshot.routes if route.source == source}
    known |= {
        pipeline.on
        for pipeline in snapshot.pipelines.values()
        if pipeline.on and pipeline.from_plugin in (None, source)
    }
    hint = did_you_mean(event_type, known)
    return f"No route or pipeline takes {event_type} from `{source}`, so nothing was started" + (
        "." if hint is None else f": {hint}"
    )
