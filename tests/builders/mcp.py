"""The client of the SDK for the Model Context Protocol, as agents use it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import mcp_types as types
from mcp.client.client import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from builders.daemons import BROKEN, PATIENCE, Workspace
from builders.http import Api, an_api_workspace, token_for
from builders.terminal import DUCTILE
from ductile.mcp.tasks import EXTENSION

#: The newest version of the protocol. On a busy machine, a client that negotiates it may get an older one.
MODERN = "2026-07-28"
#: Waits until there is a file `go` beside it.
PATIENT = (
    "#!/bin/sh\ncat >/dev/null\n"
    'until [ -e "$(dirname "$0")/go" ]; do sleep 0.05; done\n'
    'echo \'{"status": "ok", "result": "went"}\'\n'
)
PLUGINS = """\
  broken: {retry: {max_attempts: 1}}
  patient: {retry: {max_attempts: 5, backoff_base: 1ms}}
  timed:
    uses: echo
    schedules: [{id: nightly, cron: "0 3 * * *"}]
"""
PIPELINES = """\
pipelines:
  - {name: chain, on: some.thing, steps: [{id: one, uses: echo}]}
  - {name: slow, on: slow.thing, steps: [{id: first, uses: echo}, {id: second, uses: patient}]}
"""


def a_workspace_for_agents(directory: Path) -> Workspace:
    workspace = an_api_workspace(directory, PLUGINS, more=PIPELINES)
    workspace.plugin("broken", BROKEN)
    workspace.plugin("patient", PATIENT)
    return workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    client: Client

    async def tools(self) -> dict[str, Any]:
        """Return the tools of all pages."""
        tools: dict[str, Any] = {}
        cursor = None
        while True:
            page = await self.client.list_tools(cursor=cursor)
            assert not tools.keys() & {tool.name for tool in page.tools}
            tools |= {tool.name: tool for tool in page.tools}
            if (cursor := page.next_cursor) is None:
                return tools

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the structured content, which the text has to repeat; also that of a failed job."""
        result = await self.client.call_tool(tool, arguments, read_timeout_seconds=PATIENCE)
        assert not result.is_error or result.structured_content, result
        assert result.structured_content is not None
        response: dict[str, Any] = result.structured_content
        assert [json.loads(content.text) for content in result.content if content.type == "text"] == [
            response
        ]
        return response

    async def refused(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the error of a call that has to fail."""
        result = await self.client.call_tool(tool, arguments, read_timeout_seconds=PATIENCE)
        assert result.is_error, result
        (content,) = result.content
        assert content.type == "text"
        error: dict[str, Any] = json.loads(content.text)["error"]
        return error

    async def text(self, uri: str) -> str:
        (content,) = (await self.client.read_resource(uri)).contents
        assert hasattr(content, "text")
        text: str = content.text
        return text

    async def read(self, uri: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(await self.text(uri))
        return document


class StartedTask(types.Result):
    """The response to a call whose job takes longer."""

    result_type: Literal["task"]
    task_id: str
    status: str
    status_message: str
    created_at: str
    last_updated_at: str
    ttl_ms: int
    poll_interval_ms: int


class Task(StartedTask):
    result_type: Literal["complete"]  # type: ignore[assignment]  # of the response to tasks/get
    result: types.CallToolResult | None = None


class _TaskParams(types.RequestParams):
    task_id: str
    input_responses: dict[str, Any] | None = None


class _TaskRequest(types.Request[_TaskParams, str]):
    name_param = "taskId"


def _task_request(method: str, task_id: str, **more: Any) -> _TaskRequest:
    return _TaskRequest(method=method, params=_TaskParams(task_id=task_id, **more))


async def ask_task(agent: Agent, method: str, task_id: str, **more: Any) -> None:
    """Send `tasks/cancel` or `tasks/update`, and wait for the acknowledgement."""
    await agent.client.session.send_request(_task_request(method, task_id, **more), types.EmptyResult)


async def get_task(agent: Agent, task_id: str) -> Task:
    return await agent.client.session.send_request(_task_request("tasks/get", task_id), Task)


async def end_of_task(agent: Agent, task_id: str) -> Task:
    """Poll the task at its interval until it has ended."""
    async with asyncio.timeout(PATIENCE):
        while True:
            task = await get_task(agent, task_id)
            if task.status != "working":
                return task
            await asyncio.sleep(task.poll_interval_ms / 1000)


async def start_task(agent: Agent, tool: str, **arguments: Any) -> StartedTask:
    """Call a tool, and return the task that it started."""
    result = await agent.client.session.call_tool(tool, arguments, allow_claimed=True)
    assert isinstance(result, StartedTask), result
    return result


class TasksExtension(ClientExtension):
    """Makes the client declare the Tasks extension."""

    identifier = EXTENSION

    def claims(self) -> tuple[ResultClaim[StartedTask]]:
        async def resolve(_task: StartedTask, _context: ClaimContext) -> types.CallToolResult:
            raise AssertionError("the test asks for the task itself")

        return (ResultClaim(result_type="task", model=StartedTask, resolve=resolve),)


@asynccontextmanager
async def an_agent(
    workspace: Workspace,
    *words: str,
    variables: Mapping[str, str] | None = None,
    mode: str = "auto",
    extensions: tuple[ClientExtension, ...] = (),
) -> AsyncIterator[Agent]:
    """Connect to `ductile mcp serve`, started in the directory of the workspace."""
    server = StdioServerParameters(
        command=str(DUCTILE),
        args=["mcp", "serve", *(words or ("--config", "demo"))],
        cwd=workspace.directory,
        env={"PATH": os.environ["PATH"], "HOME": str(workspace.directory / "home"), **(variables or {})},
    )
    async with Client(stdio_client(server), mode=mode, extensions=extensions) as client:
        yield Agent(client=client)


@asynccontextmanager
async def an_http_agent(
    api: Api,
    token: str = token_for("*"),
    *,
    mode: str = "auto",
    extensions: tuple[ClientExtension, ...] = (),
) -> AsyncIterator[Agent]:
    """Connect to `/mcp` of the API."""
    headers = {"Authorization": f"Bearer {token}"}
    async with create_mcp_http_client(headers=headers) as http_client:
        transport = streamable_http_client(f"http://127.0.0.1:{api.port}/mcp", http_client=http_client)
        async with Client(transport, mode=mode, extensions=extensions) as client:
            yield Agent(client=client)
