"""Starting a pipeline run again from one of its steps: a new run, by the pipeline as it is now."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from ductile.core.events.model import NewEvent, Pipeline
from ductile.core.ids import make_id
from ductile.core.jobs.model import Job, JobStatus, NewJob
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.runs.state import NewRun
from ductile.errors import ConflictError, GoneError, RefusedError
from ductile.operations.context import OperationContext
from ductile.operations.jobs.change import ChangeJob, refuse_retry
from ductile.operations.jobs.lookup import resolve_job
from ductile.operations.response import Id, Response, WasDryRun
from ductile.operations.runs.start import known_pipeline
from ductile.store.model.jobs import RetryResult


class RetryFromStep(ChangeJob, kw_only=True):
    step: Annotated[str, Meta(description="The path of the step.")]


class RetriedRun(Response):
    job_id: Id | None
    retries: Id
    pipeline: str
    from_step: str
    status: JobStatus | UnsetType = UNSET
    dry_run: WasDryRun = UNSET


async def retry_from_step(context: OperationContext, request: RetryFromStep) -> RetriedRun:
    """Begin a new run at a step of an ended one, with the input of that step.

    Results of branches beside it are kept. The old run stays as it is; the new one names it.
    """
    old = await resolve_job(context, request.job_id)
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
        return RetriedRun(
            job_id=None, retries=old.id, pipeline=pipeline.name, from_step=request.step, dry_run=True
        )
    result = await context.store.rerun(old.id, request.step, run, context.snapshot().rules)
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
    event = None if old.source_event_id is None else await context.store.event(old.source_event_id)
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
        source_event_id=event.id,
        event_context_id=old.event_context_id,
        hops=old.hops,
        trace_id=old.trace_id,
    )
    begins_with = NewEvent(
        id=event.id,
        type=event.type,
        source=event.source,
        payload=event.payload,
        headers=event.header_texts,
    )
    return NewRun(job=job, graph=pipeline.graph, event=begins_with)
