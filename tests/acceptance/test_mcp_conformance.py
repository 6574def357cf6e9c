"""The conformance suite of the Model Context Protocol, run against `/mcp` of a real daemon.

The suite needs Node.js 22 and the package `@modelcontextprotocol/conformance` in `node_modules` here.
`DUCTILE_TEST_CONFORMANCE` names another directory of the package, and `DUCTILE_TEST_NODE` another `node`.
Scenarios for features that this server does not have are left out: logging, sampling, elicitation,
subscriptions, completion.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders.daemons import PATIENCE
from builders.http import Api, an_api, token_for
from builders.mcp import a_workspace_for_agents
from builders.services import Reply, Service, ServiceRequest, a_service

_ROOT = Path(__file__).parents[2]
_PACKAGE = "node_modules/@modelcontextprotocol/conformance"
_OLDEST_NODE = 22
#: The suite calls tools by its own names, which these tools take over.
TOOLS = {
    "slow_compute": ("run__slow__handle", "0s"),
    "failing_job": ("run__broken__handle", "0s"),
    "greet": ("run__echo__handle", "1m"),
}
#: A plugin that takes as many seconds as its payload says.
SLOW = """#!/bin/sh
seconds=$(sed -n 's/.*"seconds": *\\([0-9]*\\).*/\\1/p' | head -n 1)
sleep "${seconds:-0}"
echo '{"status": "ok", "result": "done"}'
"""
#: The scenarios, each with its checks that cannot succeed here.
SCENARIOS: dict[str, set[str]] = {
    "server-initialize": set(),
    # These checks call a tool that needs sampling.
    "server-stateless": {
        "sep-2575-server-rejects-undeclared-capability",
        "sep-2575-missing-capability-http-400",
    },
    "ping": set(),
    "tools-list": set(),
    "tools-call-error": set(),
    "resources-list": set(),
    "sep-2164-resource-not-found": set(),
    "prompts-list": set(),
    "dns-rebinding-protection": set(),
    "caching": set(),
    "http-header-validation": set(),
    # No job ends with an error of the protocol.
    "tasks-lifecycle": {"sep-2663-tasks-get-status-failed"},
    "tasks-capability-negotiation": set(),
    "tasks-wire-fields": set(),
    "tasks-request-state-removal": set(),
    # The result of a call is JSON, not the bare text that the suite looks for.
    "tasks-request-headers": {"tasks-headers-tolerate-mcp-method-on-tools-call"},
    "tasks-dispatch-and-envelope": set(),
    "input-required-result-unsupported-methods": set(),
    "input-required-result-ignore-extra-params": set(),
}


def suite() -> tuple[str, Path] | None:
    """Return the program `node` and the script of the suite, or None if one of them is missing."""
    node = os.environ.get("DUCTILE_TEST_NODE") or shutil.which("node")
    script = Path(os.environ.get("DUCTILE_TEST_CONFORMANCE") or _ROOT / _PACKAGE) / "dist" / "index.js"
    if node is None or not script.exists():
        return None
    version = subprocess.run([node, "--version"], check=False, capture_output=True, text=True).stdout
    match = re.match(r"v(\d+)\.", version)
    return (node, script) if match and int(match[1]) >= _OLDEST_NODE else None


SUITE = suite()
pytestmark = pytest.mark.skipif(
    SUITE is None,
    reason="no conformance suite: it needs Node.js 22 and npm install @modelcontextprotocol/conformance",
)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    workspace = a_workspace_for_agents(tmp_path_factory.mktemp("mcp"))
    workspace.plugin("slow", SLOW)
    workspace.append("  slow: {}\n")
    with an_api(workspace) as api:
        yield api


@pytest.fixture(scope="module")
def adapter(api: Api) -> Iterator[Service]:
    """Yield a proxy that adds a token and maps the names of tools, which the suite cannot do."""

    def forward(request: ServiceRequest) -> Reply:
        headers = {
            name: value for name, value in request.headers.items() if name not in ("connection", "host")
        }
        host = request.headers["host"]
        local = host.partition(":")[0] in ("localhost", "127.0.0.1")
        headers |= {
            "authorization": f"Bearer {token_for('*')}",
            "host": f"127.0.0.1:{api.port}" if local else host,
        }
        body = _with_our_tool(request.body, headers)
        headers["content-length"] = str(len(body))
        connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=2 * PATIENCE)
        connection.request(request.method, request.path, body, headers)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        forwarded = {name: value for name, value in response.getheaders() if name.lower() in _FORWARDED}
        return Reply(status=response.status, body=content, headers=forwarded)

    with a_service(forward) as service:
        yield service


_FORWARDED = ("content-type", "allow", "mcp-session-id", "www-authenticate")


def _with_our_tool(body: bytes, headers: dict[str, str]) -> bytes:
    try:
        message: Any = json.loads(body)
        tool, wait = TOOLS[message["params"]["name"]]
    except (ValueError, KeyError, TypeError):
        return body
    if message.get("method") != "tools/call":
        return body
    if headers.get("mcp-name") == message["params"]["name"]:
        headers["mcp-name"] = tool
    message["params"] |= {
        "name": tool,
        "arguments": {"payload": message["params"].get("arguments") or {}, "wait": wait},
    }
    return json.dumps(message).encode()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_of_the_suite(adapter: Service, scenario: str, tmp_path: Path) -> None:
    """Every check succeeds, also those of each message against the schema of its protocol version."""
    assert SUITE is not None
    node, script = SUITE
    words = ["server", "--url", f"{adapter.url}/mcp", "--scenario", scenario, "--timeout", "120000"]
    subprocess.run(
        [node, script, *words, "-o", tmp_path], check=False, capture_output=True, timeout=3 * PATIENCE
    )
    (file,) = tmp_path.rglob("checks.json")
    checks = json.loads(file.read_text())
    failed = {check["id"]: check.get("errorMessage") for check in checks if check["status"] == "FAILURE"}
    assert failed.keys() == SCENARIOS[scenario], failed
    assert any(check["status"] == "SUCCESS" for check in checks)
