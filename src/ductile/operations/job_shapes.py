"""What is answered about jobs: one or many, their executions, what they led to, and why they are so."""

from __future__ import annotations

from collections.abc import Mapping

from ductile.core.jobs.model import JobReason, JobStatus
from ductile.core.json import JsonObject
from ductile.operations.jobs.tree import MAX_DEPTH
from ductile.operations.shapes import (
    ANYTHING,
    COUNT,
    OBJECT,
    TEXT,
    answer,
    listed,
    maybe,
    named,
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
JOB_SHAPES: Mapping[str, JsonObject] = {
    "Executions": answer({"logs": listed(named("Execution")), **_PAGE}),
}
