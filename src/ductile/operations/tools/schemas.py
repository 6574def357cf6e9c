"""JSON Schemas of tools: of their arguments from request structs, of their answers from response structs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ductile.core.json import JsonObject, JsonValue
from ductile.operations.request import FieldSource, RequestField
from ductile.operations.response import OFFLINE_ONLY, Response
from ductile.operations.tools.answers import OMITTED_FIELDS
from ductile.operations.tools.table import DEFAULT_ROWS, MAX_ROWS, ToolRow, is_read_only, operation_of
from ductile.protocol.manifest.schema import JsonSchema

#: Fields that only shape the reply of HTTP or the output of the CLI.
_OTHER_SURFACE_FIELDS = frozenset(("result", "strict", "async", "reveal", "state_webhook_events"))
_DEFINITIONS = "#/$defs/"
#: Levels of structs that the schema of an answer describes.
_LEVELS = 2
#: Keys of a JSON Schema that a client does not need to check an answer.
_OMITTED_KEYS = frozenset(("title", "default", "description", "format", "required", OFFLINE_ONLY))
LEFT_OUT_SCHEMA: JsonObject = {"type": "array", "items": {"type": "string"}}
WAIT_SCHEMA: JsonObject = {
    "type": "string",
    "description": "How long to wait for the end of the job, such as 20s; at most 10m. After that the answer "
    "has `ended`: false, and job_wait asks again.",
    "default": "20s",
}
#: Arguments of tools for commands and pipelines. There may be hundreds of such tools, so texts are short.
_SHORT_WAIT_SCHEMA: JsonObject = {"type": "string", "description": "The same as `wait` of run, such as 20s."}
_DEDUPE_KEY_SCHEMA: JsonObject = {"type": "string", "description": "The same as `dedupe_key` of run."}


def tool_fields(row: ToolRow) -> Mapping[str, RequestField]:
    """Return the fields of the operation that a caller of the tool may set."""
    hidden = {*row.fixed, *(("dry_run",) if row.starts_job else ())}
    if row.operation == "job.wait":
        hidden.add("timeout")
    return {
        name: field
        for name, field in operation_of(row).fields.items()
        if field.source not in (FieldSource.LOCAL, FieldSource.HEADER)
        and name not in _OTHER_SURFACE_FIELDS
        and name not in hidden
    }


def waits_for_job(row: ToolRow) -> bool:
    """Return whether a call of the tool waits for a job, and so has the argument `wait`."""
    return row.starts_job or row.operation == "job.wait"


def input_schema(row: ToolRow) -> JsonObject:
    """Return the arguments of a tool of the table."""
    fields = tool_fields(row)
    properties: JsonObject = {}
    for name, field in fields.items():
        schema: JsonObject = {**field.schema, "description": field.description}
        kind = schema.get("type")
        if isinstance(kind, list):  # without null: an agent omits a field that it does not set
            schema["type"] = kind[0]
        default: JsonValue = msgspec.to_builtins(field.default, str_keys=True) if field.default else None
        if name == "limit" and is_read_only(row):  # an agent reads all rows of the answer
            schema |= {"default": DEFAULT_ROWS, "maximum": MAX_ROWS}
        elif default is not None:
            schema["default"] = default
        properties[name] = schema
    if waits_for_job(row):
        properties["wait"] = WAIT_SCHEMA
    required = [name for name, field in fields.items() if field.required or name in row.required]
    return _object(properties, required)


def payload_schema(schema: JsonSchema | None) -> JsonObject:
    """Return the arguments of a tool that runs a command or a pipeline."""
    needs_payload = isinstance(schema, dict) and bool(schema.get("required"))
    payload: JsonValue = schema if isinstance(schema, dict) else {"type": "object"}
    properties: JsonObject = {
        "payload": payload,
        "wait": _SHORT_WAIT_SCHEMA,
        "dedupe_key": _DEDUPE_KEY_SCHEMA,
    }
    return _object(properties, ["payload"] if needs_payload else [])


def _object(properties: JsonObject, required: list[str]) -> JsonObject:
    schema: JsonObject = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": [*required]} if required else schema


def output_schema(types: Iterable[type[Response]]) -> JsonObject:
    """Return the schema of an answer that is one of these responses.

    Structs are described two levels deep, because a client loads the schemas of all tools. No field is
    required, because answers are shortened.
    """
    remote_types = [response_type for response_type in types if not response_type.CLI_ONLY]
    references, components = msgspec.json.schema_components(
        remote_types, ref_template=f"{_DEFINITIONS}{{name}}"
    )
    schemas = [_without_texts(reference, components, _LEVELS) for reference in references]
    for answer in schemas:
        answer["properties"]["left_out"] = LEFT_OUT_SCHEMA
    schema: JsonObject = schemas[0] if len(schemas) == 1 else {"type": "object", "anyOf": schemas}
    return schema


def _without_texts(schema: Any, components: Mapping[str, Any], levels: int) -> Any:
    """Return the schema without titles and descriptions, with this many levels of structs written out."""
    if isinstance(schema, list):
        return [_without_texts(part, components, levels) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        target = components[schema["$ref"].removeprefix(_DEFINITIONS)]
        if "enum" in target:
            return {"type": "string"}
        return _without_texts(target, components, levels - 1) if levels else {"type": "object"}
    bare = {}
    for key, value in schema.items():
        if key == "properties":
            properties = {name: part for name, part in value.items() if name not in OMITTED_FIELDS}
            bare[key] = {name: _without_texts(part, components, levels) for name, part in properties.items()}
        elif key not in _OMITTED_KEYS:
            bare[key] = _without_texts(value, components, levels)
    return bare
