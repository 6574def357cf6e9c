"""Endpoints with `preset: url-token`, for senders that cannot sign and for redirects of browsers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from builders.daemons import Daemon, Workspace, a_daemon, a_workspace
from builders.shipped import ROOT
from fakes.withings import FakeWithings

SECRET = "canary-0123456789"
CONFIG = f"""\
plugin_roots: [{ROOT}]
tokens: [{{name: hook, key: {SECRET}}}]
webhooks:
  listen: 127.0.0.1:0
  endpoints:
    - {{path: /hook/withings, preset: url-token, secret_ref: hook, plugin: withings}}
    - {{path: /oauth/withings, name: back, preset: url-token, secret_ref: hook, plugin: withings,
       command: oauth_callback}}
"""


@pytest.fixture
def service() -> Iterator[FakeWithings]:
    with FakeWithings() as service:
        yield service


def a_workspace_with(directory: Path, service: FakeWithings) -> Workspace:
    workspace = a_workspace(directory)
    config = {
        "client_id": service.client_id,
        "client_secret": service.client_secret,
        "base_url": service.url,
        "auth_url": service.url,
    }
    workspace.config.write_text(f"{CONFIG}plugins: {{withings: {{config: {json.dumps(config)}}}}}\n")
    assert workspace.ductile("config", "lock").status == 0
    return workspace


def wait_for_address(daemon: Daemon) -> str:
    return "http://" + str(daemon.wait_for("webhook.listening")["address"])


def ask(url: str, method: str = "POST", body: bytes | None = b"") -> tuple[int, str]:
    request = urllib.request.Request(url, data=body, method=method)  # noqa: S310 - of the daemon
    try:
        with urllib.request.urlopen(request) as response:  # noqa: S310 - as above
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", "?other=" + SECRET])
def test_without_the_secret_nothing_is_accepted(query: str, service: FakeWithings, tmp_path: Path) -> None:
    """A request with any method is refused, and the response does not say why."""
    workspace = a_workspace_with(tmp_path, service)
    with a_daemon(workspace) as daemon:
        url = wait_for_address(daemon) + "/hook/withings" + query
        for method in ("POST", "GET", "HEAD"):
            assert ask(url, method, b"" if method == "POST" else None)[0] == 403
        assert workspace.json("job", "list")["jobs"] == []


def test_a_notification_without_a_signature_becomes_a_job(service: FakeWithings, tmp_path: Path) -> None:
    """HEAD submits no job. The secret is neither in the job nor in the log."""
    workspace = a_workspace_with(tmp_path, service)
    with a_daemon(workspace) as daemon:
        url = wait_for_address(daemon) + f"/hook/withings?token={SECRET}"
        assert ask(url, "HEAD", None) == (200, "")
        assert workspace.json("job", "list")["jobs"] == []
        form = urlencode({"userid": 1, "appli": 1})
        status, body = ask(url, "POST", form.encode())
        assert status == 202
        job = workspace.json("job", "wait", json.loads(body)["job_id"])
        assert job["payload"] == {"body": form}
        assert "about another user" in job["result"]["result"]
        assert ask(url, "PUT")[0] == 405
        output = json.dumps(job) + workspace.ductile("webhook", "list").out
        assert SECRET not in output + json.dumps(daemon.whole_log())


def test_the_redirect_of_an_authorisation_can_be_received(service: FakeWithings, tmp_path: Path) -> None:
    """The redirect may go to a webhook instead of a port of the operator's machine."""
    workspace = a_workspace_with(tmp_path, service)
    with a_daemon(workspace) as daemon:
        redirect_uri = wait_for_address(daemon) + f"/oauth/withings?token={SECRET}"
        payload = json.dumps({"redirect_uri": redirect_uri})
        authorisation = workspace.json("run", "withings", "oauth_start", "--payload", payload)["result"][
            "result"
        ]
        status, body = ask(authorisation["url"], "GET", None)
        assert status == 202
        job = workspace.json("job", "wait", json.loads(body)["job_id"])
        assert (job["status"], set(job["payload"])) == ("succeeded", {"code", "state"})
        assert "connected to user" in workspace.json("run", "withings", "health")["result"]["result"]


def test_a_request_can_be_tried_and_does_not_show_the_secret(service: FakeWithings, tmp_path: Path) -> None:
    workspace = a_workspace_with(tmp_path, service)
    with a_daemon(workspace) as daemon:
        address = urlsplit(wait_for_address(daemon))
        assert address.port
        result = workspace.ductile("webhook", "send", "withings", "--payload", "{}", "--dry-run", "--json")
        assert result.status == 0
        assert SECRET not in result.out
