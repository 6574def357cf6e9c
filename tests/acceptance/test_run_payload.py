"""The payload of a run is known in every step, and every kind of step adds baggage, in a real daemon."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from builders.daemons import BROKEN, PATIENCE, Workspace, a_daemon, a_workspace

#: Responds with its payload and context, and emits no event.
SHOWING = """#!/usr/bin/env python3
import json, sys
request = json.load(sys.stdin)
result = {"payload": request.get("payload") or request["event"]["payload"], "context": request["context"]}
print(json.dumps({"status": "ok", "result": result}))
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


def a_pipeline_workspace(directory: Path) -> Workspace:
    workspace = a_workspace(directory, PIPELINES)
    for name, script in (("shows", SHOWING), ("held", HELD), ("mended", BROKEN)):
        workspace.plugin(name, script)
    return workspace


def create_file(workspace: Workspace, plugin: str, name: str) -> None:
    (workspace.directory / "demo" / "plugins" / plugin / name).touch()


def step_inputs(workspace: Workspace, run_id: str) -> dict[str, Any]:
    """Return the inputs of the plugin `shows` by the paths of its steps."""
    tree = workspace.json("pipeline", "explain", run_id)
    jobs = {step["step"]: job["job_id"] for step in tree["steps"] for job in step["jobs"]}
    inputs = {}
    for path, job_id in jobs.items():
        job = workspace.json("job", "show", job_id)
        if job["plugin"] == "shows" and job["result"]:
            inputs[path] = job["result"]["result"]
    return inputs


def test_the_payload_outlives_splits_calls_crashes_reloads_and_retries(tmp_path: Path) -> None:
    workspace = a_pipeline_workspace(tmp_path)
    with a_daemon(workspace) as daemon:
        payload = json.dumps(PAYLOAD)
        run_id = workspace.json("pipeline", "run", "order", "--payload", payload, "--no-wait")["job_id"]
        daemon.wait_for("job.started", lambda line: line["plugin"] == "held")
        daemon.end(signal.SIGKILL)
    create_file(workspace, "held", "go")
    with a_daemon(workspace) as daemon:
        assert workspace.ductile("reload").status == 0
        daemon.wait_for("job.failed", lambda line: line["job_id"] == run_id)
        inputs = step_inputs(workspace, run_id)
        assert inputs["both/left"]["payload"] == {"id": 7}
        assert inputs["both/right"]["context"]["order"] == 7
        tell_input = inputs["call/tell"]
        assert tell_input["payload"] == {"to": "ada@example.org", "of": "order", "order": 7}
        assert tell_input["context"]["called"] == "succeeded"
        create_file(workspace, "mended", "mended")
        assert workspace.ductile("job", "retry", run_id).status == 0
        job = workspace.json("job", "wait", run_id, "--timeout", f"{PATIENCE:.0f}s")
        assert job["status"] == "succeeded"
        last_input = step_inputs(workspace, run_id)["last"]
        expected = {"run": run_id, "first": PAYLOAD, "call": "succeeded", "customer": "ada@example.org"}
        assert last_input["payload"] == expected
        # The bypassed step has added no baggage.
        assert "never" not in last_input["context"]
        refusal = workspace.json("job", "retry", run_id, "--from-step", "last", status=1)
        assert refusal["error"]["code"]  # a succeeded run is not retried


def test_a_run_from_a_step_begins_with_the_same_payload(tmp_path: Path) -> None:
    workspace = a_pipeline_workspace(tmp_path)
    create_file(workspace, "held", "go")
    with a_daemon(workspace):
        run = workspace.json("pipeline", "run", "order", "--payload", json.dumps(PAYLOAD), status=1)
        create_file(workspace, "mended", "mended")
        retry = workspace.json("job", "retry", run["job_id"], "--from-step", "block/mend")
        job = workspace.json("job", "wait", retry["job_id"], "--timeout", f"{PATIENCE:.0f}s")
        assert job["status"] == "succeeded"
        last_payload = step_inputs(workspace, retry["job_id"])["last"]["payload"]
        assert (last_payload["first"], last_payload["customer"]) == (PAYLOAD, "ada@example.org")
        assert last_payload["run"] == retry["job_id"]


def test_a_claim_that_fails_ends_the_run_there(tmp_path: Path) -> None:
    workspace = a_pipeline_workspace(tmp_path)
    run = workspace.json("pipeline", "run", "wrong", status=1)
    assert "there is no payload.nothing to keep as a" in run["last_error"]
    explanation = workspace.ductile("pipeline", "explain", run["job_id"]).out
    assert "there is no payload.nothing to keep as a" in explanation


def test_check_and_graph_know_the_payload_of_a_run(tmp_path: Path) -> None:
    workspace = a_pipeline_workspace(tmp_path)
    report = workspace.json("pipeline", "check", "order", "--payload", json.dumps(PAYLOAD))
    assert report["valid"]
    assert report["trial"]["starts"]
    assert "run.payload.no exists" in workspace.ductile("pipeline", "graph", "order").out
    workspace.append("  - {name: typo, steps: [{uses: shows, with: {a: '{rum.payload.x}'}}]}\n")
    result = workspace.ductile("pipeline", "check")
    assert result.status == 78
    assert "did you mean run.payload.x?" in result.err + result.out
