"""Jobs, executions and ledger entries as every surface returns them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ductile.core.jobs.admission import bare_key
from ductile.core.jobs.model import Hold, Job, JobReason, JobStatus, LedgerKind, OutputFormat, SubmittedBy
from ductile.core.jobs.settlement import LogStatus
from ductile.core.json import JsonObject, JsonValue
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.scripts import EXEC_PLUGIN, done_event
from ductile.engine.live_output import OutputPiece
from ductile.operations.context import OperationContext
from ductile.operations.response import Id, Orphaned, Timestamp, from_record, milliseconds, timestamp
from ductile.protocol.plugin_messages import normalise_response, stored_result
from ductile.runner.port import OutputStream
from ductile.store.model.records import LedgerRow, LogRow, TransitionRow
from ductile.struct import Value, about, field

#: The output of a plugin is stored as it is, so no field of it is certain.
StoredResponse: TypeAlias = Annotated[
    dict[str, Any],
    about(
        "The response of the plugin as it gave it: `status`, `result` or `error`, and perhaps "
        "`logs`, `state_updates`, `artifacts`, `retry`. `events` is always a list."
    ),
]
Artifact: TypeAlias = Annotated[
    dict[str, Any],
    about(
        "`name`, and `path` or `url`; perhaps `media_type`; `size` and `sha256` as the plugin "
        "said, else of the file if it lies under `artifacts.roots`."
    ),
]
#: The output of a job or run that callers read.
JobOutput: TypeAlias = Annotated[
    dict[str, Any],
    Meta(
        description="The last response of the plugin or the last step, and what a shell would show.",
        extra_json_schema={
            "additionalProperties": True,
            "required": ["events", "stdout", "stderr", "exit_code", "output_files"],
            "properties": {
                "result": {"description": "What the plugin calls its result."},
                "events": {"type": "array", "items": {}, "description": "What it emitted."},
                "stdout": {
                    "type": "string",
                    "description": "The result as text; of a script, the same as `result`.",
                },
                "stderr": {"type": "string"},
                "exit_code": {"type": ["integer", "null"]},
                "output_files": {"type": "array", "items": {"type": "object", "additionalProperties": True}},
            },
        },
    ),
]


class ListedJob(Value):
    """A job without its payload and result."""

    job_id: Id
    plugin: Annotated[str, about("`pipeline` for the run of a pipeline.")]
    command: Annotated[str, about("The pipeline's name, if it is a run.")]
    status: JobStatus
    reason: Annotated[JobReason, about("Why it has this status.")]
    hold: Annotated[Hold | None, about("Why a queued job may not start yet.")]
    attempt: int
    max_attempts: int
    execution: Annotated[int, about("How often it was started, in all.")]
    submitted_by: SubmittedBy
    submitted_detail: Annotated[str | None, about("The token, schedule or endpoint.")]
    dedupe_key: str | None
    created_at: Timestamp
    started_at: Timestamp | None
    completed_at: Timestamp | None
    next_retry_at: Timestamp | None
    last_error: str | None
    parent_job_id: Annotated[
        Id | None, about("The job that led to it; of a step, its run or the step before.")
    ]
    source_event_id: Id | None
    event_context_id: Id | None
    run_id: Annotated[Id | None, about("The run of which it is a step.")]
    step: str | None
    hops: int
    trace_id: str | None
    cancel_requested_at: Timestamp | None
    artifacts: list[Artifact]
    rerun_of: Annotated[Id | None, about("The job that it runs again, if `job rerun` made it.")]
    token: Annotated[str | None, about("The access token that started it, or started what it follows from.")]
    cost: Annotated[float | None, about("What its executions cost, as its plugin reported it.")]
    node: Annotated[str | None, about("The node that alone may run it; null: any that has its plugin.")]
    held_since: Annotated[Timestamp | None, about("Since when no live node may run it.")]
    orphaned: Orphaned = UNSET


class JobRow(ListedJob):
    """A job in a list."""

    payload_excerpt: Annotated[
        str | UnsetType, about("On request: the beginning of its payload, secrets masked.")
    ] = UNSET


def listed_job(context: OperationContext, job: Job) -> ListedJob:
    return from_record(ListedJob, job, **job_values(context, job))


def job_row(context: OperationContext, job: Job, payload_excerpt: str | UnsetType) -> JobRow:
    return from_record(JobRow, job, **job_values(context, job), payload_excerpt=payload_excerpt)


def job_values(context: OperationContext, job: Job) -> dict[str, Any]:
    """Return the fields of `ListedJob`, and of structs that extend it, that are not copied from the job."""
    return {
        "job_id": job.id,
        "dedupe_key": bare_key(job.dedupe_key),
        "step": job.step_path,
        "orphaned": context.is_orphaned(job) or UNSET,
    }


class Execution(Value):
    """An execution of a job, without its output."""

    seq: int
    id: str
    job_id: Id
    execution: int
    attempt: int
    plugin: str
    command: str
    status: LogStatus
    reason: JobReason
    job_status: Annotated[JobStatus, about("The status of the job after it.")]
    exit_code: int | None
    signal: int | None
    error: str | None
    duration_ms: float | None
    submitted_by: SubmittedBy
    submitted_detail: str | None
    created_at: Timestamp
    started_at: Timestamp | None
    completed_at: Timestamp
    parent_job_id: Id | None
    run_id: Id | None
    step: str | None
    trace_id: str | None
    artifacts: list[Artifact]
    stderr_bytes: int
    stderr_truncated: Annotated[bool, about("Whether more was printed on stderr than is kept.")]
    cost: Annotated[float | None, about("What it cost, as the plugin reported it.")]


class LoggedExecution(Execution):
    """An execution with its output."""

    result: StoredResponse | None
    stdout: str | None
    stderr: str | None


def listed_execution(row: LogRow) -> Execution:
    return from_record(Execution, row, duration_ms=milliseconds(row.duration), step=row.step_path)


def logged_execution(row: LogRow) -> LoggedExecution:
    return from_record(
        LoggedExecution,
        row,
        duration_ms=milliseconds(row.duration),
        step=row.step_path,
        # The stdout of a script is its result; it is not repeated.
        result=plugin_response(row) if row.output is OutputFormat.PROTOCOL else None,
        stdout=row.result,
    )


def plugin_response(row: LogRow) -> JsonObject | None:
    """Return the response envelope of an execution; None if the plugin printed none.

    The envelope of a script that succeeded is made from its output.
    """
    if row.output is not OutputFormat.PROTOCOL:
        if row.status is not LogStatus.SUCCEEDED:
            return None
        emits_no_event = row.plugin in (RUN_PLUGIN, EXEC_PLUGIN)
        done: JsonObject = {"type": done_event(row.plugin), "payload": {"exit_code": row.exit_code}}
        result = stored_result(row.result, row.output)
        return {"status": "ok", "result": result, "events": [] if emits_no_event else [done]}
    try:
        envelope: JsonValue = msgspec.json.decode(row.result or "")
    except (msgspec.DecodeError, RecursionError):
        return None
    return normalise_response(envelope) if isinstance(envelope, dict) else None


def job_output(job: Job, row: LogRow) -> JsonObject | None:
    """Return the result of a job as callers read it: the response envelope, and stdout, stderr and exit code.

    None for a pipeline run of which no step ran.
    """
    printed_nothing = row.result is None and not row.stderr
    if job.plugin == RUN_PLUGIN and printed_nothing and row.exit_code is None and row.signal is None:
        return None
    envelope = plugin_response(row) or normalise_response({})
    result = envelope.get("result")
    if result is None and row.output is not OutputFormat.PROTOCOL:
        result = row.result  # the output of a script that failed
    stdout = "" if result is None else result
    return {
        **envelope,
        "stdout": stdout if isinstance(stdout, str) else msgspec.json.encode(stdout).decode(),
        "stderr": row.stderr or "",
        "exit_code": row.exit_code,
        "output_files": list(row.artifacts),
    }


class LiveOutputText(Value):
    """Output of a running execution: the `data` of the server-sent event `job.output`."""

    job_id: Id
    run_id: Annotated[Id | None, about("The run of which the job is a step.")]
    step: str | None
    plugin: str
    command: str
    execution: int
    stream: OutputStream
    offset: Annotated[
        int,
        about("Bytes of the stream before this text. Beyond the `end` of the text before it: some is lost."),
    ]
    end: Annotated[int, about("Bytes of the stream up to the end of this text.")]
    text: str


def live_output_text(piece: OutputPiece) -> LiveOutputText:
    return from_record(LiveOutputText, piece)


class JobTransition(Value):
    at: Timestamp
    from_status: JobStatus | None = field(name="from")
    to_status: JobStatus = field(name="to")
    reason: JobReason
    execution: int


def job_transition(row: TransitionRow) -> JobTransition:
    return from_record(JobTransition, row.transition, at=timestamp(row.at), execution=row.execution)


class LedgerEvent(Value):
    """One entry of the ledger: the `data` of a server-sent event."""

    seq: Annotated[int, about("Its number in the ledger, and the event's id.")]
    at: Timestamp
    kind: LedgerKind
    job_id: Id | None
    run_id: Id | None
    data: dict[str, Any]


def ledger_event(row: LedgerRow) -> LedgerEvent:
    return from_record(LedgerEvent, row)


#: Some JSON readers refuse more than a hundred levels. A level of jobs is two levels of JSON, and the result
#: of a plugin in the last level has levels of its own. A run may be ten thousand steps long.
MAX_DEPTH = 40
FLATTENED_NOTE = (
    f"Jobs are nested {MAX_DEPTH} levels deep. Deeper jobs are in the list of the last level, each after the "
    "job that led to it, which `parent_job_id` names."
)

NodeType = TypeVar("NodeType")


def nest_jobs(
    roots: Sequence[Job],
    below: Mapping[str, Sequence[Job]],
    make_node: Callable[[Job, list[NodeType], bool], NodeType],
) -> list[NodeType]:
    """Return the jobs as nodes that contain the nodes of their children. `below` has the children by job id.

    `make_node` gets the job, the list of its children, which is filled later, and whether the job is below
    the last level: such jobs follow in the list of the last level. Not recursive, because a long run would
    exhaust the stack.
    """
    nodes: list[NodeType] = []
    pending = [(job, nodes, 1) for job in reversed(roots)]
    while pending:
        job, siblings, level = pending.pop()
        children: list[NodeType] = []
        siblings.append(make_node(job, children, level > MAX_DEPTH))
        child_list = siblings if level >= MAX_DEPTH else children
        pending += [(child, child_list, level + 1) for child in reversed(below.get(job.id, ()))]
    return nodes
