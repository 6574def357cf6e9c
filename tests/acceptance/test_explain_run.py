"""`job explain` of runs that fail far from the cause compares each step with a successful run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders.daemons import Workspace, a_daemon, a_workspace, answering

PASS_ON = """#!/usr/bin/env python3
import json, sys
event = json.load(sys.stdin).get("event") or {}
events = [{"type": "passed", "payload": event["payload"]}]
print(json.dumps({"status": "ok", "result": "x", "events": events}))
"""
PIPELINE = """\
  crm: {}
  relay: {}
pipelines:
  - name: welcome
    on: user.came
    steps:
      - {id: look, uses: crm}
      - {id: score, uses: relay}
      - {id: tag, uses: relay}
      - {id: send, uses: echo, with: {to: "{payload.email}"}}
"""
PARTS = ("configuration", "version and files", "pipeline", "payload", "input and output of each step")


def found_user(**fields: object) -> str:
    event = {"type": "user.found", "payload": {"id": 7, **fields}}
    return answering({"status": "ok", "result": "found", "events": [event]})


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = a_workspace(tmp_path, PIPELINE)
    workspace.plugin("crm", found_user(email="canary@example.org"))
    workspace.plugin("relay", PASS_ON)
    return workspace


def change_crm(workspace: Workspace, script: str) -> None:
    (workspace.directory / "demo" / "plugins" / "crm" / "run.sh").write_text(script)


def run(workspace: Workspace, *, status: int) -> dict[str, Any]:
    result = workspace.ductile("pipeline", "run", "welcome", "--json")
    assert result.status == status, result
    job: dict[str, Any] = json.loads(result.out)
    return job


def steps(workspace: Workspace, run_id: str) -> dict[str, str]:
    """Return the first job of each step, by the name of the step."""
    explanation = workspace.json("pipeline", "explain", run_id)
    return {step["step"]: step["jobs"][0]["job_id"] for step in explanation["steps"] if step["jobs"]}


def explain(workspace: Workspace, job_id: str) -> dict[str, Any]:
    return workspace.json("job", "explain", job_id)


def test_a_field_that_was_renamed_three_steps_up_is_named(workspace: Workspace) -> None:
    """The failed template names the missing field; the comparison finds the step that lost it."""
    with a_daemon(workspace):
        good = run(workspace, status=0)
        change_crm(workspace, found_user(mail="canary@example.org"))
        bad = run(workspace, status=1)
        of_bad, of_good = steps(workspace, bad["job_id"]), steps(workspace, good["job_id"])
        for job, reference in ((bad["job_id"], good["job_id"]), (of_bad["send"], of_good["send"])):
            explanation = explain(workspace, job)
            assert explanation["compared_with"] == reference
            change = explanation["first_change"]
            assert (change["step"], change["plugin"], change["job_id"]) == ("look", "crm", of_bad["look"])
            assert change["changes"] == [
                {"field": "payload.email", "change": "gone", "good": "text", "now": None},
                {"field": "payload.mail", "change": "new", "good": None, "now": "text"},
            ]
            assert change["needed_by"] == [{"step": "send", "place": "with.to", "reference": "payload.email"}]
            assert {"what": "output of step look, payload.email", "good": "text", "now": None} in explanation[
                "differences"
            ]
            # The daemon runs the changed file without a reload, which is reported.
            (files,) = [
                difference
                for difference in explanation["differences"]
                if difference["what"] == "files of plugin crm"
            ]
            assert "without a reload" in files["now"]
            assert "payload.mail" in explanation["advice"][0]
            assert "canary@example.org" not in json.dumps(explanation["differences"] + [explanation["cause"]])
        text = workspace.ductile("job", "explain", bad["job_id"]).out
        assert f"The first step whose output changed is look (crm handle, job {of_bad['look']})" in text
        assert "payload.email is gone (renamed to payload.mail?)" in text
        assert "Step send needs payload.email (with.to)." in text


def test_compared_and_not_compared_parts_are_listed(workspace: Workspace) -> None:
    """Only compared parts count as unchanged."""
    good = run(workspace, status=0)
    workspace.config.write_text(workspace.config.read_text().replace("payload.email", "payload.nothing"))
    bad = run(workspace, status=1)
    explanation = explain(workspace, bad["job_id"])
    assert explanation["compared_with"] == good["job_id"]
    assert explanation["first_change"] is None
    assert {"what": "step send", "good": "as it was", "now": "changed: with"} in explanation["differences"]
    for part in PARTS:
        assert part in " ".join(explanation["compared"])
    assert any("environment" in gap for gap in explanation["not_compared"])
    text = workspace.ductile("job", "explain", bad["job_id"]).out
    assert "What was not compared" in text
    assert "Nothing that is recorded" not in text


def test_a_first_run_that_fails_is_not_compared(workspace: Workspace) -> None:
    change_crm(workspace, found_user())
    bad = run(workspace, status=1)
    explanation = explain(workspace, bad["job_id"])
    assert explanation["compared_with"] is None
    assert explanation["not_compared"] == ["everything: no earlier run of pipeline welcome succeeded"]
    send = steps(workspace, bad["job_id"])["send"]
    assert "no earlier run of pipeline welcome succeeded" in " ".join(
        explain(workspace, send)["not_compared"]
    )


def test_a_new_version_of_a_plugin_is_a_difference(workspace: Workspace) -> None:
    run(workspace, status=0)
    manifest = workspace.directory / "demo" / "plugins" / "crm" / "manifest.yaml"
    manifest.write_text(manifest.read_text().replace("1.0.0", "1.1.0"))
    change_crm(workspace, found_user(email=None))
    workspace.config.write_text(
        workspace.config.read_text().replace('"{payload.email}"', '"{payload.email.name}"')
    )
    explanation = explain(workspace, run(workspace, status=1)["job_id"])
    assert {"what": "version of plugin crm", "good": "1.0.0", "now": "1.1.0"} in explanation["differences"]
    (change,) = explanation["first_change"]["changes"]
    assert change == {"field": "payload.email", "change": "retyped", "good": "text", "now": "null"}


def test_a_job_that_was_ended_by_hand_is_not_compared(workspace: Workspace) -> None:
    """An operator cancelled the job, so there is no fault to find."""
    run(workspace, status=0)
    (job,) = workspace.json("event", "send", "user.came")["started"]
    assert workspace.ductile("job", "cancel", job["job_id"]).status == 0
    explanation = explain(workspace, job["job_id"])
    assert (explanation["status"], explanation["reason"]) == ("dead", "cancelled")
    assert (explanation["compared_with"], explanation["differences"], explanation["not_compared"]) == (
        None,
        [],
        [],
    )
