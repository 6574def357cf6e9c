"""`job rerun` and `POST /job/ID/rerun`: a new job with the input of an old one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders.daemons import BROKEN, a_daemon, a_workspace
from builders.http import Api, an_api, an_api_workspace, token_for

#: Responds with its request.
MIRROR = """\
#!/usr/bin/env python3
import json, sys
request = json.load(sys.stdin)
event = request.get("event") or {}
result = {"payload": request.get("payload"), "context": request.get("context"), "type": event.get("type")}
print(json.dumps({"status": "ok", "result": result, "events": []}))
"""
PLUGINS = """\
  mirror: {}
  broken: {max_attempts: 1}
"""
CONFIG = """\
routes: [{from: api, event_type: thing.found, to: mirror}]
pipelines:
  - name: two
    steps:
      - {id: first, uses: echo, baggage: {who: payload.who}}
      - {id: second, uses: mirror, with: {said: "{context.who}"}}
"""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    workspace = an_api_workspace(tmp_path_factory.mktemp("api"), PLUGINS, more=CONFIG)
    workspace.plugin("mirror", MIRROR)
    workspace.plugin("broken", BROKEN)
    workspace.ductile("config", "lock")
    with an_api(workspace) as api:
        yield api


def run_to_end(api: Api, path: str, body: object) -> dict[str, Any]:
    return api.ended(api.post(path, body)["job_id"])


def rerun(api: Api, job_id: str, *words: str) -> dict[str, Any]:
    return api.workspace.json("job", "rerun", job_id, *words)


def test_a_succeeded_job_runs_again_with_its_input(api: Api) -> None:
    """The new job names the old one and has no dedupe key; the old one stays as it is."""
    old = run_to_end(api, "/plugin/mirror/handle", {"payload": {"n": 1}, "dedupe_key": "once"})
    new = rerun(api, old["job_id"])
    assert new["job_id"] != old["job_id"]
    assert (new["rerun_of"], new["dedupe_key"], new["submitted_by"]) == (old["job_id"], None, "cli")
    assert new["result"]["result"]["payload"] == {"n": 1}
    assert api.get(f"/job/{old['job_id']}") == old
    second = api.post(f"/job/{old['job_id']}/rerun")
    assert (second["rerun_of"], second["deduplicated"]) == (old["job_id"], False)
    assert api.ended(second["job_id"])["submitted_by"] == "api"


@pytest.mark.parametrize("path", ["/plugin/mirror/handle", "/pipeline/two"])
def test_a_rerun_that_is_sent_twice_with_its_key_runs_once(api: Api, path: str) -> None:
    """A caller repeats a request after a broken connection. The key belongs to this one rerun."""
    old_id, other_id = (
        run_to_end(api, path, {"payload": {"who": name}})["job_id"] for name in ("ada", "bob")
    )
    headers = {"Idempotency-Key": f"again {path}"}
    first = api.ask("POST", f"/job/{old_id}/rerun", {}, headers=headers)
    repeated = api.ask("POST", f"/job/{old_id}/rerun", {}, headers=headers)
    assert (first.status, first.body["deduplicated"]) == (202, False)
    assert (repeated.body["job_id"], repeated.body["deduplicated"]) == (first.body["job_id"], True)
    api.ended(first.body["job_id"])
    assert api.ask("POST", f"/job/{old_id}/rerun", {}, headers=headers).body["job_id"] == first.body["job_id"]
    assert api.ask("POST", f"/job/{other_id}/rerun", {}, headers=headers).status == 422
    changed_body = {"payload": {"who": "eve"}}
    assert api.ask("POST", f"/job/{old_id}/rerun", changed_body, headers=headers).status == 422
    reruns = [row["data"] for row in api.get("/ledger")["events"] if row["kind"] == "job.rerun"]
    assert reruns[-1:] == [{"rerun_job_id": first.body["job_id"]}]
    assert api.post(f"/job/{old_id}/rerun")["job_id"] != first.body["job_id"]


def test_a_job_of_an_event_has_the_event_again(api: Api) -> None:
    event = {"type": "thing.found", "payload": {"n": 2}}
    (started,) = api.post("/event", event)["started"]
    old = api.ended(started["job_id"])
    assert rerun(api, old["job_id"])["result"]["result"] == old["result"]["result"]
    input_seen = rerun(api, old["job_id"], "--payload", '{"n": 3}')["result"]["result"]
    assert (input_seen["payload"], input_seen["type"]) == ({"n": 3}, "thing.found")


@pytest.mark.parametrize("payload", [None, {"who": "Eve"}])
def test_a_run_runs_again_as_a_whole(api: Api, payload: dict[str, Any] | None) -> None:
    old = run_to_end(api, "/pipeline/two", {"payload": {"who": "Ada"}})
    words = [] if payload is None else ["--payload", json.dumps(payload)]
    new = rerun(api, old["job_id"], *words)
    assert (new["plugin"], new["command"], new["rerun_of"]) == ("pipeline", "two", old["job_id"])
    assert new["result"]["result"]["payload"]["said"] == (payload or {"who": "Ada"})["who"]


def test_a_step_runs_again_outside_its_run(api: Api) -> None:
    """The new job has the payload and the context of the step, and the command says that it runs alone."""
    run = run_to_end(api, "/pipeline/two", {"payload": {"who": "Ada"}})
    steps = api.get(f"/jobs?run={run['job_id']}")["jobs"]
    (step,) = [step for step in steps if step["step"] == "second"]
    old = api.get(f"/job/{step['job_id']}")
    result = api.workspace.ductile("job", "rerun", old["job_id"])
    assert result.status == 0
    assert f"it was step second of run {run['job_id']}; it runs alone" in result.err
    new = api.workspace.json("job", "show", "last:mirror")
    assert (new["run_id"], new["step"], new["rerun_of"]) == (None, None, old["job_id"])
    assert new["result"]["result"]["payload"] == old["payload"]
    assert new["event_context_id"] == old["event_context_id"]


def test_a_failed_job_that_fails_again_ends_the_command_with_1(api: Api) -> None:
    old = run_to_end(api, "/plugin/broken/handle", {"payload": {}})
    new = api.workspace.json("job", "rerun", old["job_id"], status=1)
    assert (new["status"], new["rerun_of"]) == ("dead", old["job_id"])


def test_show_tree_explain_and_ledger_name_the_old_job(api: Api) -> None:
    old = run_to_end(api, "/plugin/mirror/handle", {"payload": {}})["job_id"]
    new = rerun(api, old)["job_id"]
    assert f"runs again    {old}" in api.workspace.ductile("job", "show", new).out
    assert f"(runs {old} again)" in api.workspace.ductile("job", "tree", new, "-v").out
    assert f"It runs job {old} again." in api.workspace.ductile("job", "explain", new).out
    entries = api.get("/ledger?limit=200")["events"]
    (entry,) = [entry for entry in entries if entry["kind"] == "job.rerun" and entry["job_id"] == old]
    assert entry["data"] == {"rerun_job_id": new}


def test_a_dry_run_starts_nothing(api: Api) -> None:
    old = run_to_end(api, "/plugin/mirror/handle", {"payload": {}})["job_id"]
    before = api.get("/jobs?limit=1")["jobs"]
    result = api.workspace.ductile("job", "rerun", old, "--dry-run")
    assert result.out == f"Would run mirror handle again, with the input of {old}.\n"
    planned = api.post(f"/job/{old}/rerun", {"dry_run": True}, status=200)
    assert (planned["rerun_of"], planned["job_id"]) == (old, None)
    assert api.get("/jobs?limit=1")["jobs"] == before


def test_no_wait_prints_the_id_of_the_new_job(api: Api) -> None:
    old = run_to_end(api, "/plugin/mirror/handle", {"payload": {}})["job_id"]
    new = api.workspace.ductile("job", "rerun", old, "--no-wait").out.strip()
    assert api.ended(new)["rerun_of"] == old


def test_another_payload_needs_the_right_to_call_the_plugin(api: Api) -> None:
    """`jobs:rw` allows a rerun with the same input only."""
    old = run_to_end(api, "/plugin/mirror/handle", {"payload": {}})["job_id"]
    token = token_for("jobs:rw")
    assert api.ask("POST", f"/job/{old}/rerun", {}, token=token).status == 202
    response = api.ask("POST", f"/job/{old}/rerun", {"payload": {"n": 1}}, token=token)
    assert (response.status, response.code) == (403, "denied")
    assert response.body["error"]["details"]["needed"] == ["plugin:rw", "mirror:rw"]
    assert api.ask("POST", f"/job/{old}/rerun", {}, token=token_for("jobs:ro")).status == 403


def test_what_cannot_be_run_again_is_refused(api: Api) -> None:
    api.workspace.ductile("exec", "--", "true")
    (executed,) = api.get("/jobs?plugin=exec&limit=1")["jobs"]
    assert rerun(api, executed["job_id"])["rerun_of"] == executed["job_id"]
    response = api.ask("POST", f"/job/{executed['job_id']}/rerun", {})
    assert (response.status, response.code) == (403, "denied")
    assert api.workspace.ductile("job", "rerun", executed["job_id"], "--payload", "{}").status == 1
    assert api.ask("POST", "/job/0000ffff/rerun", {}).status == 404


def test_a_rerun_works_without_a_daemon_and_after_retention(tmp_path: Path) -> None:
    """The log keeps the payload after the job has left the queue."""
    workspace = a_workspace(tmp_path, "  mirror: {}\n")
    workspace.plugin("mirror", MIRROR)
    workspace.config.write_text(
        "service: {job_queue_retention: 1ms, dedupe_ttl: 1ms}\n"
        + workspace.config.read_text().split("\n", 4)[4]
    )
    workspace.ductile("config", "lock")
    old = workspace.json("run", "mirror", "--payload", '{"n": 5}')
    workspace.json("run", "mirror", "--payload", '{"n": 6}')
    workspace.json("system", "sweep")
    assert old["job_id"] not in [job["job_id"] for job in workspace.json("job", "list")["jobs"]]
    new = workspace.json("job", "rerun", old["job_id"])
    assert (new["rerun_of"], new["result"]["result"]["payload"]) == (old["job_id"], {"n": 5})
    with a_daemon(workspace):
        assert workspace.json("job", "show", new["job_id"])["rerun_of"] == old["job_id"]
