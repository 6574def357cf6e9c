"""Results for callers: of runs and jobs, with or without the record, and how they ended."""

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
    with an_api(workspace) as running:
        yield running


def reader(**fields: Any) -> dict[str, Any]:
    return {"stdout": "", "stderr": "", "exit_code": 0, "output_files": [], **fields}


def test_nulls_are_normalised_everywhere(api: Api) -> None:
    said = api.post("/pipeline/good", status=200)
    answer = {
        "status": "ok",
        "result": {"n": 1},
        "events": [],
        "logs": [],
        "artifacts": [],
        "state_updates": {},
    }
    assert said["result"] == answer | reader(stdout='{"n":1}')
    assert [node["result"] for node in said["children"] + said["tree"]] == [answer, answer]
    for job_id in (said["job_id"], said["tree"][0]["job_id"]):
        assert api.get(f"/job/{job_id}")["result"] == said["result"]
        (execution,) = api.get(f"/job/{job_id}/log")["executions"]
        assert execution["result"] == answer
    emitted = api.ended(api.post("/plugin/emits/poll")["job_id"])
    assert emitted["result"]["events"] == [{"type": "a.b", "payload": {}}, {"type": "a.c", "payload": {}}]


def test_a_job_without_a_usable_answer_is_read_the_same_way(api: Api) -> None:
    job = api.ended(api.post("/plugin/garbage/poll")["job_id"])
    assert job["status"] == "dead"
    assert job["result"] == reader(events=[], stderr="told\n")


@pytest.mark.parametrize(
    ("pipeline", "status", "ok"),
    [("good", "succeeded", True), ("bad", "failed", False), ("half", "partial_success", False)],
)
def test_the_end_of_a_run_is_in_the_header_and_the_body(
    api: Api, pipeline: str, status: str, ok: bool
) -> None:
    said = api.ask("POST", f"/pipeline/{pipeline}")
    assert (said.status, said.headers["x-ductile-status"]) == (200, status)
    assert (said.body["status"], said.body["ok"]) == (status, ok)
    strict = api.ask("POST", f"/pipeline/{pipeline}?strict=true")
    assert (strict.status, strict.headers["x-ductile-status"]) == (200 if ok else 502, status)
    assert strict.body.keys() == said.body.keys()
    assert (strict.body["ok"], strict.body["message"]) == (ok, said.body["message"])


def test_the_error_names_every_branch_that_failed(api: Api) -> None:
    said = api.post("/pipeline/many", status=200)
    assert (said["status"], said["error"]) == ("partial_success", "both/a: no; both/c: no")
    assert api.get(f"/job/{said['job_id']}")["last_error"] == said["error"]


def test_the_result_and_nothing_else(api: Api) -> None:
    whole = api.post("/pipeline/good", status=200)
    only = api.ask("POST", "/pipeline/good?result=only")
    assert (only.status, only.headers["content-type"]) == (200, "application/json")
    assert only.headers["x-ductile-status"] == "succeeded"
    assert only.body == whole["result"]
    job = api.ask("GET", f"/job/{whole['job_id']}?result=only")
    assert (job.status, job.body, job.headers["x-ductile-status"]) == (200, whole["result"], "succeeded")
    failed = api.ask("POST", "/pipeline/bad?result=only&strict=true")
    assert (failed.status, failed.headers["x-ductile-status"]) == (502, "failed")
    assert failed.body["error"] == "no"


def test_a_job_without_a_result_is_answered_with_its_record(api: Api) -> None:
    said = api.ask("POST", "/pipeline/slow?result=only&strict=true")
    assert (said.status, said.headers["x-ductile-status"]) == (202, "queued")
    assert said.body["job_id"]


def test_an_unknown_choice_starts_nothing(api: Api) -> None:
    before = runs(api)
    said = api.ask("POST", "/pipeline/good?result=all")
    assert (said.status, said.code) == (400, "usage")
    assert said.body["error"]["hint"] == "one of only"
    assert runs(api) == before


def runs(api: Api) -> list[str]:
    """The ids alone: a run of another test may still be under way."""
    return [str(job["job_id"]) for job in api.get("/jobs?plugin=pipeline")["jobs"]]
