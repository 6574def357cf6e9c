"""Calls that wait for a job, by clients without tasks: progress, cancellation, and the end of either side."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import mcp_types as types
import pytest

from builders.daemons import PATIENCE
from builders.http import Api, an_api, token_for
from builders.mcp import MODERN, Agent, a_workspace_for_agents, an_agent, an_http_agent
from builders.terminal import DUCTILE

Connect: TypeAlias = Callable[[Api, str], AbstractAsyncContextManager[Agent]]


@asynccontextmanager
async def over_stdio(api: Api, mode: str) -> AsyncIterator[Agent]:
    async with an_agent(api.workspace, mode=mode) as agent:
        yield agent


@asynccontextmanager
async def over_stdio_from_elsewhere(api: Api, mode: str) -> AsyncIterator[Agent]:
    words = ("--url", f"http://localhost:{api.port}")
    async with an_agent(
        api.workspace, *words, variables={"DUCTILE_TOKEN": token_for("*")}, mode=mode
    ) as agent:
        yield agent


@asynccontextmanager
async def over_http(api: Api, mode: str) -> AsyncIterator[Agent]:
    async with an_http_agent(api, mode=mode) as agent:
        yield agent


transports = pytest.mark.parametrize("connect", [over_stdio, over_stdio_from_elsewhere, over_http])
versions = pytest.mark.parametrize("mode", ["legacy", MODERN])


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with an_api(a_workspace_for_agents(tmp_path_factory.mktemp("mcp"))) as api:
        yield api


def go_file(api: Api) -> Path:
    """Return the file that lets the plugin `patient` end."""
    return api.workspace.directory / "demo" / "plugins" / "patient" / "go"


async def running_job(api: Api, plugin: str) -> str:
    """Wait until the newest job of a plugin runs, and return its id."""

    def running() -> bool:
        jobs = api.get(f"/jobs?plugin={plugin}&limit=1")["jobs"]
        return bool(jobs) and jobs[0]["status"] == "running"

    await asyncio.to_thread(api.daemon.wait_until, running)
    job_id: str = api.get(f"/jobs?plugin={plugin}&limit=1")["jobs"][0]["job_id"]
    return job_id


async def cancel_job(api: Api, job_id: str) -> None:
    """Cancel a job, and wait until it has ended."""
    api.post(f"/job/{job_id}/cancel", status=200)
    await asyncio.to_thread(api.ended, job_id)


# ------------------------------------------------------------------------------------------- progress


@transports
@versions
async def test_progress_comes_from_the_steps(api: Api, connect: Connect, mode: str) -> None:
    """Progress grows with each message, and the answer comes when the run has ended."""
    updates: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        updates.append((progress, total, message))
        if message == "1 of 2 steps have ended, running: second":
            go_file(api).touch()

    async with connect(api, mode) as agent:
        result = await agent.client.call_tool(
            "start__slow", {"wait": "2m"}, progress_callback=on_progress, read_timeout_seconds=2 * PATIENCE
        )
        go_file(api).unlink()
    assert not result.is_error
    assert result.structured_content is not None
    assert (result.structured_content["ended"], result.structured_content["status"]) == (True, "succeeded")
    assert (1.5, 2.0, "1 of 2 steps have ended, running: second") in updates
    assert [update[0] for update in updates] == sorted({update[0] for update in updates})


async def test_a_job_without_steps_reports_its_attempts(api: Api) -> None:
    updates: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        updates.append((progress, total, message))
        if message == "it is running":
            go_file(api).touch()

    async with over_http(api, MODERN) as agent:
        await agent.client.call_tool("run__patient__handle", {"wait": "2m"}, progress_callback=on_progress)
        go_file(api).unlink()
    assert {total for _, total, _ in updates} == {None}
    assert updates[-1][2] == "it is running"


async def test_without_the_right_to_read_jobs_the_call_waits_without_progress(api: Api) -> None:
    """The server could not continue to wait, so the whole time is one call."""
    updates: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        updates.append(progress)

    async with an_http_agent(api, token_for("plugin:rw")) as agent:
        call = asyncio.create_task(
            agent.client.call_tool("run__patient__handle", {"wait": "2m"}, progress_callback=on_progress)
        )
        await running_job(api, "patient")
        go_file(api).touch()
        result = await call
        go_file(api).unlink()
    assert result.structured_content is not None
    assert (result.structured_content["status"], updates) == ("succeeded", [])


# ---------------------------------------------------------------------------------------- the client is gone


@transports
@versions
async def test_a_cancelled_call_ends_and_its_job_goes_on(api: Api, connect: Connect, mode: str) -> None:
    """The same connection serves the next call, which gets the outcome of the job."""
    async with connect(api, mode) as agent:
        await agent.tools()
        call = asyncio.create_task(agent.client.call_tool("run__patient__handle", {"wait": "10m"}))
        job_id = await running_job(api, "patient")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await agent.call("job_wait", job_id=job_id, wait="0s"))["ended"] is False
        go_file(api).touch()
        ended = await agent.call("job_wait", job_id=job_id, wait="2m")
        go_file(api).unlink()
    assert (ended["ended"], ended["status"]) == (True, "succeeded")


class StdioServer:
    """A process of `ductile mcp serve` that is sent raw lines."""

    def __init__(self, api: Api, *words: str, **variables: str) -> None:
        self.process = subprocess.Popen(
            [DUCTILE, "mcp", "serve", *(words or ("--config", "demo"))],
            cwd=api.workspace.directory,
            env={"PATH": os.environ["PATH"], "HOME": str(api.workspace.directory / "home"), **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.ask(
            0,
            "initialize",
            {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "a", "version": "1"},
            },
        )
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message: object) -> None:
        self.write(json.dumps(message).encode() + b"\n")

    def write(self, content: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(content)
        self.process.stdin.flush()

    def request(self, number: int, method: str, params: object) -> None:
        self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})

    def ask(self, number: int, method: str, params: object) -> dict[str, Any]:
        """Send a request, and return its answer: the next line."""
        self.request(number, method, params)
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert answer["id"] == number, answer
        return answer

    def close(self) -> tuple[int, str]:
        """Close standard input, and return the exit status and the text on stderr."""
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        status = self.process.wait(PATIENCE)
        printed = self.process.stderr.read().decode()
        self.process.stderr.close()
        self.process.stdout.close()
        return status, printed


async def test_the_end_of_standard_input_ends_the_server_at_once(api: Api) -> None:
    """A call waits for ten minutes in one part, because its token may not read jobs. The job continues."""
    words = ("--url", f"http://localhost:{api.port}")
    server = await asyncio.to_thread(StdioServer, api, *words, DUCTILE_TOKEN=token_for("plugin:rw"))
    server.request(1, "tools/call", {"name": "run__patient__handle", "arguments": {"wait": "10m"}})
    job_id = await running_job(api, "patient")
    assert await asyncio.to_thread(server.close) == (0, "")
    assert api.get(f"/job/{job_id}")["status"] == "running"
    await cancel_job(api, job_id)


def test_messages_that_are_none_are_refused_on_standard_input(api: Api) -> None:
    """The next message is served as usual."""
    server = StdioServer(api)
    for nonsense in (b"{nonsense\n", b"[1, 2]\n", b"\n", b'"text"\n', b"\xff\xfe\n", b'{"jsonrpc": "1.0"}\n'):
        server.write(nonsense)
    for number, (method, params, code) in enumerate(
        [
            ("no/such", {}, -32601),
            ("tools/call", {"name": 7}, -32602),
            ("tools/call", {"name": "status", "arguments": "text"}, -32602),
            ("tools/list", {"cursor": "nothing"}, -32602),
            ("resources/read", {"uri": 3}, -32602),
            ("prompts/get", {"name": "nothing"}, -32602),
        ],
        1,
    ):
        assert server.ask(number, method, params)["error"]["code"] == code
    answer = server.ask(
        20, "tools/call", {"name": "run__echo__handle", "arguments": {"payload": {"a": "x" * 20_000_000}}}
    )
    assert answer["result"]["isError"]
    assert "job_id" not in answer["result"]["content"][0]["text"]
    assert server.ask(21, "ping", {})["result"] == {}
    assert server.close() == (0, "")


# ------------------------------------------------------------------------------------------- over HTTP


def message(method: str, params: object = None, number: object = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}


ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


def rpc_answer(content: bytes) -> dict[str, Any]:
    """Return the message in a body of JSON, or in the only event of a stream."""
    text = content.decode()
    data = (
        text
        if text.startswith("{")
        else next(line[6:] for line in text.splitlines() if line.startswith("data: "))
    )
    answer: dict[str, Any] = json.loads(data)
    return answer


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"[1]", b"7", b'"text"', b"null", b'{"jsonrpc": "1.0"}', b"\xff", b"[" * 100_000],
)
def test_a_body_that_is_no_message_is_refused(api: Api, body: bytes) -> None:
    """The response is 400 with an error of the protocol, and the log of the daemon has no fault."""
    response = api.ask("POST", "/mcp", body, headers=ACCEPT)
    assert response.status == 400
    assert rpc_answer(response.content)["error"]["code"] in (-32700, -32600, -32602)
    assert not faults(api)


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("no/such", {}, -32601),
        ("tools/call", {"name": 7}, -32602),
        ("tools/call", {"name": "status", "arguments": []}, -32602),
        ("tools/call", {}, -32602),
        ("tools/list", {"cursor": "nothing"}, -32602),
        ("tools/list", {"cursor": 7}, -32602),
        ("resources/list", {"cursor": "nothing"}, -32602),
        ("resources/templates/list", {"cursor": "nothing"}, -32602),
        ("prompts/list", {"cursor": "nothing"}, -32602),
        ("resources/read", {"uri": "ductile://nothing"}, -32602),
        ("prompts/get", {"name": "nothing"}, -32602),
    ],
)
def test_wrong_parameters_are_errors_of_the_protocol(
    api: Api, method: str, params: object, code: int
) -> None:
    response = api.ask("POST", "/mcp", message(method, params), headers=ACCEPT)
    assert rpc_answer(response.content)["error"]["code"] == code
    assert not faults(api)


@pytest.mark.parametrize(
    "arguments",
    [{"job_id": 7}, {"job_id": None}, {"job_id": ["a"]}, {"job_id": "x" * 500_000}, {"limit": -1}, {"": 1}],
)
def test_wrong_arguments_are_errors_of_the_tool(api: Api, arguments: dict[str, Any]) -> None:
    """The error has a code, and is short."""
    response = api.ask(
        "POST", "/mcp", message("tools/call", {"name": "job_show", "arguments": arguments}), headers=ACCEPT
    )
    result = rpc_answer(response.content)["result"]
    assert result["isError"]
    assert json.loads(result["content"][0]["text"])["error"]["code"] in ("refused", "usage", "not_found")
    assert len(response.content) < 2_000
    assert not faults(api)


def faults(api: Api) -> list[dict[str, Any]]:
    """Return the lines of the daemon's log that report a fault of its own."""
    return [line for line in api.daemon.lines if line["signal"] == "api.fault" or "Traceback" in str(line)]


def test_only_operations_are_listed_if_the_address_says_so(api: Api) -> None:
    """`run` runs the plugins that are not in the list. A value other than `operations` is refused."""

    def list_tools(path: str) -> dict[str, Any]:
        return rpc_answer(api.ask("POST", path, message("tools/list"), headers=ACCEPT).content)

    names = {tool["name"] for tool in list_tools("/mcp?tools=operations")["result"]["tools"]}
    assert {"run", "tool_find", "status"} <= names
    assert not {name for name in names if "__" in name}
    assert names < {tool["name"] for tool in list_tools("/mcp")["result"]["tools"]}
    assert list_tools("/mcp?tools=some")["error"]["code"] == -32602


async def test_only_operations_are_listed_if_the_command_says_so(api: Api) -> None:
    async with an_agent(api.workspace, "--config", "demo", "--only-operations") as agent:
        assert not {name for name in await agent.tools() if "__" in name}
        tools = (await agent.call("tool_find", query="echo handle"))["tools"]
        assert tools[0]["name"] == "run__echo__handle"
        assert "payload" in tools[0]["input_schema"]["properties"]
        assert (await agent.call("run", name="echo", command="handle"))["status"] == "succeeded"
        assert (await agent.call("run__echo__handle"))["status"] == "succeeded"


async def test_concurrent_sessions_get_their_own_answers(api: Api) -> None:
    async def session(number: int) -> None:
        mode = "legacy" if number % 2 else MODERN
        async with an_http_agent(api, mode=mode) as agent:
            for turn in range(3):
                job = await agent.call(
                    "run__echo__handle", payload={"message": f"{number}-{turn}"}, wait="2m"
                )
                details = await agent.call("job_show", job_id=job["job_id"])
                assert details["payload"] == {"message": f"{number}-{turn}"}

    await asyncio.gather(*map(session, range(8)))


async def test_a_client_that_goes_away_leaves_its_job_and_nothing_else(api: Api) -> None:
    """The connection is closed while a call waits."""
    body = json.dumps(message("tools/call", {"name": "run__patient__handle", "arguments": {"wait": "10m"}}))
    headers = {**ACCEPT, "Authorization": f"Bearer {token_for('*')}"}
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=PATIENCE)
    connection.request("POST", "/mcp", body, headers)
    job_id = await running_job(api, "patient")
    connection.close()
    assert api.get(f"/job/{job_id}")["status"] == "running"
    await cancel_job(api, job_id)
    assert not faults(api)


def assert_no_outcome(result: types.CallToolResult) -> None:
    """Assert that a call that the stop of a daemon ended claims no outcome, or is an error that names the
    job.
    """
    (content,) = result.content
    assert content.type == "text"
    answer = json.loads(content.text)
    if result.is_error:
        assert answer["error"]["details"]["job_id"]
        assert "do not start it a second time" in answer["error"]["hint"]
    else:
        assert (answer["ended"], "result" in answer) == (False, False)


@versions
async def test_a_daemon_that_stops_answers_calls_that_wait(tmp_path: Path, mode: str) -> None:
    """Over both transports the answer claims no outcome, and no traceback is logged."""
    with an_api(a_workspace_for_agents(tmp_path)) as api:
        async with over_stdio(api, mode) as local, over_http(api, mode) as remote:
            calls = []
            for agent in (local, remote):
                await agent.tools()
                request = agent.client.call_tool("run__patient__handle", {"wait": "10m"})
                calls.append(asyncio.create_task(request))
            await asyncio.to_thread(
                api.daemon.wait_until,
                lambda: sum(line["signal"] == "job.started" for line in api.daemon.lines) == 2,
            )
            assert await asyncio.to_thread(api.daemon.end) == 0
            for call in calls:
                assert_no_outcome(await call)
            assert (await local.refused("status"))["code"] == "daemon_not_running"
        assert not [line for line in api.daemon.whole_log() if "Traceback" in str(line)]
        assert not faults(api)


async def test_a_killed_daemon_is_an_error_that_names_the_job(tmp_path: Path) -> None:
    """The error names the job to wait for, so that the caller does not start it again."""
    with an_api(a_workspace_for_agents(tmp_path)) as api:
        progressed = asyncio.Event()

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            progressed.set()

        async with over_stdio(api, MODERN) as agent:
            call = asyncio.create_task(
                agent.client.call_tool("run__patient__handle", {"wait": "10m"}, progress_callback=on_progress)
            )
            job_id = await running_job(api, "patient")
            await asyncio.wait_for(progressed.wait(), PATIENCE)
            await asyncio.to_thread(api.daemon.end, signal.SIGKILL)
            result = await call
        assert result.is_error
        (content,) = result.content
        assert content.type == "text"
        error = json.loads(content.text)["error"]
        assert error["details"]["job_id"] == job_id
        assert "job_wait" in error["hint"]
