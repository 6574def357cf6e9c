"""The body of a state webhook: nine keys, always all of them (SPEC 9.3)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ductile.core.json_values import JsonObject, JsonValue

#: A result larger than this is not sent; the receiver is told where to get it.
MAX_RESULT_BYTES = 256 * 1024


def encode_state_event(
    *,
    job_id: str,
    state: str,
    previous_state: str | None,
    timestamp: str,
    model: str | None,
    attempt: int,
    error: str | None,
    result: JsonValue,
    artifacts: Sequence[JsonValue] | None,
) -> str:
    if result is not None and len(msgspec.json.encode(result)) > MAX_RESULT_BYTES:
        result = {"link": f"/job/{job_id}"}
    body: JsonObject = {
        "job_id": job_id,
        "state": state,
        "previous_state": previous_state,
        "timestamp": timestamp,
        "model": model,
        "attempt": attempt,
        "error": error,
        "result": result,
        "artifacts": None if artifacts is None else list(artifacts),
    }
    return msgspec.json.encode(body).decode()
