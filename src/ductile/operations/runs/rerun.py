"""Taking a pipeline run up again from one of its steps: a new run, by the pipeline as it is now."""

from __future__ import annotations

from ductile.core.events.model import NewEvent
from ductile.core.events.routing import Pipeline
from ductile.core.ids import make_id
from ductile.core.jobs.model import Job, JobStatus, NewJob, SubmittedBy
from ductile.core.json import JsonObject
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.runs.state import NewRun
from ductile.errors import ConflictError, GoneError, RefusedError
from ductile.operations import parameters as read
from ductile.operations.context import OperationContext
from ductile.operations.jobs.change import refuse_retry
from ductile.operations.jobs.lookup import resolve_job
from ductile.operations.runs.start import known_pipeline
from ductile.operations.submission import Source
from ductile.store.model.jobs import RetryResult


async def retry_from_step(context: OperationContext, door: Source, given: JsonObject) -> JsonObject:
    """Begin a new run at a step of an ended one, with what that step was given.

    What branches beside it had made is kept. The old run stays as it is; the new one names it.
    """
    old = await resolve_job(context, read.text(given, "job_id"))
    step = read.text(given, "step")
    if old.plugin != RUN_PLUGIN:
        raise RefusedError(
            f"{old.id} is not a pipeline run",
            hint=f"Its run is {old.run_id}." if old.run_id else "Retry it without --from-step.",
        )
    pipeline = known_pipeline(context.snapshot(), old.command)
    run = await _new_run(context, door, old, pipeline, step)
    shown: JsonObject = {"retries": old.id, "pipeline": pipeline.name, "from_step": step}
    context.refuse_draining(pipeline.graph)
    if read.flag(given, "dry_run"):
        refuse_retry(await context.store.check_rerun(old.id, step, pipeline.graph), old)
        return {"job_id": None, **shown, "dry_run": True}
    answer = await context.store.rerun(old.id, step, run, context.snapshot().rules)
    if isinstance(answer, RetryResult):
        refuse_retry(answer, old)
        raise ConflictError(f"the run cannot be taken up again: {answer}")
    return {"job_id": answer.job_id, **shown, "status": JobStatus.QUEUED}


async def _new_run(
    context: OperationContext, door: Source, old: Job, pipeline: Pipeline, step: str
) -> NewRun:
    event = None if old.source_event_id is None else await context.store.event(old.source_event_id)
    if event is None:
        raise GoneError("what the run began with is no longer kept", hint="Start the pipeline again.")
    job = NewJob(
        id=make_id(context.now(), context.rng),
        plugin=RUN_PLUGIN,
        command=pipeline.name,
        submitted_by=door.submitted_by,
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


async def retry_from_cli(context: OperationContext, given: JsonObject) -> JsonObject:
    return await retry_from_step(context, Source(submitted_by=SubmittedBy.CLI), given)
