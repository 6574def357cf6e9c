"""`service.on_failure`: a plugin or pipeline gets a notice of every failure, and a crash loses none."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from builders.daemons import Daemon, Workspace, a_daemon, a_workspace, answering

#: A plugin that appends the payload of every request to a file.
TELL = """\
#!/usr/bin/env python3
import json, os, sys
request = json.load(sys.stdin)
with open(os.environ["TOLD"], "a") as file:
    file.write(json.dumps(request["event"]["payload"]) + "\\n")
print(json.dumps({"status": "ok", "result": "told"}))
"""
BROKEN = answering({"status": "error", "error": "the disk is full", "retry": False})
PIPELINES = """\
pipelines:
  - {name: nightly, steps: [{id: copy, uses: broken}]}
  - {name: report, steps: [{id: say, uses: tell, with: {text: "{payload.text}", count: "{payload.count}"}}]}
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    plugins = f"  broken: {{}}\n  tell: {{env: {{TOLD: {tmp_path / 'told'}}}}}\n  bad_tell: {{}}\n"
    workspace = a_workspace(tmp_path, plugins + PIPELINES)
    workspace.plugin("broken", BROKEN)
    workspace.plugin("tell", TELL)
    workspace.plugin("bad_tell", answering({"status": "error", "error": "no network", "retry": False}))
    assert workspace.ductile("config", "lock").status == 0
    return workspace


def set_receiver(workspace: Workspace, name: str) -> None:
    assert workspace.ductile("config", "set", "service.on_failure", name, "--lock").status == 0


def notices(workspace: Workspace) -> list[dict[str, Any]]:
    """Return the payloads of all notices."""
    file = workspace.directory / "told"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def fail(workspace: Workspace, *target: str) -> str:
    """Run a job that fails, and return its id."""
    job_id: str = workspace.json("run", *target, status=1)["job_id"]
    return job_id


def wait_for_notice(workspace: Workspace, daemon: Daemon, plugin: str = "tell") -> str:
    """Wait for the end of a job of the receiver, and return its id."""
    signals = ("job.succeeded", "job.failed", "job.dead")
    line = daemon.wait_for_any(signals, lambda line: line.get("plugin") == plugin)
    return str(line["job_id"])


def test_a_plugin_is_told_of_a_failed_job(workspace: Workspace) -> None:
    set_receiver(workspace, "tell")
    with a_daemon(workspace) as daemon:
        job_id = fail(workspace, "broken", "handle")
        notice = wait_for_notice(workspace, daemon)
        (payload,) = notices(workspace)
        explanation = workspace.ductile("job", "explain", notice)
    assert (payload["count"], payload["type"]) == (1, "failure")
    assert payload["by_plugin"] == {"broken": {"count": 1, "reasons": {"plugin_error": 1}}}
    (failure,) = payload["failures"]
    assert failure == failure | {
        "job_id": job_id,
        "plugin": "broken",
        "command": "handle",
        "pipeline": None,
        "status": "failed",
        "reason": "plugin_error",
        "error": "the disk is full",
        "attempts": 1,
    }
    assert "broken handle failed: the disk is full" in payload["text"]
    assert "service.on_failure" in explanation.out


def test_a_run_is_told_once_and_a_pipeline_can_be_the_receiver(workspace: Workspace) -> None:
    set_receiver(workspace, "report")
    with a_daemon(workspace) as daemon:
        workspace.ductile("pipeline", "run", "nightly")
        wait_for_notice(workspace, daemon)
        (payload,) = notices(workspace)
    assert payload["count"] == 1
    assert payload["text"].startswith("pipeline nightly failed")


def test_a_receiver_that_fails_causes_no_notice_and_the_doctor_says_so(workspace: Workspace) -> None:
    set_receiver(workspace, "bad_tell")
    with a_daemon(workspace) as daemon:
        fail(workspace, "broken", "handle")
        notice = wait_for_notice(workspace, daemon, "bad_tell")
        findings = json.loads(workspace.ductile("doctor", "--json").out)["findings"]
        jobs = workspace.json("job", "list", "--plugin", "bad_tell", "--by", "hook")["jobs"]
    (finding,) = [row for row in findings if row["check"] == "notices"]
    assert finding["level"] == "warn"
    assert "no network" in finding["message"]
    assert notice in finding["fix"]
    assert [job["job_id"] for job in jobs] == [notice]


def test_a_sigkill_between_the_failure_and_its_notice_loses_nothing(workspace: Workspace) -> None:
    """The receiver is disabled, so the failure waits. The daemon is killed, and the next one sends the
    notice.
    """
    set_receiver(workspace, "tell")
    workspace.ductile("config", "set", "plugins.tell.enabled", "false", "--lock")
    with a_daemon(workspace) as daemon:
        job_id = fail(workspace, "broken", "handle")
        daemon.wait_for("job.failed", lambda line: line.get("job_id") == job_id)
        daemon.end(signal.SIGKILL)
    assert notices(workspace) == []
    workspace.ductile("config", "set", "plugins.tell.enabled", "true", "--lock")
    with a_daemon(workspace) as daemon:
        wait_for_notice(workspace, daemon)
    assert [payload["failures"][0]["job_id"] for payload in notices(workspace)] == [job_id]


def test_a_reload_changes_the_receiver(workspace: Workspace) -> None:
    set_receiver(workspace, "tell")
    workspace.ductile("config", "set", "plugins.tell.enabled", "false", "--lock")
    with a_daemon(workspace) as daemon:
        job_id = fail(workspace, "broken", "handle")
        daemon.wait_for("job.failed", lambda line: line.get("job_id") == job_id)
        set_receiver(workspace, "bad_tell")
        assert workspace.ductile("reload").status == 0
        wait_for_notice(workspace, daemon, "bad_tell")


@pytest.mark.parametrize(("name", "hint"), [("tel", "tell"), ("reprt", "report"), ("tell.handel", "handle")])
def test_an_unknown_receiver_is_a_config_error(workspace: Workspace, name: str, hint: str) -> None:
    text = workspace.config.read_text().replace("service:", f"service:\n  on_failure: {name}", 1)
    workspace.config.write_text(text if "on_failure" in text else f"service: {{on_failure: {name}}}\n{text}")
    result = workspace.ductile("config", "check")
    assert result.status == 78
    assert "service.on_failure" in result.err + result.out
    assert hint in result.err + result.out
