"""Taking a pipeline run up again from one of its steps: a new run, by the pipeline as it is now."""

from __future__ import annotations

from ductile.core.ids import make_id
from ductile.core.jobs import Job, JobStatus, NewJob, SubmittedBy
from ductile.core.json_values import JsonObject
from ductile.core.lineage import NewEvent
from ductile.core.pipelines import RUN_PLUGIN, Pipeline
from ductile.core.run_values import NewRun
from ductile.errors import ConflictError, GoneError, RefusedError
from ductile.operations import parameters as read
from ductile.operations.desk import Desk
from ductile.operations.intake import Door
from ductile.operations.job_ids import named_job
from ductile.operations.jobs import refuse_retry
from ductile.operations.runs import known_pipeline
from ductile.store.values.settling import RetryAnswer
from ductile.store.values.submitting import Enqueued


async def retry_from_step(desk: Desk, door: Door, given: JsonObject) -> JsonObject:
    """Begin a new run at a step of an ended one, with what that step was given.

    What branches beside it had made is kept. The old run stays as it is; the new one names it.
    """
    old = await named_job(desk, given)
    step = read.text(given, "step")
    if old.plugin != RUN_PLUGIN:
        raise RefusedError(
            f"{old.id} is not a pipeline run",
            hint=f"Its run is {old.run_id}." if old.run_id else "Retry it without --from-step.",
        )
    pipeline = known_pipeline(desk.snapshot(), old.command)
    run = await _new_run(desk, door, old, pipeline, step)
    shown: JsonObject = {"retries": old.id, "pipeline": pipeline.name, "from_step": step}
    desk.refuse_draining(pipeline.graph)
    if read.flag(given, "dry_run"):
        refuse_retry(await desk.store.try_rerun(old.id, step, pipeline.graph), old)
        return {"job_id": None, **shown, "dry_run": True}
    answer = await desk.store.rerun(old.id, step, run, desk.snapshot().rules)
    if isinstance(answer, RetryAnswer):
        refuse_retry(answer, old)
        raise ConflictError(f"the run cannot be taken up again: {answer}")
    return {"job_id": _told(desk, answer), **shown, "status": JobStatus.QUEUED}


def _told(desk: Desk, answer: Enqueued) -> str:
    desk.told_of((answer,))
    return answer.job_id


async def _new_run(desk: Desk, door: Door, old: Job, pipeline: Pipeline, step: str) -> NewRun:
    event = None if old.source_event_id is None else await desk.store.event(old.source_event_id)
    if event is None:
        raise GoneError("what the run began with is no longer kept", hint="Start the pipeline again.")
    job = NewJob(
        id=make_id(desk.now(), desk.dice),
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


async def retry_from_cli(desk: Desk, given: JsonObject) -> JsonObject:
    return await retry_from_step(desk, Door(submitted_by=SubmittedBy.CLI), given)
