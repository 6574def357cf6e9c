"""Calls that wait for a job, of clients without tasks: progress, cancellation, and the end of either side."""

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
    with an_api(a_workspace_for_agents(tmp_path_factory.mktemp("mcp"))) as running:
        yield running


def go_file(api: Api) -> Path:
    """While it is there, the plugin `patient` ends."""
    return api.workspace.directory / "demo" / "plugins" / "patient" / "go"


async def job_of(api: Api, plugin: str) -> str:
    """The id of the newest job of a plugin, when it runs."""

    def running() -> bool:
        jobs = api.get(f"/jobs?plugin={plugin}&limit=1")["jobs"]
        return bool(jobs) and jobs[0]["status"] == "running"

    await asyncio.to_thread(api.daemon.wait_until, running)
    job_id: str = api.get(f"/jobs?plugin={plugin}&limit=1")["jobs"][0]["job_id"]
    return job_id


async def end(api: Api, job_id: str) -> None:
    api.post(f"/job/{job_id}/cancel", status=200)
    await asyncio.to_thread(api.ended, job_id)


# ------------------------------------------------------------------------------------------- progress


@transports
@versions
async def test_progress_comes_from_the_steps(api: Api, connect: Connect, mode: str) -> None:
    """It grows with each message, and the answer comes when the run has ended."""
    seen: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))
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
    assert (1.5, 2.0, "1 of 2 steps have ended, running: second") in seen
    assert [each[0] for each in seen] == sorted({each[0] for each in seen})


async def test_a_job_without_steps_reports_its_attempts(api: Api) -> None:
    seen: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))
        if message == "it is running":
            go_file(api).touch()

    async with over_http(api, MODERN) as agent:
        await agent.client.call_tool("run__patient__handle", {"wait": "2m"}, progress_callback=on_progress)
        go_file(api).unlink()
    assert {total for _, total, _ in seen} == {None}
    assert seen[-1][2] == "it is running"


async def test_without_the_right_to_read_jobs_the_call_waits_without_progress(api: Api) -> None:
    """It could not go on waiting: the whole time is one call."""
    seen: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async with an_http_agent(api, token_for("plugin:rw")) as agent:
        waiting = asyncio.create_task(
            agent.client.call_tool("run__patient__handle", {"wait": "2m"}, progress_callback=on_progress)
        )
        await job_of(api, "patient")
        go_file(api).touch()
        result = await waiting
        go_file(api).unlink()
    assert result.structured_content is not None
    assert (result.structured_content["status"], seen) == ("succeeded", [])


# ------------------------------------------------------------------------------------------- the client goes


@transports
@versions
async def test_a_cancelled_call_ends_and_its_job_goes_on(api: Api, connect: Connect, mode: str) -> None:
    """The same connection serves the next call, which gets the outcome of the job."""
    async with connect(api, mode) as agent:
        await agent.tools()
        waiting = asyncio.create_task(agent.client.call_tool("run__patient__handle", {"wait": "10m"}))
        job_id = await job_of(api, "patient")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await agent.call("job_wait", job_id=job_id, wait="0s"))["ended"] is False
        go_file(api).touch()
        ended = await agent.call("job_wait", job_id=job_id, wait="2m")
        go_file(api).unlink()
    assert (ended["ended"], ended["status"]) == (True, "succeeded")


class Pipe:
    """`ductile mcp serve`, spoken to in raw lines."""

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
        """The answer to a request: the next line."""
        self.request(number, method, params)
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert answer["id"] == number, answer
        return answer

    def close(self) -> tuple[int, str]:
        """Close standard input. Returns the exit status, and what was printed on stderr."""
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
    """Although a call waits for ten minutes, in one part: its token may not read jobs. The job goes on."""
    words = ("--url", f"http://localhost:{api.port}")
    pipe = await asyncio.to_thread(Pipe, api, *words, DUCTILE_TOKEN=token_for("plugin:rw"))
    pipe.request(1, "tools/call", {"name": "run__patient__handle", "arguments": {"wait": "10m"}})
    job_id = await job_of(api, "patient")
    assert await asyncio.to_thread(pipe.close) == (0, "")
    assert api.get(f"/job/{job_id}")["status"] == "running"
    await end(api, job_id)


def test_messages_that_are_none_are_refused_on_standard_input(api: Api) -> None:
    """The next message is served as if nothing had been."""
    pipe = Pipe(api)
    for nonsense in (b"{nonsense\n", b"[1, 2]\n", b"\n", b'"text"\n', b"\xff\xfe\n", b'{"jsonrpc": "1.0"}\n'):
        pipe.write(nonsense)
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
        assert pipe.ask(number, method, params)["error"]["code"] == code
    huge = pipe.ask(
        20, "tools/call", {"name": "run__echo__handle", "arguments": {"payload": {"a": "x" * 20_000_000}}}
    )
    assert huge["result"]["isError"]
    assert "job_id" not in huge["result"]["content"][0]["text"]
    assert pipe.ask(21, "ping", {})["result"] == {}
    assert pipe.close() == (0, "")


# ------------------------------------------------------------------------------------------- over HTTP


def message(method: str, params: object = None, number: object = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}


ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


def rpc_answer(content: bytes) -> dict[str, Any]:
    """The message in a body of JSON, or in the only event of a stream."""
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
    """400 with an error of the protocol, and no error in the log of the daemon."""
    said = api.ask("POST", "/mcp", body, headers=ACCEPT)
    assert said.status == 400
    assert rpc_answer(said.content)["error"]["code"] in (-32700, -32600, -32602)
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
    said = api.ask("POST", "/mcp", message(method, params), headers=ACCEPT)
    assert rpc_answer(said.content)["error"]["code"] == code
    assert not faults(api)


@pytest.mark.parametrize(
    "arguments",
    [{"job_id": 7}, {"job_id": None}, {"job_id": ["a"]}, {"job_id": "x" * 500_000}, {"limit": -1}, {"": 1}],
)
def test_wrong_arguments_are_errors_of_the_tool(api: Api, arguments: dict[str, Any]) -> None:
    """With a code and a field, and no longer than needed."""
    said = api.ask(
        "POST", "/mcp", message("tools/call", {"name": "job_show", "arguments": arguments}), headers=ACCEPT
    )
    result = rpc_answer(said.content)["result"]
    assert result["isError"]
    assert json.loads(result["content"][0]["text"])["error"]["code"] in ("refused", "usage", "not_found")
    assert len(said.content) < 2_000
    assert not faults(api)


def faults(api: Api) -> list[dict[str, Any]]:
    """What the log of the daemon has of faults of its own."""
    return [line for line in api.daemon.lines if line["signal"] == "api.fault" or "Traceback" in str(line)]


def test_only_operations_are_listed_if_the_address_says_so(api: Api) -> None:
    """`run` runs what is not in the list. Another word than `operations` is refused."""

    def listed(path: str) -> dict[str, Any]:
        return rpc_answer(api.ask("POST", path, message("tools/list"), headers=ACCEPT).content)

    names = {each["name"] for each in listed("/mcp?tools=operations")["result"]["tools"]}
    assert {"run", "tool_find", "status"} <= names
    assert not {each for each in names if "__" in each}
    assert names < {each["name"] for each in listed("/mcp")["result"]["tools"]}
    assert listed("/mcp?tools=some")["error"]["code"] == -32602


async def test_only_operations_are_listed_if_the_command_says_so(api: Api) -> None:
    async with an_agent(api.workspace, "--config", "demo", "--only-operations") as agent:
        assert not {each for each in await agent.tools() if "__" in each}
        found = (await agent.call("tool_find", query="echo handle"))["tools"]
        assert found[0]["name"] == "run__echo__handle"
        assert "payload" in found[0]["input_schema"]["properties"]
        assert (await agent.call("run", name="echo", command="handle"))["status"] == "succeeded"
        assert (await agent.call("run__echo__handle"))["status"] == "succeeded"


async def test_concurrent_sessions_get_their_own_answers(api: Api) -> None:
    async def session(number: int) -> None:
        mode = "legacy" if number % 2 else MODERN
        async with an_http_agent(api, mode=mode) as agent:
            for turn in range(3):
                ran = await agent.call(
                    "run__echo__handle", payload={"message": f"{number}-{turn}"}, wait="2m"
                )
                shown = await agent.call("job_show", job_id=ran["job_id"])
                assert shown["payload"] == {"message": f"{number}-{turn}"}

    await asyncio.gather(*map(session, range(8)))


async def test_a_client_that_goes_away_leaves_its_job_and_nothing_else(api: Api) -> None:
    """The connection is closed in the middle of a call, and of its answer."""
    body = json.dumps(message("tools/call", {"name": "run__patient__handle", "arguments": {"wait": "10m"}}))
    headers = {**ACCEPT, "Authorization": f"Bearer {token_for('*')}"}
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=PATIENCE)
    connection.request("POST", "/mcp", body, headers)
    job_id = await job_of(api, "patient")
    connection.close()
    assert api.get(f"/job/{job_id}")["status"] == "running"
    await end(api, job_id)
    assert not faults(api)


def answered(result: types.CallToolResult) -> None:
    """The answer of a call when the daemon stops: as after the time is up, or an error between two parts."""
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
    """Over both transports: the answer names the job and claims no outcome, and no traceback is logged."""
    with an_api(a_workspace_for_agents(tmp_path)) as api:
        async with over_stdio(api, mode) as local, over_http(api, mode) as remote:
            calls = []
            for agent in (local, remote):
                await agent.tools()
                call = agent.client.call_tool("run__patient__handle", {"wait": "10m"})
                calls.append(asyncio.create_task(call))
            await asyncio.to_thread(
                api.daemon.wait_until,
                lambda: sum(line["signal"] == "job.started" for line in api.daemon.lines) == 2,
            )
            assert await asyncio.to_thread(api.daemon.end) == 0
            for each in calls:
                answered(await each)
            assert (await local.refused("status"))["code"] == "daemon_not_running"
        assert not [line for line in api.daemon.whole_log() if "Traceback" in str(line)]
        assert not faults(api)


async def test_a_killed_daemon_is_an_error_that_names_the_job(tmp_path: Path) -> None:
    """The caller learns what to ask for, and that the job must not be started again."""
    with an_api(a_workspace_for_agents(tmp_path)) as api:
        seen = asyncio.Event()

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            seen.set()

        async with over_stdio(api, MODERN) as agent:
            call = asyncio.create_task(
                agent.client.call_tool("run__patient__handle", {"wait": "10m"}, progress_callback=on_progress)
            )
            job_id = await job_of(api, "patient")
            await asyncio.wait_for(seen.wait(), PATIENCE)
            await asyncio.to_thread(api.daemon.end, signal.SIGKILL)
            result = await call
        assert result.is_error
        (content,) = result.content
        assert content.type == "text"
        error = json.loads(content.text)["error"]
        assert error["details"]["job_id"] == job_id
        assert "job_wait" in error["hint"]
