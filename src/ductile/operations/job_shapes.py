"""What is answered about jobs: one or many, their executions, what they led to, and why they are so."""

from __future__ import annotations

from collections.abc import Mapping

from ductile.core.jobs.model import JobReason, JobStatus
from ductile.core.json import JsonObject
from ductile.core.json_shapes import ChangeKind
from ductile.operations.jobs.tree import MAX_DEPTH
from ductile.operations.shapes import (
    ANYTHING,
    COUNT,
    ID,
    INSTANT,
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

_PAGE: Mapping[str, JsonObject] = {"next_cursor": told(maybe(TEXT), "For the next page; null at the end.")}
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
    "Executions": answer({"logs": listed(named("Execution")), **_PAGE}),
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
}
