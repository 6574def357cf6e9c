"""What is answered about jobs: one or many, their executions, what they led to, and why they are so."""

from __future__ import annotations

from collections.abc import Mapping

from ductile.core.jobs.ledger import LedgerKind
from ductile.core.jobs.model import Hold, JobReason, JobStatus, SubmittedBy
from ductile.core.jobs.settlement import LogStatus
from ductile.core.json import JsonObject
from ductile.core.json_shapes import ChangeKind
from ductile.operations.diagnose.explain_run import StepOutcome
from ductile.operations.jobs.tree import MAX_DEPTH
from ductile.operations.shapes import (
    ANYTHING,
    COUNT,
    DRY_RUN,
    FLAG,
    ID,
    INSTANT,
    NUMBER,
    OBJECT,
    TEXT,
    answer,
    listed,
    maybe,
    named,
    record,
    told,
    words,
)
from ductile.store.model.jobs import CancelStatus

STATUS = words(JobStatus)
REASON = words(JobReason)
FLAT = (
    f"Jobs are nested {MAX_DEPTH} levels deep; what those of the last level led to follows each of them in "
    "the "
    "same list, and `parent_job_id` tells what came of what."
)
#: What a plugin printed is kept as it is, so nothing of it is certain.
RESPONSE = told(
    OBJECT,
    "The answer of the plugin as it gave it: `status`, `result` or `error`, and perhaps `logs`, "
    "`state_updates`, `artifacts`, `retry`. `events` is always a list.",
)
ARTIFACTS = listed(
    told(
        OBJECT,
        "`name`, and `path` or `url`; perhaps `media_type`; `size` and `sha256` as the plugin said, else of "
        "the file if it lies under `artifacts.roots`.",
    )
)
#: The answer of a job or run as callers read it.
OUTPUT: JsonObject = {
    **RESPONSE,
    "description": "The last answer of the plugin or the last step; beside it, what a shell would show.",
    "required": ["events", "stdout", "stderr", "exit_code", "output_files"],
    "properties": {
        "result": told(ANYTHING, "What the plugin calls its result."),
        "events": told(listed(ANYTHING), "What it emitted."),
        "stdout": told(TEXT, "The result as text."),
        "stderr": TEXT,
        "exit_code": maybe(COUNT),
        "output_files": ARTIFACTS,
    },
}

_JOB: Mapping[str, JsonObject] = {
    "job_id": ID,
    "plugin": told(TEXT, "`pipeline` for the run of a pipeline."),
    "command": told(TEXT, "The pipeline's name, if it is a run."),
    "status": STATUS,
    "reason": told(REASON, "Why it has this status."),
    "hold": told(maybe(words(Hold)), "Why a queued job may not start yet."),
    "attempt": COUNT,
    "max_attempts": COUNT,
    "execution": told(COUNT, "How often it was started, in all."),
    "submitted_by": words(SubmittedBy),
    "submitted_detail": told(maybe(TEXT), "The token, schedule or endpoint."),
    "dedupe_key": maybe(TEXT),
    "created_at": INSTANT,
    "started_at": maybe(INSTANT),
    "completed_at": maybe(INSTANT),
    "next_retry_at": maybe(INSTANT),
    "last_error": maybe(TEXT),
    "parent_job_id": told(maybe(ID), "The job that led to it; of a step, its run or the step before."),
    "source_event_id": maybe(ID),
    "event_context_id": maybe(ID),
    "run_id": told(maybe(ID), "The run of which it is a step."),
    "step": maybe(TEXT),
    "hops": COUNT,
    "trace_id": maybe(TEXT),
    "cancel_requested_at": maybe(INSTANT),
    "artifacts": ARTIFACTS,
}
_EXECUTION: Mapping[str, JsonObject] = {
    "seq": COUNT,
    "id": TEXT,
    "job_id": ID,
    "execution": COUNT,
    "attempt": COUNT,
    "plugin": TEXT,
    "command": TEXT,
    "status": words(LogStatus),
    "reason": REASON,
    "job_status": told(STATUS, "What the job came to by it."),
    "exit_code": maybe(COUNT),
    "signal": maybe(COUNT),
    "error": maybe(TEXT),
    "duration_ms": maybe(NUMBER),
    "submitted_by": words(SubmittedBy),
    "submitted_detail": maybe(TEXT),
    "created_at": INSTANT,
    "started_at": maybe(INSTANT),
    "completed_at": INSTANT,
    "parent_job_id": maybe(ID),
    "run_id": maybe(ID),
    "step": maybe(TEXT),
    "trace_id": maybe(TEXT),
    "artifacts": ARTIFACTS,
}
_PAGE: Mapping[str, JsonObject] = {"next_cursor": told(maybe(TEXT), "For the next page; null at the end.")}
_STEP_JOB = record(
    {
        "job_id": ID,
        "plugin": TEXT,
        "command": TEXT,
        "status": STATUS,
        "reason": REASON,
        "attempt": COUNT,
        "max_attempts": COUNT,
        "duration_ms": maybe(NUMBER),
        "error": maybe(TEXT),
    }
)
_STEP = record(
    {
        "step": TEXT,
        "kind": maybe(words(("uses", "call", "steps", "split"))),
        "does": maybe(TEXT),
        "outcome": words(StepOutcome),
        "jobs": listed(_STEP_JOB),
        "bypasses": listed(record({"explanation": TEXT, "verdict": ANYTHING, "at": INSTANT})),
        "errors": listed(TEXT),
    },
    "What became of one step of a run.",
)
_TRANSITION = record(
    {"at": INSTANT, "from": maybe(STATUS), "to": STATUS, "reason": REASON, "execution": COUNT}
)
_SAW = record(
    {
        "payload": maybe(OBJECT),
        "event": maybe(record({"type": TEXT, "source": TEXT})),
        "context": maybe(OBJECT),
        "config": maybe(TEXT),
        "config_loaded_at": maybe(INSTANT),
    },
    "What the job was given, secret-looking values masked, and the configuration it ran with.",
)

_FIRST_CHANGE = record(
    {
        "step": TEXT,
        "job_id": ID,
        "plugin": TEXT,
        "command": TEXT,
        "changes": listed(
            record({"field": TEXT, "change": words(ChangeKind), "good": maybe(TEXT), "now": maybe(TEXT)})
        ),
        "needed_by": told(
            listed(record({"step": TEXT, "place": TEXT, "reference": TEXT})),
            "References of the failed step that lead nowhere since.",
        ),
    },
    "The first step of the run whose output has another shape than in the last good run.",
)

JOB_SHAPES: Mapping[str, JsonObject] = {
    "ListedJob": record(_JOB, "A job without what it was given and what it answered."),
    "JobNode": record({**_JOB, "children": told(listed(named("JobNode")), f"What it led to. {FLAT}")}),
    "Execution": record(_EXECUTION, "One time that a job was run."),
    "LoggedExecution": record(
        {**_EXECUTION, "result": maybe(RESPONSE), "stdout": maybe(TEXT), "stderr": maybe(TEXT)}
    ),
    "Job": answer(
        {
            **_JOB,
            "payload": maybe(OBJECT),
            "result": told(maybe(OUTPUT), "Null if it has not run, or nothing of it did."),
            "stderr": told(maybe(TEXT), "Of its last execution."),
            "executions": listed(named("Execution")),
            "transitions": listed(_TRANSITION),
            "steps?": told(listed(_STEP), "Of a run of a pipeline."),
        },
        "A job, what it was given, what it answered, and its history.",
    ),
    "Jobs": answer({"jobs": listed(named("ListedJob")), **_PAGE}),
    "Executions": answer({"logs": listed(named("Execution")), **_PAGE}),
    "JobLog": answer({"job_id": ID, "executions": listed(named("LoggedExecution"))}),
    "JobTree": answer(
        {
            "tree": named("JobNode"),
            "truncated": told(
                FLAG, "Whether there are more than 10,000 jobs in it: the newest are left out."
            ),
        }
    ),
    "Explanation": answer(
        {
            "job_id": ID,
            "plugin": TEXT,
            "command": TEXT,
            "status": STATUS,
            "reason": REASON,
            "verdict": told(TEXT, "The whole story in one sentence."),
            "chain": told(
                listed(record({"job_id": maybe(ID), "what": TEXT, "status": maybe(STATUS)})),
                "Where it came from, the first cause first.",
            ),
            "evidence": listed(TEXT),
            "saw": _SAW,
            "executions": listed(named("Execution")),
            "waits_for": told(
                maybe(
                    record(
                        {
                            "job_id": ID,
                            "plugin": TEXT,
                            "command": TEXT,
                            "status": STATUS,
                            "since": INSTANT,
                            "attempt": COUNT,
                            "max_attempts": COUNT,
                        }
                    )
                ),
                "The job in its way, if it has not ended: the holder of its key or of a slot, or the step of "
                "a run that runs.",
            ),
            "cause": told(maybe(TEXT), "The first step whose output changed shape, and what needed it."),
            "first_change": maybe(_FIRST_CHANGE),
            "compared_with": told(
                maybe(ID), "The last good job of the same command, or run of the same pipeline."
            ),
            "differences": listed(record({"what": TEXT, "good": maybe(TEXT), "now": maybe(TEXT)})),
            "compared": told(listed(TEXT), "What the two were compared in."),
            "not_compared": told(listed(TEXT), "What may differ all the same."),
            "advice": listed(TEXT),
        }
    ),
    "Cancelled": answer(
        {
            "job_id": ID,
            "cancel": told(
                maybe(words((CancelStatus.CANCELLED, CancelStatus.REQUESTED))),
                "`cancelled`: it was queued and is dead. `requested`: it will be when its process is gone.",
            ),
            "status": STATUS,
            "reason": REASON,
            **DRY_RUN,
        }
    ),
    "Retried": answer({"job_id": ID, "status": STATUS, "reason": REASON, **DRY_RUN}),
    "Event": record(
        {
            "seq": told(COUNT, "Its number in the ledger, and the event's id."),
            "at": INSTANT,
            "kind": words(LedgerKind),
            "job_id": maybe(ID),
            "run_id": maybe(ID),
            "data": OBJECT,
        },
        "One entry of the ledger: the `data` of a server-sent event.",
    ),
}
