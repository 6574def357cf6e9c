"""Limits of access tokens, over HTTP, tools and the CLI."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.http import Api, an_api, an_api_workspace, token_for

#: Responds with a cost.
PRICED = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok", "result": "done", "cost": 0.75}\'\n'
PLUGINS = "  priced: {}\n"
PIPELINES = "pipelines:\n  - {name: chain, steps: [{uses: priced}]}\n"
LIMITS = {
    "two": "{jobs_per_day: 2}",
    "money": "{cost_per_day: 1.5}",
    "chains": "{pipelines: {chain: {jobs_per_day: 0}}}",
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    directory: Path = tmp_path_factory.mktemp("limits")
    tokens = "".join(
        f'      - {{name: {name}, token: "{token_for(name)}", scopes: ["*"], limits: {limits}}}\n'
        for name, limits in LIMITS.items()
    )
    workspace = an_api_workspace(directory, PLUGINS)
    written = workspace.config.read_text()
    head, auth, rest = written.partition("    tokens:\n")
    workspace.config.write_text(f"{head}{auth}{tokens}{rest}{PIPELINES}")
    workspace.plugin("priced", PRICED)
    with an_api(workspace) as api:
        yield api


def test_what_exceeds_a_limit_is_refused_and_starts_nothing(api: Api) -> None:
    """The response is 429 with the limit, its reset and the time to wait; for tools of agents, too."""
    token = token_for("two")
    headers = {"Idempotency-Key": "same"}
    first = api.post("/plugin/echo/handle", {"payload": {}}, token=token, headers=headers)
    repeated = api.post("/plugin/echo/handle", {"payload": {}}, token=token, headers=headers, status=202)
    assert (repeated["job_id"], repeated["deduplicated"]) == (first["job_id"], True)
    api.post("/pipeline/chain", {}, token=token)
    response = api.ask("POST", "/plugin/echo/handle", {}, token=token)
    assert (response.status, response.code) == (429, "limit_reached")
    details = response.body["error"]["details"]
    assert (details["limit"], details["used"], details["maximum"]) == ("jobs_per_day", 2, 2)
    assert int(response.headers["retry-after"]) == details["retry_after_seconds"] > 0
    assert details["resets_at"].endswith("T00:00:00.000000Z")
    tool_response = api.ask("POST", "/tools/run__echo__handle", {"arguments": {"payload": {}}}, token=token)
    assert (tool_response.status, tool_response.code) == (429, "limit_reached")
    assert len([job for job in api.get("/jobs?limit=200")["jobs"] if job["submitted_detail"] == "two"]) == 2
    report = api.workspace.json("token", "show", "two")
    assert [(limit["limit"], limit["used"], limit["maximum"]) for limit in report["limits"]] == [
        ("jobs_per_day", 2, 2)
    ]
    page = api.ask("GET", "/metrics").content.decode()
    assert 'ductile_token_limit_used{limit="jobs_per_day",target="",token="two"} 2.0' in page
    assert "jobs_per_day" in api.workspace.ductile("token", "show", "two").out


def test_a_token_with_limits_makes_none_without(api: Api) -> None:
    """A token with every scope cannot get around its limits with another token."""
    token = token_for("chains")
    response = api.ask("POST", "/tokens", {"name": "free", "scopes": ["plugin:rw"]}, token=token)
    assert (response.status, response.code) == (403, "denied")
    assert "has limits" in response.body["error"]["message"]
    rotation = api.ask("POST", "/tokens/two/rotate", {}, token=token)
    assert (rotation.status, rotation.code) == (403, "denied")


def test_a_token_with_limits_starts_nothing_that_nobody_counts(api: Api) -> None:
    """Its own schedules, or the processes of a replay, would not count against its limits."""
    token = token_for("two")
    plan = {"set": {"plugins.echo.schedules": [{"every": "1m"}]}}
    for path, body in (
        ("/config/plan", plan),
        ("/config/plan", {"unset": ["plugins.priced"]}),
        ("/config/plan", {"rollback_to": "previous"}),
        ("/config/rollback", {}),
        ("/replay/echo", {}),
    ):
        response = api.ask("POST", path, body, token=token)
        assert (response.status, response.code) == (403, "denied"), path
        assert "has limits" in response.body["error"]["message"]


def test_the_cost_of_steps_counts_for_the_token(api: Api) -> None:
    """Nothing starts once the money is spent."""
    token = token_for("money")
    run_ids = []
    for _ in range(2):
        run_ids.append(api.post("/pipeline/chain", {}, token=token)["job_id"])
        assert api.ended(run_ids[-1])["token"] == "money"
    (step,) = api.get(f"/jobs?run={run_ids[0]}")["jobs"]
    assert (step["token"], step["cost"]) == ("money", 0.75)
    output = api.workspace.ductile("job", "show", step["job_id"]).out
    assert re.search(r"token +money\n", output)
    assert re.search(r"cost +0\.75\n", output)
    response = api.ask("POST", "/pipeline/chain", {}, token=token)
    assert (response.status, response.body["error"]["details"]["limit"]) == (429, "cost_per_day")
    assert api.get("/tokens/money")["spent_today"] == 1.5


def test_a_limit_of_a_pipeline_leaves_plugins_alone(api: Api) -> None:
    token = token_for("chains")
    response = api.ask("POST", "/run/chain", {}, token=token)
    assert (response.status, response.body["error"]["details"]["target"]) == (429, "pipeline:chain")
    api.post("/run/priced", {}, token=token)


def test_a_limit_of_an_unknown_plugin_is_an_error(api: Api, tmp_path: Path) -> None:
    """A limit without a plugin has no effect."""
    workspace = an_api_workspace(tmp_path, PLUGINS)
    workspace.plugin("priced", PRICED)
    config = workspace.config.read_text().replace(
        'scopes: ["*"]}', 'scopes: ["*"], limits: {running: -1, cost_per_day: much, plugins: {prced: {}}}}'
    )
    workspace.config.write_text(config)
    result = workspace.ductile("config", "check")
    assert result.status == 78
    for text in ("a whole number, 0 or more", "a number, 0 or more"):
        assert text in result.out + result.err
    workspace.config.write_text(config.replace("running: -1, cost_per_day: much, ", ""))
    result = workspace.ductile("config", "check")
    assert "there is no plugin prced" in result.out + result.err


def test_a_count_survives_the_death_of_the_daemon(tmp_path: Path) -> None:
    """The count is committed with the job."""
    workspace = an_api_workspace(tmp_path, PLUGINS)
    workspace.plugin("priced", PRICED)
    limited = workspace.config.read_text().replace(
        'scopes: ["*"]}', 'scopes: ["*"], limits: {jobs_per_day: 1}}'
    )
    workspace.config.write_text(limited)
    with an_api(workspace) as api:
        api.post("/plugin/echo/handle", {})
        api.daemon.end(signal.SIGKILL)
    with an_api(workspace) as api:
        assert api.ask("POST", "/plugin/echo/handle", {}).code == "limit_reached"
