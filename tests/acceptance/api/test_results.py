"""Results of runs and jobs for callers, with or without the rest of the record, and their status."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from builders.daemons import answering
from builders.http import Api, an_api, an_api_workspace

NULLS = {
    "status": "ok",
    "result": {"n": 1},
    "events": None,
    "logs": None,
    "artifacts": None,
    "state_updates": None,
}
PIPELINES = """\
pipelines:
  - {name: good, on: good.wanted, execution_mode: synchronous, steps: [{id: only, uses: nulls}]}
  - {name: bad, on: bad.wanted, execution_mode: synchronous, steps: [{id: only, uses: broken}]}
  - name: half
    on: half.wanted
    execution_mode: synchronous
    steps: [{split: [{uses: nulls}, {uses: broken}]}]
  - name: many
    on: many.wanted
    execution_mode: synchronous
    steps: [{id: both, split: [{id: a, uses: broken}, {id: b, uses: nulls}, {id: c, uses: broken}]}]
  - {name: slow, on: slow.wanted, steps: [{uses: nulls}]}
"""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    once = "{retry: {max_attempts: 1}}"
    plugins = f"  nulls: {{}}\n  emits: {{}}\n  garbage: {once}\n  broken: {once}\n"
    workspace = an_api_workspace(tmp_path_factory.mktemp("api"), plugins, more=PIPELINES)
    workspace.plugin("nulls", answering(NULLS))
    emitted = {"status": "ok", "result": "x", "events": [{"type": "a.b", "payload": None}, {"type": "a.c"}]}
    workspace.plugin("emits", answering(emitted))
    workspace.plugin("broken", answering({"status": "error", "error": "no", "retry": False, "events": None}))
    workspace.plugin("garbage", "#!/bin/sh\ncat > /dev/null\necho nonsense\necho told >&2\n")
    with an_api(workspace) as api:
        yield api


def with_output(**fields: Any) -> dict[str, Any]:
    """Return the fields that the result of a job has besides the response of its plugin."""
    return {"stdout": "", "stderr": "", "exit_code": 0, "output_files": [], **fields}


def test_nulls_are_normalised_everywhere(api: Api) -> None:
    response = api.post("/pipeline/good", status=200)
    record = {
        "status": "ok",
        "result": {"n": 1},
        "events": [],
        "logs": [],
        "artifacts": [],
        "state_updates": {},
    }
    assert response["result"] == record | with_output(stdout='{"n":1}')
    assert [node["result"] for node in response["children"] + response["tree"]] == [record, record]
    for job_id in (response["job_id"], response["tree"][0]["job_id"]):
        assert api.get(f"/job/{job_id}")["result"] == response["result"]
        (execution,) = api.get(f"/job/{job_id}/log")["executions"]
        assert execution["result"] == record
    job = api.ended(api.post("/plugin/emits/poll")["job_id"])
    assert job["result"]["events"] == [{"type": "a.b", "payload": {}}, {"type": "a.c", "payload": {}}]


def test_a_job_without_a_usable_answer_is_read_the_same_way(api: Api) -> None:
    job = api.ended(api.post("/plugin/garbage/poll")["job_id"])
    assert job["status"] == "dead"
    assert job["result"] == with_output(events=[], stderr="told\n")


@pytest.mark.parametrize(
    ("pipeline", "status", "ok"),
    [("good", "succeeded", True), ("bad", "failed", False), ("half", "partial_success", False)],
)
def test_the_end_of_a_run_is_in_the_header_and_the_body(
    api: Api, pipeline: str, status: str, ok: bool
) -> None:
    response = api.ask("POST", f"/pipeline/{pipeline}")
    assert (response.status, response.headers["x-ductile-status"]) == (200, status)
    assert (response.body["status"], response.body["ok"]) == (status, ok)
    strict_response = api.ask("POST", f"/pipeline/{pipeline}?strict=true")
    assert (strict_response.status, strict_response.headers["x-ductile-status"]) == (
        200 if ok else 502,
        status,
    )
    assert strict_response.body.keys() == response.body.keys()
    assert (strict_response.body["ok"], strict_response.body["message"]) == (ok, response.body["message"])


def test_the_error_names_every_branch_that_failed(api: Api) -> None:
    response = api.post("/pipeline/many", status=200)
    assert (response["status"], response["error"]) == ("partial_success", "both/a: no; both/c: no")
    assert api.get(f"/job/{response['job_id']}")["last_error"] == response["error"]


def test_the_result_and_nothing_else(api: Api) -> None:
    run = api.post("/pipeline/good", status=200)
    response = api.ask("POST", "/pipeline/good?result=only")
    assert (response.status, response.headers["content-type"]) == (200, "application/json")
    assert response.headers["x-ductile-status"] == "succeeded"
    assert response.body == run["result"]
    job_response = api.ask("GET", f"/job/{run['job_id']}?result=only")
    assert (job_response.status, job_response.body, job_response.headers["x-ductile-status"]) == (
        200,
        run["result"],
        "succeeded",
    )
    failed_response = api.ask("POST", "/pipeline/bad?result=only&strict=true")
    assert (failed_response.status, failed_response.headers["x-ductile-status"]) == (502, "failed")
    assert failed_response.body["error"] == "no"


def test_a_job_without_a_result_is_answered_with_its_record(api: Api) -> None:
    response = api.ask("POST", "/pipeline/slow?result=only&strict=true")
    assert (response.status, response.headers["x-ductile-status"]) == (202, "queued")
    assert response.body["job_id"]


def test_an_unknown_choice_starts_nothing(api: Api) -> None:
    before = run_ids(api)
    response = api.ask("POST", "/pipeline/good?result=all")
    assert (response.status, response.code) == (400, "usage")
    assert response.body["error"]["hint"] == "one of only"
    assert run_ids(api) == before


def run_ids(api: Api) -> list[str]:
    """Return the ids of all runs. A run of another test may still be under way, so its status may change."""
    return [str(job["job_id"]) for job in api.get("/jobs?plugin=pipeline")["jobs"]]
