"""Running a job again as a new one: the same command with the same input, or with another payload.

A retry puts the failed job itself back on the queue. A rerun leaves the old job as it is, also if it has
succeeded, and works as long as its log is kept.
"""

from __future__ import annotations

from typing import Annotated, Any

from ductile.config.snapshot import Snapshot
from ductile.core.events.model import NewEvent
from ductile.core.expressions.operators import json_equal
from ductile.core.ids import make_id, make_trace_id
from ductile.core.jobs.failures import RetryPolicy
from ductile.core.jobs.model import Job, JobStatus, LedgerEntry, LedgerKind, NewJob
from ductile.core.jobs.plugin_state import SYSTEM_COMMANDS
from ductile.core.json import JsonObject, nests_too_deep
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.runs.state import NewRun
from ductile.core.scripts import EXEC_PLUGIN
from ductile.errors import DeniedError, GoneError, RefusedError
from ductile.operations.context import OperationContext
from ductile.operations.jobs.lookup import OneJob, resolve_job
from ductile.operations.operation import needed_for, needed_for_pipeline
from ductile.operations.plugins.lookup import known_command, runnable_plugin
from ductile.operations.request import DryRun, in_header, local, refused
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
    follow: Annotated[bool, local("The caller is about to follow what it prints.")] = False


class RerunSubmitted(Submitted, kw_only=True):
    """The new job is on disk. GET /job/{job_id} tells what becomes of it."""

    rerun_of: Annotated[Id, about("The job that it runs again.")]


class PlannedRerun(PlannedSubmission, kw_only=True):
    """What a dry run would run again."""

    rerun_of: Id


class _OldInput(Value):
    """The input of the old job, as far as it is kept."""

    payload: JsonObject | None
    event: StoredEvent | None


async def rerun_job(context: OperationContext, request: RerunJob) -> RerunSubmitted | PlannedRerun:
    """Run a job again as a new one, which has no dedupe key and reports to no URL of the old submission.

    Raises `GoneError` if its input is no longer kept, `RefusedError` for the key of another call.
    """
    old = await resolve_job(context, request.job_id)
    _refuse_unfit(context, old, request.payload)
    old_input = await _find_input(context, old, payload=request.payload)
    described: dict[str, Any] = {"plugin": old.plugin, "command": old.command, "rerun_of": old.id}
    if old.plugin == RUN_PLUGIN:
        described["pipeline"] = old.command
    if old.run_id is not None:
        described["note"] = (
            f"it was step {old.step_path} of run {old.run_id}; it runs alone, and no other step follows it"
        )
    call = BaseSubmissionRequest(idempotency_key=request.idempotency_key)
    options = await read_submission_options(context, call)
    submission = _new_submission(context, request, old, old_input, options)
    if request.dry_run:
        return PlannedRerun(**described)
    job = _new_job(submission)
    _refuse_key_of_another(await find_key_holder(context, options, job), old, old_input)
    expect_follower(context, job.id, follow=request.follow)
    (result,) = await context.enqueue(submission)
    status = JobStatus.QUEUED
    if duplicate := isinstance(result, Deduplicated):
        existing = await context.store.get_job(result.job_id)
        _refuse_key_of_another(existing, old, old_input)
        status = status if existing is None else existing.status
    return RerunSubmitted(
        **described,
        job_id=result.job_id,
        status=status,
        execution_mode=ExecutionMode.ASYNC,
        deduplicated=duplicate,
    )


def _refuse_key_of_another(existing: Job | None, old: Job, old_input: _OldInput) -> None:
    """Refuse an `Idempotency-Key` whose job is a rerun of another job, or has another payload."""
    if existing is not None and not (
        existing.rerun_of == old.id and json_equal(existing.payload or {}, old_input.payload or {})
    ):
        raise key_used_error(existing)


def _refuse_unfit(context: OperationContext, old: Job, payload: JsonObject | None) -> None:
    """Refuse what cannot be run again here, or not by this caller. Raises the error."""
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
        # Another payload is a new call, which needs the right to make it. Among the own jobs are those that
        # other plugins have led to.
        context.require_scope(*_required_scopes(snapshot, old))


def _required_scopes(snapshot: Snapshot, old: Job) -> tuple[str, ...]:
    if old.plugin == RUN_PLUGIN:
        return needed_for_pipeline(snapshot, old.command)
    return needed_for(snapshot, old.plugin, old.command)


async def _find_input(context: OperationContext, old: Job, payload: JsonObject | None) -> _OldInput:
    """The payload and event of the old job. Raises `GoneError` for what is no longer kept."""
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
    return _OldInput(payload=old.payload if payload is None else payload, event=event)


def _new_job(submission: Submission) -> NewJob:
    return submission.jobs[0] if submission.jobs else submission.runs[0].job


def _new_submission(
    context: OperationContext, request: RerunJob, old: Job, old_input: _OldInput, options: SubmissionOptions
) -> Submission:
    snapshot, is_run = context.snapshot(), old.plugin == RUN_PLUGIN
    event: NewEvent | None = None
    if is_run:
        event = _event_of_run(context, request, old, old_input)
    job = NewJob(
        id=make_id(context.now(), context.rng),
        plugin=old.plugin,
        command=old.command,
        submitted_by=context.source.submitted_by,
        submitted_detail=context.source.detail,
        max_attempts=_max_attempts(snapshot, request, old),
        dedupe_key=options.dedupe_key,
        dedupe_ttl=options.dedupe_ttl,
        # A copy: retention may remove the event before the new job has run.
        payload=None if is_run else old_input.payload,
        source_event_id=_event_id(old, old_input) if event is None else event.id,
        event_context_id=old.event_context_id,
        hops=old.hops,
        trace_id=old.trace_id or make_trace_id(context.rng),
        rerun_of=old.id,
        node=old.node,
        configured_callback=snapshot.policy.state_webhook(old.plugin, old.command, old_input.payload),
    )
    ledger = LedgerEntry(
        kind=LedgerKind.JOB_RERUN, job_id=old.id, run_id=old.run_id, data={"rerun_job_id": job.id}
    )
    if event is None:
        return Submission(jobs=(job,), ledger=(ledger,), dedupe_window=snapshot.service.dedupe_ttl)
    run = NewRun(job=job, graph=known_pipeline(snapshot, old.command).graph, event=event)
    is_new = old_input.event is None or event.id != old_input.event.id
    return Submission(
        runs=(run,),
        event=event if is_new else None,
        policy=snapshot.policy,
        ledger=(ledger,),
        dedupe_window=snapshot.service.dedupe_ttl,
    )


def _event_id(old: Job, old_input: _OldInput) -> str | None:
    return None if old_input.event is None else old.source_event_id


def _event_of_run(context: OperationContext, request: RerunJob, old: Job, old_input: _OldInput) -> NewEvent:
    """The event that the new run begins with: that of the old one, or a new one with another payload."""
    stored = old_input.event
    keeps = stored is not None and request.payload is None
    pipeline = known_pipeline(context.snapshot(), old.command)
    return NewEvent(
        id=stored.id if stored is not None and keeps else make_id(context.now(), context.rng),
        type=(pipeline.on or f"{context.source.submitted_by}.trigger") if stored is None else stored.type,
        source=context.source.submitted_by if stored is None else stored.source,
        payload=old_input.payload or {},
        headers=None if stored is None else stored.headers,
    )


def _max_attempts(snapshot: Snapshot, request: RerunJob, old: Job) -> int:
    if old.plugin == RUN_PLUGIN:
        return 1
    retry = RetryPolicy(max_attempts=1) if old.plugin == EXEC_PLUGIN else snapshot.plugins[old.plugin].retry
    return request.max_attempts or retry.max_attempts
