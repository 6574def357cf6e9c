"""Tokens that see and change their own jobs only, and tokens for one pipeline, over HTTP and MCP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders.daemons import BROKEN, answering
from builders.http import Api, ApiResponse, EventReader, an_api, an_api_workspace, token_for
from builders.mcp import MODERN, PATIENT, TasksExtension, an_http_agent, end_of_task, start_task
from ductile.api.endpoints import ENDPOINTS
from ductile.operations.table import OPERATIONS

#: Of these jobs `tells` leads to a job of `echo`.
TELLS = answering({"status": "ok", "result": "secret-of-a", "events": [{"type": "told", "payload": {}}]})
PLUGINS = """\
  tells: {}
  broken: {retry: {max_attempts: 1}}
  patient: {}
"""
MORE = """\
state_webhooks: {allow: [127.0.0.1]}
routes:
  - {from: tells, event_type: told, to: echo}
pipelines:
  - {name: chain, on: some.thing, steps: [{id: one, uses: tells}, {id: two, uses: echo}]}
  - {name: other, on: other.thing, steps: [{id: one, uses: echo}]}
  - {name: either, on: either.thing, steps: [{id: one, uses: echo}]}
  - {name: or, on: either.thing, steps: [{id: one, uses: echo}]}
"""
SCOPES = {
    "a": ["plugin:rw", "own:rw"],
    "b": ["plugin:rw", "own:rw"],
    "reader": ["own:ro"],
    "piper": ["pipeline:chain", "own:ro"],
    "starter": ["pipeline:chain"],
    "teller": ["tells:rw", "own:rw"],
    "publisher": ["events:rw", "own:rw"],
    "manager": ["system:rw", "plugin:rw", "own:rw"],
}
UNKNOWN = "0190aaaa-0000-7000-8000-000000000000"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    directory: Path = tmp_path_factory.mktemp("own")
    workspace = an_api_workspace(directory, PLUGINS, more=MORE)
    tokens = "".join(
        f'      - {{name: {name}, token: "{token_for(name)}", scopes: {json.dumps(scopes)}}}\n'
        for name, scopes in SCOPES.items()
    )
    head, auth, rest = workspace.config.read_text().partition("    tokens:\n")
    workspace.config.write_text(f"{head}{auth}{tokens}{rest}")
    workspace.plugin("tells", TELLS)
    workspace.plugin("broken", BROKEN)
    workspace.plugin("patient", PATIENT)
    with an_api(workspace) as running:
        yield running


def start(api: Api, token: str, path: str = "/plugin/echo/handle", **body: Any) -> str:
    """Start a job; returns its id when it has ended."""
    job_id = str(api.post(path, body, token=token_for(token))["job_id"])
    api.ended(job_id)
    return job_id


def own(api: Api, token: str, query: str = "") -> list[str]:
    """The ids in the list of jobs, as a token reads it, page by page."""
    found: list[str] = []
    cursor = ""
    while True:
        page = api.get(f"/jobs?limit=2{query}{cursor}", token=token_for(token))
        found += [job["job_id"] for job in page["jobs"]]
        if page["next_cursor"] is None:
            return found
        cursor = f"&cursor={page['next_cursor']}"


def started_by(api: Api, token: str) -> set[str]:
    """What a token has started and what follows from that, as one with all rights sees it."""
    return {job["job_id"] for job in api.get("/jobs?limit=200")["jobs"] if job["token"] == token}


def test_a_list_has_the_own_jobs_and_what_follows_from_them(api: Api) -> None:
    """Steps of runs and jobs of routes too; nothing of another token, or without one."""
    told, run = start(api, "a", "/plugin/tells/handle"), start(api, "a", "/pipeline/chain")
    other = start(api, "b")
    local = api.workspace.json("run", "echo", "handle")["job_id"]
    api.daemon.wait_for("job.succeeded", lambda line: line.get("plugin") == "echo")
    listed = own(api, "a")
    assert len(listed) == len(set(listed))
    assert {told, run} < set(listed)
    assert not {other, local} & set(listed)
    assert set(listed) <= started_by(api, "a")
    steps = own(api, "a", f"&run={run}")
    assert len(steps) == 2
    assert set(steps) < set(listed)
    assert set(own(api, "b")) <= started_by(api, "b")
    assert own(api, "b", f"&job_id={told}") == own(api, "b", f"&parent={told}") == []
    assert own(api, "b", f"&run={run}") == []


def test_searching_finds_nothing_of_others(api: Api) -> None:
    """Neither jobs nor executions, however common the word is."""
    start(api, "a", "/plugin/tells/handle")
    token = token_for("b")
    assert api.get("/jobs?query=secret", token=token)["jobs"] == []
    assert api.get("/job-logs?query=secret&output=true", token=token)["logs"] == []
    assert api.get("/jobs?query=secret", token=token_for("a"))["jobs"]
    logs = api.get("/job-logs?limit=200", token=token)["logs"]
    assert {log["job_id"] for log in logs} <= started_by(api, "b")


ABOUT_A_JOB = [
    (endpoint.http.method, endpoint.http.path)
    for endpoint in ENDPOINTS
    if endpoint.access.own_scope is not None and "{job_id}" in endpoint.http.path
]


def test_operations_about_a_job_are_all_for_own_jobs() -> None:
    """One that is added has to decide."""
    about = {
        (endpoint.http.method, endpoint.http.path)
        for endpoint in ENDPOINTS
        if "{job_id}" in endpoint.http.path
    }
    assert about == set(ABOUT_A_JOB)
    assert len(about) > 12


def _asked(api: Api, method: str, path: str, job_id: str, token: str) -> ApiResponse:
    path = path.replace("{job_id}", job_id).replace("{name}", "file")
    body = {"step": "one"} if path.startswith("/run/") else {}
    return api.ask(method, path, body if method == "POST" else None, token=token_for(token))


def _anonymous(said: ApiResponse, *ids: str) -> tuple[int, str]:
    text = said.content.decode()
    for each in ids:
        text = text.replace(each, "ID")
    return said.status, text


@pytest.mark.parametrize(("method", "path"), ABOUT_A_JOB)
def test_a_job_of_another_token_answers_as_an_unknown_id(api: Api, method: str, path: str) -> None:
    """The same status and the same bytes, for whole ids and for the digits at their end."""
    run = start(api, "a", "/pipeline/chain")
    failed = start(api, "a", "/plugin/broken/handle")
    unknown = _anonymous(_asked(api, method, path, UNKNOWN, "b"), UNKNOWN)
    assert unknown[0] == 404
    for job_id in (run, failed):
        assert _anonymous(_asked(api, method, path, job_id, "b"), job_id) == unknown
        end, nothing = job_id[-12:], "f" * 12
        by_end = _anonymous(_asked(api, method, path, end, "b"), end)
        assert by_end == _anonymous(_asked(api, method, path, nothing, "b"), nothing)
    after = api.get(f"/job/{failed}")
    assert (after["status"], after["execution"]) == ("dead", 1)


def test_names_of_latest_jobs_mean_own_ones(api: Api) -> None:
    """`last`, `last:NAME` and `last:failed`."""
    mine = start(api, "b")
    start(api, "a", "/plugin/broken/handle")
    token = token_for("b")
    assert api.get("/job/last", token=token)["job_id"] == mine
    assert api.get("/job/last:echo", token=token)["job_id"] == mine
    assert api.ask("GET", "/job/last:failed", token=token).status == 404
    assert api.ask("GET", "/job/last:chain", token=token).status == 404
    assert api.ask("GET", "/job/last", token=token_for("reader")).status == 404


def test_own_jobs_are_cancelled_retried_and_run_again(api: Api) -> None:
    """And those of the other token beside them are as they were, also after a change of many at once."""
    token = token_for("b")
    theirs = api.post("/plugin/patient/handle", {}, token=token_for("a"))["job_id"]
    mine = api.post("/plugin/patient/handle", {}, token=token)["job_id"]
    failed = start(api, "b", "/plugin/broken/handle")
    assert api.post(f"/job/{failed}/retry", {}, token=token, status=200)["status"] == "queued"
    api.daemon.wait_for("job.dead", lambda line: line.get("job_id") == failed and line.get("execution") == 2)
    assert api.post(f"/job/{failed}/rerun", {}, token=token)["rerun_of"] == failed
    planned = api.post("/jobs/cancel", {"plugin": "patient", "dry_run": True}, token=token, status=200)
    assert [job["job_id"] for job in planned["jobs"]] == [mine]
    done = api.post("/jobs/cancel", {"plugin": "patient"}, token=token, status=200)
    assert (done["matched"], done["changed"]) == (1, 1)
    assert api.ended(mine)["reason"] == "cancelled"
    assert api.get(f"/job/{theirs}", token=token_for("a"))["status"] in ("queued", "running")
    api.post(f"/job/{theirs}/cancel", {}, token=token_for("a"), status=200)
    api.ended(theirs)
    retried = api.post("/jobs/retry", {"plugin": "patient"}, token=token_for("reader"), status=403)
    assert "own:rw" in retried["error"]["hint"]


def test_what_is_about_all_jobs_is_not_for_them(api: Api) -> None:
    """Figures, the queue, schedules and the daemon need the rights that they needed before."""
    open_to_all = {"tool.list", "tool.call"}
    for name, operation in OPERATIONS.items():
        access, http = operation.access, operation.http
        if http is None or access.own_scope or access.discovery or name in open_to_all:
            continue
        path = http.path
        for part, value in (("plugin", "echo"), ("pipeline", "other"), ("schedule", "x"), ("name", "other")):
            path = path.replace(f"{{{part}}}", value)
        path = path.replace("{command}", "handle")
        said = api.ask(http.method, path, {} if http.method == "POST" else None, token=token_for("piper"))
        assert (said.status, said.code) == (403, "denied"), (name, path)


def test_a_key_of_another_token_is_another_key(api: Api) -> None:
    """A duplicate would tell of its job, answer with its result, and report its end to another URL."""
    body = {"payload": {"n": 1}, "dedupe_key": "nightly", "dedupe_ttl": "1h"}
    theirs = api.post("/plugin/tells/handle", body, token=token_for("a"))
    api.ended(theirs["job_id"])
    mine = api.post("/plugin/tells/handle", body, token=token_for("b"))
    first = mine["job_id"]
    assert (mine["deduplicated"], first == theirs["job_id"]) == (False, False)
    api.ended(first)
    webhook = {"state_webhook_url": "http://127.0.0.1:9/"}
    again = api.post("/plugin/tells/handle", body | webhook, token=token_for("b"))
    assert (again["job_id"], again["deduplicated"]) == (first, True)
    key = {"Idempotency-Key": "again"}
    one, two = (
        api.post("/plugin/echo/handle", {}, token=token_for(name), headers=key)["job_id"] for name in "ab"
    )
    assert one != two
    assert api.get(f"/job/{first}", token=token_for("b"))["dedupe_key"] == "nightly"
    again = api.post("/plugin/tells/handle", body, token=token_for("a"), status=202)
    assert (again["job_id"], again["deduplicated"]) == (theirs["job_id"], True)
    listed = api.get("/webhooks/deliveries", token=token_for("b"))["deliveries"]
    assert {each["job_id"] for each in listed} <= started_by(api, "b")
    assert api.get("/webhooks/deliveries", token=token_for("a"))["deliveries"] == []
    delivery = next(each["id"] for each in api.get("/webhooks/deliveries")["deliveries"])
    resent, unknown = (
        _anonymous(api.ask("POST", f"/webhooks/deliveries/{one}/resend", {}, token=token_for("a")), one)
        for one in (delivery, UNKNOWN)
    )
    assert resent == unknown
    assert resent[0] == 404


def test_a_call_inside_a_job_of_others_is_a_call_of_its_own(api: Api) -> None:
    """Else its trace would tell whether there is such a job."""
    theirs = start(api, "a")
    inside = api.post("/plugin/echo/handle", {}, token=token_for("b"), headers={"X-Ductile-Job": theirs})
    mine = api.get(f"/job/{inside['job_id']}", token=token_for("b"))
    assert (mine["hops"], mine["trace_id"] == api.get(f"/job/{theirs}")["trace_id"]) == (0, False)
    again = api.post(
        "/plugin/echo/handle", {}, token=token_for("b"), headers={"X-Ductile-Job": mine["job_id"]}
    )
    assert api.get(f"/job/{again['job_id']}", token=token_for("b"))["trace_id"] == mine["trace_id"]


def test_running_a_job_again_needs_the_right_to_run_its_plugin(api: Api) -> None:
    """Among the own jobs are those that a route has led to."""
    told = start(api, "teller", "/plugin/tells/handle")
    token = token_for("teller")
    (child,) = own(api, "teller", f"&parent={told}")
    refused = api.ask("POST", f"/job/{child}/rerun", {}, token=token)
    assert (refused.status, refused.code) == (403, "denied")
    assert api.post(f"/job/{told}/rerun", {}, token=token)["rerun_of"] == told


def test_the_ledger_has_entries_about_own_jobs(api: Api) -> None:
    """As pages and as a stream, also the part of it that is read from the store."""
    told = start(api, "a", "/plugin/tells/handle")
    mine = start(api, "b")
    token = token_for("b")
    entries = api.get("/ledger?limit=1000", token=token)["events"]
    assert {each["job_id"] for each in entries} <= started_by(api, "b")
    assert mine in {each["job_id"] for each in entries}
    after = api.get("/ledger?after=0&limit=3", token=token)["events"]
    assert [each["seq"] for each in after] == sorted(each["seq"] for each in after)
    assert {each["job_id"] for each in after} <= started_by(api, "b")
    followed = api.get("/ledger/follow?after=0&timeout=0s", token=token)["events"]
    assert {each["job_id"] for each in followed} <= started_by(api, "b")
    assert api.ask("GET", f"/events?job_id={told}", token=token).status == 404
    with EventReader(api, query="?after=0", scope="b") as reader:
        reader.wait_until(lambda events: mine in about(events))
        start(api, "a")
        last = start(api, "b")
        events = reader.wait_until(lambda events: last in about(events))
    assert about(events) <= started_by(api, "b")


def about(events: list[dict[str, Any]]) -> set[str]:
    return {event["data"]["job_id"] for event in events}


def test_a_stream_of_all_entries_ends_when_the_token_may_follow_its_own_only(tmp_path: Path) -> None:
    """The change takes effect at once, and a new stream has own entries only."""
    workspace = an_api_workspace(tmp_path)
    workspace.config.write_text(
        workspace.config.read_text().replace('["events:ro"]', '["events:ro", "own:ro"]')
    )
    with an_api(workspace) as api, EventReader(api) as reader:
        theirs = start(api, "*")
        reader.wait_until(lambda events: theirs in about(events))
        workspace.config.write_text(
            workspace.config.read_text().replace('["events:ro", "own:ro"]', '["own:ro"]')
        )
        assert workspace.ductile("config", "lock").status == 0
        api.post("/system/reload", status=200)
        reader.wait_for_end()
        assert api.get("/ledger", token=token_for("events:ro"))["events"] == []


def test_an_explanation_names_no_job_of_others(api: Api) -> None:
    """Nor does it compare with one."""
    start(api, "a")
    failed = start(api, "teller", "/plugin/tells/handle")
    shown = api.ask("GET", f"/job/{failed}/explain", token=token_for("teller")).content.decode()
    exported = api.ask("GET", f"/job/{failed}/export", token=token_for("teller")).content.decode()
    for foreign in started_by(api, "a") | started_by(api, "b"):
        assert foreign not in shown + exported


def test_the_latest_run_of_a_pipeline_is_an_own_one(api: Api) -> None:
    """The list of pipelines names it."""
    theirs, mine = start(api, "b", "/pipeline/other"), start(api, "a", "/pipeline/other")
    for token, job_id in (("a", mine), ("b", theirs), ("*", mine)):
        listed = api.get("/pipelines", token=token_for(token))["pipelines"]
        assert next(each["last_run"]["job_id"] for each in listed if each["name"] == "other") == job_id


def test_the_user_of_the_machine_is_no_token(tmp_path: Path) -> None:
    """A browser that was signed in by a link is called `local`, as a token may be: its jobs are not that
    token's, and count against none of its limits.
    """
    workspace = an_api_workspace(tmp_path)
    workspace.config.write_text(
        workspace.config.read_text().replace(
            "    tokens:\n",
            f'    tokens:\n      - {{name: local, token: "{token_for("local")}", scopes: ["own:ro"], '
            "limits: {jobs_per_day: 0}}\n",
        )
    )
    with an_api(workspace) as api:
        code = workspace.json("ui", "open")["url"].partition("#open=")[2]
        headers = {"Origin": f"http://localhost:{api.port}", "Host": f"localhost:{api.port}"}
        said = api.ask("POST", "/ui/session", {"code": code}, token=None, headers=headers)
        headers |= {
            "Cookie": said.headers["set-cookie"].partition(";")[0],
            "X-CSRF-Token": said.body["csrf"],
        }
        started = api.ask("POST", "/plugin/echo/handle", {}, token=None, headers=headers)
        assert started.status == 202, started
        job_id = started.body["job_id"]
        api.ended(job_id)
        shown = api.get(f"/job/{job_id}")
        assert (shown["submitted_detail"], shown["token"]) == ("local", None)
        assert api.ask("GET", f"/job/{job_id}", token=token_for("local")).status == 404


# ------------------------------------------------------------------------------------------ pipelines


def test_a_scope_of_a_pipeline_runs_this_one(api: Api) -> None:
    """By its name, by its trigger and by the name of either; and no other, and no plugin."""
    token = token_for("piper")
    run = ""
    for path in ("/pipeline/chain", "/run/chain", "/trigger/some/thing"):
        run = api.post(path, {}, token=token)["job_id"]
        api.ended(run)
        assert api.get(f"/job/{run}", token=token)["status"] == "succeeded"
        assert len(own(api, "piper", f"&run={run}")) == 2
        assert api.ask("GET", f"/job/{run}", token=token_for("starter")).status == 403
    refused = (
        "/pipeline/other",
        "/pipeline/unknown",
        "/run/other",
        "/run/echo",
        "/run/tells",
        "/run/unknown",
        "/trigger/other/thing",
        "/trigger/either/thing",
        "/plugin/tells/handle",
        "/plugin/echo",
        "/event",
    )
    for path in refused:
        body = {"type": "some.thing"} if path == "/event" else {}
        said = api.ask("POST", path, body, token=token)
        assert (said.status, said.code) == (403, "denied"), path
    again = api.ask("POST", f"/job/{run}/rerun", {}, token=token)
    assert (again.status, again.code) == (403, "denied")  # it may read its own, and change nothing


def test_tools_and_the_page_show_what_a_token_may_do(api: Api) -> None:
    """And nothing else."""
    tools = {each["name"] for each in api.get("/tools", token=token_for("piper"))["tools"]}
    assert {"start__chain", "run", "job_list", "job_show", "job_wait", "delivery_list"} <= tools
    assert not {"start__other", "run__echo__handle", "job_cancel", "job_retry", "queue", "status"} & tools
    tools = {each["name"] for each in api.get("/tools", token=token_for("starter"))["tools"]}
    assert "start__chain" in tools
    assert not {"job_list", "job_wait", "run__tells__handle"} & tools
    headers = {"Origin": f"http://localhost:{api.port}", "Host": f"localhost:{api.port}"}
    said = api.ask("POST", "/ui/session", {"token": token_for("piper")}, token=None, headers=headers)
    assert said.status == 200, said
    session = said.body
    assert session["pipelines"] == ["chain"]
    assert session["commands"] == {}
    assert session["events"] is True
    assert {"job.list", "job.show"} <= set(session["operations"])
    assert not {"job.cancel", "queue.status", "log.figures", "system.status"} & set(session["operations"])
    cookie = {**headers, "Cookie": said.headers["set-cookie"].partition(";")[0]}
    listed = api.ask("GET", "/jobs?limit=200", token=None, headers=cookie).body["jobs"]
    assert {each["job_id"] for each in listed} <= started_by(api, "piper")


# -------------------------------------------------------------------------------------------------- MCP


async def test_two_agents_side_by_side_see_and_touch_only_their_own(api: Api) -> None:
    """Tools, tasks and resources."""
    knows = {"mode": MODERN, "extensions": (TasksExtension(),)}
    async with (
        an_http_agent(api, token_for("a"), **knows) as one,  # type: ignore[arg-type]
        an_http_agent(api, token_for("b"), **knows) as two,  # type: ignore[arg-type]
    ):
        theirs = await one.call("run__tells__handle")
        mine = await two.call("run__tells__handle", dedupe_key="k")
        assert (theirs["result"], mine["result"]) == ("secret-of-a", "secret-of-a")
        task = (await start_task(one, "run__patient__handle", wait="0s")).task_id
        running = (await start_task(two, "run__patient__handle", wait="0s")).task_id
        for tool in (
            "job_show",
            "job_wait",
            "job_explain",
            "job_logs",
            "job_cancel",
            "job_retry",
            "job_rerun",
        ):
            for job_id in (theirs["job_id"], task):
                refused = await two.refused(tool, job_id=job_id)
                unknown = await two.refused(tool, job_id=UNKNOWN)
                assert json.dumps(refused).replace(job_id, UNKNOWN) == json.dumps(unknown)
        assert (await two.refused("run_retry", job_id=task, step="one"))["code"] == "not_found"
        with pytest.raises(Exception, match="there is no job"):
            await two.read(f"ductile://job/{task}")
        with pytest.raises(Exception, match="there is no job"):
            await end_of_task(two, task)
        seen = {job["job_id"] for job in (await two.call("job_list", limit=20))["jobs"]}
        assert {mine["job_id"], running} <= seen
        assert not {theirs["job_id"], task} & seen
        assert (await two.call("job_cancel_many", plugin="patient"))["changed"] == 1
        assert (await end_of_task(two, running)).status == "cancelled"
        shown = await one.call("job_show", job_id=task)
        assert shown["status"] in ("queued", "running")
        await one.call("job_cancel", job_id=task)
        assert (await end_of_task(one, task)).status == "cancelled"
        for agent in (one, two):
            assert (await agent.refused("queue"))["code"] == "denied"
            assert (await agent.refused("last_night"))["code"] == "denied"


async def test_a_pipeline_is_a_tool_of_its_token(api: Api) -> None:
    """The answer has its result; without a right to read jobs there is still the result of the own call."""
    for name in ("piper", "starter"):
        async with an_http_agent(api, token_for(name)) as agent:
            assert (await agent.call("start__chain"))["status"] == "succeeded"
            assert (await agent.refused("start__other"))["code"] == "denied"
            assert (await agent.refused("run", name="other"))["code"] == "denied"
            assert (await agent.refused("run", name="echo"))["code"] == "denied"
            assert (await agent.call("run", name="chain"))["status"] == "succeeded"


async def test_a_key_over_mcp_is_that_of_the_token(api: Api) -> None:
    """The answer of a duplicate would be the result of another token's job."""
    async with an_http_agent(api, token_for("a")) as one, an_http_agent(api, token_for("b")) as two:
        theirs = await one.call("start__chain", dedupe_key="same")
        mine = await two.call("start__chain", dedupe_key="same")
        assert mine["job_id"] != theirs["job_id"]
        assert "deduplicated" not in mine
        assert (await two.call("start__chain", dedupe_key="same"))["deduplicated"] is True


# ---------------------------------------------------------------------------------------------- tokens


def test_a_token_gives_no_right_over_jobs_of_others(api: Api) -> None:
    """Own jobs are those of the token itself: it could make, or renew, one that had other jobs."""
    token = token_for("manager")
    for body in ({"name": "made", "scopes": ["own:ro"]}, {"name": "made", "scopes": ["own:rw"]}):
        refused = api.ask("POST", "/tokens", {**body, "dry_run": True}, token=token)
        assert (refused.status, refused.code) == (403, "denied")
    given = {"name": "made", "scopes": ["pipeline:chain"], "dry_run": True}
    assert api.ask("POST", "/tokens", given, token=token).status != 403
    refused = api.ask("POST", "/tokens", given, token=token_for("system:rw"))
    assert (refused.status, refused.code) == (403, "denied")


def test_a_scope_of_an_unknown_pipeline_is_a_warning(tmp_path: Path) -> None:
    """As that of an unknown plugin; a word that is no scope stays an error."""
    pipelines = "pipelines:\n  - {name: chain, steps: [{uses: echo}]}\n"
    workspace = an_api_workspace(tmp_path, scopes=("*", "pipeline:chian"), more=pipelines)
    assert workspace.ductile("apply").status == 0
    checked = workspace.ductile("config", "check")
    assert checked.status == 0
    assert 'the scope "pipeline:chian" is for a pipeline that is not configured' in checked.out + checked.err
    assert "chain" in checked.out + checked.err
    for wrong in ("pipeline:", "pipeline:a b", "own:all", "own"):
        written = workspace.config.read_text()
        workspace.config.write_text(written.replace("pipeline:chian", wrong))
        assert workspace.ductile("config", "check").status == 78, wrong
        workspace.config.write_text(written)
    workspace.append("  own: {uses: echo}\n")
    checked = workspace.ductile("config", "check")
    assert checked.status == 78
    assert "reserved" in checked.out + checked.err


def test_jobs_belong_to_the_name_of_the_token(tmp_path: Path) -> None:
    """So a rotation keeps them, a restart too, and a token with another name has none of them."""
    workspace = an_api_workspace(tmp_path)
    assert workspace.ductile("apply").status == 0
    secret = workspace.json("token", "create", "agent", "--scopes", "plugin:rw,own:rw")["token"]
    with an_api(workspace) as api:
        job_id = api.post("/plugin/echo/handle", {}, token=secret)["job_id"]
        api.ended(job_id)
        secret = api.post("/tokens/agent/rotate", {"keep_old": "0s"}, status=200)["token"]
        assert api.get("/jobs", token=secret)["jobs"][0]["job_id"] == job_id
        other = api.post("/tokens", {"name": "second", "scopes": ["own:ro"]}, status=200)["token"]
        assert api.get("/jobs", token=other)["jobs"] == []
    with an_api(workspace) as api:
        assert [job["job_id"] for job in api.get("/jobs", token=secret)["jobs"]] == [job_id]
        api.post("/tokens/agent/revoke", {}, status=200)
        again = api.post("/tokens", {"name": "agent", "scopes": ["own:ro"]}, status=200)["token"]
        assert [job["job_id"] for job in api.get("/jobs", token=again)["jobs"]] == [job_id]
