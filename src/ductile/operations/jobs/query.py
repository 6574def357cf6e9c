"""Jobs: submitting, finding, waiting, cancelling, trying again."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.events.model import NewEvent
from ductile.core.ids import make_id
from ductile.core.jobs.model import TERMINAL, Job, JobReason, JobStatus, NewJob, SubmittedBy
from ductile.core.json import JsonObject
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.engine.reload.drain import draining_error
from ductile.errors import ConflictError, GoneError, NotFoundError, RefusedError
from ductile.operations import parameters as read
from ductile.operations.context import OperationContext
from ductile.operations.diagnose.explain_run import describe_steps
from ductile.operations.jobs.documents import answer_of, shown_execution, shown_transition
from ductile.operations.jobs.log import index_pending_logs
from ductile.operations.jobs.lookup import find_job, resolve_job
from ductile.operations.jobs.orphaned import is_orphaned, job_document
from ductile.operations.jobs.tree import nest_jobs
from ductile.operations.plugins.catalogue import known_command
from ductile.operations.plugins.names import known_plugin_filter, unknown_plugin
from ductile.operations.submission import (
    Source,
    SubmissionOptions,
    callback_of,
    read_submission_options,
    refuse_changed_payload,
    refuse_invalid_payload,
    refuse_reused_key,
    refuse_without_subscription,
)
from ductile.operations.system.status import require_engine
from ductile.store.model.jobs import CancelStatus, RetryResult
from ductile.store.model.records import DEFAULT_PAGE, LARGEST_PAGE, JobFilter
from ductile.store.model.submission import Deduplicated, Submission

#: Words that other systems use for our states; accepted where a list is filtered.
STATUS_ALIASES = {
    "pending": JobStatus.QUEUED,
    "completed": JobStatus.SUCCEEDED,
    "ok": JobStatus.SUCCEEDED,
    "error": JobStatus.FAILED,
}
MAX_WAIT = timedelta(hours=24)
#: Jobs in one tree: what is shown is all in memory at once.
MAX_TREE_JOBS = 10_000


async def submit(
    context: OperationContext, door: Source, given: JsonObject, event: NewEvent | None = None
) -> JsonObject:
    """Put one job of a plugin's command on the queue.

    An event that somebody signed brings its payload along. What such a sender sends is not held against a
    schema: it could not be told, and would only send it again.
    """
    snapshot = context.snapshot()
    plugin = runnable_plugin(snapshot, read.text(given, "plugin"))
    command = known_command(plugin, read.optional_text(given, "command") or default_command(plugin))
    intake = await read_submission_options(context, door, given)
    if event is None:
        refuse_invalid_payload(plugin, command, intake.payload)
    job = NewJob(
        id=make_id(context.now(), context.rng),
        plugin=plugin.name,
        command=command,
        submitted_by=door.submitted_by,
        submitted_detail=door.detail,
        max_attempts=plugin.retry.max_attempts,
        payload=intake.payload if event is None else None,
        source_event_id=None if event is None else event.id,
        dedupe_key=intake.dedupe_key,
        dedupe_ttl=intake.dedupe_ttl,
        hops=intake.hops,
        trace_id=intake.trace_id,
        callback=callback_of(intake, plugin),
    )
    if read.flag(given, "dry_run"):
        return {"job_id": None, "plugin": plugin.name, "command": command, "dry_run": True}
    if intake.idempotent:  # not even asked for the others: this is the way of every job
        await refuse_reused_key(context, intake, (job,))
    submission = Submission(jobs=(job,), event=event, dedupe_window=snapshot.service.dedupe_ttl)
    (answer,) = await context.enqueue(submission)
    if isinstance(answer, Deduplicated):
        return await _existing(context, intake, plugin.name, command, answer)
    return {
        "job_id": answer.job_id,
        "status": JobStatus.QUEUED,
        "plugin": plugin.name,
        "command": command,
        "deduplicated": False,
    }


async def submit_from_cli(context: OperationContext, given: JsonObject) -> JsonObject:
    return await submit(context, Source(submitted_by=SubmittedBy.CLI), given)


async def _existing(
    context: OperationContext, intake: SubmissionOptions, plugin: str, command: str, answer: Deduplicated
) -> JsonObject:
    """The answer to a duplicate: the job that is there, as it stands."""
    job = await context.store.job(answer.job_id)
    refuse_changed_payload(intake, job)
    refuse_without_subscription(answer)
    return {
        "job_id": answer.job_id,
        "status": JobStatus.QUEUED if job is None else job.status,
        "plugin": plugin,
        "command": command,
        "deduplicated": True,
    }


def runnable_plugin(snapshot: Snapshot, name: str) -> PluginInstance:
    """The plugin, if jobs may be submitted for it."""
    plugin = snapshot.plugins.get(name)
    if plugin is None:
        if name in snapshot.available:
            raise NotFoundError(
                f"the plugin {name} is installed but not active",
                hint=f"Name it under `plugins`: `ductile config set plugins.{name}.enabled true --lock`. "
                "A running daemon then needs `ductile reload`.",
            )
        raise unknown_plugin(snapshot, name)
    if not plugin.enabled:
        raise RefusedError(f"the plugin {name} is disabled", hint=f"Enable it: ductile plugin enable {name}")
    if plugin.refused is not None:
        raise RefusedError(f"the plugin {name} cannot run: {plugin.refused.reason}", hint=plugin.refused.hint)
    return plugin


def default_command(plugin: PluginInstance) -> str:
    commands = plugin.installed.manifest.commands if plugin.installed else {}
    return "poll" if "poll" in commands else "handle"


async def list_jobs(context: OperationContext, given: JsonObject) -> JsonObject:
    where = JobFilter(
        job_id=read.optional_text(given, "job_id"),
        plugin=await known_plugin_filter(context, given),
        command=read.optional_text(given, "command"),
        status=read.optional_word(given, "status", JobStatus, STATUS_ALIASES),
        submitted_by=read.optional_word(given, "submitted_by", SubmittedBy),
        created_from=read.optional_instant(given, "from"),
        created_before=read.optional_instant(given, "to"),
        parent_job_id=read.optional_text(given, "parent"),
        run_id=read.optional_text(given, "run"),
        query=read.optional_text(given, "query"),
    )
    if where.query is not None:
        await index_pending_logs(context)
    limit = read.number(given, "limit", DEFAULT_PAGE, most=LARGEST_PAGE)
    page = await context.store.jobs(where, limit=limit, cursor=read.optional_text(given, "cursor"))
    return {"jobs": [job_document(context, job) for job in page.rows], "next_cursor": page.next_cursor}


async def show_job(context: OperationContext, given: JsonObject) -> JsonObject:
    """Everything about one job: its fields, what it was given, what it answered, and its history.

    Of a pipeline run also its steps, those that were bypassed included.
    """
    job = await resolve_job(context, given)
    shown = await _whole_job(context, job)
    if job.plugin == RUN_PLUGIN and (record := await context.store.run(job.id)) is not None:
        shown["steps"] = describe_steps(record)
    return shown


async def _whole_job(context: OperationContext, job: Job) -> JsonObject:
    executions = await context.store.executions(job.id)
    transitions = await context.store.transitions(job.id)
    return {
        **job_document(context, job),
        "payload": job.payload,
        "result": answer_of(job, executions[-1]) if executions else None,
        "stderr": executions[-1].stderr if executions else None,
        "executions": [shown_execution(row) for row in executions],
        "transitions": [shown_transition(row) for row in transitions],
    }


async def job_tree(context: OperationContext, given: JsonObject) -> JsonObject:
    """The job and everything it led to, nested; `truncated` where that was too much for one answer."""
    root = await resolve_job(context, given)
    jobs = await context.store.tree(root.id, limit=MAX_TREE_JOBS + 1)
    below: dict[str, list[Job]] = {}
    for job in jobs[:MAX_TREE_JOBS]:
        if job.parent_job_id is not None and job.id != root.id:
            below.setdefault(job.parent_job_id, []).append(job)
    (tree,) = nest_jobs((root,), below, lambda job: job_document(context, job))
    return {"tree": tree, "truncated": len(jobs) > MAX_TREE_JOBS}


async def job_logs(context: OperationContext, given: JsonObject) -> JsonObject:
    """What each execution of a job printed."""
    job = await resolve_job(context, given)
    executions = await context.store.executions(job.id)
    return {"job_id": job.id, "executions": [shown_execution(row, output=True) for row in executions]}


async def wait_for_job(context: OperationContext, given: JsonObject) -> JsonObject:
    """Answer when the job has ended, or when the time is up or the daemon stops."""
    asked = read.optional_duration(given, "timeout")
    timeout = MAX_WAIT if asked is None else asked
    job = await resolve_job(context, given)
    if job.status in TERMINAL:
        return await _whole_job(context, job)
    with require_engine(context).waiting_for(job.id) as ended:
        # Looked at after registering: an end between the two would never be told.
        if (await find_job(context, job.id)).status not in TERMINAL:
            await asyncio.wait({ended}, timeout=timeout.total_seconds())
    return await _whole_job(context, await find_job(context, job.id))


async def cancel_job(context: OperationContext, given: JsonObject) -> JsonObject:
    job = await resolve_job(context, given)
    if read.flag(given, "dry_run"):
        if job.status in TERMINAL:
            raise _ended_already(job)
        return {"job_id": job.id, "cancel": None, **_status_of(job), "dry_run": True}
    answer = await cancel_all(context, job.id)
    if answer in (CancelStatus.UNKNOWN_JOB, CancelStatus.ALREADY_ENDED):
        raise _ended_already(await find_job(context, job.id))
    after = await find_job(context, job.id)
    orphaned: JsonObject = {"orphaned": True} if is_orphaned(context, after) else {}
    return {"job_id": job.id, "cancel": answer, **_status_of(after), **orphaned}


async def cancel_all(context: OperationContext, job_id: str) -> CancelStatus:
    """Cancel a job, a run with all of its steps; those that run are told to end."""
    while True:
        cancelling = await context.store.cancel(job_id, context.snapshot().rules)
        if context.engine is not None:
            for running in cancelling.stopping:
                await context.engine.end_running(running)
        context.ended(cancelling.ended)
        if not cancelling.more:
            return cancelling.answer


def _ended_already(job: Job) -> ConflictError:
    return ConflictError(f"the job has ended already: {job.status}", details={"status": job.status})


async def retry_job(context: OperationContext, given: JsonObject) -> JsonObject:
    job = await resolve_job(context, given)
    await refuse_retry_when_draining(context, job)
    if read.flag(given, "dry_run"):
        refuse_retry(await context.store.check_retry(job.id), job)
        return {"job_id": job.id, **_status_of(job), "dry_run": True}
    if job.status not in TERMINAL:
        # Refused here already: a cancel that ends it in this moment must not be undone.
        refuse_retry(RetryResult.NOT_ENDED, job)
    refuse_retry(await context.store.retry(job.id, context.snapshot().rules, ended_at=job.completed_at), job)
    context.wake()
    # What was done, as for a submission: read again, it might run or have ended by now.
    return {"job_id": job.id, "status": JobStatus.QUEUED, "reason": JobReason.MANUAL_RETRY}


async def refuse_retry_when_draining(context: OperationContext, job: Job) -> None:
    """A retry is new work, which a plugin that is being drained does not take."""
    if context.engine is None or not context.engine.draining:
        return
    used = {job.plugin}
    if job.plugin == RUN_PLUGIN and (record := await context.store.run(job.id)) is not None:
        used = {member.plugin for member in record.members}
    if closed := sorted(used & context.engine.draining):
        raise draining_error(closed[0], None if job.plugin != RUN_PLUGIN else f"the run {job.id}")


def refuse_retry(answer: RetryResult, job: Job) -> None:
    """Raise what stands against it, if anything does."""
    match answer:
        case RetryResult.UNKNOWN_JOB | RetryResult.RETAINED_NO_MORE:
            raise GoneError("only the log of this job is left", hint="Submit it again.")
        case RetryResult.SUCCEEDED:
            raise ConflictError("the job has succeeded", hint="Submit it as a new job to run it again.")
        case RetryResult.NOT_ENDED:
            raise ConflictError("the job has not ended", hint="Wait for it, or cancel it first.")
        case RetryResult.NOTHING_TO_RETRY:
            raise ConflictError(
                "what failed here could not be made from what it was given, and would fail again",
                hint="Correct the pipeline, then start it again or from a step: job retry --from-step.",
            )
        case RetryResult.UNKNOWN_STEP:
            raise NotFoundError("the run has no such step", hint="See its steps with `ductile job tree`.")
        case RetryResult.CHANGED:
            raise ConflictError(
                "the pipeline was changed around this step", hint="Start it again, or from an earlier step."
            )
        case RetryResult.RUN_CANCELLED:
            raise ConflictError(
                f"the job is step {job.step_path} of a pipeline run that is being cancelled",
                hint=f"Retry the run when it has ended: ductile job retry {job.run_id}",
                details={"run_id": job.run_id, "step": job.step_path},
            )
        case RetryResult.ENDED_AGAIN:
            raise ConflictError(
                "the job was retried and has ended again since this request came in",
                hint=f"See how it ended: ductile job show {job.id}",
            )
        case RetryResult.RUN_ENDED:
            raise ConflictError(
                f"the job is step {job.step_path} of a pipeline run that has ended",
                hint=f"Retry the run: ductile job retry {job.run_id}",
                details={"run_id": job.run_id, "step": job.step_path},
            )


def _status_of(job: Job) -> JsonObject:
    return {"status": job.status, "reason": job.reason}
