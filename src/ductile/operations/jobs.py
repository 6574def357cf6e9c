"""Jobs: submitting, finding, waiting, cancelling, trying again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from ductile.config.keypath import did_you_mean
from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.dedupe import KeyDoor, namespaced_key
from ductile.core.ids import make_id
from ductile.core.jobs import TERMINAL, Job, JobStatus, NewJob, SubmittedBy
from ductile.core.json_values import JsonObject, JsonValue
from ductile.core.settlement import LogStatus
from ductile.errors import ConflictError, GoneError, NotFoundError, RefusedError
from ductile.operations import parameters as read
from ductile.operations.desk import Desk
from ductile.operations.shown import (
    result_of,
    shown_execution,
    shown_job,
    shown_ledger,
    shown_transition,
)
from ductile.store.values import (
    DEFAULT_PAGE,
    LARGEST_PAGE,
    CancelAnswer,
    Deduplicated,
    JobFilter,
    LogFilter,
    RetryAnswer,
    Submission,
)

#: Words that other systems use for our states; accepted where a list is filtered (SPEC 8).
STATUS_ALIASES = {
    "pending": JobStatus.QUEUED,
    "completed": JobStatus.SUCCEEDED,
    "ok": JobStatus.SUCCEEDED,
    "error": JobStatus.FAILED,
}
LOG_ALIASES = {
    "completed": LogStatus.SUCCEEDED,
    "ok": LogStatus.SUCCEEDED,
    "error": LogStatus.FAILED,
}
LONGEST_WAIT = timedelta(hours=24)


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Through which door a submission came, and who stood there."""

    submitted_by: SubmittedBy
    detail: str | None = None


async def submit(desk: Desk, door: Door, given: JsonObject) -> JsonObject:
    """Put one job of a plugin's command on the queue."""
    snapshot = desk.snapshot()
    plugin = runnable_plugin(snapshot, read.text(given, "plugin"))
    command = known_command(plugin, read.optional_text(given, "command") or default_command(plugin))
    ttl = read.optional_duration(given, "dedupe_ttl")
    _refuse_long_window(snapshot, ttl)
    job = NewJob(
        id=make_id(desk.now(), desk.dice),
        plugin=plugin.name,
        command=command,
        submitted_by=door.submitted_by,
        submitted_detail=door.detail,
        max_attempts=plugin.retry.max_attempts,
        payload=read.optional_object(given, "payload"),
        dedupe_key=namespaced_key(KeyDoor.CALLER, read.optional_text(given, "dedupe_key")),
        dedupe_ttl=None if ttl is None else ttl.total_seconds(),
    )
    (answer,) = await desk.store.enqueue(Submission(jobs=(job,), dedupe_window=snapshot.service.dedupe_ttl))
    desk.wake()
    return {
        "job_id": answer.job_id,
        "status": JobStatus.QUEUED,
        "plugin": plugin.name,
        "command": command,
        "deduplicated": isinstance(answer, Deduplicated),
    }


def runnable_plugin(snapshot: Snapshot, name: str) -> PluginInstance:
    """The plugin, if jobs may be submitted for it (SPEC 3.1)."""
    plugin = snapshot.plugins.get(name)
    if plugin is None:
        if name in snapshot.available:
            raise NotFoundError(
                f"the plugin {name} is installed but not active", hint="Name it under `plugins` to use it."
            )
        raise NotFoundError(f"there is no plugin {name}", hint=did_you_mean(name, snapshot.plugins))
    if not plugin.enabled:
        raise RefusedError(f"the plugin {name} is disabled", hint=f"Set plugins.{name}.enabled to true.")
    if plugin.refused is not None:
        raise RefusedError(f"the plugin {name} cannot run: {plugin.refused.reason}", hint=plugin.refused.hint)
    return plugin


def known_command(plugin: PluginInstance, command: str) -> str:
    commands = plugin.installed.manifest.commands if plugin.installed else {}
    if command not in commands:
        raise NotFoundError(f"{plugin.name} has no command {command}", hint=f"It has {', '.join(commands)}.")
    return command


def default_command(plugin: PluginInstance) -> str:
    commands = plugin.installed.manifest.commands if plugin.installed else {}
    return "poll" if "poll" in commands else "handle"


def _refuse_long_window(snapshot: Snapshot, ttl: timedelta | None) -> None:
    if ttl is not None and ttl > snapshot.service.job_queue_retention:
        raise RefusedError(
            "dedupe_ttl is longer than jobs are remembered",
            hint="Use a shorter one, or raise service.job_queue_retention.",
        )


async def list_jobs(desk: Desk, given: JsonObject) -> JsonObject:
    where = JobFilter(
        job_id=read.optional_text(given, "job_id"),
        plugin=read.optional_text(given, "plugin"),
        command=read.optional_text(given, "command"),
        status=read.optional_word(given, "status", JobStatus, STATUS_ALIASES),
        submitted_by=read.optional_word(given, "submitted_by", SubmittedBy),
        created_from=read.optional_instant(given, "from"),
        created_before=read.optional_instant(given, "to"),
        parent_job_id=read.optional_text(given, "parent"),
        run_id=read.optional_text(given, "run"),
    )
    limit = read.number(given, "limit", DEFAULT_PAGE, most=LARGEST_PAGE)
    page = await desk.store.jobs(where, limit=limit, cursor=read.optional_text(given, "cursor"))
    return {"jobs": [shown_job(job) for job in page.rows], "next_cursor": page.next_cursor}


async def list_log(desk: Desk, given: JsonObject) -> JsonObject:
    where = LogFilter(
        job_id=read.optional_text(given, "job_id"),
        plugin=read.optional_text(given, "plugin"),
        command=read.optional_text(given, "command"),
        status=read.optional_word(given, "status", LogStatus, LOG_ALIASES),
        submitted_by=read.optional_word(given, "submitted_by", SubmittedBy),
        completed_from=read.optional_instant(given, "from"),
        completed_before=read.optional_instant(given, "to"),
        query=read.optional_text(given, "query"),
    )
    limit = read.number(given, "limit", DEFAULT_PAGE, most=LARGEST_PAGE)
    page = await desk.store.log(where, limit=limit, cursor=read.optional_text(given, "cursor"))
    return {"logs": [shown_execution(row) for row in page.rows], "next_cursor": page.next_cursor}


async def find_job(desk: Desk, job_id: str) -> Job:
    job = await desk.store.job(job_id)
    if job is None:
        raise NotFoundError(f"there is no job {job_id}", hint="See `ductile job list`.")
    return job


async def show_job(desk: Desk, given: JsonObject) -> JsonObject:
    """Everything about one job: its fields, what it was given, what it answered, and its history."""
    job = await find_job(desk, read.text(given, "job_id"))
    executions = await desk.store.executions(job.id)
    transitions = await desk.store.transitions(job.id)
    return {
        **shown_job(job),
        "payload": job.payload,
        "result": result_of(executions[-1]) if executions else None,
        "executions": [shown_execution(row) for row in executions],
        "transitions": [shown_transition(row) for row in transitions],
    }


async def job_tree(desk: Desk, given: JsonObject) -> JsonObject:
    """The job and everything it led to, nested."""
    root = await find_job(desk, read.text(given, "job_id"))
    jobs = await desk.store.tree(root.id)
    children: dict[str | None, list[Job]] = {}
    for job in jobs:
        children.setdefault(job.parent_job_id, []).append(job)
    return {"tree": _branch(root, children)}


def _branch(job: Job, children: dict[str | None, list[Job]]) -> JsonValue:
    below = [_branch(child, children) for child in children.get(job.id, ()) if child.id != job.id]
    return {**shown_job(job), "children": below}


async def job_logs(desk: Desk, given: JsonObject) -> JsonObject:
    """What each execution of a job printed."""
    job = await find_job(desk, read.text(given, "job_id"))
    executions = await desk.store.executions(job.id)
    return {"job_id": job.id, "executions": [shown_execution(row, output=True) for row in executions]}


async def wait_for_job(desk: Desk, given: JsonObject) -> JsonObject:
    """Answer when the job has ended, or when the time is up."""
    job_id = read.text(given, "job_id")
    timeout = read.optional_duration(given, "timeout") or LONGEST_WAIT
    await find_job(desk, job_id)
    if desk.engine is None:
        return await show_job(desk, given)
    with desk.engine.waiting_for(job_id) as ended:
        # Looked at after registering: an end between the two would never be told.
        job = await find_job(desk, job_id)
        if job.status not in TERMINAL:
            await asyncio.wait({ended}, timeout=timeout.total_seconds())
    return await show_job(desk, given)


async def cancel_job(desk: Desk, given: JsonObject) -> JsonObject:
    job_id = read.text(given, "job_id")
    answer = await desk.store.cancel(job_id, desk.snapshot().rules)
    match answer:
        case CancelAnswer.UNKNOWN_JOB:
            raise NotFoundError(f"there is no job {job_id}", hint="See `ductile job list`.")
        case CancelAnswer.ALREADY_ENDED:
            job = await find_job(desk, job_id)
            raise ConflictError(f"the job has ended already: {job.status}", details={"status": job.status})
        case CancelAnswer.REQUESTED if desk.engine is not None:
            await desk.engine.end_running(job_id)
    desk.wake()
    return {"job_id": job_id, "cancel": answer, **_status_of(await find_job(desk, job_id))}


async def retry_job(desk: Desk, given: JsonObject) -> JsonObject:
    job_id = read.text(given, "job_id")
    answer = await desk.store.retry(job_id)
    match answer:
        case RetryAnswer.UNKNOWN_JOB:
            raise NotFoundError(f"there is no job {job_id}", hint="See `ductile job list`.")
        case RetryAnswer.RETAINED_NO_MORE:
            raise GoneError("only the log of this job is left", hint="Submit it anew.")
        case RetryAnswer.SUCCEEDED:
            raise ConflictError("the job has succeeded", hint="Submit it anew to run it again.")
        case RetryAnswer.NOT_ENDED:
            raise ConflictError("the job has not ended", hint="Wait for it, or cancel it first.")
        case RetryAnswer.RUN_ENDED:
            job = await find_job(desk, job_id)
            raise ConflictError(
                f"the job is step {job.step_path} of a pipeline run that has ended",
                hint=f"Retry the run: ductile job retry {job.run_id}",
                details={"run_id": job.run_id, "step": job.step_path},
            )
    desk.wake()
    return {"job_id": job_id, **_status_of(await find_job(desk, job_id))}


def _status_of(job: Job) -> JsonObject:
    return {"status": job.status, "reason": job.reason}


async def tail_ledger(desk: Desk, given: JsonObject) -> JsonObject:
    """Ledger entries after a number; without one, the latest."""
    lowest, highest = await desk.store.ledger_range()
    limit = read.number(given, "limit", DEFAULT_PAGE, most=1000)
    after = read.number(given, "after", max(0, highest - limit), least=0, most=1 << 62)
    rows = await desk.store.ledger(after=after, limit=limit)
    return {"events": [shown_ledger(row) for row in rows], "lowest": lowest, "highest": highest}
