"""Jobs as durable tasks of the Model Context Protocol, over both transports, with the client of the SDK."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from mcp.shared.exceptions import MCPError

from builders.http import Api, an_api, token_for
from builders.mcp import (
    MODERN,
    Agent,
    TasksExtension,
    a_workspace_for_agents,
    an_agent,
    an_http_agent,
    ask_task,
    end_of_task,
    get_task,
    start_task,
)
from ductile.mcp.tasks import EXTENSION

Connect: TypeAlias = Callable[[Api], AbstractAsyncContextManager[Agent]]


@asynccontextmanager
async def over_stdio(api: Api) -> AsyncIterator[Agent]:
    async with an_agent(api.workspace, mode=MODERN, extensions=(TasksExtension(),)) as agent:
        yield agent


@asynccontextmanager
async def over_http(api: Api) -> AsyncIterator[Agent]:
    async with an_http_agent(api, mode=MODERN, extensions=(TasksExtension(),)) as agent:
        yield agent


both_transports = pytest.mark.parametrize("connect", [over_stdio, over_http])


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with an_api(a_workspace_for_agents(tmp_path_factory.mktemp("mcp"))) as api:
        yield api


def let_patient_end(api: Api) -> Path:
    """Let the plugin `patient` end, and return the file that does it."""
    go_file = api.workspace.directory / "demo" / "plugins" / "patient" / "go"
    go_file.touch()
    return go_file


@both_transports
async def test_a_long_call_becomes_a_task_that_survives_a_reconnect(api: Api, connect: Connect) -> None:
    """The id of the task is that of the job, and another connection gets its result."""
    async with connect(api) as agent:
        started = await start_task(agent, "run__patient__handle", wait="0s")
        assert started.status == "working"
        job_id = started.task_id
    go_file = await asyncio.to_thread(let_patient_end, api)
    async with connect(api) as agent:
        ended = await end_of_task(agent, job_id)
        go_file.unlink()
        assert (ended.task_id, ended.status) == (job_id, "completed")
        assert ended.result is not None
        answer = ended.result.structured_content
        assert answer is not None
        assert (answer["job_id"], answer["status"], answer["result"]) == (job_id, "succeeded", "went")
        assert answer == await agent.call("job_wait", job_id=job_id)


async def test_a_short_call_is_answered_at_once(api: Api) -> None:
    """A call that takes no longer than a moment creates no task, nor does a tool that waits for no job."""
    async with over_http(api) as agent:
        assert (await agent.call("run__echo__handle"))["status"] == "succeeded"
        assert "jobs" in await agent.call("job_list")


@both_transports
async def test_a_task_is_cancelled(api: Api, connect: Connect) -> None:
    """The job is cancelled too. A second cancellation and an update without a question change nothing."""
    async with connect(api) as agent:
        task_id = (await start_task(agent, "run__patient__handle", wait="0s")).task_id
        await ask_task(agent, "tasks/update", task_id, input_responses={})
        await ask_task(agent, "tasks/cancel", task_id)
        ended = await end_of_task(agent, task_id)
        assert (ended.status, ended.result) == ("cancelled", None)
        await ask_task(agent, "tasks/cancel", task_id)
        assert (await agent.call("job_wait", job_id=task_id))["reason"] == "cancelled"


async def test_a_failed_job_is_a_completed_task_whose_result_says_so(api: Api) -> None:
    """The protocol keeps `failed` for errors of the protocol."""
    async with over_http(api) as agent:
        failed = await agent.call("run__broken__handle")
        ended = await get_task(agent, failed["job_id"])
        assert ended.status == "completed"
        assert ended.result is not None
        assert ended.result.structured_content == failed


async def test_progress_is_that_of_the_steps(api: Api) -> None:
    def count_started() -> int:
        lines = api.daemon.lines
        return sum(line["signal"] == "job.started" and line["plugin"] == "patient" for line in lines)

    async with over_http(api) as agent:
        count_before = count_started()
        task_id = (await start_task(agent, "start__slow", wait="0s")).task_id
        await asyncio.to_thread(api.daemon.wait_until, lambda: count_started() > count_before)
        message = (await get_task(agent, task_id)).status_message
        assert message == "1 of 2 steps have ended, running: second"
        await ask_task(agent, "tasks/cancel", task_id)
        assert (await end_of_task(agent, task_id)).status == "cancelled"


async def test_without_the_extension_there_are_no_tasks(api: Api) -> None:
    """The call returns when the time is up, with the job and the next call, and claims no outcome."""
    async with an_http_agent(api, mode=MODERN) as agent:
        started = await agent.call("run__patient__handle", wait="0s")
        assert started["ended"] is False
        with pytest.raises(MCPError, match="has to declare"):
            await get_task(agent, started["job_id"])
        await agent.call("job_cancel", job_id=started["job_id"])


async def test_tasks_of_others_and_of_nobody_are_refused(api: Api) -> None:
    """A task is read with the rights of its job, and by its whole id."""
    async with an_http_agent(api) as agent:
        job_id = (await agent.call("run__echo__handle"))["job_id"]
    async with over_http(api) as agent:
        for unknown in ("last", job_id[:-1], "nothing"):
            with pytest.raises(MCPError):
                await get_task(agent, unknown)
    async with an_http_agent(
        api, token_for("events:ro"), mode=MODERN, extensions=(TasksExtension(),)
    ) as stranger:
        with pytest.raises(MCPError, match="may not"):
            await get_task(stranger, job_id)


@pytest.mark.parametrize(("header", "status"), [("", 400), ("another", 400), (None, 200)])
def test_the_header_of_a_task_names_the_same_task(api: Api, header: str | None, status: int) -> None:
    """A proxy decides by the header, and the daemon by the body: they must not differ."""
    task_id = api.post("/plugin/echo/handle")["job_id"]
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {EXTENSION: {}}},
    }
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tasks/get",
        "params": {"taskId": task_id, "_meta": meta},
    }
    headers = {
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": "tasks/get",
        "Mcp-Name": task_id if header is None else header,
    }
    response = api.ask("POST", "/mcp", message, headers=headers)
    assert response.status == status
    assert (response.body["error"]["code"] if header is not None else response.body["result"]["taskId"]) == (
        -32020 if header is not None else task_id
    )


async def test_a_task_outlives_the_daemon(tmp_path: Path) -> None:
    """After kill -9 and a restart the same id answers with the true outcome, over both transports."""
    workspace = a_workspace_for_agents(tmp_path)
    with an_api(workspace) as api:
        async with over_http(api) as agent:
            task_id = (await start_task(agent, "run__patient__handle", wait="0s")).task_id
            await asyncio.to_thread(api.daemon.wait_until_started, task_id)
            await asyncio.to_thread(api.daemon.end, signal.SIGKILL)
    async with over_stdio(api) as agent:
        with pytest.raises(MCPError, match="no daemon is running"):
            await get_task(agent, task_id)
        with an_api(workspace) as api:
            assert (await get_task(agent, task_id)).status == "working"
            await asyncio.to_thread(let_patient_end, api)
            ended = await end_of_task(agent, task_id)
            async with over_http(api) as http_agent:
                task = await get_task(http_agent, task_id)
                # How often to ask depends on the age of the job, which grows meanwhile.
                assert task.model_copy(update={"poll_interval_ms": ended.poll_interval_ms}) == ended
    assert ended.status == "completed"
    assert ended.result is not None
    assert ended.result.structured_content is not None
    assert ended.result.structured_content["result"] == "went"
