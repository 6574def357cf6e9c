"""What became of every step of a pipeline run, and why: for `pipeline explain` and `job show`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

from ductile.core.jobs.ledger import LedgerKind
from ductile.core.jobs.model import TERMINAL, Job, JobReason
from ductile.core.json import JsonObject, JsonValue
from ductile.core.runs.graph import RUN_PLUGIN, Graph, Node, UseNode
from ductile.errors import ConflictError, NotFoundError
from ductile.operations.context import OperationContext
from ductile.operations.jobs.documents import instant, milliseconds, shown_job
from ductile.operations.jobs.lookup import find_job
from ductile.store.model.records import LedgerRow, LogRow, RunRecord

#: A step that ended for one of these was never run: it could not be made.
NOT_MADE = frozenset({JobReason.BAD_TEMPLATE, JobReason.BAD_BAGGAGE, JobReason.BAD_CONDITION})


class StepOutcome(StrEnum):
    RAN = "ran"
    BYPASSED = "bypassed"
    NOT_MADE = "not_made"
    ENTERED = "entered"  # of what holds other steps: a line went in
    NOT_REACHED = "not_reached"


async def explain_steps(context: OperationContext, job: Job) -> JsonObject:
    """The run, and each of its steps with what it came to."""
    record = await load_run_record(context, job)
    return {
        "run": shown_job(record.job),
        "pipeline": record.job.command,
        "ended": record.job.status in TERMINAL,
        "graph_kept": record.graph is not None,
        "steps": describe_steps(record),
    }


async def load_run_record(context: OperationContext, job: Job) -> RunRecord:
    """Of the run that the job is, or is a step of."""
    if job.plugin != RUN_PLUGIN:
        if job.run_id is None:
            raise ConflictError(
                f"{job.id} is not a pipeline run, nor a step of one",
                hint=f"Look at it with `ductile job show {job.id}`.",
            )
        job = await find_job(context, job.run_id)
    record = await context.store.run(job.id)
    if record is None:
        raise NotFoundError(f"there is no pipeline run {job.id}")
    return record


def describe_steps(record: RunRecord) -> list[JsonValue]:
    """In the order in which they are written; without the graph, those of which there is a trace."""
    jobs: dict[str, list[Job]] = {}
    for member in record.members:
        jobs.setdefault(member.step_path or "", []).append(member)
    notes = _notes_by_step(record.notes)
    if record.graph is None:
        return [_step(path, None, jobs.get(path, ()), (), record.executions) for path in jobs]
    touched = {*jobs, *notes}
    return [
        _step(
            node.path,
            node,
            jobs.get(node.path, ()),
            notes.get(node.path, ()),
            record.executions,
            entered=any(_is_inside(path, node, record.graph) for path in touched),
        )
        for node in sorted(record.graph.nodes.values(), key=lambda node: node.position)
    ]


def _notes_by_step(notes: Sequence[LedgerRow]) -> dict[str, list[LedgerRow]]:
    found: dict[str, list[LedgerRow]] = {}
    for note in notes:
        step = note.data.get("step")
        if note.kind is LedgerKind.SWITCH and isinstance(step, str):
            found.setdefault(step, []).append(note)
    return found


def _is_inside(path: str, node: Node, graph: Graph) -> bool:
    """By its path. An event type may hold a slash, so the steps are asked and not the text alone."""
    return path in graph.nodes and path.startswith(f"{node.path}/") and not isinstance(node, UseNode)


def _step(
    path: str,
    node: Node | None,
    jobs: Sequence[Job],
    notes: Sequence[LedgerRow],
    executions: Mapping[str, LogRow],
    *,
    entered: bool = False,
) -> JsonValue:
    shown_jobs: list[JsonValue] = [_shown_job(job, executions.get(job.id)) for job in jobs]
    bypasses: list[JsonValue] = [
        {"explanation": note.data["explanation"], "verdict": note.data.get("verdict"), "at": instant(note.at)}
        for note in notes
        if "explanation" in note.data
    ]
    errors: list[JsonValue] = [*_errors(jobs, notes)]
    return {
        "step": path,
        "kind": None if node is None else node.label.keyword,
        "does": None if node is None else node.label.target,
        "outcome": _outcome(jobs, notes, entered=entered),
        "jobs": shown_jobs,
        "bypasses": bypasses,
        "errors": errors,
    }


def _outcome(jobs: Sequence[Job], notes: Sequence[LedgerRow], *, entered: bool) -> StepOutcome:
    if any(job.reason not in NOT_MADE for job in jobs):
        return StepOutcome.RAN
    if jobs or any("error" in note.data for note in notes):
        return StepOutcome.NOT_MADE
    if notes:
        return StepOutcome.BYPASSED
    return StepOutcome.ENTERED if entered else StepOutcome.NOT_REACHED


def _errors(jobs: Sequence[Job], notes: Sequence[LedgerRow]) -> Iterator[str]:
    """Why the step could not be made."""
    for job in jobs:
        if job.reason in NOT_MADE:
            yield job.last_error or str(job.reason)
    for note in notes:
        if "error" in note.data:
            yield str(note.data["error"])


def _shown_job(job: Job, row: LogRow | None) -> JsonObject:
    return {
        "job_id": job.id,
        "plugin": job.plugin,
        "command": job.command,
        "status": job.status,
        "reason": job.reason,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "duration_ms": None if row is None else milliseconds(row.duration),
        "error": job.last_error,
    }
