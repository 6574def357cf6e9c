"""Shipped plugins in a real daemon."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import urllib.request
from pathlib import Path

from builders.daemons import a_daemon, a_workspace
from builders.shipped import ROOT

SECRET = "canary-shared-secret"


def test_shipped_plugins_work_together_under_the_daemon(tmp_path: Path) -> None:
    """Routes lead a file that is found to a condition on its name and to another plugin."""
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    for name in ("a.jpg", "b.txt"):
        (inbox / name).write_text("x")
        os.utime(inbox / name, (1_700_000_000, 1_700_000_000))
    workspace = a_workspace(tmp_path)
    workspace.config.write_text(
        f"""\
plugin_roots: [{ROOT}]
plugins:
  inbox: {{uses: folder_watch, config: {{path: {inbox}, initial: true}}}}
  if: {{config: {{rules: [{{when: {{path: payload.name, op: endswith, value: .JPG}}, emit: picture}}]}}}}
  shell: {{config: {{programs: {{it: {{argv: [cat], stdin: payload}}}}}}}}
  echo: {{}}
routes:
  - {{from: inbox, event_type: folder.added, to: if}}
  - {{from: if, event_type: picture, to: echo}}
"""
    )
    with a_daemon(workspace) as daemon:
        root = workspace.json("run", "inbox")
        daemon.wait_for("job.succeeded", lambda line: line.get("plugin") == "echo")
        tree = workspace.json("job", "tree", root["job_id"])["tree"]
        job = workspace.json("run", "shell", "handle", "--payload", '{"program": "it"}')
    assert root["result"]["result"] == "2 added, 0 changed, 0 removed"
    assert [child["plugin"] for child in tree["children"]] == ["if", "if"]
    routed = [child for child in tree["children"] if child["children"]]
    assert len(routed) == 1
    assert job["result"]["result"]["stdout"] == '{"program": "it"}'


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_delivery_of_github_is_routed_by_what_it_is(tmp_path: Path) -> None:
    """A signed request reaches the plugin that a route names for its type of event."""
    workspace, port = a_workspace(tmp_path), free_port()
    workspace.config.write_text(
        f"""\
plugin_roots: [{ROOT}]
plugins:
  github: {{}}
  echo: {{}}
routes:
  - {{from: github, event_type: github.issues.opened, to: echo}}
tokens: [{{name: github, key: {SECRET}}}]
webhooks:
  listen: 127.0.0.1:{port}
  endpoints:
    - name: github
      path: /github
      plugin: github
      secret_ref: github
      signature_header: X-Hub-Signature-256
      delivery_header: X-GitHub-Delivery
"""
    )
    assert workspace.ductile("config", "lock").status == 0
    body = json.dumps({"action": "opened", "message": "it is broken", "issue": {"number": 7}}).encode()
    headers = {
        "X-Hub-Signature-256": "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest(),
        "X-GitHub-Event": "issues",
        "X-GitHub-Delivery": "d1",
    }
    request = urllib.request.Request(f"http://127.0.0.1:{port}/github", data=body, headers=headers)
    with a_daemon(workspace) as daemon:
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 - our own daemon
            job_id = json.loads(response.read())["job_id"]
        daemon.wait_for("job.succeeded", lambda line: line.get("plugin") == "echo")
        tree = workspace.json("job", "tree", job_id)["tree"]
        (child,) = tree["children"]
        echoed = workspace.json("job", "show", child["job_id"])
    assert (child["plugin"], echoed["result"]["result"]) == ("echo", "it is broken")
    assert echoed["payload"]["github"]["number"] == 7
