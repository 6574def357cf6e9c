"""The OpenAPI document, and the running daemon checked against it by fuzzing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import jsonschema_rs
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from builders.http import Api, an_api, an_api_workspace, token_for
from ductile.api.endpoints import ENDPOINTS

MANIFEST = """\
manifest_spec: ductile.plugin
manifest_version: 1
name: strict
version: 1.0.0
protocol: 2
entrypoint: run.sh
description: Greets people.
commands:
  greet:
    description: Greets one of them.
    input_schema:
      type: object
      required: [name]
      $defs: {name: {type: string, minLength: 1}}
      properties: {name: {$ref: "#/$defs/name"}}
  count: {type: read, input_schema: {from: integer}}
"""
PIPELINES = """\
pipelines:
  - {name: chain, on: some.thing, steps: [{uses: echo}]}
  - {name: at_once, execution_mode: synchronous, timeout: 30s, steps: [{uses: echo}]}
  - {name: too_late, execution_mode: synchronous, timeout: 1ms, steps: [{uses: echo}]}
"""
#: Every operation is checked for faults of the daemon, and for responses that the document does not have.
CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)
#: A stream has no end to wait for, long polls wait for minutes, and a reload takes long.
LEFT_OUT = (
    "/events",
    "/job-logs/follow",
    "/job/{job_id}/follow",
    "/job/{job_id}/wait",
    "/ledger/follow",
    "/run/{job_id}/follow",
    "/system/reload",
)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    plugins = "  strict: {validate_input: true}\n  resting: {uses: echo, enabled: false}\n  ghost: {}\n"
    workspace = an_api_workspace(tmp_path_factory.mktemp("api"), plugins, more=PIPELINES)
    plugin = workspace.plugin(
        "strict", '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok", "result": "hi"}\'\n'
    )
    (plugin / "manifest.yaml").write_text(MANIFEST)
    with an_api(workspace) as api:
        yield api


def test_every_endpoint_command_and_pipeline_is_described(api: Api) -> None:
    """The document is generated from the endpoints and the manifests, with their schemas."""
    document = api.get("/openapi.json")
    described = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert {(endpoint.http.method, endpoint.http.path) for endpoint in ENDPOINTS} <= described
    assert ("POST", "/plugin/strict/greet") in described
    assert ("POST", "/pipeline/chain") in described
    greet = document["paths"]["/plugin/strict/greet"]["post"]
    body = greet["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["payload"]["required"] == ["name"]
    assert greet["summary"] == "Greets one of them."


def test_a_plugin_has_a_document_of_its_own(api: Api) -> None:
    """The document has the commands of the plugin and nothing else."""
    document = api.get("/plugin/strict/openapi.json")
    assert document["paths"].keys() == {"/plugin/strict/greet", "/plugin/strict/count"}
    assert api.ask("GET", "/plugin/nobody/openapi.json").status == 404


@pytest.mark.parametrize(("plugin", "reason"), [("resting", "disabled"), ("ghost", "refused")])
def test_a_plugin_that_cannot_run_has_no_calls(api: Api, plugin: str, reason: str) -> None:
    """The document says why the plugin has no commands."""
    document = api.get(f"/plugin/{plugin}/openapi.json")
    assert document["paths"] == {}
    assert f"{plugin} is {reason}" in document["info"]["description"]
    assert not [path for path in api.get("/openapi.json")["paths"] if f"/{plugin}/" in path]


def test_operation_ids_are_unique_and_schemas_are_valid(api: Api) -> None:
    """Code generators make functions of operation ids."""
    document = api.get("/openapi.json")
    operations = [operation for item in document["paths"].values() for operation in item.values()]
    ids = [operation["operationId"] for operation in operations]
    assert len(ids) == len(set(ids))
    for operation in operations:
        for response in operation["responses"].values():
            for content in response.get("content", {}).values():
                jsonschema_rs.meta.validate(content["schema"])


@pytest.mark.parametrize(
    ("mode", "scopes"),
    [(GenerationMode.POSITIVE, ("*", "jobs:ro", None)), (GenerationMode.NEGATIVE, ("*",))],
    ids=lambda value: value.value if isinstance(value, GenerationMode) else "",
)
def test_the_daemon_keeps_to_its_document(
    api: Api, mode: GenerationMode, scopes: tuple[str | None, ...]
) -> None:
    """Every response to a generated request is one that the document describes, and no other 5xx occurs.

    Each request is sent with a token of each of the scopes; None is no token.
    """
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{api.port}/openapi.json")
    headers_by_scope = [
        {} if scope is None else {"Authorization": f"Bearer {token_for(scope)}"} for scope in scopes
    ]
    session = requests.Session()
    tested: set[tuple[str, str]] = set()
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result
        operation = result.ok()
        if operation.path in LEFT_OUT:
            continue
        tested.add((operation.method.upper(), operation.path))

        @settings(
            max_examples=8,
            database=None,
            phases=[Phase.generate],
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def check_operation(case: schemathesis.Case[Any]) -> None:
            for headers in headers_by_scope:
                case.call_and_validate(headers=headers, session=session, checks=[*CHECKS])

        with suppress(Unsatisfiable):  # without parameters nothing can be wrong about it
            check_operation()
    session.close()
    endpoints = {(endpoint.http.method, endpoint.http.path) for endpoint in ENDPOINTS}
    left_out = {*LEFT_OUT, "/openapi.json"}  # the document itself, which the tool has read
    expected = {(method, path) for method, path in endpoints if path not in left_out}
    assert tested > expected | {("POST", "/plugin/strict/greet"), ("POST", "/pipeline/chain")}
    assert api.ask("GET", "/healthz").status == 200
