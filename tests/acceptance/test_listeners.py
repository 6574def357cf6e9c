"""The configuration decides which listeners are open, and a reload opens and closes them."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from builders.daemons import PATIENCE, Daemon, Workspace, a_daemon, a_workspace
from builders.http import api_section, token_for
from ductile.core.webhooks.signatures import sign_body

SECRET = "canary-shared-secret"
EMPTY = "webhooks: {listen: '127.0.0.1:0'}\n"
ENDPOINTS = (
    "webhooks:\n  listen: 127.0.0.1:0\n  endpoints:\n"
    f"    - {{path: /hook, plugin: echo, command: poll, secret: {SECRET}}}\n"
)


def configure(workspace: Workspace, *sections: str) -> None:
    """Write these sections before the `service` and the plugins that every workspace has."""
    text = workspace.config.read_text()
    workspace.config.write_text("".join(sections) + text[text.index("service:") :])
    assert workspace.ductile("config", "lock").status == 0


def port_of(daemon: Daemon, signal_name: str, number: int = 1) -> int:
    """Return the port of the first listener of this kind that was opened, or of a later one."""

    def is_wanted(line: dict[str, Any]) -> bool:
        opened = [entry for entry in daemon.lines if entry["signal"] == signal_name]
        return len(opened) >= number and line is opened[number - 1]

    return int(daemon.wait_for(signal_name, is_wanted)["address"].rpartition(":")[2])


def send_request(
    port: int, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path, body=body, headers=dict(headers or {}))
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def signed_call(port: int) -> int:
    """Return the status of a signed call."""
    return send_request(port, "POST", "/hook", b"{}", {"X-Hub-Signature-256": sign_body(SECRET, b"{}")})[0]


def is_closed(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def authorization() -> dict[str, str]:
    return {"Authorization": f"Bearer {token_for('*')}"}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return a_workspace(tmp_path)


def test_the_first_endpoint_comes_by_a_reload(workspace: Workspace) -> None:
    """A `webhooks` section opens a listener with /healthz, even without endpoints."""
    configure(workspace, EMPTY)
    with a_daemon(workspace) as daemon:
        port = port_of(daemon, "webhook.listening")
        assert send_request(port, "GET", "/healthz")[0] == 200
        assert signed_call(port) == 404
        configure(workspace, ENDPOINTS)
        assert workspace.json("system", "reload")["settings"] == ["webhooks"]
        assert signed_call(port) == 202


def test_a_reload_opens_and_closes_the_listener_for_webhooks(workspace: Workspace) -> None:
    configure(workspace)
    with a_daemon(workspace) as daemon:
        configure(workspace, ENDPOINTS)
        assert workspace.json("system", "reload", "--dry-run")["settings"] == ["webhooks"]
        assert workspace.json("system", "reload")["settings"] == ["webhooks"]
        port = port_of(daemon, "webhook.listening")
        assert signed_call(port) == 202
        configure(workspace)
        assert workspace.json("system", "reload")["settings"] == ["webhooks"]
        assert daemon.wait_for("listener.closed")["listener"] == "webhooks"
        assert is_closed(port)
        configure(workspace, ENDPOINTS)
        workspace.json("system", "reload")
        assert signed_call(port_of(daemon, "webhook.listening", 2)) == 202


def test_a_reload_opens_and_closes_the_api(workspace: Workspace) -> None:
    """A reload over the API is answered by the listener that it closes."""
    configure(workspace, ENDPOINTS)
    with a_daemon(workspace) as daemon:
        webhook_port = port_of(daemon, "webhook.listening")
        with socket.create_connection(("127.0.0.1", webhook_port), timeout=PATIENCE) as client:
            # The client connects before both reloads and sends its request after them.
            configure(workspace, api_section(), ENDPOINTS)
            workspace.json("system", "reload")
            api_port = port_of(daemon, "api.listening")
            status, job = send_request(api_port, "POST", "/plugin/echo/poll", headers=authorization())
            assert status == 202
            configure(workspace, ENDPOINTS)
            assert send_request(api_port, "POST", "/system/reload", headers=authorization())[0] == 200
            assert daemon.wait_for("listener.closed")["listener"] == "api"
            assert is_closed(api_port)
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        assert workspace.json("job", "wait", job["job_id"])["status"] == "succeeded"
        configure(workspace, api_section(), ENDPOINTS)
        workspace.json("system", "reload")
        new_api_port = port_of(daemon, "api.listening", 2)
        connection = http.client.HTTPConnection("127.0.0.1", new_api_port, timeout=PATIENCE)
        connection.request("GET", "/metrics", headers=authorization())
        content = connection.getresponse().read().decode()
        connection.close()
    match = re.search(r'^ductile_http_requests_total{endpoint="/plugin.*} (\d+)', content, re.MULTILINE)
    assert match is not None
    assert match[1] == "1"  # counted once, and kept over the reloads


def test_a_reload_is_refused_whole_where_an_address_is_taken(workspace: Workspace) -> None:
    configure(workspace)
    with a_daemon(workspace), socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        configure(workspace, ENDPOINTS.replace("127.0.0.1:0", address), "pipelines: []\n")
        for more in ((), ("--dry-run",)):
            error = workspace.json("system", "reload", *more, status=1)["error"]
            assert error["code"] == "conflict"
            assert f"webhooks cannot listen at {address}" in error["message"]
        assert workspace.json("webhook", "list")["endpoints"] == []


def test_the_address_of_an_open_listener_stays(workspace: Workspace) -> None:
    """The address changes only if the listener is closed and opened elsewhere, or by a restart."""
    configure(workspace, EMPTY)
    with a_daemon(workspace) as daemon:
        elsewhere = ENDPOINTS.replace("127.0.0.1:0", "localhost:0")
        configure(workspace, elsewhere)
        error = workspace.json("system", "reload", status=1)["error"]
        assert error["details"]["settings"] == ["webhooks.listen"]
        configure(workspace)
        workspace.json("system", "reload")
        configure(workspace, elsewhere)
        workspace.json("system", "reload")
        assert signed_call(port_of(daemon, "webhook.listening", 2)) == 202


def test_a_list_says_what_is_loaded_and_what_is_only_on_disk(workspace: Workspace) -> None:
    """An endpoint that was added and not loaded yet is shown as such."""
    configure(workspace, EMPTY)
    assert workspace.json("webhook", "list")["loaded"] is False
    with a_daemon(workspace):
        listed = workspace.json("webhook", "list")
        assert (listed["loaded"], listed["endpoints"], listed["on_disk"]) == (True, [], None)
        configure(workspace, ENDPOINTS)
        listed = workspace.json("webhook", "list")
        assert listed["endpoints"] == []
        assert listed["on_disk"] == {"added": ["hook"], "changed": [], "removed": [], "error": None}
        assert workspace.ductile("webhook", "list").out == (
            "The daemon has no webhooks loaded.\n\n"
            "The configuration on disk differs (new hook): `ductile apply` puts it in force.\n"
        )
        workspace.json("reload")
        assert workspace.json("webhook", "list")["on_disk"] is None
        configure(workspace, ENDPOINTS.replace(SECRET, "another"))
        output = workspace.ductile("webhook", "list").out
        assert "differs (changed hook)" in output
        assert "The daemon listens for them at" in output
        workspace.config.write_text("webhooks: nonsense\n")
        assert "`ductile config check` says why" in workspace.ductile("webhook", "list").out
        broken = workspace.json("webhook", "list")["on_disk"]
        assert broken["error"] is not None
    assert "another" not in output


def test_without_a_section_nothing_listens(workspace: Workspace) -> None:
    configure(workspace)
    with a_daemon(workspace) as daemon:
        lines = daemon.whole_log()
    assert not [line for line in lines if line["signal"] in ("webhook.listening", "api.listening")]
