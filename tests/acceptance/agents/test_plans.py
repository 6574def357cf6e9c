"""Every change that an agent makes to the configuration is a plan first, and exactly this plan is applied."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from builders.http import SCOPES, Api, an_api, an_api_workspace, token_for
from builders.mcp import an_agent
from ductile.operations.tools.schemas import tool_fields, waits_for_job
from ductile.operations.tools.table import TOOLS, operation_of

PLUGINS = """\
  # When the meter is read.
  timed:
    uses: echo
    schedules:
      - {id: nightly, cron: "0 3 * * *"}
      - {id: again, cron: "0 3 * * *"}
"""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with an_api(an_api_workspace(tmp_path_factory.mktemp("plans"), PLUGINS)) as api:
        yield api


#: Values for fields that are required. None of them changes anything but by running `echo`.
SAMPLES = {
    "job_id": "01a1e212-0000-7000-8000-000000000000",
    "delivery_id": "01a1e212-0000-7000-8000-000000000000",
    "plugin": "echo",
    "name": "echo",
    "pipeline": "nothing",
    "schedule": "nothing",
    "step": "nothing",
    "type": "nothing.listens",
    "query": "echo",
    "plan": "0000000000000000",
}
#: The scopes that differ in their rights.
TOKENS = tuple(scope for scope in SCOPES if not scope.startswith("read:"))


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_needs_the_scope_of_its_operation(api: Api, tool: str) -> None:
    """Every token may do the same over HTTP and through the tool. The call of an unlisted tool is denied."""
    row = TOOLS[tool]
    operation = operation_of(row)
    route = operation.http
    assert route is not None
    fields = [name for name, field in tool_fields(row).items() if field.required or name in row.required]
    samples = {name: SAMPLES[name] for name in fields}
    path = route.path.format_map({**SAMPLES, **samples})
    parameters = {name: value for name, value in samples.items() if f"{{{name}}}" not in route.path}
    for scope in TOKENS:
        token = token_for(scope)
        if route.method == "GET":
            http_response = api.ask("GET", f"{path}?{urlencode(parameters)}", token=token)
        else:
            http_response = api.ask(route.method, path, {**parameters, **row.fixed}, token=token)
        arguments = {**samples, "wait": "0s"} if waits_for_job(row) else samples
        tool_response = api.ask("POST", f"/tools/{tool}", {"arguments": arguments}, token=token)
        assert (tool_response.status == 403) == (http_response.status == 403), (
            scope,
            tool_response,
            http_response,
        )
        listed = {entry["name"] for entry in api.get("/tools", token=token)["tools"]}
        assert tool in listed or tool_response.status == 403


async def test_keys_are_set_removed_and_brought_back(api: Api) -> None:
    """A plan writes nothing. When applied it does what it showed, and the history names its author; a
    rollback undoes it.
    """
    before = api.workspace.config.read_text()
    async with an_agent(api.workspace) as agent:
        pipeline = {"name": "wired", "steps": [{"id": "one", "uses": "echo"}]}
        plan = await agent.call(
            "config_plan",
            set={"plugins.timed.timeout": "5s", "pipelines[+]": pipeline},
            unset=["plugins.timed.schedules[1]"],
        )
        assert api.workspace.config.read_text() == before
        assert plan["reload"]["pipelines"]["added"] == ["wired"]
        assert [(schedule["id"], schedule["change"]) for schedule in plan["reload"]["schedules"]] == [
            ("again", "removed")
        ]
        (file,) = plan["files"]
        assert any("plugins.timed.timeout" in line for line in file["differences"])
        applied = await agent.call("config_apply", plan=plan["plan"])
        assert (applied["plan"], applied["sealed"]) == (plan["plan"], True)
        assert "# When the meter is read." in api.workspace.config.read_text()
        assert (await agent.call("start__wired"))["status"] == "succeeded"
        newest = api.workspace.json("config", "history")["history"][0]
        assert (newest["command"], newest["author"], newest["in_force"]) == ("apply", "mcp", True)
        ledger = [row["data"] for row in api.get("/ledger")["events"] if row["kind"] == "config.loaded"]
        assert ("mcp", plan["plan"]) in [(entry.get("author"), entry.get("plan")) for entry in ledger]
        rollback = await agent.call("config_plan", rollback_to="previous")
        assert rollback["reload"]["pipelines"]["removed"] == ["wired"]
        await agent.call("config_apply", plan=rollback["plan"])
    assert api.workspace.config.read_text() == before
    newest = api.workspace.json("config", "history")["history"][0]
    assert (newest["command"], newest["author"]) == ("rollback", "mcp")


async def test_a_plan_is_refused_after_another_change(api: Api) -> None:
    """If a file has changed since, nothing is written, and the error names the next step."""
    before = api.workspace.config.read_text()
    async with an_agent(api.workspace) as agent:
        plan = await agent.call("config_plan", set={"plugins.timed.parallelism": 2})
        api.workspace.append("  other: {uses: echo}\n")
        changed = api.workspace.config.read_text()
        error = await agent.refused("config_apply", plan=plan["plan"])
        assert error["code"] == "conflict"
        assert "config_plan" in error["hint"]
        assert api.workspace.config.read_text() == changed
        undo = await agent.call("config_plan", rollback_to="sealed")
        await agent.call("config_apply", plan=undo["plan"])
        assert api.workspace.config.read_text() == before
        assert (await agent.refused("config_apply", plan="0000000000000000"))["code"] == "conflict"


async def test_an_impossible_change_is_an_error_with_its_place(api: Api) -> None:
    """The error has the problem, its key and a hint; no plan is kept."""
    async with an_agent(api.workspace) as agent:
        error = await agent.refused("config_plan", set={"plugins.timed.timeot": "5s"})
        (problem,) = error["details"]["problems"]
        assert problem["key"] == "plugins.timed.timeot"
        assert "timeout" in problem["hint"]
        assert (await agent.refused("config_plan", unset=["plugins.nothing"]))["code"] == "not_found"
        assert (await agent.refused("config_plan", unset="plugins.timed"))["details"]["field"] == "unset"
        assert (await agent.refused("config_plan", rollback_to="ffffffff"))["code"] == "not_found"


async def test_a_token_is_narrowed(api: Api) -> None:
    """One token is in the configuration, and one was made by the CLI with a scope file."""
    api.workspace.json("token", "create", "robot", "--scopes", "jobs:rw,system:rw")
    async with an_agent(api.workspace) as agent:
        for name in ("robot", "jobs:rw"):
            plan = await agent.call("config_plan", token_scopes={name: ["jobs:ro"]})
            assert plan["reload"]["tokens"]["changed"] == [name]
            await agent.call("config_apply", plan=plan["plan"])
            token = next(token for token in api.get("/tokens")["tokens"] if token["name"] == name)
            assert (token["scopes"], token["in_force"]) == (["jobs:ro"], True)
        assert (await agent.refused("config_plan", token_scopes={"nobody": ["jobs:ro"]}))[
            "code"
        ] == "not_found"


async def test_a_token_cannot_plan_itself_more_rights(api: Api) -> None:
    """With a token, setting keys needs all rights, and programs, secrets and stronger tokens stay out of
    reach.
    """
    url = f"http://localhost:{api.port}"
    async with an_agent(
        api.workspace, "--url", url, variables={"DUCTILE_TOKEN": token_for("system:rw")}
    ) as limited:
        assert (await limited.refused("config_plan", set={"plugins.timed.timeout": "5s"}))["code"] == "denied"
        for scopes in ({"*": ["jobs:ro"]}, {"system:rw": ["*"]}):
            assert (await limited.refused("config_plan", token_scopes=scopes))["code"] == "denied"
        async with an_agent(api.workspace) as local:
            plan = await local.call("config_plan", set={"plugins.timed.timeout": "5s"})
        assert (await limited.refused("config_apply", plan=plan["plan"]))["code"] == "denied"
    async with an_agent(
        api.workspace, "--url", url, variables={"DUCTILE_TOKEN": token_for("*")}
    ) as unlimited:
        assert "plan" in await unlimited.call("config_plan", set={"plugins.timed.timeout": "5s"})
        for changes in (
            {"plugins.own.run": "id"},
            {"plugins": {"own": {"run": "id"}}},
            {"plugins.timed": {"env": {"PATH": "/elsewhere"}}},
            {"plugin_roots[+]": "/elsewhere"},
            {"plugins.timed.schedules[0].payload": {"key": "${HOME}"}},
            {"api.auth.tokens[0].scopes": ["*"]},
        ):
            assert (await unlimited.refused("config_plan", set=changes))["code"] == "denied", changes
