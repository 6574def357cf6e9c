"""The parts of the OpenAPI document that come from the table of endpoints: schemas, bodies, responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from http import HTTPStatus
from typing import Any

import msgspec

from ductile.api.endpoint import BARE_RESULT, Endpoint
from ductile.core.json import JsonObject, JsonValue
from ductile.operations.jobs.documents import JobOutput, LedgerEvent
from ductile.operations.request import FieldSource, RequestField
from ductile.operations.response import OFFLINE_ONLY, Response
from ductile.protocol.manifest.schema import JsonSchema

#: The places of named schemas and responses in the document.
SCHEMAS_PATH = "#/components/schemas/"
_RESPONSES_PATH = "#/components/responses/"
_TEXT: JsonObject = {"type": "string"}
_ERROR_SCHEMA: JsonObject = {
    "type": "object",
    "required": ["error", "message"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "hint", "details"],
            "properties": {
                "code": {**_TEXT, "description": "Does not change; see the table of codes."},
                "message": _TEXT,
                "hint": {"type": ["string", "null"], "description": "What to do about it."},
                "details": {"type": "object", "additionalProperties": True},
            },
        },
        "message": _TEXT,
    },
}
_FIRST_ERROR = 400
#: Statuses of errors: of endpoints that need a token, that need none, of all endpoints, of those with a body.
_TOKEN_ERRORS = (401, 403, 429)
_OPEN_ERRORS = (421,)
_COMMON_ERRORS = (400, 405, 431, 503)
_BODY_ERRORS = (408, 413, 422)
_STATUS_DESCRIPTIONS = {
    403: "The token lacks the scope; `details.needed` names those of which one is enough",
    405: "Another method at this path",
    421: "`Host` or `Origin` names another host than this loopback listener's, and there is no token",
    502: "With `strict`: the run did not succeed",
    503: "No slot, too many connections, the store is down, or the daemon stops",
}
_RETRY_AFTER_HEADER: JsonObject = {
    "Retry-After": {"schema": {"type": "integer"}, "description": "Seconds to wait."}
}
_STATUS_HEADER: JsonObject = {
    "X-Ductile-Status": {"schema": {**_TEXT, "description": "The status of the job."}}
}
_RESPONSE_HEADERS: Mapping[int, JsonObject] = {
    401: {"WWW-Authenticate": {"schema": {**_TEXT, "description": "How to authenticate."}}},
    405: {"Allow": {"schema": {**_TEXT, "description": "The methods that this path takes."}}},
    429: _RETRY_AFTER_HEADER,
    503: _RETRY_AFTER_HEADER,
}


class BareResult(Response):
    """With `?result=only`: the `result` of the response, and nothing else."""

    result: JobOutput | None


@cache
def schemas() -> Mapping[str, JsonObject]:
    """Return the schema of every response, and of every struct in one, by its name."""
    from ductile.api.endpoints import ENDPOINTS  # noqa: PLC0415 - that module imports this one

    types: list[type[Response]] = []
    for endpoint in ENDPOINTS:
        operation = endpoint.operation
        response_types = endpoint.response_types or (() if operation is None else operation.response_types)
        types += [struct for struct in response_types if struct not in types and not struct.CLI_ONLY]
    _references, schemas_by_name = msgspec.json.schema_components(
        [*types, LedgerEvent, BareResult], ref_template=f"{SCHEMAS_PATH}{{name}}"
    )
    named_types = {struct.__name__ for struct in types}
    described: dict[str, Any] = {"Error": _ERROR_SCHEMA}
    for name, component in schemas_by_name.items():
        if "enum" not in component:
            described[name] = _simplify(component, schemas_by_name)
            if name in named_types:
                described[name]["properties"].setdefault("message", _TEXT)
                described[name]["required"] = [
                    *dict.fromkeys((*described[name].get("required", ()), "message"))
                ]
    described[BARE_RESULT] = {
        "description": described[BARE_RESULT]["description"],
        **described[BARE_RESULT]["properties"]["result"],
    }
    return described


def _simplify(schema: Any, components: Mapping[str, Any]) -> Any:
    """Return the schema with enumerations in place of references to them, without titles and defaults."""
    if isinstance(schema, list):
        return [_simplify(item, components) for item in schema]
    if not isinstance(schema, dict):
        return schema
    simplified: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            remote = {name: inner for name, inner in value.items() if OFFLINE_ONLY not in inner}
            simplified[key] = {name: _simplify(inner, components) for name, inner in remote.items()}
        elif key not in ("title", "default"):
            simplified[key] = _simplify(value, components)
    target = components.get(str(schema.get("$ref")).removeprefix(SCHEMAS_PATH), {})
    if "enum" in target:
        del simplified["$ref"]
        simplified["enum"] = target["enum"]
    return simplified


def schema_ref(name: str) -> JsonObject:
    return {"$ref": f"{SCHEMAS_PATH}{name}"}


def field_schema(field: RequestField) -> JsonObject:
    schema = {**field.schema, "description": field.description}
    return schema if not field.default else {**schema, "default": field.default}


def request_body(endpoint: Endpoint, payload: JsonValue = None) -> JsonObject:
    """Return the schema of a request body; `payload` is that of the payload of one command or pipeline."""
    fields = endpoint.fields[FieldSource.BODY]
    properties: JsonObject = {name: field_schema(field) for name, field in fields.items()}
    required: list[JsonValue] = [name for name, field in fields.items() if field.required]
    if payload is not None:
        properties["payload"] = payload
        if isinstance(payload, dict) and payload.get("required"):
            required.append("payload")
    schema: JsonObject = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        schema["required"] = required
    return {"required": bool(required), "content": {"application/json": {"schema": schema}}}


def self_contained(schema: JsonSchema | None, schema_path: str) -> JsonValue:
    """Return the schema; with an id if it has references: else these would refer to the whole document."""
    if (
        schema is None
        or isinstance(schema, bool)
        or "$id" in schema
        or not ({"$defs", "definitions", "$ref"} & schema.keys())
    ):
        return schema
    return {"$id": f"ductile:{schema_path}", **schema}


def responses(endpoint: Endpoint) -> JsonObject:
    """Return the responses of an endpoint by status, errors included."""
    own_statuses = [
        status for status in endpoint.http.statuses if status < _FIRST_ERROR or status in endpoint.responses
    ]
    errors = {*_COMMON_ERRORS, *(status for status in endpoint.http.statuses if status not in own_statuses)}
    if endpoint.access.required_scopes is not None:
        errors |= {*_TOKEN_ERRORS}
    if endpoint.access.required_scopes is None or endpoint.access.discovery:
        errors |= {*_OPEN_ERRORS}
    if endpoint.http.method == "POST":
        errors |= {*_BODY_ERRORS}
    if endpoint.path_parameters:
        errors.add(404)
    if endpoint.fields[FieldSource.QUERY]:
        errors |= {404, 422}  # an unknown plugin, a cursor that is not ours
    return {
        **{str(status): _success_response(endpoint, status) for status in own_statuses},
        **{str(status): {"$ref": f"{_RESPONSES_PATH}{_response_name(status)}"} for status in sorted(errors)},
    }


def _success_response(endpoint: Endpoint, status: int) -> JsonObject:
    """Return the description of a response of the endpoint's own, with its schemas by media type."""
    content: JsonObject = {}
    schemas_of_status: list[JsonValue] = [schema_ref(name) for name in endpoint.responses.get(status, ())]
    match schemas_of_status:
        case []:
            pass
        case [schema]:
            content["application/json"] = {"schema": schema}
        case _:
            content["application/json"] = {"schema": {"anyOf": schemas_of_status}}
    for media_type, schema in endpoint.http.content_types.items():
        content[media_type] = {"schema": schema}
    described: JsonObject = {
        "description": _STATUS_DESCRIPTIONS.get(status, HTTPStatus(status).phrase),
        "content": content,
    }
    if endpoint.http.sends_status_header:
        described["headers"] = _STATUS_HEADER
    return described


def _response_name(status: int) -> str:
    return f"Error{int(status)}"  # the words for a status differ from one version of Python to another


def components(paths: JsonObject) -> JsonObject:
    """Return the components that the paths refer to, and no others: agents read the whole document."""
    references = {*_references(paths)}
    error_responses: JsonObject = {
        _response_name(status): {
            "description": _STATUS_DESCRIPTIONS.get(status, status.phrase),
            "content": {"application/json": {"schema": schema_ref("Error")}},
            **({"headers": _RESPONSE_HEADERS[status]} if status in _RESPONSE_HEADERS else {}),
        }
        for status in HTTPStatus
        if f"{_RESPONSES_PATH}{_response_name(status)}" in references
    }
    all_schemas = schemas()
    used: JsonObject = {}
    references |= {*_references(error_responses)}
    while references:
        referenced = {
            name: all_schemas[name]
            for name in all_schemas
            if f"{SCHEMAS_PATH}{name}" in references and name not in used
        }
        used |= referenced
        references = {*_references({**referenced})}
    return {
        "responses": error_responses,
        "schemas": {name: used[name] for name in all_schemas if name in used},
    }


def _references(value: JsonValue) -> Iterator[str]:
    """Yield the targets of all references in a document."""
    match value:
        case dict():
            if isinstance(reference := value.get("$ref"), str):
                yield reference
            for inner in value.values():
                yield from _references(inner)
        case list():
            for inner in value:
                yield from _references(inner)
        case _:
            return
