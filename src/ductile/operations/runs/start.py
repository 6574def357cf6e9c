"""Starting pipelines by name or by trigger, and waiting for synchronous ones.

A caller that waits holds a slot and is registered before anything is enqueued; the commit that ends the run
wakes it.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from datetime import datetime, timedelta
from http import HTTPStatus
from time import thread_time
from typing import TYPE_CHECKING, Annotated, Any

from ductile.config.schema.pipelines import OnTimeout, ReturnOnTimeout
from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.events.model import NewEvent, Pipeline
from ductile.core.events.routing import EventProducer, start_refusal
from ductile.core.expressions.regex import MatchBudget
from ductile.core.ids import make_id
from ductile.core.jobs.model import TERMINAL, Job, JobStatus, NewJob, SubmittedBy
from ductile.core.policy import Policy
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.runs.state import NewRun
from ductile.core.suggest import did_you_mean
from ductile.errors import ConflictError, GoneError, NotFoundError, RefusedError
from ductile.operations.context import OperationContext
from ductile.operations.jobs.change import ChangeJob, refuse_retry
from ductile.operations.jobs.lookup import find_job, resolve_run
from ductile.operations.jobs.query import ResultOnly
from ductile.operations.operation import pipelines_started_by
from ductile.operations.plugins.lookup import known_command, runnable_plugin
from ductile.operations.request import in_local_call, in_query
from ductile.operations.response import Id, Response, WasDryRun
from ductile.operations.runs.response import (
    Finished,
    StillRunning,
    SyncWait,
    finished_response,
    still_running_response,
)
from ductile.operations.submission import (
    BaseSubmissionRequest,
    PlannedSubmission,
    RunCommand,
    SubmissionOptions,
    SubmissionRequest,
    Submitted,
    expect_follower,
    find_calling_job,
    read_submission_options,
    refuse_changed_payload,
    refuse_reused_key,
    refuse_without_subscription,
    submit_job,
    subscription_of,
)
from ductile.protocol.manifest.model import ExecutionMode
from ductile.store.model.jobs import Accepted, Deduplicated, RetryResult, Submission
from ductile.struct import about, field, replace

if TYPE_CHECKING:
    from ductile.engine.engine import Engine


_DEFAULT_TIMEOUT = timedelta(seconds=30)

StartResponse = Finished | StillRunning | Submitted | PlannedSubmission


class StartRequest(SubmissionRequest):
    """The fields of a request that starts a pipeline."""

    no_wait: Annotated[bool, in_query("Answer at once, even if the pipeline is synchronous.")] = field(
        name="async", default=False
    )
    result: Annotated[ResultOnly | None, in_query("`only`: answer with the `result` and nothing else.")] = (
        None
    )
    strict: Annotated[bool, in_query("Answer 502 instead of 200 if the run did not succeed.")] = False
    event_type: Annotated[str | None, in_local_call("The type of the event that the run begins with.")] = None
    headers: Annotated[dict[str, Any] | None, in_local_call("Headers of a webhook that starts the run.")] = (
        None
    )


class RunPipeline(StartRequest, kw_only=True):
    pipeline: Annotated[str, about("The pipeline.")]


class TriggerPipeline(StartRequest, kw_only=True):
    plugin: Annotated[str, about("The plugin of the trigger.")]
    command: Annotated[str, about("Its command.")]


# ------------------------------------------------------------------------------------ by name, by trigger


async def run_pipeline(
    context: OperationContext, request: RunPipeline
) -> Finished | StillRunning | Submitted | PlannedSubmission:
    """Start a run of a pipeline. Waits for a synchronous one, if the source of the request can wait."""
    pipeline = known_pipeline(context.snapshot(), request.pipeline)
    return await _start(context, pipeline, request, plugin=RUN_PLUGIN, command=pipeline.name)


async def trigger_pipeline(
    context: OperationContext, request: TriggerPipeline
) -> Finished | StillRunning | Submitted | PlannedSubmission:
    """Run the pipeline that starts on `plugin.command`; without one, the plugin.

    Raises `ConflictError` if there are several.
    """
    snapshot, event_type = context.snapshot(), f"{request.plugin}.{request.command}"
    names = pipelines_started_by(snapshot, event_type)
    if len(names) > 1:
        raise ConflictError(
            f"several pipelines start on {event_type}: {', '.join(names)}",
            hint="Start the one you mean by its name: POST /pipeline/{name}.",
            details={"pipelines": [*names]},
        )
    if names:
        pipeline = known_pipeline(snapshot, names[0])
        return await _start(context, pipeline, request, plugin=request.plugin, command=request.command)
    plugin = runnable_plugin(snapshot, request.plugin)
    known_command(plugin, request.command)
    return await _run_plugin(context, plugin, request)


def known_pipeline(snapshot: Snapshot, name: str) -> Pipeline:
    """Return the pipeline of this name. Raises `NotFoundError`."""
    pipelines = snapshot.policy.pipelines.by_name
    if name not in pipelines:
        raise NotFoundError(
            f"there is no pipeline {name}",
            hint=did_you_mean(name, pipelines) or "See `ductile pipeline list`.",
        )
    return pipelines[name]


async def _start(
    context: OperationContext, pipeline: Pipeline, request: StartRequest, *, plugin: str, command: str
) -> StartResponse:
    """Start a run of the pipeline. The response names `plugin` and `command`."""
    snapshot = context.snapshot()
    options = await read_submission_options(context, request)
    wait = _sync_wait(context, pipeline.name, options, request)
    event_type = request.event_type or pipeline.on or f"{context.source.submitted_by}.trigger"
    event = make_event(context, event_type, request)
    producer, policy = EventProducer(submitted_by=SubmittedBy.API), with_regex_time_limit(snapshot.policy)
    if (refusal := start_refusal(pipeline, event, producer, policy)) is not None:
        why = refusal.get("explanation") or refusal.get("error")
        raise RefusedError(f"{pipeline.name} does not start: {why}", details={**refusal})
    if request.dry_run:
        return PlannedSubmission(plugin=plugin, command=command, pipeline=pipeline.name)
    run = NewRun(
        job=NewJob(
            id=make_id(context.now(), context.rng),
            plugin=RUN_PLUGIN,
            command=pipeline.name,
            submitted_by=context.source.submitted_by,
            submitted_detail=context.source.detail,
            max_attempts=1,
            dedupe_key=options.dedupe_key,
            dedupe_ttl=options.dedupe_ttl,
            source_event_id=event.id,
            hops=options.hops,
            trace_id=options.trace_id,
            callback=subscription_of(options),
            configured_callback=snapshot.policy.state_webhook(RUN_PLUGIN, pipeline.name, options.payload),
        ),
        graph=pipeline.graph,
        event=event,
        deadline_at=wait.until if wait is not None and wait.cancel_on_timeout else None,
    )
    await refuse_reused_key(context, options, (run.job,))
    expect_follower(context, run.job.id, follow=request.follow)
    submission = Submission(
        runs=(run,), event=event, policy=snapshot.policy, dedupe_window=snapshot.service.dedupe_ttl
    )
    accepted = Submitted(
        job_id=run.job.id,
        status=JobStatus.QUEUED,
        execution_mode=ExecutionMode.ASYNC,
        plugin=plugin,
        command=command,
        pipeline=pipeline.name,
        deduplicated=False,
    )
    return await _submit(context, submission, options, wait, accepted)


def _sync_wait(
    context: OperationContext, pipeline: str, options: SubmissionOptions, request: StartRequest
) -> SyncWait | None:
    """Return how the caller waits; None if it does not wait.

    A call from inside a job never waits: it could block itself.
    """
    settings = context.snapshot().pipelines[pipeline]
    synchronous = settings.execution_mode is ExecutionMode.SYNCHRONOUS
    if not synchronous or request.no_wait or not context.source.waits or options.inside_job is not None:
        return None
    timeout = min(settings.timeout, context.snapshot().api.max_sync_timeout)
    return SyncWait(
        timeout=timeout,
        until=context.now() + timeout,
        return_partial=settings.return_on_timeout is ReturnOnTimeout.PARTIAL,
        cancel_on_timeout=settings.on_timeout is OnTimeout.CANCEL,
    )


def make_event(
    context: OperationContext, event_type: str, request: StartRequest | BaseSubmissionRequest
) -> NewEvent:
    """Return the event of a request. The id of a webhook delivery is its key."""
    headers: dict[str, Any] | None = getattr(request, "headers", None)
    return NewEvent(
        id=make_id(context.now(), context.rng),
        type=event_type,
        source=context.source.submitted_by,
        payload=request.payload or {},
        headers=None if headers is None else {name: str(value) for name, value in headers.items()},
        dedupe_key=request.dedupe_key if request.delivery_id is None else request.delivery_id,
    )


def with_regex_time_limit(policy: Policy) -> Policy:
    """Return the policy with a time limit for regular expressions, which run on the event loop here."""
    return replace(policy, budget=MatchBudget(thread_time))


async def _run_plugin(
    context: OperationContext, plugin: PluginInstance, request: TriggerPipeline
) -> StartResponse:
    """Run a plugin command that triggers no pipeline. The manifest decides whether the caller waits."""
    manifest = plugin.installed.manifest if plugin.installed else None
    command = RunCommand(
        **{name: getattr(request, name) for name in SubmissionRequest.__struct_fields__},
        plugin=plugin.name,
        command=request.command,
    )
    engine, waits = context.engine, context.source.waits and not request.no_wait
    if (
        engine is None
        or manifest is None
        or manifest.execution_mode is not ExecutionMode.SYNCHRONOUS
        or not waits
        or await find_calling_job(context, request) is not None
    ):
        return await submit_job(context, command)
    timeout = min(manifest.timeout or _DEFAULT_TIMEOUT, context.snapshot().api.max_sync_timeout)
    with engine.sync_slot():
        began_at = context.now()
        submitted = await submit_job(context, command)
        if isinstance(submitted, PlannedSubmission):
            return submitted
        await _wait(context, engine, submitted.job_id, timeout)
        wait = SyncWait(timeout=timeout, until=began_at + timeout)
        return await _sync_response(
            context, submitted.job_id, wait, began_at, duplicate=submitted.deduplicated
        )


# --------------------------------------------------------------------------------------------- waiting


async def _submit(
    context: OperationContext,
    submission: Submission,
    options: SubmissionOptions,
    wait: SyncWait | None,
    accepted: Submitted,
) -> StartResponse:
    """Enqueue the run and wait for its end as `wait` says. `accepted` is the response without a wait."""
    engine = None if wait is None else context.engine
    with (
        engine.sync_slot() if engine else nullcontext(),
        engine.waiters.waiting_for(accepted.job_id) if engine else nullcontext() as ended,
    ):
        began_at = context.now()
        (result,) = await context.enqueue(submission)
        if duplicate := isinstance(result, Deduplicated):
            refuse_changed_payload(options, await context.store.get_job(result.job_id))
            refuse_without_subscription(result)
        if wait is None or engine is None:
            status = (await find_job(context, result.job_id)).status if duplicate else JobStatus.QUEUED
            return replace(accepted, job_id=result.job_id, status=status, deduplicated=duplicate)
        if isinstance(result, Accepted) and result.steps and ended is not None:
            await asyncio.wait({ended}, timeout=wait.timeout.total_seconds())
        else:
            await _wait(context, engine, result.job_id, wait.timeout)
        return await _sync_response(context, result.job_id, wait, began_at, duplicate=duplicate)


async def _wait(context: OperationContext, engine: Engine, job_id: str, longest: timedelta) -> None:
    """Wait until the job has ended, the time is up, or the daemon stops."""
    with engine.waiters.waiting_for(job_id) as ended:
        # Read after registering, or an end in between would be missed.
        if (await find_job(context, job_id)).status not in TERMINAL:
            await asyncio.wait({ended}, timeout=longest.total_seconds())


async def _sync_response(
    context: OperationContext, job_id: str, wait: SyncWait, began_at: datetime, *, duplicate: bool
) -> Finished | StillRunning:
    """Return the response after the wait. Raises `NotFoundError` if the job was removed meanwhile."""
    if duplicate:  # the request that started the job decides about its deadline
        wait = replace(wait, cancel_on_timeout=False)
    elapsed = context.now() - began_at
    details = await context.store.job_details(job_id)
    if details is None:
        raise NotFoundError(f"there is no job {job_id} any more")
    if details.job.status in TERMINAL and not wait.has_ended_by_deadline(details.job):
        return finished_response(details, duplicate=duplicate)
    stopping = context.engine is not None and context.engine.stopping
    return still_running_response(details, wait, elapsed=elapsed, stopping=stopping, duplicate=duplicate)


class RetryFromStep(ChangeJob, kw_only=True):
    step: Annotated[str, about("The path of the step.")]


class RetriedRun(Response):
    STATUS = HTTPStatus.ACCEPTED

    job_id: Id
    retries: Id
    pipeline: str
    from_step: str
    status: JobStatus


class PlannedRetry(Response):
    """The response to a dry run."""

    STATUS = HTTPStatus.OK

    job_id: None
    retries: Id
    pipeline: str
    from_step: str
    dry_run: WasDryRun


async def retry_from_step(context: OperationContext, request: RetryFromStep) -> RetriedRun | PlannedRetry:
    """Begin a new run at a step of an ended one, with the input of that step.

    Results of branches beside it are kept. The old run stays as it is; the new one names it.
    """
    old = await resolve_run(context, request.job_id)
    if old.plugin != RUN_PLUGIN:
        raise RefusedError(
            f"{old.id} is not a pipeline run",
            hint=f"Its run is {old.run_id}." if old.run_id else "Retry it without --from-step.",
        )
    pipeline = known_pipeline(context.snapshot(), old.command)
    run = await _new_run(context, old, pipeline, request.step)
    context.refuse_draining(pipeline.graph)
    if request.dry_run:
        refuse_retry(await context.store.check_rerun(old.id, request.step, pipeline.graph), old)
        return PlannedRetry(
            job_id=None, retries=old.id, pipeline=pipeline.name, from_step=request.step, dry_run=True
        )
    result = await context.store.rerun(
        old.id, request.step, run, context.snapshot().policy, charge=context.charge
    )
    if isinstance(result, RetryResult):
        refuse_retry(result, old)
        raise ConflictError(f"the run cannot be taken up again: {result}")
    return RetriedRun(
        job_id=result.job_id,
        retries=old.id,
        pipeline=pipeline.name,
        from_step=request.step,
        status=JobStatus.QUEUED,
    )


async def _new_run(context: OperationContext, old: Job, pipeline: Pipeline, step: str) -> NewRun:
    """Return the run that begins at a step of the old one. Raises `GoneError` without the old event."""
    event = None if old.source_event_id is None else await context.store.get_event(old.source_event_id)
    if event is None:
        raise GoneError("what the run began with is no longer kept", hint="Start the pipeline again.")
    job = NewJob(
        id=make_id(context.now(), context.rng),
        plugin=RUN_PLUGIN,
        command=pipeline.name,
        submitted_by=context.source.submitted_by,
        submitted_detail=f"{step} of {old.id}",
        max_attempts=1,
        parent_job_id=old.id,
        rerun_of=old.id,
        source_event_id=event.id,
        event_context_id=old.event_context_id,
        hops=old.hops,
        trace_id=old.trace_id,
        token=context.source.token,
        charged=context.charge is not None,
        configured_callback=context.snapshot().policy.state_webhook(RUN_PLUGIN, pipeline.name, event.payload),
    )
    begins_with = NewEvent(
        id=event.id, type=event.type, source=event.source, payload=event.payload, headers=event.headers
    )
    return NewRun(job=job, graph=pipeline.graph, event=begins_with)
