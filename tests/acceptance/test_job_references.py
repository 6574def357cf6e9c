"""A job is named by `last`, `last:NAME`, `last:failed`, the name of a pipeline, or a part of its id."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from builders.daemons import SLOW, answering
from builders.http import Api, an_api, an_api_workspace

PIPELINES = """\
pipelines:
  - {name: good, on: good.wanted, execution_mode: synchronous, steps: [{id: only, uses: fine}]}
  - {name: bad, on: bad.wanted, execution_mode: synchronous, steps: [{id: only, uses: broken}]}
"""


@pytest.fixture
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    plugins = "  fine: {}\n  idle: {}\n  slow: {}\n  broken: {retry: {max_attempts: 1}}\n"
    workspace = an_api_workspace(tmp_path_factory.mktemp("references"), plugins, more=PIPELINES)
    for name in ("fine", "idle"):
        workspace.plugin(name, answering({"status": "ok", "result": name}))
    workspace.plugin("slow", SLOW)
    workspace.plugin("broken", answering({"status": "error", "error": "no", "retry": False}))
    with an_api(workspace) as api:
        yield api


def test_the_latest_jobs_are_named_by_words(api: Api) -> None:
    """The words work over HTTP and in commands. A step counts as its run unless its plugin is named."""
    assert api.ask("GET", "/job/last").status == 404
    alone = api.post("/plugin/fine/handle")["job_id"]
    api.ended(alone)
    assert api.get("/job/last")["job_id"] == alone
    run = api.post("/pipeline/good", status=200)["job_id"]
    assert api.get("/job/last")["job_id"] == run
    assert api.get("/job/LAST:good")["job_id"] == run
    step = api.get("/job/last:fine")
    assert (step["plugin"], step["run_id"]) == ("fine", run)
    failed_run = api.post("/pipeline/bad", status=200)
    failed = api.get("/job/last:failed")
    assert (failed["command"], failed["plugin"]) == ("bad", "pipeline")
    assert failed_run["job_id"] == failed["job_id"]
    workspace = api.workspace
    assert workspace.json("job", "show", "last")["job_id"] == failed["job_id"]
    assert workspace.json("job", "logs", "last:broken")["executions"][0]["status"] == "failed"
    assert "step_failed" in workspace.ductile("job", "show", "last:failed").out
    assert workspace.json("explain", "last:failed")["job_id"] == failed["job_id"]
    assert workspace.json("retry", "last:failed", "--dry-run")["job_id"] == failed["job_id"]
    # Where a command takes a run, the name of the pipeline is enough.
    assert workspace.json("pipeline", "explain", "good")["run"]["job_id"] == run
    assert [job["step"] for job in api.get("/jobs?run=good")["jobs"]] == ["only"]
    assert api.get("/job-logs?job_id=last:fine")["logs"][0]["job_id"] == step["job_id"]


def test_an_operator_s_end_is_no_failure(api: Api) -> None:
    """`last:failed` passes over jobs that were cancelled."""
    broken = api.post("/plugin/broken/handle")["job_id"]
    api.ended(broken)
    slow = api.post("/plugin/slow/handle")["job_id"]
    api.post(f"/job/{slow}/cancel", status=200)
    api.ended(slow)
    assert api.get("/job/last:failed")["job_id"] == broken


def test_words_that_name_nothing(api: Api) -> None:
    """The error names the mistake and a remedy."""
    failed = api.ask("GET", "/job/last:failed")
    assert (failed.status, failed.body["message"]) == (404, "no job has failed")
    idle = api.ask("GET", "/job/last:idle")
    assert (idle.status, idle.body["error"]["hint"]) == (404, "Run it with `ductile run idle`.")
    typo = api.ask("GET", "/job/last:fnie")
    assert (typo.status, typo.body["error"]["hint"]) == (404, "did you mean fine?")
    name = api.ask("GET", "/job/good")
    assert name.body["error"]["hint"] == "Its latest job, if it has one, is `last:good`."
    assert "at least 4 digits" in api.ask("GET", "/job/ab").body["error"]["hint"]
    assert api.get("/jobs?job_id=nothing-like-it")["jobs"] == []


def test_an_ambiguous_part_lists_the_candidates(api: Api) -> None:
    """The hint describes each candidate, so that the caller can choose one."""
    jobs = [api.post("/plugin/fine/handle")["job_id"] for _ in range(3)]
    for job in jobs:
        api.ended(job)
    # The first digits change with time: those that all three ids share are enough.
    part = next(jobs[0][:size] for size in (6, 5, 4) if all(job.startswith(jobs[0][:size]) for job in jobs))
    response = api.ask("GET", f"/job/{part}")
    assert response.status == 409
    assert set(jobs) <= set(response.body["error"]["details"]["job_ids"])
    assert f"{jobs[0]} (fine handle, succeeded)" in response.body["error"]["hint"]
    assert api.get(f"/job/{jobs[0][-8:]}")["job_id"] == jobs[0]
