"""Starting pipelines: by name, by what triggers them, or by an event; and waiting for them.

The engine stays asynchronous. A caller who waits holds a slot, is registered before anything is enqueued,
and is woken by the commit that ends the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from time import thread_time

from ductile.config.schema.pipelines import OnTimeout, PipelineSettings, ReturnOnTimeout
from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.events.dispatch import EventProducer, fan_out, start_refusal
from ductile.core.events.model import NewEvent, OutgoingEvent
from ductile.core.events.routing import Pipeline
from ductile.core.expressions.regex import MatchBudget
from ductile.core.ids import make_id
from ductile.core.jobs.ledger import LedgerKind
from ductile.core.jobs.model import TERMINAL, Job, JobReason, JobStatus, NewJob, SubmittedBy
from ductile.core.json import JsonObject, JsonValue
from ductile.core.policy import Policy
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.runs.state import NewRun
from ductile.core.suggest import did_you_mean
from ductile.errors import ConflictError, NotFoundError, RefusedError
from ductile.operations import parameters as read
from ductile.operations.context import OperationContext, RunningEngine
from ductile.operations.jobs.lookup import find_job
from ductile.operations.jobs.submit import runnable_plugin, submit
from ductile.operations.plugins.catalogue import known_command
from ductile.operations.runs.response import finished, mark_duplicate, still_running
from ductile.operations.submission import (
    Source,
    SubmissionOptions,
    callback_of,
    find_calling_job,
    read_submission_options,
    refuse_changed_payload,
    refuse_reused_key,
    refuse_without_subscription,
)
from ductile.protocol.manifest.model import ExecutionMode
from ductile.store.model.submission import Accepted, Deduplicated, EnqueueResult, Submission
from ductile.struct import Value, replace

#: Events of ours: nobody else may publish one.
RESERVED_TYPES = "ductile."
LONGEST_TYPE = 255
_SHOWN_TYPE = 100
_DEFAULT_TIMEOUT = timedelta(seconds=30)


class RunResponse(Value):
    """What a caller is told; `done` says that there is nothing left to wait for."""

    done: bool
    body: JsonObject


class SyncWait(Value):
    """How long a caller waits, and what it is told when that was not long enough."""

    timeout: timedelta
    until: datetime
    partial: bool = False
    cancels: bool = False


# ------------------------------------------------------------------------------------ by name, by trigger


async def start_pipeline(context: OperationContext, door: Source, given: JsonObject) -> RunResponse:
    """Start a run of a pipeline; a caller of a synchronous one waits for it."""
    pipeline = known_pipeline(context.snapshot(), read.text(given, "pipeline"))
    return await _start(context, door, pipeline, given, {"plugin": RUN_PLUGIN, "command": pipeline.name})


async def trigger(context: OperationContext, door: Source, given: JsonObject) -> RunResponse:
    """Run the pipeline that `plugin.command` starts, in its own way; without one, the plugin."""
    snapshot = context.snapshot()
    name, command = read.text(given, "plugin"), read.text(given, "command")
    found = triggered_by(snapshot, name, command)
    if found is not None:
        return await _start(context, door, found, given, {"plugin": name, "command": command})
    plugin = runnable_plugin(snapshot, name)
    known_command(plugin, command)
    return await _run_plugin(context, door, plugin, command, given)


def triggered_by(snapshot: Snapshot, plugin: str, command: str) -> Pipeline | None:
    """The pipeline whose `on` is `plugin.command`; several are more than a caller can mean."""
    wanted = f"{plugin}.{command}"
    found = [one for one in snapshot.rules.pipelines.by_name.values() if one.on == wanted]
    if len(found) > 1:
        names = ", ".join(one.name for one in found)
        raise ConflictError(
            f"several pipelines start on {wanted}: {names}",
            hint="Start the one you mean by its name: POST /pipeline/{name}.",
            details={"pipelines": [one.name for one in found]},
        )
    return found[0] if found else None


def known_pipeline(snapshot: Snapshot, name: str) -> Pipeline:
    pipelines = snapshot.rules.pipelines.by_name
    if name not in pipelines:
        raise NotFoundError(
            f"there is no pipeline {name}",
            hint=did_you_mean(name, pipelines) or "See `ductile pipeline list`.",
        )
    return pipelines[name]


async def _start(
    context: OperationContext, door: Source, pipeline: Pipeline, given: JsonObject, shown: JsonObject
) -> RunResponse:
    snapshot = context.snapshot()
    intake = await read_submission_options(context, door, given)
    waiting = _waiting_for(context, snapshot.pipelines[pipeline.name], intake, given)
    event = _event(context, door, pipeline, intake, given)
    _refuse_by_condition(pipeline, event, snapshot)
    run = _new_run(context, door, pipeline, intake, event, waiting)
    shown = {**shown, "pipeline": pipeline.name}
    if read.flag(given, "dry_run"):
        return RunResponse(done=False, body={"job_id": None, **shown, "dry_run": True})
    await refuse_reused_key(context, intake, (run.job,))
    submission = Submission(
        runs=(run,), event=event, rules=snapshot.rules, dedupe_window=snapshot.service.dedupe_ttl
    )
    return await _submit(context, submission, run.job.id, intake, waiting, shown)


def _waiting_for(
    context: OperationContext, settings: PipelineSettings, intake: SubmissionOptions, given: JsonObject
) -> SyncWait | None:
    """A call from inside a job never waits: with one worker, it would wait for itself."""
    synchronous = settings.execution_mode is ExecutionMode.SYNCHRONOUS
    if (
        not synchronous
        or read.flag(given, "async")
        or intake.inside_job is not None
        or context.engine is None
    ):
        return None
    timeout = min(settings.timeout, context.snapshot().api.max_sync_timeout)
    return SyncWait(
        timeout=timeout,
        until=context.now() + timeout,
        partial=settings.return_on_timeout is ReturnOnTimeout.PARTIAL,
        cancels=settings.on_timeout is OnTimeout.CANCEL,
    )


def _event(
    context: OperationContext, door: Source, pipeline: Pipeline, intake: SubmissionOptions, given: JsonObject
) -> NewEvent:
    """What the run begins with: as if somebody had emitted what the pipeline starts on."""
    kind = read.optional_text(given, "event_type") or pipeline.on or f"{door.submitted_by}.trigger"
    return _made_event(context, door, kind, intake, given)


def _made_event(
    context: OperationContext, door: Source, kind: str, intake: SubmissionOptions, given: JsonObject
) -> NewEvent:
    """From what a caller gave. The id of a delivery is its key, as for a webhook that runs a plugin."""
    headers = read.optional_object(given, "headers")
    delivery = read.optional_text(given, "delivery_id")
    return NewEvent(
        id=make_id(context.now(), context.rng),
        type=kind,
        source=door.submitted_by,
        payload=intake.payload or {},
        headers=None if headers is None else {name: str(value) for name, value in headers.items()},
        dedupe_key=read.optional_text(given, "dedupe_key") if delivery is None else delivery,
    )


def _refuse_by_condition(pipeline: Pipeline, event: NewEvent, snapshot: Snapshot) -> None:
    """Somebody who asks for a run by name is told that its own `if` is against it."""
    sender = EventProducer(submitted_by=SubmittedBy.API)
    if (why := start_refusal(pipeline, event, sender, _budgeted(snapshot.rules))) is not None:
        told = why.get("explanation") or why.get("error")
        raise RefusedError(f"{pipeline.name} does not start: {told}", details={**why})


def _budgeted(rules: Policy) -> Policy:
    """Conditions are judged on the event loop here: they have no more time than in the store."""
    return replace(rules, budget=MatchBudget(thread_time))


def _new_run(
    context: OperationContext,
    door: Source,
    pipeline: Pipeline,
    intake: SubmissionOptions,
    event: NewEvent,
    waiting: SyncWait | None,
) -> NewRun:
    job = NewJob(
        id=make_id(context.now(), context.rng),
        plugin=RUN_PLUGIN,
        command=pipeline.name,
        submitted_by=door.submitted_by,
        submitted_detail=door.detail,
        max_attempts=1,
        dedupe_key=intake.dedupe_key,
        dedupe_ttl=intake.dedupe_ttl,
        source_event_id=event.id,
        hops=intake.hops,
        trace_id=intake.trace_id,
        callback=callback_of(intake),
    )
    ends_at = waiting.until if waiting is not None and waiting.cancels else None
    return NewRun(job=job, graph=pipeline.graph, event=event, deadline_at=ends_at)


async def _run_plugin(
    context: OperationContext, door: Source, plugin: PluginInstance, command: str, given: JsonObject
) -> RunResponse:
    """A plugin without a pipeline: the manifest says whether its caller waits."""
    manifest = plugin.installed.manifest if plugin.installed else None
    waits = manifest is not None and manifest.execution_mode is ExecutionMode.SYNCHRONOUS
    engine = context.engine
    at_once = not waits or read.flag(given, "async") or await find_calling_job(context, given) is not None
    if at_once or engine is None or manifest is None:
        body = await submit(context, door, given | {"command": command})
        return RunResponse(done=False, body={**body, "execution_mode": ExecutionMode.ASYNC})
    timeout = min(manifest.timeout or _DEFAULT_TIMEOUT, context.snapshot().api.max_sync_timeout)
    with engine.sync_slot():
        began = context.now()
        body = await submit(context, door, given | {"command": command})
        job_id = str(body["job_id"])
        await _wait(context, engine, job_id, timeout)
        waiting = SyncWait(timeout=timeout, until=began + timeout)
        return await _told(context, job_id, waiting, began, duplicate=body["deduplicated"] is True)


# --------------------------------------------------------------------------------------------- waiting


async def _submit(
    context: OperationContext,
    submission: Submission,
    run_id: str,
    intake: SubmissionOptions,
    waiting: SyncWait | None,
    shown: JsonObject,
) -> RunResponse:
    engine = context.engine
    slot = nullcontext() if waiting is None or engine is None else engine.sync_slot()
    with slot, _registered(engine, run_id) as ended:
        began = context.now()
        (answer,) = await context.enqueue(submission)
        if isinstance(answer, Deduplicated):
            refuse_changed_payload(intake, await context.store.job(answer.job_id))
            refuse_without_subscription(answer)
        if waiting is None or engine is None:
            return await _accepted(context, answer, shown)
        if isinstance(answer, Accepted) and answer.members and ended is not None:
            await asyncio.wait({ended}, timeout=waiting.timeout.total_seconds())
        else:
            await _wait(context, engine, answer.job_id, waiting.timeout)
        return await _told(context, answer.job_id, waiting, began, duplicate=isinstance(answer, Deduplicated))


@contextmanager
def _registered(engine: RunningEngine | None, job_id: str) -> Iterator[asyncio.Future[None] | None]:
    if engine is None:
        yield None
        return
    with engine.waiting_for(job_id) as ended:
        yield ended


async def _wait(context: OperationContext, engine: RunningEngine, job_id: str, longest: timedelta) -> None:
    """Until the job has ended, the time is up, or the daemon stops."""
    with engine.waiting_for(job_id) as ended:
        # Looked at after registering: an end between the two would never be told.
        if (await find_job(context, job_id)).status not in TERMINAL:
            await asyncio.wait({ended}, timeout=longest.total_seconds())


async def _accepted(context: OperationContext, answer: EnqueueResult, shown: JsonObject) -> RunResponse:
    duplicate = isinstance(answer, Deduplicated)
    status = (await find_job(context, answer.job_id)).status if duplicate else JobStatus.QUEUED
    body: JsonObject = {
        "job_id": answer.job_id,
        "status": status,
        "execution_mode": ExecutionMode.ASYNC,
        **shown,
        "deduplicated": duplicate,
    }
    return RunResponse(done=False, body=body)


async def _told(
    context: OperationContext, job_id: str, waiting: SyncWait, began: datetime, *, duplicate: bool
) -> RunResponse:
    if duplicate:  # its deadline is that of the call that started it, if that had one
        waiting = replace(waiting, cancels=False)
    elapsed = context.now() - began
    account = await context.store.account(job_id)
    if account is None:
        raise NotFoundError(f"there is no job {job_id} any more")
    if account.job.status in TERMINAL and not _ran_out_of_time(account.job, waiting):
        return RunResponse(done=True, body=mark_duplicate(finished(account), duplicate=duplicate))
    body = still_running(
        account,
        allowed=waiting.timeout,
        elapsed=elapsed,
        stopping=context.engine is not None and context.engine.stopping,
        partial=waiting.partial,
        cancels=waiting.cancels,
    )
    return RunResponse(done=False, body=mark_duplicate(body, duplicate=duplicate))


def _ran_out_of_time(job: Job, waiting: SyncWait) -> bool:
    """Whether the deadline itself ended the run: its caller is told the same, whichever of them was first.

    The engine cancels at the instant at which the caller gives up, and may well have done so before
    the caller looks.
    """
    late = job.completed_at is not None and job.completed_at >= waiting.until
    return waiting.cancels and late and job.reason is JobReason.CANCELLED


# ---------------------------------------------------------------------------------------------- events


async def publish_event(context: OperationContext, door: Source, given: JsonObject) -> JsonObject:
    """Publish an event into routing: everything that it starts, in one transaction."""
    snapshot = context.snapshot()
    kind = _event_type(given)
    intake = await read_submission_options(context, door, given)
    event = _made_event(context, door, kind, intake, given)
    sender = EventProducer(
        submitted_by=door.submitted_by, detail=door.detail, hops=intake.hops, trace_id=intake.trace_id
    )
    started = fan_out(
        sender, (OutgoingEvent(event=event),), _budgeted(snapshot.rules), context.now(), context.rng
    )
    keyed = _keyed(intake)
    submission = Submission(
        jobs=tuple(keyed(job) for job in started.jobs),
        runs=tuple(replace(run, job=keyed(run.job)) for run in started.runs),
        event=event,
        rules=snapshot.rules,
        ledger=started.ledger,
        dedupe_window=snapshot.service.dedupe_ttl,
    )
    shown: JsonObject = {"event_id": event.id, "type": kind}
    if read.flag(given, "dry_run"):
        targets: list[JsonValue] = [_target(job) for job in _jobs_of(submission)]
        return {**shown, "would_start": targets, "dry_run": True}
    await refuse_reused_key(context, intake, _jobs_of(submission))
    answers = await context.enqueue(submission)
    if intake.idempotent and answers and all(isinstance(answer, Deduplicated) for answer in answers):
        # Not where something was started: whoever is refused must be able to rely on that nothing was.
        refuse_changed_payload(intake, await context.store.job(answers[0].job_id))
    return {**shown, **_listed(submission, answers)}


def _event_type(given: JsonObject) -> str:
    kind = read.text(given, "type").strip()
    if len(kind) > LONGEST_TYPE:
        raise read.refused("type", f"an event type has at most {LONGEST_TYPE} characters")
    if not kind or kind.startswith(RESERVED_TYPES):
        hint = f"Types that begin with {RESERVED_TYPES} are reserved."
        raise read.refused("type", f"an event cannot be of type {kind[:_SHOWN_TYPE]!r}", hint)
    return kind


def why_nothing_started(snapshot: Snapshot, door: Source, published: JsonObject) -> str | None:
    """In words, of an event that was published; None if it started something."""
    if published["started"]:
        return None
    if published["deduplicated"]:
        return "This is a duplicate: what it starts is there already."
    if published["dropped"]:
        return "Nothing was started: `dropped` has the reasons."
    kind = str(published["type"])
    told = f"Nobody listens to {kind} from `{door.submitted_by}`, so nothing was started"
    near = did_you_mean(kind, _heard_from(snapshot, door.submitted_by))
    return f"{told}." if near is None else f"{told}: {near}"


def _heard_from(snapshot: Snapshot, source: str) -> set[str]:
    routed = {route.event_type for route in snapshot.routes if route.source == source}
    started = {one.on for one in snapshot.pipelines.values() if one.on and one.from_plugin in (None, source)}
    return routed | started


def _keyed(intake: SubmissionOptions) -> Callable[[NewJob], NewJob]:
    """The submission's own key, as its door has stored it; an event without one starts jobs without one."""
    return lambda job: replace(job, dedupe_key=intake.dedupe_key, dedupe_ttl=intake.dedupe_ttl)


def _jobs_of(submission: Submission) -> list[NewJob]:
    return [*submission.jobs, *(run.job for run in submission.runs)]


def _listed(submission: Submission, answers: tuple[EnqueueResult, ...]) -> JsonObject:
    started: list[JsonValue] = []
    deduplicated: list[JsonValue] = []
    for job, answer in zip(_jobs_of(submission), answers, strict=True):
        shown: JsonObject = {"job_id": answer.job_id, "target": _target(job)}
        if isinstance(answer, Deduplicated):
            deduplicated.append(shown)
        else:
            started.append(shown | _standing(answer))
    dropped: list[JsonValue] = [
        {
            "target": entry.data.get("pipeline") or entry.data.get("targets"),
            "reason": entry.data.get("explanation") or entry.data.get("error"),
        }
        for entry in submission.ledger
        if entry.kind in (LedgerKind.EVENT_DROPPED, LedgerKind.SWITCH)
    ]
    return {"started": started, "deduplicated": deduplicated, "dropped": dropped}


def _standing(answer: EnqueueResult) -> JsonObject:
    """On the queue, unless it is a run that ended as it began: no step could be made, or none is for it."""
    for job in answer.ended if isinstance(answer, Accepted) else ():
        if job.id == answer.job_id:
            return {"status": job.status, "error": job.error}
    return {"status": JobStatus.QUEUED, "error": None}


def _target(job: NewJob) -> str:
    return f"pipeline:{job.command}" if job.plugin == RUN_PLUGIN else f"{job.plugin}.{job.command}"
