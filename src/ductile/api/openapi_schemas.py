"""The schemas of request bodies and responses, as far as they do not depend on the plugins."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from ductile.api.endpoint import BARE_RESULT, Endpoint
from ductile.core.json import JsonObject, JsonValue
from ductile.operations.catalogue_shapes import CATALOGUE_SHAPES
from ductile.operations.job_shapes import JOB_SHAPES
from ductile.operations.jobs.documents import JobOutput, LedgerEvent
from ductile.operations.request import FieldSource, RequestField
from ductile.operations.response import OFFLINE_ONLY, Response
from ductile.operations.run_shapes import RUN_SHAPES
from ductile.operations.shapes import OBJECT, PLACE, TEXT, answer, by_name, maybe, named, record, told
from ductile.operations.system.probes import Health
from ductile.operations.system_shapes import SYSTEM_SHAPES
from ductile.operations.table import OPERATIONS
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
_UNTYPED: Mapping[str, JsonObject] = {
    "Error": _ERROR,
    "About": answer(
        {
            "name": TEXT,
            "version": told(maybe(TEXT), "Null for a caller on another machine."),
            "links": by_name(TEXT),
        }
    ),
    **JOB_SHAPES,
    **RUN_SHAPES,
    **CATALOGUE_SHAPES,
    **SYSTEM_SHAPES,
}


class BareResult(Response):
    """With `?result=only`: the `result` of the response, and nothing else."""

    result: JobOutput | None


@cache
def schemas() -> Mapping[str, JsonObject]:
    """The schema of every response, and of every struct in one, by its name."""
    types: list[type] = []
    for operation in OPERATIONS.values():
        if operation.request_type is not None:
            types += [each for each in operation.response_types if each not in types]
    _references, found = msgspec.json.schema_components(
        [*types, LedgerEvent, BareResult, Health], ref_template=f"{PLACE}{{name}}"
    )
    named_types = {each.__name__ for each in types}
    described: dict[str, Any] = {**_UNTYPED}
    for name, component in found.items():
        if "enum" not in component:
            described[name] = _without_noise(component, found)
            if name in named_types:
                described[name]["properties"].setdefault("message", TEXT)
                described[name]["required"] = [
                    *dict.fromkeys((*described[name].get("required", ()), "message"))
                ]
    described[BARE_RESULT] = {
        "description": described[BARE_RESULT]["description"],
        **described[BARE_RESULT]["properties"]["result"],
    }
    return described


def _without_noise(schema: Any, components: Mapping[str, Any]) -> Any:
    """The schema with enumerations in place of references to them, without titles and defaults."""
    if isinstance(schema, list):
        return [_without_noise(each, components) for each in schema]
    if not isinstance(schema, dict):
        return schema
    shown = {
        key: {
            name: _without_noise(each, components) for name, each in value.items() if OFFLINE_ONLY not in each
        }
        if key == "properties"
        else _without_noise(value, components)
        for key, value in schema.items()
        if key not in ("title", "default")
    }
    target = components.get(str(schema.get("$ref")).removeprefix(PLACE), {})
    if "enum" in target:
        shown = {**{key: each for key, each in shown.items() if key != "$ref"}, "enum": target["enum"]}
    return shown


def content_of(endpoint: Endpoint, status: int) -> JsonObject:
    """The content of a good response by media type."""
    content: JsonObject = {
        media_type: {"schema": schema} for media_type, schema in endpoint.http.documents.items()
    }
    names = endpoint.responses.get(status, ())
    if not names:
        return content
    one_of: list[JsonValue] = [named(name) for name in names]
    schema: JsonObject = named(names[0]) if len(names) == 1 else {"anyOf": one_of}
    return {"application/json": {"schema": schema}, **content}


def field_schema(field: RequestField) -> JsonObject:
    schema = {**field.schema, "description": field.description}
    return schema if field.default in (None, False) else {**schema, "default": field.default}


def request_body(endpoint: Endpoint, payload: JsonValue = None) -> JsonObject:
    """The body of a request; `payload` is the schema of a payload that has one of its own."""
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


def self_contained(schema: JsonSchema | None, place: str) -> JsonValue:
    """The schema with an id of its own, if it has references: they are to itself, not to this document."""
    if (
        schema is None
        or isinstance(schema, bool)
        or "$id" in schema
        or not ({"$defs", "definitions", "$ref"} & schema.keys())
    ):
        return schema
    return {"$id": f"ductile:{place}", **schema}
