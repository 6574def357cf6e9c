"""The payload of a run is there in every step, and every kind of step claims baggage, in the real daemon."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from builders.daemons import BROKEN, PATIENCE, Workspace, a_daemon, a_workspace

#: Answers with what it was given, so that the result shows it; emits nothing of it.
SHOWING = """#!/usr/bin/env python3
import json, sys
request = json.load(sys.stdin)
given = {"payload": request.get("payload") or request["event"]["payload"], "context": request["context"]}
print(json.dumps({"status": "ok", "result": given}))
"""
HELD = """#!/bin/sh
cat >/dev/null
while [ ! -e "$(dirname "$0")/go" ]; do sleep 0.05; done
echo '{"status": "ok", "result": "went"}'
"""
PIPELINES = """\
  shows: {}
  held: {retry: {backoff_base: 20ms}}
  mended: {retry: {max_attempts: 1}}
pipelines:
  - name: notify
    if: {path: run.payload.customer, op: exists}
    steps:
      - id: tell
        uses: shows
        with: {to: "{run.payload.customer}", of: "{run.pipeline}", order: "{context.order}"}
  - name: order
    steps:
      - {id: wait, uses: held}
      - id: both
        baggage: {order: run.payload.id}
        split:
          - {id: left, uses: shows, with: {id: "{run.payload.id}"}}
          - {id: right, uses: shows}
      - {id: call, call: notify, baggage: {called: payload.branches.left.status}}
      - id: none
        if: {path: run.payload.no, op: exists}
        baggage: {never: payload.x}
        steps: [{uses: shows}]
      - id: block
        baggage: {customer: run.payload.customer}
        steps:
          - {id: mend, uses: mended}
      - id: last
        uses: shows
        with:
          {run: "{run.id}", first: "{run.payload}", call: "{context.called}", customer: "{context.customer}"}
  - {name: wrong, steps: [{id: b, baggage: {a: payload.nothing}, steps: [{uses: shows}]}]}
"""
PAYLOAD = {"id": 7, "customer": "ada@example.org"}


def the_workspace(directory: Path) -> Workspace:
    workspace = a_workspace(directory, PIPELINES)
    for name, script in (("shows", SHOWING), ("held", HELD), ("mended", BROKEN)):
        workspace.plugin(name, script)
    return workspace


def touch(workspace: Workspace, plugin: str, name: str) -> None:
    (workspace.directory / "demo" / "plugins" / plugin / name).touch()


def shown(workspace: Workspace, run_id: str) -> dict[str, Any]:
    """By the path of a step: what its plugin was given."""
    tree = workspace.json("pipeline", "explain", run_id)
    jobs = {step["step"]: job["job_id"] for step in tree["steps"] for job in step["jobs"]}
    found = {}
    for path, job_id in jobs.items():
        answer = workspace.json("job", "show", job_id)
        if answer["plugin"] == "shows" and answer["result"]:
            found[path] = answer["result"]["result"]
    return found


def test_it_outlives_splits_calls_crashes_reloads_and_retries(tmp_path: Path) -> None:
    workspace = the_workspace(tmp_path)
    with a_daemon(workspace) as daemon:
        given = json.dumps(PAYLOAD)
        run_id = workspace.json("pipeline", "run", "order", "--payload", given, "--no-wait")["job_id"]
        daemon.wait_for("job.started", lambda line: line["plugin"] == "held")
        daemon.end(signal.SIGKILL)
    touch(workspace, "held", "go")
    with a_daemon(workspace) as daemon:
        assert workspace.ductile("reload").status == 0
        daemon.wait_for("job.failed", lambda line: line["job_id"] == run_id)
        given_to = shown(workspace, run_id)
        assert given_to["both/left"]["payload"] == {"id": 7}
        assert given_to["both/right"]["context"]["order"] == 7
        tell = given_to["call/tell"]
        assert tell["payload"] == {"to": "ada@example.org", "of": "order", "order": 7}
        assert tell["context"]["called"] == "succeeded"
        touch(workspace, "mended", "mended")
        assert workspace.ductile("job", "retry", run_id).status == 0
        last = workspace.json("job", "wait", run_id, "--timeout", f"{PATIENCE:.0f}s")
        assert last["status"] == "succeeded"
        result = shown(workspace, run_id)["last"]
        expected = {"run": run_id, "first": PAYLOAD, "call": "succeeded", "customer": "ada@example.org"}
        assert result["payload"] == expected
        # The step that was bypassed has claimed nothing.
        assert "never" not in result["context"]
        again = workspace.json("job", "retry", run_id, "--from-step", "last", status=1)
        assert again["error"]["code"]  # a run that succeeded is not taken up again


def test_a_run_from_a_step_begins_with_the_same_payload(tmp_path: Path) -> None:
    workspace = the_workspace(tmp_path)
    touch(workspace, "held", "go")
    with a_daemon(workspace):
        ran = workspace.json("pipeline", "run", "order", "--payload", json.dumps(PAYLOAD), status=1)
        touch(workspace, "mended", "mended")
        again = workspace.json("job", "retry", ran["job_id"], "--from-step", "block/mend")
        last = workspace.json("job", "wait", again["job_id"], "--timeout", f"{PATIENCE:.0f}s")
        assert last["status"] == "succeeded"
        result = shown(workspace, again["job_id"])["last"]["payload"]
        assert (result["first"], result["customer"]) == (PAYLOAD, "ada@example.org")
        assert result["run"] == again["job_id"]


def test_a_claim_that_fails_ends_the_run_there(tmp_path: Path) -> None:
    workspace = the_workspace(tmp_path)
    ran = workspace.json("pipeline", "run", "wrong", status=1)
    assert "there is no payload.nothing to keep as a" in ran["last_error"]
    explained = workspace.ductile("pipeline", "explain", ran["job_id"]).out
    assert "there is no payload.nothing to keep as a" in explained


def test_check_and_graph_know_it(tmp_path: Path) -> None:
    workspace = the_workspace(tmp_path)
    checked = workspace.json("pipeline", "check", "order", "--payload", json.dumps(PAYLOAD))
    assert checked["valid"]
    assert checked["trial"]["starts"]
    assert "run.payload.no exists" in workspace.ductile("pipeline", "graph", "order").out
    workspace.append("  - {name: typo, steps: [{uses: shows, with: {a: '{rum.payload.x}'}}]}\n")
    refused = workspace.ductile("pipeline", "check")
    assert refused.status == 78
    assert "did you mean run.payload.x?" in refused.err + refused.out
