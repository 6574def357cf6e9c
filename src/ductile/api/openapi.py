"""The API as an OpenAPI 3.1 document: the endpoints, and every command and pipeline with its schemas."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ductile import __version__
from ductile.api.endpoint import Endpoint
from ductile.api.endpoints import ENDPOINTS
from ductile.api.openapi_schemas import components, field_schema, request_body, responses, self_contained
from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.auth_scopes import pipeline_scope
from ductile.core.json import JsonObject, JsonValue
from ductile.operations.operation import access_level_of
from ductile.operations.plugins.lookup import commands_of, find_plugin
from ductile.operations.plugins.skills import (
    command_id,
    input_schema_of,
    pipeline_id,
    summarise_pipeline,
)
from ductile.operations.request import FieldSource, RequestField
from ductile.operations.submission import PlannedSubmission, SubmissionRequest, Submitted
from ductile.protocol.manifest.model import ExecutionMode
from ductile.struct import replace

_ACCEPTED, _FAILED = 202, 502
_PATH_PARAMETER: JsonObject = {"in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def describe(snapshot: Snapshot, plugin: str | None = None) -> JsonObject:
    """Return the document of the whole API, or of the commands of one plugin. Raises `NotFoundError`."""
    paths: dict[str, JsonValue] = {}
    if plugin is not None:
        instance = find_plugin(snapshot, plugin)
        if instance.runnable:
            paths.update(_plugin_paths(instance))
            return _document(snapshot, paths, f"The commands of {plugin}, run as durable jobs.")
        reason = "disabled" if instance.refused is None else f"refused: {instance.refused.reason}"
        return _document(snapshot, paths, f"The plugin {plugin} is {reason}. Nothing of it can be called.")
    for endpoint in ENDPOINTS:
        item = paths.setdefault(endpoint.http.path, {})
        assert isinstance(item, dict)  # noqa: S101 - made just above
        item[endpoint.http.method.lower()] = _operation(endpoint, endpoint.path_parameters)
    for instance in snapshot.plugins.values():
        if instance.runnable:
            paths.update(_plugin_paths(instance))
    paths.update(_pipeline_paths(snapshot))
    return _document(snapshot, paths, "Plugins and pipelines of this machine, run as durable jobs.")


def _document(snapshot: Snapshot, paths: dict[str, JsonValue], about: str) -> JsonObject:
    return {
        "openapi": "3.1.0",
        "info": {"title": snapshot.service.name, "version": __version__, "description": about},
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            **components(paths),
        },
    }


def _operation(endpoint: Endpoint, path_parameters: tuple[str, ...] = ()) -> JsonObject:
    """Return the description of an endpoint. `path_parameters` are the parameters in its path."""
    described: JsonObject = {
        "operationId": fixed_operation_id(endpoint.http.method, endpoint.http.path),
        "summary": endpoint.summary,
        "description": f"Scope: {endpoint.access.doc_text}.",
        "tags": [endpoint.http.tag],
        "parameters": [
            *({**_PATH_PARAMETER, "name": name} for name in path_parameters),
            *(_parameter(field, "query") for field in endpoint.fields[FieldSource.QUERY].values()),
            *(_parameter(field, "header") for field in endpoint.fields[FieldSource.HEADER].values()),
        ],
        "responses": responses(endpoint),
    }
    if endpoint.access.required_scopes is None or endpoint.access.discovery:
        described["security"] = [{}] if endpoint.access.required_scopes is None else [{}, {"bearer": []}]
    if endpoint.http.method == "POST":
        described["requestBody"] = request_body(endpoint)
    return described


def fixed_operation_id(method: str, path: str) -> str:
    """Return the `operationId` of an endpoint that is the same in every configuration."""
    words = re.findall(r"[A-Za-z0-9_]+", path)
    return "_".join([method.lower(), *words]) if words else f"{method.lower()}_root"


def _parameter(field: RequestField, location: str) -> JsonObject:
    schema = field_schema(field)
    kind = schema.get("type")
    if isinstance(kind, list):  # the other type is null, which a text cannot express
        schema["type"] = kind[0]
    return {
        "name": field.header or field.name,
        "in": location,
        "required": field.required,
        "description": schema.pop("description"),
        "schema": schema,
    }


def _plugin_paths(plugin: PluginInstance) -> Iterator[tuple[str, JsonValue]]:
    """Yield a path for each command of a plugin, with the schemas of that command."""
    endpoint = next(row for row in ENDPOINTS if row.http.path == "/plugin/{plugin}/{command}")
    manifest = plugin.installed.manifest if plugin.installed else None
    for command in commands_of(plugin).values():
        path, right = f"/plugin/{plugin.name}/{command.name}", access_level_of(command)
        about = command.description or (manifest.description if manifest else "")
        specific: JsonObject = {
            "operationId": command_id(plugin.name, command.name),
            "summary": about.partition("\n")[0] or f"Run {plugin.name} {command.name}",
            "description": f"{about}\n\nScope: plugin:{right} or {plugin.name}:{right}.".strip(),
            "requestBody": request_body(endpoint, self_contained(command.input_schema, f"{path}/input")),
            "x-ductile-output-schema": command.output_schema,
        }
        yield path, {"post": {**_operation(endpoint), **specific}}


def _pipeline_paths(snapshot: Snapshot) -> Iterator[tuple[str, JsonValue]]:
    """Yield a path for each pipeline, with its responses: only synchronous pipelines send a result."""
    endpoint = next(row for row in ENDPOINTS if row.http.path == "/pipeline/{pipeline}")
    asynchronous = replace(
        endpoint,
        http=replace(
            endpoint.http,
            statuses=(
                _ACCEPTED,
                *(status for status in endpoint.http.statuses if status not in (_ACCEPTED, _FAILED)),
            ),
        ),
        request_type=SubmissionRequest,
        response_types=(Submitted, PlannedSubmission),
    )
    for name, pipeline in snapshot.pipelines.items():
        waits = pipeline.execution_mode is ExecutionMode.SYNCHRONOUS
        path = f"/pipeline/{name}"
        specific: JsonObject = {
            "operationId": pipeline_id(name),
            "summary": summarise_pipeline(pipeline),
            "description": f"Scope: plugin:rw or {pipeline_scope(name)}.",
            "requestBody": request_body(
                endpoint, self_contained(input_schema_of(snapshot, name), f"{path}/input")
            ),
        }
        yield path, {"post": {**_operation(endpoint if waits else asynchronous), **specific}}
