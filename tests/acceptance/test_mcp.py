"""An agent operates a real daemon through `ductile mcp serve`, with the client of the official SDK."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp.shared.exceptions import MCPError

from builders.daemons import a_daemon
from builders.http import Api, an_api, token_for
from builders.mcp import MODERN, a_workspace_for_agents, an_agent
from ductile.operations.tools.table import SHORT_ANSWER_CHARACTERS, TOOLS


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with an_api(a_workspace_for_agents(tmp_path_factory.mktemp("mcp"))) as api:
        yield api


async def test_operations_commands_and_pipelines_are_tools(api: Api) -> None:
    """Each row of the table, each command that can be called, and each pipeline is a tool."""
    async with an_agent(api.workspace) as agent:
        tools = await agent.tools()
        assert set(TOOLS) <= set(tools)
        assert {"run__echo__handle", "run__echo__poll", "start__chain"} <= set(tools)
        assert not any("health" in name or "init" in name for name in tools)
        assert tools["job_show"].annotations.read_only_hint
        assert tools["job_cancel"].annotations.destructive_hint
        assert tools["config_plan"].annotations.read_only_hint
        assert not tools["config_apply"].annotations.read_only_hint
        assert "plan" in tools["config_apply"].input_schema["required"]


async def test_a_plugin_and_a_pipeline_are_run(api: Api) -> None:
    """A call returns at the end of its job, which names the agent as its source."""
    async with an_agent(api.workspace) as agent:
        job = await agent.call("run__echo__handle", payload={"message": "hello"})
        assert (job["status"], job["ended"], job["result"]) == ("succeeded", True, "done")
        assert (await agent.call("job_show", job_id=job["job_id"]))["submitted_by"] == "mcp"
        for name, arguments in (("start__chain", {}), ("run", {"name": "chain"})):
            job = await agent.call(name, **arguments)
            assert (job["plugin"], job["command"], job["status"]) == ("pipeline", "chain", "succeeded")
        steps = (await agent.call("run_explain", job_id=job["job_id"]))["steps"]
        assert [step["outcome"] for step in steps] == ["ran"]


async def test_a_failure_is_explained_and_retried(api: Api) -> None:
    """A failed job is an answer, not an error of the call; a retry that succeeds keeps its id."""
    async with an_agent(api.workspace) as agent:
        failed = await agent.call("run__broken__handle")
        assert (failed["status"], failed["ended"]) == ("dead", True)
        assert "it is broken" in failed["error"]
        assert "no paper" in failed["stderr"]
        assert failed["next"] == [f"job_explain job_id={failed['job_id']}"]
        explanation = await agent.call("job_explain", job_id=failed["job_id"])
        assert "it is broken" in explanation["verdict"]
        (api.workspace.directory / "demo" / "plugins" / "broken" / "mended").touch()
        retried = await agent.call("job_retry", job_id=failed["job_id"])
        assert (retried["job_id"], retried["status"]) == (failed["job_id"], "succeeded")


async def test_a_call_that_takes_long_answers_with_its_job(api: Api) -> None:
    """The answer claims no outcome, and names the calls that wait for the job and that end it."""
    async with an_agent(api.workspace) as agent:
        started = await agent.call("run__patient__handle", wait="0s")
        assert started["ended"] is False
        assert started["status"] in ("queued", "running")
        assert "result" not in started
        job_id = started["job_id"]
        assert started["next"] == [f"job_wait job_id={job_id}", f"job_cancel job_id={job_id}"]
        await agent.call("job_cancel", job_id=job_id)
        ended = await agent.call("job_wait", job_id=job_id)
        assert (ended["ended"], ended["reason"]) == (True, "cancelled")


async def test_a_job_outlives_the_daemon_that_started_it(tmp_path: Path) -> None:
    """After kill -9 and a restart the same agent waits for the same id, and gets the result."""
    workspace = a_workspace_for_agents(tmp_path)
    assert workspace.ductile("config", "lock").status == 0
    async with an_agent(workspace) as agent:
        assert (await agent.refused("status"))["code"] == "daemon_not_running"
        with a_daemon(workspace) as daemon:
            job_id = (await agent.call("run__patient__handle", wait="0s"))["job_id"]
            daemon.wait_until_started(job_id)
            daemon.end(signal.SIGKILL)
        assert (await agent.refused("job_wait", job_id=job_id))["code"] == "daemon_not_running"
        (workspace.directory / "demo" / "plugins" / "patient" / "go").touch()
        with a_daemon(workspace):
            ended = await agent.call("job_wait", job_id=job_id, wait="60s")
    assert (ended["job_id"], ended["status"], ended["result"]) == (job_id, "succeeded", "went")


async def test_a_schedule_is_paused_and_resumed(api: Api) -> None:
    """The schedule shows its pause, and the explanation says why it does not run."""
    async with an_agent(api.workspace) as agent:
        await agent.call("schedule_pause", plugin="timed")
        (listed,) = (await agent.call("schedule_list", plugin="timed"))["schedules"]
        assert "paused_at" in listed
        assert "paused" in (await agent.call("schedule_explain", plugin="timed"))["verdict"]
        await agent.call("schedule_resume", plugin="timed")
        (listed,) = (await agent.call("schedule_list", plugin="timed"))["schedules"]
        assert "paused_at" not in listed


async def test_a_change_is_planned_and_applied_as_planned(tmp_path: Path) -> None:
    """A plan is applied exactly, or refused if the files have changed since."""
    workspace = a_workspace_for_agents(tmp_path)
    with an_api(workspace):
        async with an_agent(workspace) as agent:
            workspace.append("  second: {uses: echo}\n")
            plan = await agent.call("config_plan")
            assert plan["reload"]["added"] == ["second"]
            assert "run__second__handle" not in await agent.tools()
            assert (await agent.refused("config_apply"))["details"]["field"] == "plan"
            workspace.append("  third: {uses: echo}\n")
            assert (await agent.refused("config_apply", plan=plan["plan"]))["code"] == "conflict"
            plan = await agent.call("config_plan")
            applied = await agent.call("config_apply", plan=plan["plan"])
            assert (applied["sealed"], applied["reload"]["added"]) == (True, ["second", "third"])
            assert (await agent.call("run__second__handle"))["status"] == "succeeded"


async def test_mistakes_are_errors_with_a_hint(api: Api) -> None:
    """The error of a call names the mistake and a remedy."""
    async with an_agent(api.workspace) as agent:
        assert "job_show" in (await agent.refused("job_shwo"))["hint"]
        assert "limit" in (await agent.refused("job_list", limti=3))["hint"]
        assert (await agent.refused("job_show"))["message"] == "job_id is missing"
        assert (await agent.refused("job_show", job_id="ffffffff"))["code"] == "not_found"
        assert (await agent.refused("run__echo__handle", wait="1d"))["details"]["field"] == "wait"
        assert (await agent.refused("run__echo__handle", payload=3))["details"]["field"] == "payload"


async def test_explanations_and_the_digest_are_short(api: Api) -> None:
    """An answer has about 1,500 tokens at most, for any payload, and names the parts that it omits."""
    async with an_agent(api.workspace) as agent:
        payload = {f"key{number}": "text " * 100 for number in range(200)}
        failed = await agent.call("run__broken__poll", payload=payload)
        for name, arguments in (("job_explain", {"job_id": failed["job_id"]}), ("last_night", {})):
            result = await agent.client.call_tool(name, arguments)
            (content,) = result.content
            assert content.type == "text"
            assert len(content.text) <= SHORT_ANSWER_CHARACTERS
        explanation = await agent.call("job_explain", job_id=failed["job_id"])
        assert any("payload" in part for part in explanation["left_out"])


async def test_resources_and_prompts(api: Api) -> None:
    """Every listed resource can be read; a prompt names the tools to call."""
    async with an_agent(api.workspace) as agent:
        job = await agent.call("run__echo__handle")
        for resource in (await agent.client.list_resources()).resources:
            if resource.mime_type == "application/json":
                await agent.read(resource.uri)
        templates = {
            template.uri_template
            for template in (await agent.client.list_resource_templates()).resource_templates
        }
        assert "ductile://job/{job_id}" in templates
        assert (await agent.read(f"ductile://job/{job['job_id']}"))["job_id"] == job["job_id"]
        assert (await agent.read("ductile://schedule/timed/nightly"))["id"] == "nightly"
        with pytest.raises(MCPError, match="no resource"):
            await agent.read("ductile://nothing")
        tools = await agent.tools()
        for prompt in (await agent.client.list_prompts()).prompts:
            arguments = {argument.name: "01234567" for argument in prompt.arguments or ()}
            (message,) = (await agent.client.get_prompt(prompt.name, arguments)).messages
            assert message.content.type == "text"
            assert "{" not in message.content.text
            assert any(name in message.content.text for name in tools)


async def test_pages_of_the_documentation_are_resources(api: Api) -> None:
    """Each page is listed with a description, and can be read whole or by section."""
    async with an_agent(api.workspace) as agent:
        resources = {resource.uri: resource for resource in (await agent.client.list_resources()).resources}
        page = resources["ductile://docs/how-to/diagnose"]
        assert (page.title, page.mime_type) == ("Find out what is wrong", "text/markdown")
        assert page.description
        assert (await agent.text(page.uri)).startswith("# Find out what is wrong\n")
        assert "#SECTION" in (resources["ductile://docs/reference/cli"].description or "")
        section = await agent.text("ductile://docs/reference/cli#exit-status")
        assert section.startswith("## Exit status\n")
        with pytest.raises(MCPError, match="how-to/diagnose"):
            await agent.text("ductile://docs/how-to/diagnos")


async def test_from_elsewhere_the_token_decides(api: Api) -> None:
    """With --url the tools are those of the token, and an unlisted tool cannot be called."""
    variables = {"DUCTILE_TOKEN": token_for("jobs:ro")}
    async with an_agent(
        api.workspace, "--url", f"http://localhost:{api.port}", variables=variables
    ) as reader:
        tools = await reader.tools()
        assert "job_list" in tools
        assert not {"job_retry", "run", "run__echo__handle", "start__chain", "config_apply"} & set(tools)
        assert not {tool for tool in tools.values() if not tool.annotations.read_only_hint}
        await reader.call("job_list")
        for name in ("job_retry", "job_cancel"):
            assert (await reader.refused(name, job_id="last"))["code"] == "denied"
        for name in ("run__echo__handle", "start__chain", "config_plan"):
            assert (await reader.refused(name))["code"] == "denied"
        assert "ductile://config" not in [
            resource.uri for resource in (await reader.client.list_resources()).resources
        ]
    variables = {"DUCTILE_TOKEN": token_for("echo:rw")}
    async with an_agent(
        api.workspace, "--url", f"http://localhost:{api.port}", variables=variables
    ) as runner:
        tools = await runner.tools()
        assert {"run__echo__handle", "run", "plugin_show"} <= set(tools)
        assert "run__broken__handle" not in tools
        assert (await runner.call("run", name="echo"))["status"] == "succeeded"
        assert (await runner.refused("run", name="broken"))["code"] == "denied"
        assert (await runner.refused("plugin_show", plugin="broken"))["code"] == "denied"


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_older_clients_are_served(api: Api, mode: str) -> None:
    """Clients that begin with the handshake of earlier versions get the same answers."""
    async with an_agent(api.workspace, mode=mode) as agent:
        assert (await agent.call("run__echo__handle"))["status"] == "succeeded"
        assert (agent.client.protocol_version < "2026") == (mode == "legacy")
