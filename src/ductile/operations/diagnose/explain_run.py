"""`pipeline explain`: says what became of every step of a run, and why. `job show` lists the same steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

from ductile.core.jobs.model import TERMINAL, Job, JobReason, JobStatus, LedgerKind
from ductile.core.runs.expectations import NOT_CREATED
from ductile.core.runs.graph import RUN_PLUGIN, Node, UseNode
from ductile.errors import ConflictError, NotFoundError
from ductile.operations.context import OperationContext
from ductile.operations.jobs.documents import ListedJob, listed_job
from ductile.operations.jobs.lookup import OneJob, find_job, resolve_run
from ductile.operations.response import Id, Response, Timestamp, from_record, milliseconds, timestamp
from ductile.store.model.records import LedgerRow, RunRecord
from ductile.struct import Value, about


class StepOutcome(StrEnum):
    RAN = "ran"
    BYPASSED = "bypassed"
    NOT_CREATED = "not_made"
    #: A step that contains others: one of them was reached.
    ENTERED = "entered"
    NOT_REACHED = "not_reached"


class StepJob(Value):
    job_id: Id
    plugin: str
    command: str
    status: JobStatus
    reason: JobReason
    attempt: int
    max_attempts: int
    duration_ms: float | None
    error: str | None


class StepBypass(Value):
    explanation: str
    verdict: Any
    at: Timestamp


class StepReport(Value):
    """The outcome of one step of a run, with its jobs."""

    step: str
    kind: Annotated[str | None, about("`uses`, `call`, `steps` or `split`; null if the graph is not kept.")]
    does: Annotated[str | None, about("The plugin and command, or the pipeline, that it calls.")]
    outcome: StepOutcome
    jobs: tuple[StepJob, ...]
    bypasses: tuple[StepBypass, ...]
    errors: Annotated[tuple[str, ...], about("Why it could not be created.")]


class RunExplanation(Response):
    run: ListedJob
    pipeline: str
    ended: bool
    graph_kept: Annotated[bool, about("False if only steps that left a trace are listed.")]
    steps: tuple[StepReport, ...]


async def explain_run(context: OperationContext, request: OneJob) -> RunExplanation:
    """Explain the run that the job is, or is a step of."""
    job = await resolve_run(context, request.job_id)
    if job.plugin != RUN_PLUGIN:
        if job.run_id is None:
            raise ConflictError(
                f"{job.id} is not a pipeline run, nor a step of one",
                hint=f"Look at it with `ductile job show {job.id}`.",
            )
        job = await find_job(context, job.run_id)
    record = await context.store.get_run(job.id)
    if record is None:
        raise NotFoundError(f"there is no pipeline run {job.id}")
    return RunExplanation(
        run=listed_job(context, record.job),
        pipeline=record.job.command,
        ended=record.job.status in TERMINAL,
        graph_kept=record.graph is not None,
        steps=describe_steps(record),
    )


def describe_steps(record: RunRecord) -> tuple[StepReport, ...]:
    """Return the steps of a run in the order of the pipeline; without its graph, those that have jobs."""
    jobs: dict[str, list[Job]] = {}
    for job in record.steps:
        jobs.setdefault(job.step_path or "", []).append(job)
    durations = {job_id: milliseconds(row.duration) for job_id, row in record.executions.items()}
    if record.graph is None:
        return tuple(_report_step(path, None, own_jobs, (), durations) for path, own_jobs in jobs.items())
    entries: dict[str, list[LedgerRow]] = {}
    for entry in record.ledger_entries:
        step = entry.data.get("step")
        if entry.kind is LedgerKind.CONDITION_FALSE and isinstance(step, str):
            entries.setdefault(step, []).append(entry)
    # An event type may hold a slash, so only paths of steps count.
    reached = {*jobs, *entries} & record.graph.nodes.keys()
    return tuple(
        _report_step(
            node.path,
            node,
            jobs.get(node.path, ()),
            entries.get(node.path, ()),
            durations,
            entered=any(path.startswith(f"{node.path}/") for path in reached),
        )
        for node in sorted(record.graph.nodes.values(), key=lambda node: node.position)
    )


def _report_step(
    path: str,
    node: Node | None,
    jobs: Sequence[Job],
    entries: Sequence[LedgerRow],
    durations: Mapping[str, float | None],
    *,
    entered: bool = False,
) -> StepReport:
    label = None if node is None else node.label
    not_created = [job.last_error or str(job.reason) for job in jobs if job.reason in NOT_CREATED]
    errors = (*not_created, *(str(entry.data["error"]) for entry in entries if "error" in entry.data))
    if len(jobs) > len(not_created):
        outcome = StepOutcome.RAN
    elif errors:
        outcome = StepOutcome.NOT_CREATED
    elif entries:
        outcome = StepOutcome.BYPASSED
    else:
        holds_steps = not isinstance(node, UseNode)
        outcome = StepOutcome.ENTERED if entered and holds_steps else StepOutcome.NOT_REACHED
    return StepReport(
        step=path,
        kind=None if label is None else label.keyword,
        does=None if label is None else label.target,
        outcome=outcome,
        jobs=tuple(
            from_record(StepJob, job, job_id=job.id, duration_ms=durations.get(job.id), error=job.last_error)
            for job in jobs
        ),
        bypasses=tuple(
            StepBypass(
                explanation=str(entry.data["explanation"]),
                verdict=entry.data.get("verdict"),
                at=timestamp(entry.at),
            )
            for entry in entries
            if "explanation" in entry.data
        ),
        errors=errors,
    )
