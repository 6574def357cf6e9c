"""Running a job again as a new one: the same command with the same input, or with another payload.

A retry puts the failed job itself back on the queue. A rerun works for succeeded jobs too, as long as their
log is kept, and leaves the old job as it is.
"""

from __future__ import annotations

from typing import Annotated, Any

from ductile.core.events.model import NewEvent
from ductile.core.expressions.operators import json_equal
from ductile.core.ids import make_id, make_trace_id
from ductile.core.jobs.model import Job, JobStatus, LedgerEntry, LedgerKind, NewJob
from ductile.core.jobs.plugin_state import SYSTEM_COMMANDS
from ductile.core.json import JsonObject, nests_too_deep
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.runs.state import NewRun
from ductile.core.scripts import EXEC_PLUGIN
from ductile.errors import DeniedError, GoneError, RefusedError
from ductile.operations.context import OperationContext
from ductile.operations.jobs.lookup import OneJob, resolve_job
from ductile.operations.operation import scopes_for_command, scopes_for_pipeline
from ductile.operations.plugins.lookup import known_command, runnable_plugin
from ductile.operations.request import DryRun, in_header, in_local_call, refused
from ductile.operations.response import Id
from ductile.operations.runs.start import known_pipeline
from ductile.operations.submission import (
    BaseSubmissionRequest,
    MaxAttempts,
    PlannedSubmission,
    SubmissionOptions,
    Submitted,
    expect_follower,
    find_key_holder,
    key_used_error,
    read_submission_options,
    refuse_invalid_payload,
)
from ductile.protocol.manifest.model import ExecutionMode
from ductile.store.model.jobs import Deduplicated, StoredEvent, Submission
from ductile.struct import Value, about


class RerunJob(OneJob):
    payload: Annotated[dict[str, Any] | None, about("Another payload, instead of the one that it had.")] = (
        None
    )
    max_attempts: MaxAttempts = None
    idempotency_key: Annotated[
        str | None,
        in_header(
            "Idempotency-Key",
            "Sent again while its job waits, runs or has succeeded, it starts nothing new.",
        ),
    ] = None
    dry_run: DryRun = False
    follow: Annotated[bool, in_local_call("The caller is about to follow what it prints.")] = False


class RerunSubmitted(Submitted, kw_only=True):
    """The new job is on disk. GET /job/{job_id} tells what becomes of it."""

    rerun_of: Annotated[Id, about("The job that it runs again.")]


class PlannedRerun(PlannedSubmission, kw_only=True):
    """The response to a dry run: the job that would be run again."""

    rerun_of: Id


class _RerunInput(Value):
    """The input of the new job."""

    #: The requested payload, or that of the old job.
    payload: JsonObject | None
    #: The event that started the old job, if it is still stored.
    event: StoredEvent | None


async def rerun_job(context: OperationContext, request: RerunJob) -> RerunSubmitted | PlannedRerun:
    """Run a job again as a new one, without the dedupe key and the state webhook URL of the old submission.

    Raises `GoneError` if its input is no longer kept, `RefusedError` for the key of another call.
    """
    old = await resolve_job(context, request.job_id)
    _refuse_rerun(context, old, request.payload)
    rerun_input = await _find_input(context, old, payload=request.payload)
    described: dict[str, Any] = {"plugin": old.plugin, "command": old.command, "rerun_of": old.id}
    if old.plugin == RUN_PLUGIN:
        described["pipeline"] = old.command
    if old.run_id is not None:
        described["note"] = (
            f"it was step {old.step_path} of run {old.run_id}; it runs alone, and no other step follows it"
        )
    call = BaseSubmissionRequest(idempotency_key=request.idempotency_key)
    options = await read_submission_options(context, call)
    submission = _new_submission(context, request, old, rerun_input, options)
    if request.dry_run:
        return PlannedRerun(**described)
    job = submission.jobs[0] if submission.jobs else submission.runs[0].job
    _refuse_key_of_other_call(await find_key_holder(context, options, job), old, rerun_input)
    expect_follower(context, job.id, follow=request.follow)
    (result,) = await context.enqueue(submission)
    status = JobStatus.QUEUED
    if duplicate := isinstance(result, Deduplicated):
        existing = await context.store.get_job(result.job_id)
        _refuse_key_of_other_call(existing, old, rerun_input)
        status = status if existing is None else existing.status
    return RerunSubmitted(
        **described,
        job_id=result.job_id,
        status=status,
        execution_mode=ExecutionMode.ASYNC,
        deduplicated=duplicate,
    )


def _refuse_key_of_other_call(existing: Job | None, old: Job, rerun_input: _RerunInput) -> None:
    """Raise `RefusedError` for an `Idempotency-Key` whose job reran another job, or has another payload."""
    if existing is not None and not (
        existing.rerun_of == old.id and json_equal(existing.payload or {}, rerun_input.payload or {})
    ):
        raise key_used_error(existing)


def _refuse_rerun(context: OperationContext, old: Job, payload: JsonObject | None) -> None:
    """Raise the error if the job cannot be run again here, or not by this caller."""
    snapshot = context.snapshot()
    if payload is not None and nests_too_deep(payload):
        raise refused("payload", "payload nests too deep")
    if old.plugin == EXEC_PLUGIN:
        if context.source.scopes is not None:
            raise DeniedError(
                "a command of `ductile exec` is run again only on the machine of the daemon",
                hint=f"There: ductile job rerun {old.id}",
            )
        if payload is not None:
            raise refused("payload", "a command of `ductile exec` has no payload", "Use `ductile exec`.")
    elif old.command in SYSTEM_COMMANDS and old.plugin != RUN_PLUGIN:
        raise RefusedError(
            f"{old.command} is run by Ductile itself", hint="Use `ductile system health` or a reload."
        )
    elif old.plugin == RUN_PLUGIN:
        context.refuse_draining(known_pipeline(snapshot, old.command).graph)
    else:
        plugin = runnable_plugin(snapshot, old.plugin)
        known_command(plugin, old.command)
        if payload is not None:
            refuse_invalid_payload(plugin, old.command, payload)
    if payload is not None or context.sees_only_own:
        # Another payload is a new call, which needs the right to make it. Own jobs include jobs of other
        # plugins that followed from them.
        scopes = scopes_for_command(snapshot, old.plugin, old.command)
        if old.plugin == RUN_PLUGIN:
            scopes = scopes_for_pipeline(snapshot, old.command)
        context.require_scope(*scopes)


async def _find_input(context: OperationContext, old: Job, payload: JsonObject | None) -> _RerunInput:
    """Return the payload and event for the new job. Raises `GoneError` if a part of it is no longer kept."""
    event = None if old.source_event_id is None else await context.store.get_event(old.source_event_id)
    gone = []
    if payload is None and old.payload is None and old.source_event_id is not None and event is None:
        gone.append("payload")
    if (
        old.event_context_id is not None
        and await context.store.get_event_context(old.event_context_id) is None
    ):
        gone.append("context")
    if gone:
        raise GoneError(
            f"no longer kept of this job: its {' and its '.join(gone)}",
            hint="Give it a payload." if gone == ["payload"] else "Submit a new job with `ductile run`.",
            details={"gone": [*gone]},
        )
    return _RerunInput(payload=old.payload if payload is None else payload, event=event)


def _new_submission(
    context: OperationContext,
    request: RerunJob,
    old: Job,
    rerun_input: _RerunInput,
    options: SubmissionOptions,
) -> Submission:
    """Return the submission of the new job or run, and the ledger entry about it."""
    snapshot, is_run = context.snapshot(), old.plugin == RUN_PLUGIN
    event = _event_of_run(context, request, old, rerun_input) if is_run else None
    source_event = event or rerun_input.event
    max_attempts = 1
    if not is_run:
        configured = 1 if old.plugin == EXEC_PLUGIN else snapshot.plugins[old.plugin].retry.max_attempts
        max_attempts = request.max_attempts or configured
    job = NewJob(
        id=make_id(context.now(), context.rng),
        plugin=old.plugin,
        command=old.command,
        submitted_by=context.source.submitted_by,
        submitted_detail=context.source.detail,
        max_attempts=max_attempts,
        dedupe_key=options.dedupe_key,
        dedupe_ttl=options.dedupe_ttl,
        # Copied, because retention may remove the event before the new job has run.
        payload=None if is_run else rerun_input.payload,
        source_event_id=None if source_event is None else source_event.id,
        event_context_id=old.event_context_id,
        hops=old.hops,
        trace_id=old.trace_id or make_trace_id(context.rng),
        rerun_of=old.id,
        node=old.node,
        configured_callback=snapshot.policy.state_webhook(old.plugin, old.command, rerun_input.payload),
    )
    ledger = LedgerEntry(
        kind=LedgerKind.JOB_RERUN, job_id=old.id, run_id=old.run_id, data={"rerun_job_id": job.id}
    )
    if event is None:
        return Submission(jobs=(job,), ledger=(ledger,), dedupe_window=snapshot.service.dedupe_ttl)
    run = NewRun(job=job, graph=known_pipeline(snapshot, old.command).graph, event=event)
    is_new = rerun_input.event is None or event.id != rerun_input.event.id
    return Submission(
        runs=(run,),
        event=event if is_new else None,
        policy=snapshot.policy,
        ledger=(ledger,),
        dedupe_window=snapshot.service.dedupe_ttl,
    )


def _event_of_run(
    context: OperationContext, request: RerunJob, old: Job, rerun_input: _RerunInput
) -> NewEvent:
    """Return the event of the new run: that of the old run, or a new one with another payload."""
    stored = rerun_input.event
    is_same = stored is not None and request.payload is None
    pipeline = known_pipeline(context.snapshot(), old.command)
    return NewEvent(
        id=stored.id if stored is not None and is_same else make_id(context.now(), context.rng),
        type=(pipeline.on or f"{context.source.submitted_by}.trigger") if stored is None else stored.type,
        source=context.source.submitted_by if stored is None else stored.source,
        payload=rerun_input.payload or {},
        headers=None if stored is None else stored.headers,
    )
