"""What is answered to whoever starts something: at once, when it is done, or when time is up."""

from __future__ import annotations

from collections.abc import Mapping

from ductile.core.jobs.model import JobStatus
from ductile.core.json import JsonObject
from ductile.operations.job_shapes import ARTIFACTS, FLAT, OUTPUT, RESPONSE, STATUS
from ductile.operations.shapes import (
    COUNT,
    FLAG,
    ID,
    NUMBER,
    TEXT,
    answer,
    either,
    listed,
    maybe,
    named,
    record,
    told,
    words,
)
from ductile.protocol.manifest.model import ExecutionMode

_MODE = words(ExecutionMode)
_STEP: Mapping[str, JsonObject] = {
    "job_id": ID,
    "plugin": TEXT,
    "command": TEXT,
    "step_id": maybe(TEXT),
    "status": STATUS,
    "error": maybe(TEXT),
    "exit_code": maybe(COUNT),
    "duration_ms": maybe(NUMBER),
    "result": maybe(RESPONSE),
    "output_files": ARTIFACTS,
}
_STEPS: Mapping[str, JsonObject] = {
    "children": told(listed(named("RunStep")), "The steps that ran, each below the one that led to it."),
    "tree": told(
        listed(record({**_STEP, "parent_job_id": maybe(ID)})),
        "The same steps in a row, as they were created.",
    ),
}
_DUPLICATE = told(FLAG, "Whether the job was there already, and nothing was started.")
_KNOWN: Mapping[str, JsonObject] = {"job_id": ID, "target": TEXT}
_ACCEPTED = record({**_KNOWN, "status": STATUS, "error": maybe(TEXT)})

RUN_SHAPES: Mapping[str, JsonObject] = {
    "Submitted": answer(
        {
            "job_id": ID,
            "status": told(STATUS, "`queued`; of a duplicate, that of the job which is there."),
            "execution_mode": words((ExecutionMode.ASYNC,)),
            "plugin": TEXT,
            "command": TEXT,
            "pipeline?": told(TEXT, "The pipeline that answers."),
            "deduplicated": _DUPLICATE,
        },
        "The job is on disk. GET /job/{job_id} tells what becomes of it.",
    ),
    "RunStep": record(
        {
            **_STEP,
            "children": told(listed(named("RunStep")), f"The steps that it led to. {FLAT}"),
            "parent_job_id?": told(ID, "Only of a step that is told in the list of the one before."),
        }
    ),
    "Finished": answer(
        {
            "job_id": ID,
            "status": told(
                words(("succeeded", "failed", "partial_success")),
                "`partial_success`: some branches of a split failed, others succeeded.",
            ),
            "ok": told(FLAG, "Whether it succeeded."),
            "execution_mode": words((ExecutionMode.SYNCHRONOUS,)),
            "deduplicated": _DUPLICATE,
            "duration_ms": maybe(NUMBER),
            "result": told(maybe(OUTPUT), "Null if nothing ran."),
            **_STEPS,
            "error?": TEXT,
        },
        "The run has ended.",
    ),
    "StillRunning": answer(
        {
            "job_id": ID,
            "status": words((JobStatus.RUNNING,)),
            "execution_mode": words((ExecutionMode.SYNCHRONOUS,)),
            "deduplicated": _DUPLICATE,
            "timeout_exceeded": told(FLAG, "False only if the daemon stopped before the time was up."),
            "timeout_ms": COUNT,
            "elapsed_ms": COUNT,
            **{f"{name}?": shape for name, shape in _STEPS.items()},
        },
        "The run goes on; GET /job/{job_id} tells what becomes of it. With `return_on_timeout: partial` the "
        "steps that are done come with it.",
    ),
    "Unfinished": either(named("Submitted"), named("StillRunning")),
    "FinishedOrResult": either(named("Finished"), named("BareResult")),
    "Published": answer(
        {
            "event_id": ID,
            "type": TEXT,
            "started": told(
                listed(_ACCEPTED),
                "What it started: `PLUGIN.COMMAND` or `pipeline:NAME`. Queued, unless it ended as it began.",
            ),
            "deduplicated": told(
                listed(record(_KNOWN)), "What would have been a duplicate; the job is the one that is there."
            ),
            "dropped": told(
                listed(record({"target": either(maybe(TEXT), listed(TEXT)), "reason": maybe(TEXT)})),
                "What a condition, or too many hops, kept it from.",
            ),
        }
    ),
}
