"""The schemas of bodies and answers, as far as they do not depend on the plugins."""

from __future__ import annotations

from collections.abc import Mapping

from ductile.api.endpoint import Endpoint
from ductile.api.vocabulary import SUBMISSION
from ductile.core.jobs.dedupe import LONGEST_KEY
from ductile.core.jobs.settlement import CallbackState
from ductile.core.json import JsonObject, JsonValue
from ductile.operations.catalogue_shapes import CATALOGUE_SHAPES
from ductile.operations.job_shapes import JOB_SHAPES
from ductile.operations.run_shapes import RUN_SHAPES
from ductile.operations.shapes import OBJECT, TEXT, answer, by_name, maybe, named, record, told
from ductile.operations.system_shapes import SYSTEM_SHAPES
from ductile.protocol.manifest.schema import JsonSchema

_ERROR = record(
    {
        "error": record(
            {
                "code": told(TEXT, "Does not change; see the table of codes."),
                "message": TEXT,
                "hint": told(maybe(TEXT), "What to do about it."),
                "details": OBJECT,
            }
        ),
        "message": TEXT,
    }
)
#: Everything that is answered as an object of ours, by its name.
SCHEMAS: Mapping[str, JsonObject] = {
    "Error": _ERROR,
    "About": answer(
        {
            "name": TEXT,
            "version": told(maybe(TEXT), "Null for who is not on this machine."),
            "links": by_name(TEXT),
        }
    ),
    **JOB_SHAPES,
    **RUN_SHAPES,
    **CATALOGUE_SHAPES,
    **SYSTEM_SHAPES,
}

SUBMISSION_HEADERS: tuple[JsonObject, ...] = tuple(
    {"name": name, "in": "header", "required": False, "description": about, "schema": TEXT}
    for name, about in (
        ("Idempotency-Key", "Sent again while its job waits, runs or has succeeded, it starts nothing new."),
        ("traceparent", "W3C Trace Context; its trace id goes with the job."),
        ("X-Ductile-Job", "The job inside which this call is made."),
    )
)
FIELDS: Mapping[str, JsonObject] = {
    "payload": {"type": ["object", "null"], "description": "What the plugin is given."},
    "dedupe_key": {
        "type": ["string", "null"],
        "maxLength": LONGEST_KEY,
        "description": "A succeeded job with this key makes it a duplicate.",
    },
    "dedupe_ttl": {
        "type": ["string", "number", "null"],
        "description": "How long the key holds, such as 1h, or in seconds; jobs that still run count then.",
    },
    "state_webhook_url": {
        "type": ["string", "null"],
        "description": "Called when the job's state changes; a duplicate's is called by the existing job.",
    },
    "state_webhook_events": {
        "type": ["array", "null"],
        "items": {"enum": [str(state) for state in CallbackState]},
        "minItems": 1,
        "description": "The states that are sent to `state_webhook_url`; all of them if it is absent.",
    },
    "type": {"type": "string", "description": "The event's type.", "minLength": 1, "maxLength": 255},
    "command": {"type": ["string", "null"], "description": "Only of this command."},
    "drain": {
        "type": "boolean",
        "description": "Let plugins that are removed or disabled finish their accepted work first.",
    },
    "drain_timeout": {
        "type": ["string", "null"],
        "description": "How long a drain may take, such as 10m (default 1h). After that nothing is changed.",
    },
    "dry_run": {"type": "boolean", "description": "Only tell what would be done."},
}
_REQUIRED = ("type",)


def content_of(endpoint: Endpoint, status: int) -> JsonObject:
    """What a good answer holds. Where another format decides what it looks like, only its type is told."""
    content: JsonObject = {
        media_type: {"schema": schema} for media_type, schema in endpoint.documents.items()
    }
    shape = endpoint.answer if isinstance(endpoint.answer, str | None) else endpoint.answer[status]
    return content if shape is None else {"application/json": {"schema": named(shape)}, **content}


def request_body(names: tuple[str, ...], own: Mapping[str, JsonValue] | None = None) -> JsonObject:
    asks_for = own.get("payload") if own else None
    needs_payload = isinstance(asks_for, dict) and bool(asks_for.get("required"))
    required: list[JsonValue] = [
        name for name in names if name in _REQUIRED or (needs_payload and name == "payload")
    ]
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
        return request_body(SUBMISSION)
    own = {"payload": _standing_alone(payload, place)}
    return request_body(SUBMISSION, own)


def _standing_alone(schema: JsonSchema, place: str) -> JsonValue:
    """References inside a manifest's schema are to itself, not to the document it is put into."""
    if isinstance(schema, bool) or "$id" in schema or not ({"$defs", "definitions", "$ref"} & schema.keys()):
        return schema
    return {"$id": f"ductile:{place}", **schema}
