"""`job export` and `GET /job/ID/export`: one document about a chain of jobs."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from typing import Any

import pytest

from builders.daemons import answering
from builders.http import Api, an_api, an_api_workspace
from builders.receivers import a_receiver

SECRET = "canary-91d0"
CONFIG = """\
state_webhooks: {allow: [127.0.0.1], timeout: 20s}
routes: [{from: source, event_type: thing.found, to: echo}]
pipelines:
  - name: two
    on: two.wanted
    steps:
      - {id: first, uses: source, baggage: {who: payload.who}}
      - {id: second, uses: echo, if: {path: payload.missing, op: exists}}
      - {id: third, uses: echo, with: {said: "{context.who}"}}
"""
EMITTING = answering(
    {"status": "ok", "result": 1, "events": [{"type": "thing.found", "payload": {"missing": True}}]}
)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    workspace = an_api_workspace(tmp_path_factory.mktemp("api"), "  source: {}\n", more=CONFIG)
    workspace.plugin("source", EMITTING)
    workspace.ductile("config", "lock")
    with an_api(workspace) as api:
        yield api


def run_chain(api: Api) -> tuple[str, str]:
    """Run a job and the job that its event starts, and return both ids."""
    first = api.post("/plugin/source/handle", {"payload": {"n": 1}})["job_id"]
    api.ended(first)
    (second,) = api.get(f"/jobs?parent={first}")["jobs"]
    api.ended(second["job_id"])
    return first, second["job_id"]


def test_the_document_has_the_whole_chain_from_any_of_its_jobs(api: Api) -> None:
    """The document has inputs, outputs, timings, attempts, transitions and the configuration of each job."""
    first, second = run_chain(api)
    document = api.workspace.json("job", "export", second)
    assert (document["version"], document["root_job_id"], document["requested_job_id"]) == (1, first, second)
    assert [job["job_id"] for job in document["jobs"]] == [first, second]
    jobs: dict[str, dict[str, Any]] = {job["job_id"]: job for job in document["jobs"]}
    for job_id, job in jobs.items():
        full = api.get(f"/job/{job_id}")
        shared_keys = set(full) & set(job) - {"executions"}
        assert {"payload", "transitions", "created_at", "attempt", "parent_job_id"} <= shared_keys
        assert {key: job[key] for key in shared_keys} == {key: full[key] for key in shared_keys}
        assert job["executions"] == api.get(f"/job/{job_id}/log")["executions"]
        assert job["config"] in [config["hash"] for config in document["configs"]]
    assert jobs[first]["executions"][0]["result"]["result"] == 1
    assert jobs[second]["event"]["type"] == "thing.found"
    assert jobs[second]["payload"] == {"missing": True, "result": 1}


def test_below_leaves_out_the_jobs_before(api: Api) -> None:
    first, second = run_chain(api)
    assert [job["job_id"] for job in api.get(f"/job/{second}/export?below=true")["jobs"]] == [second]
    assert [job["job_id"] for job in api.get(f"/job/{first}/export")["jobs"]] == [first, second]


def test_a_run_has_its_steps_context_and_ledger(api: Api) -> None:
    run = api.post("/pipeline/two", {"payload": {"who": "Ada"}})["job_id"]
    api.ended(run)
    document = api.get(f"/job/{run}/export")
    jobs = {job["step"] or job["plugin"]: job for job in document["jobs"]}
    assert {"pipeline", "first", "second", "third"} <= set(jobs)
    assert jobs["third"]["context"]["who"] == "Ada"
    assert jobs["pipeline"]["payload"] == {"who": "Ada"}
    api.workspace.json("job", "rerun", run)
    later_document = api.get(f"/job/{run}/export")
    assert [
        entry["kind"] for job in later_document["jobs"] if job["job_id"] == run for entry in job["ledger"]
    ] == ["job.rerun"]


def test_deliveries_are_there_without_the_secret_of_their_url(api: Api) -> None:
    with a_receiver() as receiver:
        url = receiver.url(f"/{SECRET}")
        body = {"payload": {}, "state_webhook_url": url}
        job_id = api.post("/plugin/echo/handle", body)["job_id"]
        receiver.wait_for(lambda requests: len(requests) == 4)
    response = api.ask("GET", f"/job/{job_id}/export")
    assert SECRET.encode() not in response.content
    (job,) = response.body["jobs"]
    assert [row["state"] for row in job["deliveries"]] == ["queued", "loading", "working", "done"]


def test_a_file_is_written_whole_and_private(api: Api) -> None:
    first, _ = run_chain(api)
    directory = api.workspace.directory
    target = directory / "chain.json"
    target.write_text("old")
    target.chmod(0o644)
    result = api.workspace.ductile("job", "export", first, "--output", str(target))
    assert (result.status, result.out) == (0, f"Wrote 2 jobs to {target}.\n")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert len(json.loads(target.read_text())["jobs"]) == 2
    printed = json.loads(api.workspace.ductile("job", "export", first).out)
    assert printed["jobs"] == json.loads(target.read_text())["jobs"]
    for bad_target in (directory / "missing" / "chain.json", directory):
        refused = api.workspace.ductile("job", "export", first, "-o", str(bad_target))
        assert refused.status == 2
        assert "cannot be written" in refused.err
    assert [path.name for path in directory.iterdir() if path.name.endswith(".tmp")] == []


def test_a_large_payload_is_there_as_it_is(api: Api) -> None:
    text = "x" * 900_000
    job_id = api.post("/plugin/echo/handle", {"payload": {"text": text}})["job_id"]
    api.ended(job_id)
    (job,) = api.get(f"/job/{job_id}/export")["jobs"]
    assert job["payload"]["text"] == text
    assert api.ask("GET", "/job/0000ffff/export").status == 404
