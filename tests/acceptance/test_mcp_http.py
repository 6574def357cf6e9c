"""An agent operates a real daemon through `/mcp`, with the client of the official SDK."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders.daemons import PATIENCE, a_daemon
from builders.http import Api, an_api, token_for
from builders.mcp import MODERN, a_workspace_for_agents, an_http_agent
from ductile.operations.tools.table import TOOLS

MESSAGE = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with an_api(a_workspace_for_agents(tmp_path_factory.mktemp("mcp"))) as api:
        yield api


def has_loaded_the_sdk(api: Api) -> bool:
    return "pydantic_core" in Path(f"/proc/{api.daemon.process.pid}/maps").read_text()


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_an_agent_operates_the_daemon(api: Api, mode: str) -> None:
    """Clients of all versions of the protocol can run, rerun, pause, plan and apply."""
    async with an_http_agent(api, mode=mode) as agent:
        assert (agent.client.protocol_version < "2026") == (mode == "legacy")
        assert set(TOOLS) <= set(await agent.tools())
        job = await agent.call("run__echo__handle", payload={"message": "hello"})
        assert (job["status"], job["result"]) == ("succeeded", "done")
        details = await agent.call("job_show", job_id=job["job_id"])
        assert (details["submitted_by"], details["submitted_detail"]) == ("mcp", "*")
        assert (await agent.call("start__chain"))["status"] == "succeeded"
        assert (await agent.call("job_rerun", job_id=job["job_id"]))["job_id"] != job["job_id"]
        await agent.call("schedule_pause", plugin="timed")
        await agent.call("schedule_resume", plugin="timed")
        plan = await agent.call("config_plan")
        await agent.call("config_apply", plan=plan["plan"])
        assert (await agent.refused("config_apply", plan="0" * 16))["code"] == "conflict"
        assert (await agent.read(f"ductile://job/{job['job_id']}"))["job_id"] == job["job_id"]
        assert (await agent.client.list_prompts()).prompts


async def test_the_list_of_tools_is_small(api: Api) -> None:
    """An agent keeps the list in its context: about 150 tokens for each tool, and no schemas of answers."""
    async with an_http_agent(api) as agent:
        tools = (await agent.client.list_tools()).tools
    assert all(tool.output_schema is None for tool in tools)
    size = sum(len(tool.model_dump_json(by_alias=True, exclude_none=True)) for tool in tools)
    assert size < 700 * len(tools)


async def test_the_token_decides_what_is_listed_and_called(api: Api) -> None:
    """An unlisted tool cannot be called, and an unreadable object is no resource."""
    async with an_http_agent(api, token_for("jobs:ro")) as reader:
        tools = await reader.tools()
        assert "job_list" in tools
        assert not {tool for tool in tools.values() if not tool.annotations.read_only_hint}
        await reader.call("job_list")
        for name, arguments in (
            ("job_cancel", {"job_id": "last"}),
            ("run__echo__handle", {}),
            ("status", {}),
        ):
            assert (await reader.refused(name, **arguments))["code"] == "denied"
        uris = {resource.uri for resource in (await reader.client.list_resources()).resources}
        assert "ductile://jobs" in uris
        assert "ductile://config" not in uris


def test_requests_are_refused_as_by_the_rest_of_the_api(api: Api) -> None:
    """A request is refused without a token, at another path, with another method or without a message."""
    assert api.ask("POST", "/mcp", MESSAGE, token=None).code == "unauthorized"
    assert api.ask("POST", "/mcp", MESSAGE, token="wrong").code == "unauthorized"
    for method in ("GET", "DELETE"):
        response = api.ask(method, "/mcp")
        assert (response.code, response.headers["allow"]) == ("method_not_allowed", "POST")
    assert api.ask("POST", "/mcp/more", MESSAGE).code == "not_found"
    assert api.ask("POST", "/mcp", b"{", headers=ACCEPT).status == 400
    assert api.ask("POST", "/mcp", b" " * 2_000_000, headers=ACCEPT).code == "too_large"


def test_white_space_around_a_header_is_no_part_of_it(api: Api) -> None:
    """The name of the tool is compared with the header, which may have blanks on both sides."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "status", "arguments": {}, "_meta": meta}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {**ACCEPT, "MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "  status  "}
    response = api.ask("POST", "/mcp", message, headers=headers)
    assert (response.status, response.body["result"]["isError"]) == (200, False)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Host": "rebound.example:80"}, "misdirected"),
        ({"Origin": "https://evil.example"}, "denied"),
        ({"Origin": "null"}, "denied"),
    ],
)
def test_pages_of_other_hosts_are_refused(api: Api, headers: dict[str, str], code: str) -> None:
    """A page whose name resolves to this machine cannot use the server, even with a token."""
    assert api.ask("POST", "/mcp", MESSAGE, headers={**ACCEPT, **headers}).code == code


def test_our_own_origin_and_a_proxy_are_served(api: Api) -> None:
    own = {"Origin": f"http://127.0.0.1:{api.port}"}
    proxied = {"Host": "ductile.example", "X-Forwarded-For": "192.0.2.1", "Origin": "https://ductile.example"}
    for headers in (own, {**proxied, "X-Forwarded-Host": "ductile.example"}):
        assert api.ask("POST", "/mcp", MESSAGE, headers={**ACCEPT, **headers}).status == 200


def test_a_connection_is_used_again(api: Api) -> None:
    """The daemon keeps the connection open after each answer."""
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=PATIENCE)
    connection.connect()
    connection.auto_open = 0  # a closed connection is an error, not a reason to open another
    headers = {**ACCEPT, "Authorization": f"Bearer {token_for('*')}"}
    for method, path in [("POST", "/mcp"), ("GET", "/ui"), ("GET", "/mcp"), ("POST", "/mcp")]:
        connection.request(method, path, json.dumps(MESSAGE) if method == "POST" else None, headers)
        connection.getresponse().read()
    connection.close()


async def test_a_job_outlives_the_daemon_that_started_it(tmp_path: Path) -> None:
    """After kill -9 and a restart another client waits for the same id, and gets the true outcome."""
    workspace = a_workspace_for_agents(tmp_path)
    with an_api(workspace) as api:
        async with an_http_agent(api) as agent:
            job_id = (await agent.call("run__patient__handle", wait="0s"))["job_id"]
        api.daemon.wait_until_started(job_id)
        api.daemon.end(signal.SIGKILL)
    (workspace.directory / "demo" / "plugins" / "patient" / "go").touch()
    with an_api(workspace) as api:
        async with an_http_agent(api) as agent:
            ended = await agent.call("job_wait", job_id=job_id, wait="60s")
    assert (ended["job_id"], ended["status"], ended["result"]) == (job_id, "succeeded", "went")


async def test_the_sdk_is_loaded_late_and_a_stop_does_not_wait_for_calls(tmp_path: Path) -> None:
    """The first message with a token loads the SDK. A waiting call is answered when the daemon stops."""
    with an_api(a_workspace_for_agents(tmp_path)) as api:
        api.get("/tools")
        api.ask("POST", "/mcp", MESSAGE, token=None)
        assert not has_loaded_the_sdk(api)
        async with an_http_agent(api) as agent:
            assert has_loaded_the_sdk(api)
            await agent.tools()  # the client needs them for the answer, when the daemon is gone
            call = asyncio.create_task(agent.call("run__patient__handle", wait="10m"))
            await asyncio.to_thread(api.daemon.wait_for, "job.started")
            assert await asyncio.to_thread(api.daemon.end) == 0
            answer = await call
            assert answer["ended"] is False
            assert "result" not in answer


def test_without_the_extra_the_answer_says_what_to_install(tmp_path: Path) -> None:
    workspace = a_workspace_for_agents(tmp_path)
    missing = tmp_path / "missing"
    missing.mkdir()
    (missing / "mcp_types.py").write_text("raise ModuleNotFoundError('no mcp_types', name='mcp_types')\n")
    assert workspace.ductile("config", "lock").status == 0
    with a_daemon(workspace, {"PYTHONPATH": str(missing)}) as daemon:
        address = daemon.wait_for("api.listening")["address"]
        api = Api(daemon=daemon, port=int(address.rpartition(":")[2]), workspace=workspace)
        error: dict[str, Any] = api.ask("POST", "/mcp", MESSAGE, headers=ACCEPT).body["error"]
        assert error["code"] == "not_found"
        assert "pip install 'ductile-runtime[mcp]'" in error["hint"]
        assert api.get("/healthz")["status"] == "ok"
