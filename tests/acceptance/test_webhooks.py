"""Webhooks of a real daemon, and the secrets for their signatures."""

from __future__ import annotations

import http.client
import json
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from builders.daemons import BROKEN, Workspace, a_daemon, a_workspace
from builders.postgres import STORES, keep_in
from ductile.core.webhooks.signatures import sign_body

SECRET = "canary-shared-secret"
#: Responds with its event.
TELLING = """#!/usr/bin/env python3
import json, sys
request = json.load(sys.stdin)
print(json.dumps({"status": "ok", "result": request["event"]}))
"""
ENDPOINT = (
    "{path: /hook/github, name: gh, plugin: telling, preset: github, secret_ref: gh, max_body_size: 5000}"
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class HookedWorkspace:
    """A sealed workspace with the endpoint `gh`, and a client for it."""

    def __init__(self, directory: Path) -> None:
        self.workspace: Workspace = a_workspace(directory, "  telling: {retry: {backoff_base: 100ms}}\n")
        self.workspace.plugin("telling", TELLING)
        self.port = free_port()
        self.configure(ENDPOINT)

    def configure(self, *endpoints: str, secret: str = SECRET) -> None:
        config = self.workspace.config
        plugins = config.read_text().partition("# hooks\n")[0]
        entries = "".join(f"    - {endpoint}\n" for endpoint in endpoints) or "    []\n"
        config.write_text(
            f"{plugins}# hooks\ntokens: [{{name: gh, key: {secret}}}]\n"
            f"webhooks:\n  listen: 127.0.0.1:{self.port}\n  endpoints:\n{entries}"
        )
        assert self.workspace.ductile("config", "lock").status == 0

    def post(
        self, body: bytes, *, path: str = "/hook/github", secret: str = SECRET, **headers: str
    ) -> tuple[int, dict[str, Any]]:
        other_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("POST", path, body, {"X-Hub-Signature-256": sign_body(secret, body), **other_headers})

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()


@pytest.fixture
def hooked(tmp_path: Path) -> HookedWorkspace:
    return HookedWorkspace(tmp_path)


@pytest.mark.parametrize("store", STORES)
def test_a_webhook_runs_the_plugin(hooked: HookedWorkspace, store: str) -> None:
    """The plugin sees `webhook.<name>`, the object and the headers, and no credential."""
    keep_in(store, hooked.workspace.config)
    assert hooked.workspace.ductile("config", "lock").status == 0
    with a_daemon(hooked.workspace) as daemon:
        status, body = hooked.post(b'{"action": "opened"}', X_GitHub_Event="issues", X_GitHub_Delivery="d1")
        assert status == 202
        job = hooked.workspace.json("job", "wait", body["job_id"])
        repeated = hooked.post(b'{"action": "opened"}', X_GitHub_Delivery="d1")
        assert repeated[1]["job_id"] == body["job_id"]
        assert (repeated[1]["deduplicated"], repeated[1]["status"]) == (True, "succeeded")
        assert "canary" not in str(daemon.whole_log()) + str(job)
    event = job["result"]["result"]
    assert (event["type"], event["payload"]) == ("webhook.gh", {"action": "opened"})
    assert event["headers"]["x-github-event"] == "issues"
    assert "x-hub-signature-256" not in event["headers"]
    assert (job["submitted_by"], job["submitted_detail"]) == ("webhook", "gh")


@pytest.mark.parametrize("target", ["plugin: telling", "pipeline: tells", "event: pushed"])
def test_the_plugin_sees_the_id_of_the_delivery(hooked: HookedWorkspace, target: str) -> None:
    """`delivery_header` becomes the dedupe key of the event, also for a pipeline; a redelivery is known."""
    config = hooked.workspace.config
    config.write_text(
        "pipelines: [{name: tells, on: pushed, steps: [{uses: telling}]}]\n" + config.read_text()
    )
    hooked.configure(f"{{path: /hook/github, name: gh, {target}, delivery_header: X-Id, secret_ref: gh}}")
    with a_daemon(hooked.workspace):
        body = hooked.post(b"{}", X_Id="d1")[1]
        job = hooked.workspace.json("job", "wait", body["job_id"])
        assert hooked.post(b"{}", X_Id="d1")[1]["job_id"] == body["job_id"]
    event = job["result"]["result"]
    assert (event["dedupe_key"], event["source"]) == ("d1", "webhook")


@pytest.mark.parametrize("target", ["pipeline: tells", "event: pushed"])
def test_a_condition_decides_by_a_header(hooked: HookedWorkspace, target: str) -> None:
    """A pipeline and its first step can have a condition on a header, in a retry too."""
    config = hooked.workspace.config
    config.write_text(
        "pipelines:\n"
        "- name: tells\n  on: pushed\n"
        "  if: {path: event.headers.x-github-event, op: in, value: [push, issues]}\n"
        "  steps:\n"
        "  - {id: first, uses: telling, if: {path: event.headers.x-github-event, op: eq, value: push}}\n"
        "  - {uses: failing}\n"
        + config.read_text().replace("  telling:", "  failing: {max_attempts: 1}\n  telling:")
    )
    hooked.workspace.plugin("failing", BROKEN)
    hooked.configure(f"{{path: /hook/github, name: gh, {target}, preset: github, secret_ref: gh}}")

    def steps(job_id: str) -> list[str]:
        hooked.workspace.ductile("job", "wait", job_id)
        tree = str(hooked.workspace.json("job", "tree", job_id))
        return sorted(plugin for plugin in ("failing", "telling") if f"'plugin': '{plugin}'" in tree)

    with a_daemon(hooked.workspace):
        push_run = hooked.post(b"{}", X_GitHub_Event="push", X_GitHub_Delivery="1")[1]["job_id"]
        assert steps(push_run) == ["failing", "telling"]
        issue_run = hooked.post(b"{}", X_GitHub_Event="issues", X_GitHub_Delivery="2")[1]["job_id"]
        assert steps(issue_run) == ["failing"]
        assert hooked.post(b"{}", X_GitHub_Event="star", X_GitHub_Delivery="3")[1]["job_id"] is None
        assert hooked.post(b"{}", X_GitHub_Delivery="4")[1]["job_id"] is None
        retry = hooked.workspace.json("job", "retry", push_run, "--from-step", "first")
        assert steps(retry["job_id"]) == ["failing", "telling"]


def test_an_accepted_webhook_survives_a_kill(hooked: HookedWorkspace) -> None:
    """An accepted job is on disk; a redelivery after the crash is known."""
    with a_daemon(hooked.workspace) as daemon:
        status, body = hooked.post(b"{}", X_GitHub_Delivery="d1")
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait()
        assert status == 202
    with a_daemon(hooked.workspace):
        assert hooked.post(b"{}", X_GitHub_Delivery="d1")[1]["job_id"] == body["job_id"]
        assert hooked.workspace.json("job", "wait", body["job_id"])["status"] == "succeeded"


def test_refusals(hooked: HookedWorkspace) -> None:
    """A refused request submits no job."""
    with a_daemon(hooked.workspace) as daemon:
        assert hooked.post(b"{}", secret="wrong")[0] == 403
        assert hooked.ask("POST", "/hook/github", b"{}")[0] == 403
        assert hooked.post(b"{}", path="/hook/other")[0] == 404
        assert hooked.ask("GET", "/hook/github")[0] == 405
        assert hooked.post(b"x" * 5001)[0] == 413
        assert hooked.workspace.json("job", "list")["jobs"] == []
        refused = daemon.wait_for("webhook.refused", lambda line: line["status"] == 403)
    assert refused["endpoint"] == "gh"


def test_health_is_answered_here_too(hooked: HookedWorkspace) -> None:
    """The health check needs no signature."""
    with a_daemon(hooked.workspace):
        status, body = hooked.ask("GET", "/healthz")
    assert (status, body["status"], body["plugins_loaded"]) == (200, "ok", 2)
    assert body["message"] == "All is well."


def test_a_reload_switches_endpoints_and_secrets(hooked: HookedWorkspace) -> None:
    """The reload needs no restart; the old secret is refused afterwards."""
    with a_daemon(hooked.workspace):
        assert hooked.post(b"{}")[0] == 202
        hooked.configure(ENDPOINT, "{path: /hook/new, plugin: echo, secret_ref: gh}", secret="another")
        hooked.workspace.json("system", "reload")
        assert hooked.post(b"{}")[0] == 403
        assert hooked.post(b"{}", secret="another")[0] == 202
        assert hooked.post(b"{}", secret="another", path="/hook/new")[0] == 202
        hooked.port, old_port = free_port(), hooked.port
        hooked.configure(ENDPOINT)
        refusal = hooked.workspace.json("system", "reload", status=1)
        assert refusal["error"]["details"]["settings"] == ["webhooks.listen"]
        hooked.port = old_port
        assert hooked.post(b"{}", secret="another")[0] == 202


def test_endpoints_that_a_reload_took_away_come_back_by_another(hooked: HookedWorkspace) -> None:
    """The listener stays open while there are no endpoints."""
    with a_daemon(hooked.workspace):
        hooked.configure()
        hooked.workspace.json("system", "reload")
        assert hooked.post(b"{}")[0] == 404
        hooked.configure(ENDPOINT)
        assert hooked.workspace.json("system", "reload", "--dry-run")["dry_run"]
        hooked.workspace.json("system", "reload")
        assert hooked.post(b"{}")[0] == 202


def test_a_slow_body_does_not_keep_a_secret_alive(hooked: HookedWorkspace) -> None:
    """The secret in force when the body has arrived decides; a response 405 has one Allow header."""
    with (
        a_daemon(hooked.workspace),
        socket.create_connection(("127.0.0.1", hooked.port), timeout=30) as sender,
    ):
        signed = f"X-Hub-Signature-256: {sign_body(SECRET, b'{}')}\r\nExpect: 100-continue\r\n"
        head = f"POST /hook/github HTTP/1.1\r\nHost: x\r\n{signed}Content-Length: 2\r\n\r\n"
        sender.sendall(head.encode())
        assert sender.recv(65536).startswith(b"HTTP/1.1 100 ")
        hooked.configure(ENDPOINT, secret="another")
        hooked.workspace.json("system", "reload")
        sender.sendall(b"{}")
        assert read_response(sender).status == 403
        sender.sendall(b"GET /hook/github HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_response(sender).headers.get_all("allow") == ["POST"]


def read_response(connection: socket.socket) -> http.client.HTTPResponse:
    """Read one response to its end; head and body may arrive separately."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    response.read()
    return response


def test_a_flood_loses_nothing_that_was_accepted(hooked: HookedWorkspace) -> None:
    """A request answered 202 has a job; every other one is answered 503."""
    with a_daemon(hooked.workspace), ThreadPoolExecutor(32) as senders:
        responses = list(senders.map(lambda n: hooked.post(b"{}", X_GitHub_Delivery=f"d{n}"), range(300)))
        accepted = {body["job_id"] for status, body in responses if status == 202}
        assert {status for status, _ in responses} <= {202, 503}
        assert len(accepted) == sum(status == 202 for status, _ in responses) > 0
        for job_id in list(accepted)[::50]:
            assert hooked.workspace.json("job", "show", job_id)["submitted_by"] == "webhook"


def test_a_port_that_is_taken_is_reported(hooked: HookedWorkspace) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", hooked.port))
        listener.listen()
        result = hooked.workspace.ductile("system", "start")
    assert result.status == 1
    assert "webhooks cannot listen" in result.err


def test_an_endpoint_can_be_tried_from_here(hooked: HookedWorkspace) -> None:
    """`webhook list` shows the endpoint, and `webhook send` calls it."""
    endpoints = hooked.workspace.json("webhook", "list")
    assert [(row["name"], row["path"], row["plugin"]) for row in endpoints["endpoints"]] == [
        ("gh", "/hook/github", "telling")
    ]
    dry_run = hooked.workspace.json("webhook", "send", "gh", "--dry-run")
    assert dry_run["url"] == f"http://127.0.0.1:{hooked.port}/hook/github"
    error = hooked.workspace.json("webhook", "send", "gh", status=69)["error"]
    assert (error["code"], "Start it" in error["hint"]) == ("daemon_not_running", True)
    with a_daemon(hooked.workspace):
        sent = hooked.workspace.json("webhook", "send", "gh", "--payload", '{"n": 1}', "--delivery", "d7")
        assert sent["status"] == 202
        job = hooked.workspace.json("job", "wait", sent["job_id"])
        assert job["result"]["result"]["payload"] == {"n": 1}
        repeated = hooked.workspace.json("webhook", "send", "/hook/github", "--delivery", "d7")
        assert repeated["job_id"] == sent["job_id"]
        assert hooked.workspace.json("webhook", "send", "gj", status=1)["error"]["code"] == "not_found"
        too_large = hooked.workspace.json("webhook", "send", "gh", "--payload", "x" * 5001, status=1)
        assert (too_large["status"], too_large["accepted"]) == (413, False)
    assert SECRET not in str(dry_run) + str(endpoints) + str(sent)


def test_a_daemon_that_does_not_listen_there_is_not_to_be_started(hooked: HookedWorkspace) -> None:
    """The hint says that the daemon runs with an older configuration."""
    with a_daemon(hooked.workspace):
        hooked.port = free_port()
        hooked.configure(ENDPOINT)
        error = hooked.workspace.json("webhook", "send", "gh", status=69)["error"]
    assert error["message"] == f"nothing answers at 127.0.0.1:{hooked.port}"
    assert error["hint"].startswith("The daemon runs and does not listen there.")
    assert "restart it" in error["hint"]


def test_a_secret_is_made_and_put_into_force(tmp_path: Path) -> None:
    """`token create` shows the secret once; after a reload requests signed with it are accepted."""
    hooked = HookedWorkspace(tmp_path)
    created = hooked.workspace.json("token", "create", "partner")
    secret = created["token"]
    assert created["kind"] == "secret"
    config = hooked.workspace.config
    more = "  endpoints:\n    - {path: /hook/p, plugin: telling, secret_ref: partner}\n"
    config.write_text(config.read_text().replace("  endpoints:\n", more))
    assert hooked.workspace.ductile("config", "lock").status == 0
    with a_daemon(hooked.workspace) as daemon:
        assert hooked.post(b"{}", path="/hook/p", secret=secret)[0] == 202
        refusal = hooked.workspace.json("token", "revoke", "partner", status=78)
        assert "nothing was written" in refusal["error"]["message"]
        tokens = hooked.workspace.json("token", "list")
        assert {row["name"] for row in tokens["tokens"]} == {"gh", "partner"}
        assert secret not in str(tokens) + str(daemon.whole_log())


def test_a_token_from_standard_input_is_not_repeated(hooked: HookedWorkspace) -> None:
    result = hooked.workspace.terminal.ductile(
        "token", "create", "stripe", "--stdin", "--config", "demo", typed="whsec_canary\n"
    )
    assert result.status == 0, result
    assert "canary" not in result.out + result.err
    assert "whsec_canary" in (hooked.workspace.config.parent / ".env").read_text()
