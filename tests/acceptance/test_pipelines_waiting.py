"""Callers who wait for a run, and every way in which the waiting ends."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders.daemons import PATIENCE
from builders.flows import BackgroundCall, a_flow_workspace, give_commands, open_gate
from builders.http import Api, ApiResponse, an_api, token_for

PIPELINES = """\
pipelines:
  - name: quick
    execution_mode: synchronous
    steps: [{id: one, uses: work}, {id: two, uses: plain}]
  - name: half
    execution_mode: synchronous
    steps: [{id: both, split: [{id: good, uses: work}, {id: bad, uses: broken}]}]
  - name: empty
    execution_mode: synchronous
    steps: [{uses: work, if: {path: payload.never, op: exists}}]
  - name: waiting
    execution_mode: synchronous
    steps: [{id: first, uses: work}, {id: gate, uses: gated}]
  - name: late
    execution_mode: synchronous
    timeout: 3s
    return_on_timeout: partial
    steps: [{id: first, uses: plain}, {id: gate, uses: gated}]
  - name: terse
    execution_mode: synchronous
    timeout: 200ms
    steps: [{id: gate, uses: gated}]
  - name: killed
    execution_mode: synchronous
    timeout: 500ms
    on_timeout: kill
    steps: [{id: gate, uses: gated}]
  - {name: one-of-two, on: twin.start, steps: [{uses: plain}]}
  - {name: two-of-two, on: twin.start, steps: [{uses: plain}]}
"""
FINISHED = {
    "job_id",
    "status",
    "ok",
    "execution_mode",
    "duration_ms",
    "result",
    "children",
    "tree",
    "deduplicated",
    "message",
}
NODE = {
    "job_id",
    "plugin",
    "command",
    "step_id",
    "status",
    "error",
    "exit_code",
    "duration_ms",
    "result",
    "output_files",
}
STILL_RUNNING = {
    "job_id",
    "status",
    "execution_mode",
    "timeout_exceeded",
    "timeout_ms",
    "elapsed_ms",
    "deduplicated",
    "message",
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    workspace = a_flow_workspace(
        tmp_path_factory.mktemp("waiting"), PIPELINES, plugins="  prompt: {}\n  twin: {}\n"
    )
    for name in ("prompt", "twin"):
        workspace.plugin(name, '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok", "result": "at once"}\'\n')
    give_commands(workspace, "prompt", "handle", "poll", extra="execution_mode: synchronous\ntimeout: 20s\n")
    give_commands(workspace, "twin", "start")
    with an_api(workspace) as api:
        yield api


@pytest.fixture
def single_slot(tmp_path: Path) -> Iterator[Api]:
    """Start a daemon for one test, in which one caller may wait."""
    workspace = a_flow_workspace(tmp_path, PIPELINES, api="  max_concurrent_sync: 1\n")
    with an_api(workspace) as api:
        yield api


def post(api: Api, path: str, body: object = None, **more: Any) -> BackgroundCall:
    return BackgroundCall(lambda: api.ask("POST", path, body, **more)).start()


def runs_of(api: Api, pipeline: str) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = api.get(f"/jobs?plugin=pipeline&command={pipeline}&limit=200")["jobs"]
    return jobs


def test_the_answer_of_a_run_that_ended(api: Api) -> None:
    """The response is 200 with the result of the last step, and has the steps nested and in a row."""
    response = api.ask("POST", "/pipeline/quick", {"payload": {"n": 1}})
    assert response.status == 200
    body = response.body
    assert body.keys() == FINISHED
    assert (body["status"], body["execution_mode"]) == ("succeeded", "synchronous")
    assert body["result"] == {
        "status": "ok",
        "result": "plain",
        "events": [],
        "stdout": "plain",
        "stderr": "",
        "exit_code": 0,
        "output_files": [],
    }
    (first,) = body["children"]
    assert first.keys() == NODE | {"children"}
    assert first["result"]["events"][0]["payload"]["trail"] == ["one"]
    assert [child["step_id"] for child in first["children"]] == ["two"]
    assert [(row["step_id"], row["parent_job_id"]) for row in body["tree"]] == [
        ("one", body["job_id"]),
        ("two", first["job_id"]),
    ]
    assert all(row.keys() == NODE | {"parent_job_id"} for row in body["tree"])


def test_a_partly_failed_run_and_a_run_without_jobs(api: Api) -> None:
    """A partly failed run has the status `partial_success`; a run without jobs has no result."""
    half_response = api.ask("POST", "/pipeline/half")
    assert (half_response.status, half_response.body["status"]) == (200, "partial_success")
    assert half_response.body["error"].endswith(": it is broken")
    assert {row["step_id"]: row["error"] for row in half_response.body["tree"]}["both/bad"] == "it is broken"
    empty_response = api.ask("POST", "/pipeline/empty")
    assert (empty_response.status, empty_response.body["status"], empty_response.body["result"]) == (
        200,
        "succeeded",
        None,
    )
    assert empty_response.body["children"] == []


def test_a_wait_that_times_out_returns_the_finished_steps(api: Api) -> None:
    """The response is 202 with the id and, if the pipeline says so, the ended steps; the run goes on."""
    response = api.ask("POST", "/pipeline/late")
    assert response.status == 202
    assert response.body.keys() == STILL_RUNNING | {"children", "tree"}
    assert (response.body["status"], response.body["timeout_exceeded"], response.body["timeout_ms"]) == (
        "running",
        True,
        3000,
    )
    assert response.body["elapsed_ms"] >= 3000
    assert [row["step_id"] for row in response.body["tree"]] == ["first"]
    open_gate(api.workspace)
    assert api.ended(response.body["job_id"])["status"] == "succeeded"
    terse_response = api.ask("POST", "/pipeline/terse")
    assert terse_response.status == 202
    assert terse_response.body.keys() == STILL_RUNNING
    open_gate(api.workspace)
    assert api.ended(terse_response.body["job_id"])["status"] == "succeeded"


def test_a_run_that_is_cancelled_when_time_is_up(api: Api) -> None:
    """At the deadline the engine ends the process, and the run is dead."""
    response = api.ask("POST", "/pipeline/killed")
    assert response.status == 202
    assert "cancelled" in response.body["message"]
    job = api.ended(response.body["job_id"])
    assert (job["status"], job["reason"]) == ("dead", "cancelled")


def test_a_caller_may_decline_to_wait(api: Api) -> None:
    """A request with `?async=true` is answered at once, as for an asynchronous pipeline."""
    response = api.ask("POST", "/pipeline/waiting?async=true")
    assert response.status == 202
    assert (response.body["status"], response.body["execution_mode"]) == ("queued", "async")
    assert (response.body["plugin"], response.body["command"]) == ("pipeline", "waiting")
    open_gate(api.workspace)
    assert api.ended(response.body["job_id"])["status"] == "succeeded"


def test_a_plugin_that_says_its_callers_wait(api: Api) -> None:
    """/trigger without a pipeline follows the mode of the manifest; /plugin never waits."""
    response = api.ask("POST", "/trigger/prompt/handle")
    assert (response.status, response.body["status"], response.body["result"]["stdout"]) == (
        200,
        "succeeded",
        "at once",
    )
    assert api.post("/plugin/prompt/handle")["status"] == "queued"
    assert api.post("/trigger/plain/handle")["execution_mode"] == "async"


def test_a_trigger_that_could_mean_several_pipelines(api: Api) -> None:
    """The response is 409 and names the pipelines, and nothing is started."""
    response = api.ask("POST", "/trigger/twin/start")
    assert (response.status, response.code) == (409, "conflict")
    assert response.body["error"]["details"]["pipelines"] == ["one-of-two", "two-of-two"]
    assert runs_of(api, "one-of-two") == []


def test_a_second_caller_with_the_same_key_waits_for_the_same_run(api: Api) -> None:
    """A deduplicated synchronous call answers with the result of the job that exists."""
    headers = {"Idempotency-Key": "the-same"}
    first = post(api, "/pipeline/waiting", {"payload": {"n": 1}}, headers=headers)
    run_id = api.daemon.wait_for("job.accepted", lambda line: is_waiting_run(api, line))["job_id"]
    second = post(api, "/pipeline/waiting", {"payload": {"n": 1}}, headers=headers)
    api.daemon.wait_for("job.deduplicated", lambda line: line["job_id"] == run_id)
    open_gate(api.workspace)
    assert (first.result.status, second.result.status) == (200, 200)
    assert first.result.body["job_id"] == second.result.body["job_id"] == run_id
    assert (first.result.body["deduplicated"], second.result.body["deduplicated"]) == (False, True)
    repeated = api.ask("POST", "/pipeline/waiting", {"payload": {"n": 1}}, headers=headers)
    assert (repeated.status, repeated.body["job_id"]) == (200, run_id)
    assert repeated.body["deduplicated"] is True
    assert repeated.body["message"] == "This is a duplicate. pipeline waiting: succeeded"


def test_a_duplicate_of_a_synchronous_trigger_is_marked_as_one(api: Api) -> None:
    """The response is like that of a duplicate pipeline run."""
    headers = {"Idempotency-Key": "prompt-once"}
    first = api.ask("POST", "/trigger/prompt/handle", headers=headers)
    repeated = api.ask("POST", "/trigger/prompt/handle", headers=headers)
    assert (first.status, repeated.status) == (200, 200)
    assert first.body["job_id"] == repeated.body["job_id"]
    assert (first.body["deduplicated"], repeated.body["deduplicated"]) == (False, True)


def test_a_duplicate_whose_time_is_up_cancels_nothing(api: Api) -> None:
    """A run that was started without a deadline goes on, and the second caller is told so."""
    headers = {"Idempotency-Key": "unhurried"}
    run_id = api.post("/pipeline/killed?async=true", headers=headers)["job_id"]
    response = api.ask("POST", "/pipeline/killed", headers=headers)
    assert (response.status, response.body["job_id"], response.body["deduplicated"]) == (202, run_id, True)
    assert response.body["message"].startswith("This is a duplicate. The run goes on")
    open_gate(api.workspace)
    assert api.ended(run_id)["status"] == "succeeded"


def test_a_call_from_inside_an_unknown_job_waits(api: Api) -> None:
    """Only an existing job could wait for itself, which both endpoints check."""
    unknown_job = {"X-Ductile-Job": "nobody"}
    assert api.ask("POST", "/pipeline/quick", headers=unknown_job).status == 200
    assert api.ask("POST", "/trigger/prompt/handle", headers=unknown_job).status == 200
    known_job = {"X-Ductile-Job": api.post("/plugin/plain/handle")["job_id"]}
    assert api.ask("POST", "/pipeline/quick", headers=known_job).status == 202
    assert api.ask("POST", "/trigger/prompt/handle", headers=known_job).status == 202


def is_waiting_run(api: Api, line: dict[str, Any]) -> bool:
    job = api.get(f"/job/{line['job_id']}")
    return bool(job["command"] == "waiting" and job["status"] in ("queued", "running"))


def test_no_slot_and_no_job(single_slot: Api) -> None:
    """A slot is taken before a job is submitted; without one the response is 503 with Retry-After."""
    waiting_call = post(single_slot, "/pipeline/waiting")
    single_slot.daemon.wait_for("job.started", lambda line: line["plugin"] == "gated")
    response = single_slot.ask("POST", "/pipeline/quick")
    assert (response.status, response.code) == (503, "too_busy")
    assert int(response.headers["retry-after"]) >= 1
    assert runs_of(single_slot, "quick") == []
    assert single_slot.ask("POST", "/pipeline/quick?async=true").status == 202
    open_gate(single_slot.workspace)
    assert waiting_call.result.status == 200
    assert single_slot.ask("POST", "/pipeline/quick").status == 200


def test_a_caller_that_hangs_up_frees_its_slot(single_slot: Api) -> None:
    """The run of a caller that hung up goes on."""
    request = (
        b"POST /pipeline/waiting HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n"
        b"Authorization: Bearer " + token_for("*").encode() + b"\r\n\r\n"
    )
    with single_slot.connect() as connection:
        connection.sendall(request)
        single_slot.daemon.wait_for("job.started", lambda line: line["plugin"] == "gated")
        assert single_slot.ask("POST", "/pipeline/quick").status == 503
    # The daemon does not report when it has noticed, so refused requests are repeated.
    deadline = time.monotonic() + PATIENCE
    while single_slot.ask("POST", "/pipeline/quick").status != 200:
        assert time.monotonic() < deadline
    (run,) = runs_of(single_slot, "waiting")
    open_gate(single_slot.workspace)
    assert single_slot.ended(run["job_id"])["status"] == "succeeded"


def test_a_daemon_that_stops_answers_waiting_callers(single_slot: Api) -> None:
    """The response is 202 with the id; the run goes on when a daemon runs again."""
    waiting_call = post(single_slot, "/pipeline/waiting")
    single_slot.daemon.wait_for("job.started", lambda line: line["plugin"] == "gated")
    assert single_slot.daemon.end(signal.SIGTERM) == 0
    response: ApiResponse = waiting_call.result
    assert (response.status, response.body["status"], response.body["timeout_exceeded"]) == (
        202,
        "running",
        False,
    )
    with an_api(single_slot.workspace) as second_api:
        open_gate(single_slot.workspace)
        assert second_api.ended(response.body["job_id"])["status"] == "succeeded"


CALLING_PLUGIN = """#!/usr/bin/env python3
import json, os, sys, urllib.request

payload = json.load(sys.stdin)["event"]["payload"]
headers = {"Authorization": "Bearer " + payload["token"], "X-Ductile-Job": os.environ["DUCTILE_JOB_ID"]}
request = urllib.request.Request(payload["url"], data=b"{}", headers=headers, method="POST")
with urllib.request.urlopen(request) as response:
    json.dump({"status": "ok", "result": {"http": response.status, **json.load(response)}}, sys.stdout)
"""


def test_a_pool_of_one_cannot_starve_itself(tmp_path: Path) -> None:
    """A job that calls a synchronous pipeline is answered 202 at once; the run is its descendant."""
    workspace = a_flow_workspace(tmp_path, PIPELINES, plugins="  asking: {}\n")
    workspace.config.write_text(workspace.config.read_text().replace("max_workers: 4", "max_workers: 1"))
    workspace.plugin("asking", CALLING_PLUGIN)
    with an_api(workspace) as api:
        payload = {"url": f"http://127.0.0.1:{api.port}/pipeline/quick", "token": token_for("*")}
        calling_job = api.ended(api.post("/plugin/asking/handle", {"payload": payload})["job_id"])
        pipeline_response = calling_job["result"]["result"]
        assert (pipeline_response["http"], pipeline_response["status"]) == (202, "queued")
        run = api.ended(pipeline_response["job_id"])
        assert (run["status"], run["hops"], run["trace_id"]) == ("succeeded", 1, calling_job["trace_id"])


HOOKS = """\
pipelines:
  - name: on-success
    on-hook: job.completed
    from_plugin: told
    if: {path: payload.command, op: eq, value: handle}
    steps: [{id: say, uses: work, with: {text: "{payload.message}", took: "{payload.duration_ms}"}}]
  - {name: on-failure, on-hook: job.failed, steps: [{id: alarm, uses: work}]}
  - name: watched
    on: watched.go
    notify_on_complete: true
    steps: [{uses: broken}]
  - name: after-watched
    on-hook: job.failed
    from_plugin: watched
    steps: [{id: clean, uses: plain}]
"""


def test_hooks_from_end_to_end(tmp_path: Path) -> None:
    """Hooks start pipelines for jobs and runs with `notify_on_complete`, and for nothing else."""
    plugins = "  told: {uses: work, notify_on_complete: true}\n"
    with an_api(a_flow_workspace(tmp_path, HOOKS, plugins=plugins)) as api:
        job_id = api.post("/plugin/told/handle", {"payload": {"n": 1}})["job_id"]
        hook_run = ended_hook_run(api, "on-success")
        (say,) = [job for job in api.get(f"/jobs?run={hook_run['job_id']}")["jobs"] if job["step"] == "say"]
        payload = api.get(f"/job/{say['job_id']}")["payload"]
        assert hook_run["submitted_by"] == "hook"
        assert hook_run["parent_job_id"] == job_id
        assert payload["took"] > 0
        assert "told" in payload["text"]
        api.ended(api.post("/plugin/work/handle")["job_id"])
        watched_id = api.post("/pipeline/watched")["job_id"]
        assert ended_hook_run(api, "after-watched")["parent_job_id"] == watched_id
        assert ended_hook_run(api, "on-failure")["parent_job_id"] == watched_id
        assert len(runs_of(api, "on-success")) == 1
        payload_of_hook = api.get(f"/job/{ended_hook_run(api, 'after-watched')['job_id']}")["payload"]
        assert (payload_of_hook["pipeline"], payload_of_hook["status"], payload_of_hook["error"]) == (
            "watched",
            "failed",
            "1: it is broken",
        )
        assert json.dumps(payload_of_hook["attempt"]) == "1"


def ended_hook_run(api: Api, pipeline: str) -> dict[str, Any]:
    """Wait for the run of a hook's pipeline to end; return it."""
    api.daemon.wait_for(
        "job.succeeded", lambda line: line["plugin"] == "pipeline" and line["command"] == pipeline
    )
    (run,) = runs_of(api, pipeline)
    return run


def test_a_long_run_is_answered_shown_and_explained(tmp_path: Path) -> None:
    """Every surface can show a run of hundreds of steps in sequence."""
    length = 530
    steps = "".join(f"    - {{id: s{number}, uses: plain}}\n" for number in range(length))
    workspace = a_flow_workspace(
        tmp_path,
        f"pipelines:\n- name: long\n  execution_mode: synchronous\n  timeout: 2m\n  steps:\n{steps}",
        api="  max_sync_timeout: 5m\n",
    )
    with an_api(workspace) as api:
        response = api.ask("POST", "/pipeline/long", {"payload": {}})
        assert (response.status, response.body["status"], len(response.body["tree"])) == (
            200,
            "succeeded",
            length,
        )
        run_id, last_id = response.body["job_id"], response.body["tree"][-1]["job_id"]
        tree = api.get(f"/job/{run_id}/tree")["tree"]
        lines = workspace.ductile("job", "tree", run_id).out.splitlines()
        chain = api.get(f"/job/{last_id}/explain")["chain"]
        assert workspace.ductile("job", "explain", last_id).status == 0
        for action in ("show", "graph"):
            assert f"s{length - 1}" in workspace.ductile("pipeline", action, "long").out
        assert f"s{length - 1}" in workspace.ductile("pipeline", "explain", run_id).out
    nodes = [tree]
    while len(nodes) == 1:
        nodes = nodes[0]["children"]
    assert [node["step"] for node in nodes][-1] == f"s{length - 1}"
    assert len(lines) == length + 1
    assert lines[-1].strip().startswith(f"└─ after {nodes[-2]['job_id'][-8:]}: [s{length - 1}] plain handle")
    # A long chain is shown to its beginning.
    assert chain[0]["what"].startswith("the HTTP API")
    assert [link["job_id"] for link in (chain[1], chain[-1])] == [run_id, last_id]
    assert chain[2]["what"] == "earlier steps, left out here"
