"""The schemas of bodies and answers, as far as they do not depend on the plugins."""

from __future__ import annotations

from collections.abc import Mapping

from ductile.api.endpoint import Endpoint
from ductile.core.jobs import JobStatus, Reason, SubmittedBy
from ductile.core.json_values import JsonObject, JsonValue
from ductile.protocol.payload_schema import JsonSchema

_PREFIX = "#/components/schemas/"
ERROR = f"{_PREFIX}Error"
OBJECT = f"{_PREFIX}Answer"
_TEXT: JsonObject = {"type": "string"}
_MAYBE_TEXT: JsonObject = {"type": ["string", "null"]}
_INSTANT: JsonObject = {"type": ["string", "null"], "format": "date-time"}

_JOB: Mapping[str, JsonValue] = {
    "job_id": _TEXT,
    "plugin": _TEXT,
    "command": _TEXT,
    "status": {"enum": [str(status) for status in JobStatus]},
    "reason": {"enum": [str(reason) for reason in Reason]},
    "attempt": {"type": "integer"},
    "max_attempts": {"type": "integer"},
    "submitted_by": {"enum": [str(door) for door in SubmittedBy]},
    "submitted_detail": _MAYBE_TEXT,
    "dedupe_key": _MAYBE_TEXT,
    "created_at": _INSTANT,
    "started_at": _INSTANT,
    "completed_at": _INSTANT,
    "next_retry_at": _INSTANT,
    "last_error": _MAYBE_TEXT,
    "parent_job_id": _MAYBE_TEXT,
    "artifacts": {"type": "array"},
}

SCHEMAS: Mapping[str, JsonValue] = {
    "Error": {
        "type": "object",
        "required": ["error", "message"],
        "properties": {
            "message": _TEXT,
            "error": {
                "type": "object",
                "required": ["code", "message", "hint", "details"],
                "properties": {
                    "code": _TEXT,
                    "message": _TEXT,
                    "hint": _MAYBE_TEXT,
                    "details": {"type": "object"},
                },
            },
        },
    },
    "Answer": {"type": "object", "required": ["message"], "properties": {"message": _TEXT}},
    "Submitted": {
        "type": "object",
        "required": ["job_id", "status", "message"],
        "properties": {
            "job_id": _TEXT,
            "status": {"enum": [*(str(status) for status in JobStatus), "partial_success"]},
            "execution_mode": {"enum": ["async", "synchronous"]},
            "deduplicated": {"type": "boolean"},
            "message": _TEXT,
        },
    },
    "Job": {"type": "object", "required": [*_JOB, "message"], "properties": {**_JOB, "message": _TEXT}},
    "ListedJob": {"type": "object", "required": [*_JOB], "properties": dict(_JOB)},
    "Jobs": {
        "type": "object",
        "required": ["jobs", "next_cursor", "message"],
        "properties": {
            "jobs": {"type": "array", "items": {"$ref": f"{_PREFIX}ListedJob"}},
            "next_cursor": _MAYBE_TEXT,
            "message": _TEXT,
        },
    },
}

_ANSWERS = {
    "/plugin/{plugin}/{command}": "Submitted",
    "/pipeline/{pipeline}": "Submitted",
    "/trigger/{plugin}/{command}": "Submitted",
    "/job/{job_id}": "Job",
    "/jobs/{job_id}": "Job",
    "/jobs": "Jobs",
}
#: Answers whose form is not ours.
_DOCUMENTS: Mapping[str, tuple[str, JsonObject]] = {
    "/openapi.json": ("application/json", {"type": "object"}),
    "/plugin/{plugin}/openapi.json": ("application/json", {"type": "object"}),
    "/.well-known/ai-plugin.json": ("application/json", {"type": "object"}),
    "/metrics": ("text/plain", _TEXT),
    "/events": ("text/event-stream", _TEXT),
    "/job/{job_id}/artifact/{name}": ("*/*", {}),
}

SUBMISSION_HEADERS: tuple[JsonObject, ...] = tuple(
    {"name": name, "in": "header", "required": False, "description": about, "schema": _TEXT}
    for name, about in (
        ("Idempotency-Key", "Sent again with the same body, it starts nothing new."),
        ("traceparent", "W3C Trace Context; its trace id goes with the job."),
        ("X-Ductile-Job", "The job inside which this call is made."),
    )
)
FIELDS: Mapping[str, JsonObject] = {
    "payload": {"type": ["object", "null"], "description": "What the plugin is given."},
    "dedupe_key": {
        "type": ["string", "null"],
        "description": "A succeeded job with this key makes it a duplicate.",
    },
    "dedupe_ttl": {
        "type": ["string", "number", "null"],
        "description": "How long the key holds, such as 1h, or in seconds; jobs that still run count then.",
    },
    "state_webhook_url": {
        "type": ["string", "null"],
        "description": "Called whenever the job's state changes.",
    },
    "type": {"type": "string", "description": "The event's type.", "minLength": 1},
    "command": {"type": ["string", "null"], "description": "Only of this command."},
}
_REQUIRED = ("type",)


def answer_schema(endpoint: Endpoint) -> JsonObject:
    if endpoint.path in _DOCUMENTS:
        media_type, schema = _DOCUMENTS[endpoint.path]
        return {media_type: {"schema": schema}}
    named: JsonObject = {"$ref": f"{_PREFIX}{_ANSWERS.get(endpoint.path, 'Answer')}"}
    more: JsonObject = {"text/markdown": {"schema": _TEXT}} if endpoint.path == "/skills" else {}
    return {"application/json": {"schema": named}, **more}


def request_body(names: tuple[str, ...], own: Mapping[str, JsonValue] | None = None) -> JsonObject:
    required: list[JsonValue] = [name for name in names if name in _REQUIRED]
    schema: JsonObject = {
        "type": "object",
        "properties": {**{name: FIELDS[name] for name in names}, **(own or {})},
        "additionalProperties": False,
    }
    if required:
        schema["required"] = required
    return {"required": bool(required), "content": {"application/json": {"schema": schema}}}


def submission_body(payload: JsonSchema | None, place: str) -> JsonObject:
    """The body of a submission whose payload has a schema of its own."""
    if payload is None:
        return request_body(("payload", "dedupe_key", "dedupe_ttl", "state_webhook_url"))
    own = {"payload": _standing_alone(payload, place)}
    return request_body(("payload", "dedupe_key", "dedupe_ttl", "state_webhook_url"), own)


def _standing_alone(schema: JsonSchema, place: str) -> JsonValue:
    """References inside a manifest's schema are to itself, not to the document it is put into."""
    if isinstance(schema, bool) or "$id" in schema or not ({"$defs", "definitions", "$ref"} & schema.keys()):
        return schema
    return {"$id": f"ductile:{place}", **schema}
