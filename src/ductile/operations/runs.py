"""Starting pipelines: by name, by what triggers them, or by an event; and waiting for them (SPEC 7.7).

The engine stays asynchronous. A caller who waits holds a slot, is registered before anything is enqueued,
and is woken by the commit that ends the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from time import thread_time

from ductile.config.keypath import did_you_mean
from ductile.config.pipeline_settings import OnTimeout, PipelineSettings, ReturnOnTimeout
from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.fanout import Sender, Told, fan_out, why_not
from ductile.core.ids import make_id
from ductile.core.jobs import TERMINAL, Job, JobStatus, NewJob, Reason, SubmittedBy
from ductile.core.json_values import JsonObject, JsonValue
from ductile.core.ledger import LedgerKind
from ductile.core.lineage import NewEvent
from ductile.core.patterns import MatchBudget
from ductile.core.pipelines import RUN_PLUGIN, Pipeline
from ductile.core.rules import Rules
from ductile.core.run_values import NewRun
from ductile.errors import ConflictError, NotFoundError, RefusedError
from ductile.operations import jobs
from ductile.operations import parameters as read
from ductile.operations.catalogue import known_command
from ductile.operations.desk import Desk, RunningEngine
from ductile.operations.intake import (
    Door,
    Intake,
    callback_of,
    caller_of,
    read_intake,
    refuse_key_of_another,
    refuse_other_body,
    refuse_without_subscription,
)
from ductile.operations.job_ids import find_job
from ductile.operations.run_answers import as_duplicate, finished, still_running
from ductile.protocol.manifest import ExecutionMode
from ductile.store.values.submitting import Accepted, Deduplicated, Enqueued, Submission
from ductile.value import Value, replace

#: Events of ours: nobody else may publish one.
RESERVED_TYPES = "ductile."
LONGEST_TYPE = 255
_SHOWN_TYPE = 100
_DEFAULT_TIMEOUT = timedelta(seconds=30)


class Answer(Value):
    """What a caller is told; `done` says that there is nothing left to wait for."""

    done: bool
    body: JsonObject


class Waiting(Value):
    """How long a caller waits, and what it is told when that was not long enough."""

    timeout: timedelta
    until: datetime
    partial: bool = False
    cancels: bool = False


# ------------------------------------------------------------------------------------ by name, by trigger


async def start_pipeline(desk: Desk, door: Door, given: JsonObject) -> Answer:
    """Start a run of a pipeline; a caller of a synchronous one waits for it."""
    pipeline = known_pipeline(desk.snapshot(), read.text(given, "pipeline"))
    return await _start(desk, door, pipeline, given, {"plugin": RUN_PLUGIN, "command": pipeline.name})


async def trigger(desk: Desk, door: Door, given: JsonObject) -> Answer:
    """Run the pipeline that `plugin.command` starts, in its own way; without one, the plugin."""
    snapshot = desk.snapshot()
    name, command = read.text(given, "plugin"), read.text(given, "command")
    found = triggered_by(snapshot, name, command)
    if found is not None:
        return await _start(desk, door, found, given, {"plugin": name, "command": command})
    plugin = jobs.runnable_plugin(snapshot, name)
    known_command(plugin, command)
    return await _run_plugin(desk, door, plugin, command, given)


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


async def _start(desk: Desk, door: Door, pipeline: Pipeline, given: JsonObject, shown: JsonObject) -> Answer:
    snapshot = desk.snapshot()
    intake = await read_intake(desk, door, given)
    waiting = _waiting_for(desk, snapshot.pipelines[pipeline.name], intake, given)
    event = _event(desk, door, pipeline, intake, given)
    _refuse_by_condition(pipeline, event, snapshot)
    run = _new_run(desk, door, pipeline, intake, event, waiting)
    shown = {**shown, "pipeline": pipeline.name}
    if read.flag(given, "dry_run"):
        return Answer(done=False, body={"job_id": None, **shown, "dry_run": True})
    await refuse_key_of_another(desk, intake, (run.job,))
    submission = Submission(
        runs=(run,), event=event, rules=snapshot.rules, dedupe_window=snapshot.service.dedupe_ttl
    )
    return await _submit(desk, submission, run.job.id, intake, waiting, shown)


def _waiting_for(desk: Desk, settings: PipelineSettings, intake: Intake, given: JsonObject) -> Waiting | None:
    """A call from inside a job never waits: with one worker, it would wait for itself (ENGINE 10)."""
    synchronous = settings.execution_mode is ExecutionMode.SYNCHRONOUS
    if not synchronous or read.flag(given, "async") or intake.inside_job is not None or desk.engine is None:
        return None
    timeout = min(settings.timeout, desk.snapshot().api.max_sync_timeout)
    return Waiting(
        timeout=timeout,
        until=desk.now() + timeout,
        partial=settings.return_on_timeout is ReturnOnTimeout.PARTIAL,
        cancels=settings.on_timeout is OnTimeout.CANCEL,
    )


def _event(desk: Desk, door: Door, pipeline: Pipeline, intake: Intake, given: JsonObject) -> NewEvent:
    """What the run begins with: as if somebody had emitted what the pipeline starts on."""
    kind = read.optional_text(given, "event_type") or pipeline.on or f"{door.submitted_by}.trigger"
    return _made_event(desk, door, kind, intake, given)


def _made_event(desk: Desk, door: Door, kind: str, intake: Intake, given: JsonObject) -> NewEvent:
    """From what a caller gave. The id of a delivery is its key, as for a webhook that runs a plugin."""
    headers = read.optional_object(given, "headers")
    delivery = read.optional_text(given, "delivery_id")
    return NewEvent(
        id=make_id(desk.now(), desk.dice),
        type=kind,
        source=door.submitted_by,
        payload=intake.payload or {},
        headers=None if headers is None else {name: str(value) for name, value in headers.items()},
        dedupe_key=read.optional_text(given, "dedupe_key") if delivery is None else delivery,
    )


def _refuse_by_condition(pipeline: Pipeline, event: NewEvent, snapshot: Snapshot) -> None:
    """Somebody who asks for a run by name is told that its own `if` is against it."""
    sender = Sender(submitted_by=SubmittedBy.API)
    if (why := why_not(pipeline, event, sender, _budgeted(snapshot.rules))) is not None:
        told = why.get("explanation") or why.get("error")
        raise RefusedError(f"{pipeline.name} does not start: {told}", details={**why})


def _budgeted(rules: Rules) -> Rules:
    """Conditions are judged on the event loop here: they have no more time than in the store."""
    return replace(rules, budget=MatchBudget(thread_time))


def _new_run(
    desk: Desk, door: Door, pipeline: Pipeline, intake: Intake, event: NewEvent, waiting: Waiting | None
) -> NewRun:
    job = NewJob(
        id=make_id(desk.now(), desk.dice),
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
    desk: Desk, door: Door, plugin: PluginInstance, command: str, given: JsonObject
) -> Answer:
    """A plugin without a pipeline: the manifest says whether its caller waits."""
    manifest = plugin.installed.manifest if plugin.installed else None
    waits = manifest is not None and manifest.execution_mode is ExecutionMode.SYNCHRONOUS
    engine = desk.engine
    at_once = not waits or read.flag(given, "async") or await caller_of(desk, given) is not None
    if at_once or engine is None or manifest is None:
        body = await jobs.submit(desk, door, given | {"command": command})
        return Answer(done=False, body={**body, "execution_mode": ExecutionMode.ASYNC})
    timeout = min(manifest.timeout or _DEFAULT_TIMEOUT, desk.snapshot().api.max_sync_timeout)
    with engine.waiting_slot():
        began = desk.now()
        body = await jobs.submit(desk, door, given | {"command": command})
        job_id = str(body["job_id"])
        await _wait(desk, engine, job_id, timeout)
        waiting = Waiting(timeout=timeout, until=began + timeout)
        return await _told(desk, job_id, waiting, began, duplicate=body["deduplicated"] is True)


# --------------------------------------------------------------------------------------------- waiting


async def _submit(
    desk: Desk,
    submission: Submission,
    run_id: str,
    intake: Intake,
    waiting: Waiting | None,
    shown: JsonObject,
) -> Answer:
    engine = desk.engine
    slot = nullcontext() if waiting is None or engine is None else engine.waiting_slot()
    with slot, _registered(engine, run_id) as ended:
        began = desk.now()
        (answer,) = await desk.enqueue(submission)
        if isinstance(answer, Deduplicated):
            refuse_other_body(intake, await desk.store.job(answer.job_id))
            refuse_without_subscription(answer)
        if waiting is None or engine is None:
            return await _accepted(desk, answer, shown)
        if isinstance(answer, Accepted) and answer.members and ended is not None:
            await asyncio.wait({ended}, timeout=waiting.timeout.total_seconds())
        else:
            await _wait(desk, engine, answer.job_id, waiting.timeout)
        return await _told(desk, answer.job_id, waiting, began, duplicate=isinstance(answer, Deduplicated))


@contextmanager
def _registered(engine: RunningEngine | None, job_id: str) -> Iterator[asyncio.Future[None] | None]:
    if engine is None:
        yield None
        return
    with engine.waiting_for(job_id) as ended:
        yield ended


async def _wait(desk: Desk, engine: RunningEngine, job_id: str, longest: timedelta) -> None:
    """Until the job has ended, the time is up, or the daemon stops."""
    with engine.waiting_for(job_id) as ended:
        # Looked at after registering: an end between the two would never be told.
        if (await find_job(desk, job_id)).status not in TERMINAL:
            await asyncio.wait({ended}, timeout=longest.total_seconds())


async def _accepted(desk: Desk, answer: Enqueued, shown: JsonObject) -> Answer:
    duplicate = isinstance(answer, Deduplicated)
    status = (await find_job(desk, answer.job_id)).status if duplicate else JobStatus.QUEUED
    body: JsonObject = {
        "job_id": answer.job_id,
        "status": status,
        "execution_mode": ExecutionMode.ASYNC,
        **shown,
        "deduplicated": duplicate,
    }
    return Answer(done=False, body=body)


async def _told(desk: Desk, job_id: str, waiting: Waiting, began: datetime, *, duplicate: bool) -> Answer:
    if duplicate:  # its deadline is that of the call that started it, if that had one
        waiting = replace(waiting, cancels=False)
    elapsed = desk.now() - began
    account = await desk.store.account(job_id)
    if account is None:
        raise NotFoundError(f"there is no job {job_id} any more")
    if account.job.status in TERMINAL and not _ran_out_of_time(account.job, waiting):
        return Answer(done=True, body=as_duplicate(finished(account), duplicate=duplicate))
    body = still_running(
        account,
        allowed=waiting.timeout,
        elapsed=elapsed,
        stopping=desk.engine is not None and desk.engine.stopping,
        partial=waiting.partial,
        cancels=waiting.cancels,
    )
    return Answer(done=False, body=as_duplicate(body, duplicate=duplicate))


def _ran_out_of_time(job: Job, waiting: Waiting) -> bool:
    """Whether the deadline itself ended the run: its caller is told the same, whichever of them was first.

    The engine cancels at the instant at which the caller gives up, and may well have done so before
    the caller looks.
    """
    late = job.completed_at is not None and job.completed_at >= waiting.until
    return waiting.cancels and late and job.reason is Reason.CANCELLED


# ---------------------------------------------------------------------------------------------- events


async def publish_event(desk: Desk, door: Door, given: JsonObject) -> JsonObject:
    """Publish an event into routing: everything that it starts, in one transaction (ENGINE 10)."""
    snapshot = desk.snapshot()
    kind = _event_type(given)
    intake = await read_intake(desk, door, given)
    event = _made_event(desk, door, kind, intake, given)
    sender = Sender(
        submitted_by=door.submitted_by, detail=door.detail, hops=intake.hops, trace_id=intake.trace_id
    )
    started = fan_out(sender, (Told(event=event),), _budgeted(snapshot.rules), desk.now(), desk.dice)
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
    await refuse_key_of_another(desk, intake, _jobs_of(submission))
    answers = await desk.enqueue(submission)
    if intake.idempotent and answers and all(isinstance(answer, Deduplicated) for answer in answers):
        # Not where something was started: whoever is refused must be able to rely on that nothing was.
        refuse_other_body(intake, await desk.store.job(answers[0].job_id))
    return {**shown, **_listed(submission, answers)}


def _event_type(given: JsonObject) -> str:
    kind = read.text(given, "type").strip()
    if len(kind) > LONGEST_TYPE:
        raise read.refused("type", f"an event type has at most {LONGEST_TYPE} characters")
    if not kind or kind.startswith(RESERVED_TYPES):
        hint = f"Types that begin with {RESERVED_TYPES} are reserved."
        raise read.refused("type", f"an event cannot be of type {kind[:_SHOWN_TYPE]!r}", hint)
    return kind


def why_nothing_started(snapshot: Snapshot, door: Door, published: JsonObject) -> str | None:
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


def _keyed(intake: Intake) -> Callable[[NewJob], NewJob]:
    """The submission's own key, as its door has stored it; an event without one starts jobs without one."""
    return lambda job: replace(job, dedupe_key=intake.dedupe_key, dedupe_ttl=intake.dedupe_ttl)


def _jobs_of(submission: Submission) -> list[NewJob]:
    return [*submission.jobs, *(run.job for run in submission.runs)]


def _listed(submission: Submission, answers: tuple[Enqueued, ...]) -> JsonObject:
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


def _standing(answer: Enqueued) -> JsonObject:
    """On the queue, unless it is a run that ended as it began: no step could be made, or none is for it."""
    for job in answer.ended if isinstance(answer, Accepted) else ():
        if job.id == answer.job_id:
            return {"status": job.status, "error": job.error}
    return {"status": JobStatus.QUEUED, "error": None}


def _target(job: NewJob) -> str:
    return f"pipeline:{job.command}" if job.plugin == RUN_PLUGIN else f"{job.plugin}.{job.command}"
