"""A receiver that is not on the allow list: doctor reports it, and the advised command works."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from builders.daemons import Workspace, a_daemon, a_workspace
from builders.receivers import a_receiver


def receiver_finding(workspace: Workspace) -> dict[str, Any]:
    """Return the finding of `doctor` about receivers."""
    findings = json.loads(workspace.ductile("system", "doctor", "--json").out)["findings"]
    (finding,) = [finding for finding in findings if finding["check"] == "receivers"]
    return dict(finding)


def test_doctor_tells_how_to_allow_a_receiver(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    workspace.config.write_text("state_webhooks: {max_attempts: 1}\n" + workspace.config.read_text())
    workspace.ductile("config", "lock")
    with a_receiver() as receiver, a_daemon(workspace) as daemon:
        url = f"http://localhost:{receiver.port}/hook"
        options = ("--state-webhook-url", url, "--state-webhook-events", "done")
        workspace.json("run", "echo", "handle", "--no-wait", *options)
        dropped = daemon.wait_for("delivery.dropped")
        finding = receiver_finding(workspace)
        assert "state_webhooks.allow does not list localhost" in finding["message"]
        _, _, command = finding["fix"].partition(": ductile ")
        command, _, _ = command.partition(" && ductile apply")
        workspace.json(*shlex.split(command))
        workspace.json("apply")
        workspace.json("webhook", "resend", dropped["delivery"])
        receiver.wait_for(lambda requests: len(requests) == 1)
        daemon.wait_for("delivery.delivered")
        assert receiver_finding(workspace)["level"] == "ok"
