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

#: Emits an event that is routed to `echo`.
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
    with an_api(workspace) as api:
        yield api


def run_to_end(api: Api, token: str, path: str = "/plugin/echo/handle", **body: Any) -> str:
    """Start a job and wait for its end; return its id."""
    job_id = str(api.post(path, body, token=token_for(token))["job_id"])
    api.ended(job_id)
    return job_id


def list_own(api: Api, token: str, query: str = "") -> list[str]:
    """Return the ids in the list of jobs, as a token reads it, page by page."""
    job_ids: list[str] = []
    cursor = ""
    while True:
        page = api.get(f"/jobs?limit=2{query}{cursor}", token=token_for(token))
        job_ids += [job["job_id"] for job in page["jobs"]]
        if page["next_cursor"] is None:
            return job_ids
        cursor = f"&cursor={page['next_cursor']}"


def jobs_started_by(api: Api, token: str) -> set[str]:
    """Return the jobs of a token and those that follow from them, as a token with all rights sees them."""
    return {job["job_id"] for job in api.get("/jobs?limit=200")["jobs"] if job["token"] == token}


def test_a_list_has_the_own_jobs_and_what_follows_from_them(api: Api) -> None:
    """The list has steps of runs and jobs of routes too, and no job of another token or without one."""
    first_id, run_id = run_to_end(api, "a", "/plugin/tells/handle"), run_to_end(api, "a", "/pipeline/chain")
    other_id = run_to_end(api, "b")
    local_id = api.workspace.json("run", "echo", "handle")["job_id"]
    api.daemon.wait_for("job.succeeded", lambda line: line.get("plugin") == "echo")
    own_ids = list_own(api, "a")
    assert len(own_ids) == len(set(own_ids))
    assert {first_id, run_id} < set(own_ids)
    assert not {other_id, local_id} & set(own_ids)
    assert set(own_ids) <= jobs_started_by(api, "a")
    steps = list_own(api, "a", f"&run={run_id}")
    assert len(steps) == 2
    assert set(steps) < set(own_ids)
    assert set(list_own(api, "b")) <= jobs_started_by(api, "b")
    assert list_own(api, "b", f"&job_id={first_id}") == list_own(api, "b", f"&parent={first_id}") == []
    assert list_own(api, "b", f"&run={run_id}") == []


def test_searching_finds_nothing_of_others(api: Api) -> None:
    """A search finds neither jobs nor executions of other tokens."""
    run_to_end(api, "a", "/plugin/tells/handle")
    token = token_for("b")
    assert api.get("/jobs?query=secret", token=token)["jobs"] == []
    assert api.get("/job-logs?query=secret&output=true", token=token)["logs"] == []
    assert api.get("/jobs?query=secret", token=token_for("a"))["jobs"]
    logs = api.get("/job-logs?limit=200", token=token)["logs"]
    assert {log["job_id"] for log in logs} <= jobs_started_by(api, "b")


ABOUT_A_JOB = [
    (endpoint.http.method, endpoint.http.path)
    for endpoint in ENDPOINTS
    if endpoint.access.own_scope is not None and "{job_id}" in endpoint.http.path
]


def test_operations_about_a_job_are_all_for_own_jobs() -> None:
    """An operation that is added needs an own scope."""
    paths = {
        (endpoint.http.method, endpoint.http.path)
        for endpoint in ENDPOINTS
        if "{job_id}" in endpoint.http.path
    }
    assert paths == set(ABOUT_A_JOB)
    assert len(paths) > 12


def ask_as(api: Api, method: str, path: str, job_id: str, token: str) -> ApiResponse:
    path = path.replace("{job_id}", job_id).replace("{name}", "file")
    body = {"step": "one"} if path.startswith("/run/") else {}
    return api.ask(method, path, body if method == "POST" else None, token=token_for(token))


def without_ids(response: ApiResponse, *ids: str) -> tuple[int, str]:
    text = response.content.decode()
    for job_id in ids:
        text = text.replace(job_id, "ID")
    return response.status, text


@pytest.mark.parametrize(("method", "path"), ABOUT_A_JOB)
def test_a_job_of_another_token_answers_as_an_unknown_id(api: Api, method: str, path: str) -> None:
    """The response has the same status and bytes, for whole ids and for the digits at their end."""
    run_id = run_to_end(api, "a", "/pipeline/chain")
    failed_id = run_to_end(api, "a", "/plugin/broken/handle")
    expected = without_ids(ask_as(api, method, path, UNKNOWN, "b"), UNKNOWN)
    assert expected[0] == 404
    for job_id in (run_id, failed_id):
        assert without_ids(ask_as(api, method, path, job_id, "b"), job_id) == expected
        suffix, unknown_suffix = job_id[-12:], "f" * 12
        response = without_ids(ask_as(api, method, path, suffix, "b"), suffix)
        assert response == without_ids(ask_as(api, method, path, unknown_suffix, "b"), unknown_suffix)
    job = api.get(f"/job/{failed_id}")
    assert (job["status"], job["execution"]) == ("dead", 1)


def test_names_of_latest_jobs_mean_own_ones(api: Api) -> None:
    """`last`, `last:NAME` and `last:failed` refer to own jobs."""
    own_id = run_to_end(api, "b")
    run_to_end(api, "a", "/plugin/broken/handle")
    token = token_for("b")
    assert api.get("/job/last", token=token)["job_id"] == own_id
    assert api.get("/job/last:echo", token=token)["job_id"] == own_id
    assert api.ask("GET", "/job/last:failed", token=token).status == 404
    assert api.ask("GET", "/job/last:chain", token=token).status == 404
    assert api.ask("GET", "/job/last", token=token_for("reader")).status == 404


def test_own_jobs_are_cancelled_retried_and_run_again(api: Api) -> None:
    """Jobs of another token stay as they are, also after a change of many jobs at once."""
    token = token_for("b")
    foreign_id = api.post("/plugin/patient/handle", {}, token=token_for("a"))["job_id"]
    own_id = api.post("/plugin/patient/handle", {}, token=token)["job_id"]
    failed_id = run_to_end(api, "b", "/plugin/broken/handle")
    assert api.post(f"/job/{failed_id}/retry", {}, token=token, status=200)["status"] == "queued"
    api.daemon.wait_for(
        "job.dead", lambda line: line.get("job_id") == failed_id and line.get("execution") == 2
    )
    assert api.post(f"/job/{failed_id}/rerun", {}, token=token)["rerun_of"] == failed_id
    planned = api.post("/jobs/cancel", {"plugin": "patient", "dry_run": True}, token=token, status=200)
    assert [job["job_id"] for job in planned["jobs"]] == [own_id]
    result = api.post("/jobs/cancel", {"plugin": "patient"}, token=token, status=200)
    assert (result["matched"], result["changed"]) == (1, 1)
    assert api.ended(own_id)["reason"] == "cancelled"
    assert api.get(f"/job/{foreign_id}", token=token_for("a"))["status"] in ("queued", "running")
    api.post(f"/job/{foreign_id}/cancel", {}, token=token_for("a"), status=200)
    api.ended(foreign_id)
    refusal = api.post("/jobs/retry", {"plugin": "patient"}, token=token_for("reader"), status=403)
    assert "own:rw" in refusal["error"]["hint"]


def test_operations_about_all_jobs_are_not_for_these_tokens(api: Api) -> None:
    """Figures, the queue, schedules and the daemon need other rights."""
    open_to_all = {"tool.list", "tool.call"}
    for name, operation in OPERATIONS.items():
        access, http = operation.access, operation.http
        if http is None or access.own_scope or access.discovery or name in open_to_all:
            continue
        path = http.path
        for parameter, value in (
            ("plugin", "echo"),
            ("pipeline", "other"),
            ("schedule", "x"),
            ("name", "other"),
        ):
            path = path.replace(f"{{{parameter}}}", value)
        path = path.replace("{command}", "handle")
        response = api.ask(http.method, path, {} if http.method == "POST" else None, token=token_for("piper"))
        assert (response.status, response.code) == (403, "denied"), (name, path)


def test_a_key_of_another_token_is_another_key(api: Api) -> None:
    """A duplicate would show the job of another token, and report its end to another URL."""
    body = {"payload": {"n": 1}, "dedupe_key": "nightly", "dedupe_ttl": "1h"}
    foreign = api.post("/plugin/tells/handle", body, token=token_for("a"))
    api.ended(foreign["job_id"])
    own_job = api.post("/plugin/tells/handle", body, token=token_for("b"))
    own_id = own_job["job_id"]
    assert (own_job["deduplicated"], own_id == foreign["job_id"]) == (False, False)
    api.ended(own_id)
    webhook = {"state_webhook_url": "http://127.0.0.1:9/"}
    repeated = api.post("/plugin/tells/handle", body | webhook, token=token_for("b"))
    assert (repeated["job_id"], repeated["deduplicated"]) == (own_id, True)
    key = {"Idempotency-Key": "again"}
    first_id, second_id = (
        api.post("/plugin/echo/handle", {}, token=token_for(name), headers=key)["job_id"] for name in "ab"
    )
    assert first_id != second_id
    assert api.get(f"/job/{own_id}", token=token_for("b"))["dedupe_key"] == "nightly"
    repeated = api.post("/plugin/tells/handle", body, token=token_for("a"), status=202)
    assert (repeated["job_id"], repeated["deduplicated"]) == (foreign["job_id"], True)
    deliveries = api.get("/webhooks/deliveries", token=token_for("b"))["deliveries"]
    assert {delivery["job_id"] for delivery in deliveries} <= jobs_started_by(api, "b")
    assert api.get("/webhooks/deliveries", token=token_for("a"))["deliveries"] == []
    delivery_id = next(row["id"] for row in api.get("/webhooks/deliveries")["deliveries"])
    resent, unknown = (
        without_ids(
            api.ask("POST", f"/webhooks/deliveries/{delivery_id}/resend", {}, token=token_for("a")),
            delivery_id,
        )
        for delivery_id in (delivery_id, UNKNOWN)
    )
    assert resent == unknown
    assert resent[0] == 404


def test_a_call_inside_a_job_of_others_is_a_call_of_its_own(api: Api) -> None:
    """A shared trace would tell that there is such a job."""
    foreign_id = run_to_end(api, "a")
    submitted = api.post(
        "/plugin/echo/handle", {}, token=token_for("b"), headers={"X-Ductile-Job": foreign_id}
    )
    job = api.get(f"/job/{submitted['job_id']}", token=token_for("b"))
    assert (job["hops"], job["trace_id"] == api.get(f"/job/{foreign_id}")["trace_id"]) == (0, False)
    child = api.post(
        "/plugin/echo/handle", {}, token=token_for("b"), headers={"X-Ductile-Job": job["job_id"]}
    )
    assert api.get(f"/job/{child['job_id']}", token=token_for("b"))["trace_id"] == job["trace_id"]


def test_running_a_job_again_needs_the_right_to_run_its_plugin(api: Api) -> None:
    """Jobs that a route has started are own jobs too, of other plugins."""
    parent_id = run_to_end(api, "teller", "/plugin/tells/handle")
    token = token_for("teller")
    (child,) = list_own(api, "teller", f"&parent={parent_id}")
    response = api.ask("POST", f"/job/{child}/rerun", {}, token=token)
    assert (response.status, response.code) == (403, "denied")
    assert api.post(f"/job/{parent_id}/rerun", {}, token=token)["rerun_of"] == parent_id


def test_the_ledger_has_entries_about_own_jobs(api: Api) -> None:
    """Pages and streams have own entries only, also those that are read from the store."""
    foreign_id = run_to_end(api, "a", "/plugin/tells/handle")
    own_id = run_to_end(api, "b")
    token = token_for("b")
    entries = api.get("/ledger?limit=1000", token=token)["events"]
    assert {entry["job_id"] for entry in entries} <= jobs_started_by(api, "b")
    assert own_id in {entry["job_id"] for entry in entries}
    first_entries = api.get("/ledger?after=0&limit=3", token=token)["events"]
    assert [entry["seq"] for entry in first_entries] == sorted(entry["seq"] for entry in first_entries)
    assert {entry["job_id"] for entry in first_entries} <= jobs_started_by(api, "b")
    followed = api.get("/ledger/follow?after=0&timeout=0s", token=token)["events"]
    assert {entry["job_id"] for entry in followed} <= jobs_started_by(api, "b")
    assert api.ask("GET", f"/events?job_id={foreign_id}", token=token).status == 404
    with EventReader(api, query="?after=0", scope="b") as reader:
        reader.wait_until(lambda events: own_id in job_ids_of(events))
        run_to_end(api, "a")
        last_id = run_to_end(api, "b")
        events = reader.wait_until(lambda events: last_id in job_ids_of(events))
    assert job_ids_of(events) <= jobs_started_by(api, "b")


def job_ids_of(events: list[dict[str, Any]]) -> set[str]:
    return {event["data"]["job_id"] for event in events}


def test_a_stream_of_all_entries_ends_when_the_token_may_follow_its_own_only(tmp_path: Path) -> None:
    """The change takes effect at once, and a new stream has own entries only."""
    workspace = an_api_workspace(tmp_path)
    workspace.config.write_text(
        workspace.config.read_text().replace('["events:ro"]', '["events:ro", "own:ro"]')
    )
    with an_api(workspace) as api, EventReader(api) as reader:
        foreign_id = run_to_end(api, "*")
        reader.wait_until(lambda events: foreign_id in job_ids_of(events))
        workspace.config.write_text(
            workspace.config.read_text().replace('["events:ro", "own:ro"]', '["own:ro"]')
        )
        assert workspace.ductile("config", "lock").status == 0
        api.post("/system/reload", status=200)
        reader.wait_for_end()
        assert api.get("/ledger", token=token_for("events:ro"))["events"] == []


def test_an_explanation_names_no_job_of_others(api: Api) -> None:
    """A job is not compared with one of another token."""
    run_to_end(api, "a")
    job_id = run_to_end(api, "teller", "/plugin/tells/handle")
    explanation = api.ask("GET", f"/job/{job_id}/explain", token=token_for("teller")).content.decode()
    export = api.ask("GET", f"/job/{job_id}/export", token=token_for("teller")).content.decode()
    for foreign_id in jobs_started_by(api, "a") | jobs_started_by(api, "b"):
        assert foreign_id not in explanation + export


def test_the_latest_run_of_a_pipeline_is_an_own_one(api: Api) -> None:
    """The list of pipelines names the latest own run."""
    other_id, own_id = run_to_end(api, "b", "/pipeline/other"), run_to_end(api, "a", "/pipeline/other")
    for token, job_id in (("a", own_id), ("b", other_id), ("*", own_id)):
        pipelines = api.get("/pipelines", token=token_for(token))["pipelines"]
        assert (
            next(pipeline["last_run"]["job_id"] for pipeline in pipelines if pipeline["name"] == "other")
            == job_id
        )


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
        response = api.ask("POST", "/ui/session", {"code": code}, token=None, headers=headers)
        headers |= {
            "Cookie": response.headers["set-cookie"].partition(";")[0],
            "X-CSRF-Token": response.body["csrf"],
        }
        submission = api.ask("POST", "/plugin/echo/handle", {}, token=None, headers=headers)
        assert submission.status == 202, submission
        job_id = submission.body["job_id"]
        api.ended(job_id)
        job = api.get(f"/job/{job_id}")
        assert (job["submitted_detail"], job["token"]) == ("local", None)
        assert api.ask("GET", f"/job/{job_id}", token=token_for("local")).status == 404


# ------------------------------------------------------------------------------------------ pipelines


def test_a_scope_of_a_pipeline_runs_this_one(api: Api) -> None:
    """The pipeline is started by its name, by its trigger and with `/run`; nothing else is."""
    token = token_for("piper")
    run_id = ""
    for path in ("/pipeline/chain", "/run/chain", "/trigger/some/thing"):
        run_id = api.post(path, {}, token=token)["job_id"]
        api.ended(run_id)
        assert api.get(f"/job/{run_id}", token=token)["status"] == "succeeded"
        assert len(list_own(api, "piper", f"&run={run_id}")) == 2
        assert api.ask("GET", f"/job/{run_id}", token=token_for("starter")).status == 403
    refused_paths = (
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
    for path in refused_paths:
        body = {"type": "some.thing"} if path == "/event" else {}
        response = api.ask("POST", path, body, token=token)
        assert (response.status, response.code) == (403, "denied"), path
    rerun = api.ask("POST", f"/job/{run_id}/rerun", {}, token=token)
    assert (rerun.status, rerun.code) == (403, "denied")  # the token may read own jobs, and change none


def test_tools_and_the_page_show_what_a_token_may_do(api: Api) -> None:
    """Tools and the session of the dashboard list only what the token may do."""
    tools = {entry["name"] for entry in api.get("/tools", token=token_for("piper"))["tools"]}
    assert {"start__chain", "run", "job_list", "job_show", "job_wait", "delivery_list"} <= tools
    assert not {"start__other", "run__echo__handle", "job_cancel", "job_retry", "queue", "status"} & tools
    tools = {entry["name"] for entry in api.get("/tools", token=token_for("starter"))["tools"]}
    assert "start__chain" in tools
    assert not {"job_list", "job_wait", "run__tells__handle"} & tools
    headers = {"Origin": f"http://localhost:{api.port}", "Host": f"localhost:{api.port}"}
    response = api.ask("POST", "/ui/session", {"token": token_for("piper")}, token=None, headers=headers)
    assert response.status == 200, response
    session = response.body
    assert session["pipelines"] == ["chain"]
    assert session["commands"] == {}
    assert session["events"] is True
    assert {"job.list", "job.show"} <= set(session["operations"])
    assert not {"job.cancel", "queue.status", "log.figures", "system.status"} & set(session["operations"])
    cookie = {**headers, "Cookie": response.headers["set-cookie"].partition(";")[0]}
    jobs = api.ask("GET", "/jobs?limit=200", token=None, headers=cookie).body["jobs"]
    assert {entry["job_id"] for entry in jobs} <= jobs_started_by(api, "piper")


# -------------------------------------------------------------------------------------------------- MCP


async def test_two_agents_side_by_side_see_and_touch_only_their_own(api: Api) -> None:
    """Tools, tasks and resources are for own jobs only."""
    options = {"mode": MODERN, "extensions": (TasksExtension(),)}
    async with (
        an_http_agent(api, token_for("a"), **options) as first,  # type: ignore[arg-type]
        an_http_agent(api, token_for("b"), **options) as second,  # type: ignore[arg-type]
    ):
        foreign = await first.call("run__tells__handle")
        own_job = await second.call("run__tells__handle", dedupe_key="k")
        assert (foreign["result"], own_job["result"]) == ("secret-of-a", "secret-of-a")
        foreign_task = (await start_task(first, "run__patient__handle", wait="0s")).task_id
        own_task = (await start_task(second, "run__patient__handle", wait="0s")).task_id
        for tool in (
            "job_show",
            "job_wait",
            "job_explain",
            "job_logs",
            "job_cancel",
            "job_retry",
            "job_rerun",
        ):
            for job_id in (foreign["job_id"], foreign_task):
                refusal = await second.refused(tool, job_id=job_id)
                unknown = await second.refused(tool, job_id=UNKNOWN)
                assert json.dumps(refusal).replace(job_id, UNKNOWN) == json.dumps(unknown)
        assert (await second.refused("run_retry", job_id=foreign_task, step="one"))["code"] == "not_found"
        with pytest.raises(Exception, match="there is no job"):
            await second.read(f"ductile://job/{foreign_task}")
        with pytest.raises(Exception, match="there is no job"):
            await end_of_task(second, foreign_task)
        seen_ids = {job["job_id"] for job in (await second.call("job_list", limit=20))["jobs"]}
        assert {own_job["job_id"], own_task} <= seen_ids
        assert not {foreign["job_id"], foreign_task} & seen_ids
        assert (await second.call("job_cancel_many", plugin="patient"))["changed"] == 1
        assert (await end_of_task(second, own_task)).status == "cancelled"
        job = await first.call("job_show", job_id=foreign_task)
        assert job["status"] in ("queued", "running")
        await first.call("job_cancel", job_id=foreign_task)
        assert (await end_of_task(first, foreign_task)).status == "cancelled"
        for agent in (first, second):
            assert (await agent.refused("queue"))["code"] == "denied"
            assert (await agent.refused("last_night"))["code"] == "denied"


async def test_a_pipeline_is_a_tool_of_its_token(api: Api) -> None:
    """The answer has the result of the run, also for a token without a right to read jobs."""
    for name in ("piper", "starter"):
        async with an_http_agent(api, token_for(name)) as agent:
            assert (await agent.call("start__chain"))["status"] == "succeeded"
            assert (await agent.refused("start__other"))["code"] == "denied"
            assert (await agent.refused("run", name="other"))["code"] == "denied"
            assert (await agent.refused("run", name="echo"))["code"] == "denied"
            assert (await agent.call("run", name="chain"))["status"] == "succeeded"


async def test_a_key_over_mcp_is_that_of_the_token(api: Api) -> None:
    """A duplicate would be answered with the result of another token's job."""
    async with an_http_agent(api, token_for("a")) as first, an_http_agent(api, token_for("b")) as second:
        foreign = await first.call("start__chain", dedupe_key="same")
        own_job = await second.call("start__chain", dedupe_key="same")
        assert own_job["job_id"] != foreign["job_id"]
        assert "deduplicated" not in own_job
        assert (await second.call("start__chain", dedupe_key="same"))["deduplicated"] is True


# ---------------------------------------------------------------------------------------------- tokens


def test_a_token_gives_no_right_over_jobs_of_others(api: Api) -> None:
    """A token with an own scope makes none with one, which could have jobs of others."""
    token = token_for("manager")
    for body in ({"name": "made", "scopes": ["own:ro"]}, {"name": "made", "scopes": ["own:rw"]}):
        response = api.ask("POST", "/tokens", {**body, "dry_run": True}, token=token)
        assert (response.status, response.code) == (403, "denied")
    request = {"name": "made", "scopes": ["pipeline:chain"], "dry_run": True}
    assert api.ask("POST", "/tokens", request, token=token).status != 403
    response = api.ask("POST", "/tokens", request, token=token_for("system:rw"))
    assert (response.status, response.code) == (403, "denied")


def test_a_scope_of_an_unknown_pipeline_is_a_warning(tmp_path: Path) -> None:
    """A word that is no scope is an error."""
    pipelines = "pipelines:\n  - {name: chain, steps: [{uses: echo}]}\n"
    workspace = an_api_workspace(tmp_path, scopes=("*", "pipeline:chian"), more=pipelines)
    assert workspace.ductile("apply").status == 0
    result = workspace.ductile("config", "check")
    assert result.status == 0
    assert 'the scope "pipeline:chian" is for a pipeline that is not configured' in result.out + result.err
    assert "chain" in result.out + result.err
    for scope in ("pipeline:", "pipeline:a b", "own:all", "own"):
        text = workspace.config.read_text()
        workspace.config.write_text(text.replace("pipeline:chian", scope))
        assert workspace.ductile("config", "check").status == 78, scope
        workspace.config.write_text(text)
    workspace.append("  own: {uses: echo}\n")
    result = workspace.ductile("config", "check")
    assert result.status == 78
    assert "reserved" in result.out + result.err


def test_jobs_belong_to_the_name_of_the_token(tmp_path: Path) -> None:
    """A rotation and a restart keep them; a token with another name has none of them."""
    workspace = an_api_workspace(tmp_path)
    assert workspace.ductile("apply").status == 0
    secret = workspace.json("token", "create", "agent", "--scopes", "plugin:rw,own:rw")["token"]
    with an_api(workspace) as api:
        job_id = api.post("/plugin/echo/handle", {}, token=secret)["job_id"]
        api.ended(job_id)
        secret = api.post("/tokens/agent/rotate", {"keep_old": "0s"}, status=200)["token"]
        assert api.get("/jobs", token=secret)["jobs"][0]["job_id"] == job_id
        other_secret = api.post("/tokens", {"name": "second", "scopes": ["own:ro"]}, status=200)["token"]
        assert api.get("/jobs", token=other_secret)["jobs"] == []
    with an_api(workspace) as api:
        assert [job["job_id"] for job in api.get("/jobs", token=secret)["jobs"]] == [job_id]
        api.post("/tokens/agent/revoke", {}, status=200)
        new_secret = api.post("/tokens", {"name": "agent", "scopes": ["own:ro"]}, status=200)["token"]
        assert [job["job_id"] for job in api.get("/jobs", token=new_secret)["jobs"]] == [job_id]
