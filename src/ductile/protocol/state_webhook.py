"""The body of a state webhook: always all of its keys, null where they do not apply."""

from __future__ import annotations

import msgspec

from ductile.core.jobs.model import Job, NewJob
from ductile.core.jobs.settlement import StateChange
from ductile.core.json import JsonObject, JsonValue
from ductile.core.runs.graph import RUN_PLUGIN

#: A larger result, or list of artifacts, is replaced by a link.
MAX_RESULT_BYTES = 256 * 1024
#: Longer text is cut, so that a receiver which refuses large bodies still gets the failure.
MAX_ERROR_BYTES = 16 * 1024
MAX_MODEL_BYTES = 1024


def encode_state_webhook(
    event: StateChange,
    job: NewJob | Job,
    *,
    attempt: int,
    timestamp: str,
    previous_state: str | None,
    model: str | None,
) -> str:
    """Return the body as JSON text. `pipeline` is the name of the pipeline if the job is a run of one."""
    link = f"/job/{job.id}"
    error = event.error
    artifacts: JsonValue = None if event.artifacts is None else list(event.artifacts)
    body: JsonObject = {
        "job_id": job.id,
        "state": event.state,
        "previous_state": previous_state,
        "timestamp": timestamp,
        "model": None if model is None else _shorten(model, MAX_MODEL_BYTES, "…"),
        "attempt": attempt,
        "error": None if error is None else _shorten(error, MAX_ERROR_BYTES, f"… (all of it: {link})"),
        "result": {"link": link} if _is_large(event.result) else event.result,
        "artifacts": [{"link": link}] if _is_large(artifacts) else artifacts,
        "plugin": job.plugin,
        "command": job.command,
        "pipeline": job.command if job.plugin == RUN_PLUGIN else None,
        "reason": event.reason,
    }
    return msgspec.json.encode(body).decode()


def _is_large(value: JsonValue) -> bool:
    return value is not None and len(msgspec.json.encode(value)) > MAX_RESULT_BYTES


def _shorten(text: str, max_bytes: int, mark: str) -> str:
    """Return the text, or its beginning and a mark if it is longer than `max_bytes`."""
    if len(text) <= max_bytes // 4:  # no character takes more than four bytes
        return text
    encoded = text.encode("utf-8", "replace")
    return text if len(encoded) <= max_bytes else encoded[:max_bytes].decode("utf-8", "ignore") + mark
