"""Jobs: submitting, finding, waiting, cancelling, trying again."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.ids import make_id
from ductile.core.jobs import TERMINAL, Job, JobStatus, NewJob, Reason, SubmittedBy
from ductile.core.json_values import JsonObject
from ductile.core.lineage import NewEvent
from ductile.core.pipelines import RUN_PLUGIN
from ductile.engine.draining import is_draining
from ductile.errors import ConflictError, GoneError, NotFoundError, RefusedError
from ductile.operations import parameters as read
from ductile.operations.catalogue import known_command
from ductile.operations.desk import Desk
from ductile.operations.intake import (
    Door,
    Intake,
    callback_of,
    read_intake,
    refuse_invalid_payload,
    refuse_key_of_another,
    refuse_other_body,
    refuse_without_subscription,
)
from ductile.operations.job_ids import find_job, named_job
from ductile.operations.log import catch_up
from ductile.operations.nesting import nested
from ductile.operations.orphans import is_orphan, shown_at
from ductile.operations.plugin_names import optional_plugin, unknown_plugin
from ductile.operations.run_account import steps_of
from ductile.operations.shown import (
    answer_of,
    shown_execution,
    shown_transition,
)
from ductile.operations.system import engine_of
from ductile.store.values.reading import DEFAULT_PAGE, LARGEST_PAGE, JobFilter
from ductile.store.values.settling import CancelAnswer, RetryAnswer
from ductile.store.values.submitting import Deduplicated, Submission

#: Words that other systems use for our states; accepted where a list is filtered (SPEC 8).
STATUS_ALIASES = {
    "pending": JobStatus.QUEUED,
    "completed": JobStatus.SUCCEEDED,
    "ok": JobStatus.SUCCEEDED,
    "error": JobStatus.FAILED,
}
LONGEST_WAIT = timedelta(hours=24)
#: Jobs in one tree: what is shown is all in memory at once.
LARGEST_TREE = 10_000


async def submit(desk: Desk, door: Door, given: JsonObject, event: NewEvent | None = None) -> JsonObject:
    """Put one job of a plugin's command on the queue.

    An event that somebody signed brings its payload along. What such a sender sends is not held against a
    schema: it could not be told, and would only send it again.
    """
    snapshot = desk.snapshot()
    plugin = runnable_plugin(snapshot, read.text(given, "plugin"))
    command = known_command(plugin, read.optional_text(given, "command") or default_command(plugin))
    intake = await read_intake(desk, door, given)
    if event is None:
        refuse_invalid_payload(plugin, command, intake.payload)
    job = NewJob(
        id=make_id(desk.now(), desk.dice),
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
        await refuse_key_of_another(desk, intake, (job,))
    submission = Submission(jobs=(job,), event=event, dedupe_window=snapshot.service.dedupe_ttl)
    (answer,) = await desk.enqueue(submission)
    if isinstance(answer, Deduplicated):
        return await _existing(desk, intake, plugin.name, command, answer)
    return {
        "job_id": answer.job_id,
        "status": JobStatus.QUEUED,
        "plugin": plugin.name,
        "command": command,
        "deduplicated": False,
    }


async def submit_from_cli(desk: Desk, given: JsonObject) -> JsonObject:
    return await submit(desk, Door(submitted_by=SubmittedBy.CLI), given)


async def _existing(
    desk: Desk, intake: Intake, plugin: str, command: str, answer: Deduplicated
) -> JsonObject:
    """The answer to a duplicate: the job that is there, as it stands."""
    job = await desk.store.job(answer.job_id)
    refuse_other_body(intake, job)
    refuse_without_subscription(answer)
    return {
        "job_id": answer.job_id,
        "status": JobStatus.QUEUED if job is None else job.status,
        "plugin": plugin,
        "command": command,
        "deduplicated": True,
    }


def runnable_plugin(snapshot: Snapshot, name: str) -> PluginInstance:
    """The plugin, if jobs may be submitted for it (SPEC 3.1)."""
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


async def list_jobs(desk: Desk, given: JsonObject) -> JsonObject:
    where = JobFilter(
        job_id=read.optional_text(given, "job_id"),
        plugin=await optional_plugin(desk, given),
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
        await catch_up(desk)
    limit = read.number(given, "limit", DEFAULT_PAGE, most=LARGEST_PAGE)
    page = await desk.store.jobs(where, limit=limit, cursor=read.optional_text(given, "cursor"))
    return {"jobs": [shown_at(desk, job) for job in page.rows], "next_cursor": page.next_cursor}


async def show_job(desk: Desk, given: JsonObject) -> JsonObject:
    """Everything about one job: its fields, what it was given, what it answered, and its history.

    Of a pipeline run also its steps, those that were bypassed included.
    """
    job = await named_job(desk, given)
    shown = await _whole_job(desk, job)
    if job.plugin == RUN_PLUGIN and (record := await desk.store.run(job.id)) is not None:
        shown["steps"] = steps_of(record)
    return shown


async def _whole_job(desk: Desk, job: Job) -> JsonObject:
    executions = await desk.store.executions(job.id)
    transitions = await desk.store.transitions(job.id)
    return {
        **shown_at(desk, job),
        "payload": job.payload,
        "result": answer_of(job, executions[-1]) if executions else None,
        "stderr": executions[-1].stderr if executions else None,
        "executions": [shown_execution(row) for row in executions],
        "transitions": [shown_transition(row) for row in transitions],
    }


async def job_tree(desk: Desk, given: JsonObject) -> JsonObject:
    """The job and everything it led to, nested; `truncated` where that was too much for one answer."""
    root = await named_job(desk, given)
    jobs = await desk.store.tree(root.id, limit=LARGEST_TREE + 1)
    below: dict[str, list[Job]] = {}
    for job in jobs[:LARGEST_TREE]:
        if job.parent_job_id is not None and job.id != root.id:
            below.setdefault(job.parent_job_id, []).append(job)
    (tree,) = nested((root,), below, lambda job: shown_at(desk, job))
    return {"tree": tree, "truncated": len(jobs) > LARGEST_TREE}


async def job_logs(desk: Desk, given: JsonObject) -> JsonObject:
    """What each execution of a job printed."""
    job = await named_job(desk, given)
    executions = await desk.store.executions(job.id)
    return {"job_id": job.id, "executions": [shown_execution(row, output=True) for row in executions]}


async def wait_for_job(desk: Desk, given: JsonObject) -> JsonObject:
    """Answer when the job has ended, or when the time is up or the daemon stops."""
    asked = read.optional_duration(given, "timeout")
    timeout = LONGEST_WAIT if asked is None else asked
    job = await named_job(desk, given)
    if job.status in TERMINAL:
        return await _whole_job(desk, job)
    with engine_of(desk).waiting_for(job.id) as ended:
        # Looked at after registering: an end between the two would never be told.
        if (await find_job(desk, job.id)).status not in TERMINAL:
            await asyncio.wait({ended}, timeout=timeout.total_seconds())
    return await _whole_job(desk, await find_job(desk, job.id))


async def cancel_job(desk: Desk, given: JsonObject) -> JsonObject:
    job = await named_job(desk, given)
    if read.flag(given, "dry_run"):
        if job.status in TERMINAL:
            raise _ended_already(job)
        return {"job_id": job.id, "cancel": None, **_status_of(job), "dry_run": True}
    answer = await cancel_all(desk, job.id)
    if answer in (CancelAnswer.UNKNOWN_JOB, CancelAnswer.ALREADY_ENDED):
        raise _ended_already(await find_job(desk, job.id))
    after = await find_job(desk, job.id)
    orphaned: JsonObject = {"orphaned": True} if is_orphan(desk, after) else {}
    return {"job_id": job.id, "cancel": answer, **_status_of(after), **orphaned}


async def cancel_all(desk: Desk, job_id: str) -> CancelAnswer:
    """Cancel a job, a run with all of its steps; those that run are told to end."""
    while True:
        cancelling = await desk.store.cancel(job_id, desk.snapshot().rules)
        if desk.engine is not None:
            for running in cancelling.stopping:
                await desk.engine.end_running(running)
        desk.ended(cancelling.ended)
        if not cancelling.more:
            return cancelling.answer


def _ended_already(job: Job) -> ConflictError:
    return ConflictError(f"the job has ended already: {job.status}", details={"status": job.status})


async def retry_job(desk: Desk, given: JsonObject) -> JsonObject:
    job = await named_job(desk, given)
    await refuse_retry_when_draining(desk, job)
    if read.flag(given, "dry_run"):
        refuse_retry(await desk.store.try_retry(job.id), job)
        return {"job_id": job.id, **_status_of(job), "dry_run": True}
    if job.status not in TERMINAL:
        # Refused here already: a cancel that ends it in this moment must not be undone.
        refuse_retry(RetryAnswer.NOT_ENDED, job)
    refuse_retry(await desk.store.retry(job.id, desk.snapshot().rules, ended_at=job.completed_at), job)
    desk.wake()
    # What was done, as for a submission: read again, it might run or have ended by now.
    return {"job_id": job.id, "status": JobStatus.QUEUED, "reason": Reason.MANUAL_RETRY}


async def refuse_retry_when_draining(desk: Desk, job: Job) -> None:
    """A retry is new work, which a plugin that is being drained does not take."""
    if desk.engine is None or not desk.engine.draining:
        return
    used = {job.plugin}
    if job.plugin == RUN_PLUGIN and (record := await desk.store.run(job.id)) is not None:
        used = {member.plugin for member in record.members}
    if closed := sorted(used & desk.engine.draining):
        raise is_draining(closed[0], None if job.plugin != RUN_PLUGIN else f"the run {job.id}")


def refuse_retry(answer: RetryAnswer, job: Job) -> None:
    """Raise what stands against it, if anything does."""
    match answer:
        case RetryAnswer.UNKNOWN_JOB | RetryAnswer.RETAINED_NO_MORE:
            raise GoneError("only the log of this job is left", hint="Submit it again.")
        case RetryAnswer.SUCCEEDED:
            raise ConflictError("the job has succeeded", hint="Submit it as a new job to run it again.")
        case RetryAnswer.NOT_ENDED:
            raise ConflictError("the job has not ended", hint="Wait for it, or cancel it first.")
        case RetryAnswer.NOTHING_TO_RETRY:
            raise ConflictError(
                "what failed here could not be made from what it was given, and would fail again",
                hint="Correct the pipeline, then start it again or from a step: job retry --from-step.",
            )
        case RetryAnswer.UNKNOWN_STEP:
            raise NotFoundError("the run has no such step", hint="See its steps with `ductile job tree`.")
        case RetryAnswer.CHANGED:
            raise ConflictError(
                "the pipeline was changed around this step", hint="Start it again, or from an earlier step."
            )
        case RetryAnswer.RUN_CANCELLED:
            raise ConflictError(
                f"the job is step {job.step_path} of a pipeline run that is being cancelled",
                hint=f"Retry the run when it has ended: ductile job retry {job.run_id}",
                details={"run_id": job.run_id, "step": job.step_path},
            )
        case RetryAnswer.ENDED_AGAIN:
            raise ConflictError(
                "the job was retried and has ended again since this request came in",
                hint=f"See how it ended: ductile job show {job.id}",
            )
        case RetryAnswer.RUN_ENDED:
            raise ConflictError(
                f"the job is step {job.step_path} of a pipeline run that has ended",
                hint=f"Retry the run: ductile job retry {job.run_id}",
                details={"run_id": job.run_id, "step": job.step_path},
            )


def _status_of(job: Job) -> JsonObject:
    return {"status": job.status, "reason": job.reason}
