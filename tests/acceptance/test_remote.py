"""The command line for a daemon elsewhere, and tokens that act on a running daemon at once."""

from __future__ import annotations

import io
import json
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from builders.daemons import PATIENCE
from builders.http import Api, an_api, an_api_workspace, token_for
from ductile.cli.command_table import NOUNS
from ductile.cli.main import run
from ductile.cli.operation_routes import ROUTES
from ductile.operations.table import OPERATIONS

PIPELINES = "pipelines:\n  - {name: chain, on: some.thing, steps: [{id: one, uses: echo}]}\n"
#: Operations that are not offered over HTTP, and why.
NOT_OVER_HTTP = {
    "config.plan": "part of `apply` on the daemon's machine; from elsewhere, `config.apply` with `dry_run`",
    "job.exec": "it would let every caller execute anything on the daemon's machine",
    "plugin.drain": "only part of disabling a plugin, which changes files of the daemon's machine",
    "system.stop": "a daemon that was stopped from elsewhere could not be started from there",
    "ui.link": "a link that signs in with all rights is only for the machine of the daemon",
    "token.refresh": "only for the command line of the same machine, which has changed the files itself",
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    workspace = an_api_workspace(tmp_path_factory.mktemp("remote"), more=PIPELINES)
    assert workspace.ductile("config", "lock").status == 0
    with an_api(workspace) as api:
        yield api


def run_remotely(url: str, *words: str, token: str = token_for("*"), **environ: str) -> tuple[int, str, str]:
    """Run a command as on another machine, with the URL and the token and without a configuration."""
    out, err = io.StringIO(), io.StringIO()
    environment = {"HOME": "/nonexistent", "PATH": "", "DUCTILE_TOKEN": token, **environ}
    status = run([*words, "--url", url], environment, out, err)
    return status, out.getvalue(), err.getvalue()


def run_remotely_json(api: Api, *words: str, status: int = 0, token: str = token_for("*")) -> dict[str, Any]:
    actual_status, out, err = run_remotely(f"http://localhost:{api.port}", *words, "--json", token=token)
    assert actual_status == status, (out, err)
    document: dict[str, Any] = json.loads(out)
    return document


#: Commands that call several operations.
SEVERAL = {"plugin authorize": ("plugin.run", "job.wait"), "mcp serve": ("tool.list", "tool.call")}


def without_ages(text: str) -> str:
    """Mask the ages: between two commands `now` may become `1 s ago`, and a column wider."""
    return re.sub(r"\s+", " ", re.sub(r"\bnow\b|\bin \d+ \w+|\d+ \w+ ago", "AGE", text))


def test_every_command_has_a_route_or_says_why_not() -> None:
    """Every command works with a daemon elsewhere, or its table says why not."""
    for noun in NOUNS:
        for action in noun.actions:
            name = f"{noun.name} {action.name}"
            assert action.local_reason or name in SEVERAL or action.operation in ROUTES, name
    assert {operation for called in SEVERAL.values() for operation in called} <= set(ROUTES)
    assert {name for name in OPERATIONS if name not in ROUTES} == set(NOT_OVER_HTTP)


def test_commands_do_the_same_from_elsewhere(api: Api) -> None:
    """Text and JSON are the same as on the machine of the daemon."""
    job = run_remotely_json(api, "run", "echo", "--payload", '{"message": "hello"}')
    assert job["status"] == "succeeded"
    assert job["submitted_by"] == "api"
    job_id = job["job_id"]
    for words in (
        ("job", "show", job_id),
        ("job", "explain", job_id),
        ("job", "logs", job_id),
        ("job", "tree", job_id),
        ("job", "wait", job_id),
        ("job", "list"),
        ("queue", "status"),
        ("queue", "list"),
        ("schedule", "list"),
        ("schedule", "next"),
        ("webhook", "list"),
        ("webhook", "deliveries"),
        ("pipeline", "list"),
        ("pipeline", "show", "chain"),
        ("pipeline", "graph", "chain"),
        ("plugin", "state", "echo"),
        ("plugin", "facts", "echo"),
        ("system", "breaker", "echo"),
        ("config", "show"),
        ("system", "logs"),
        ("run", "echo", "--dry-run"),
    ):
        assert run_remotely_json(api, *words) == api.workspace.json(*words), words
        status, out, err = run_remotely(f"http://localhost:{api.port}", *words)
        local = api.workspace.ductile(*words)
        assert (status, without_ages(out), err) == (local.status, without_ages(local.out), local.err), words


def test_waiting_commands_wait(api: Api) -> None:
    run = run_remotely_json(api, "pipeline", "run", "chain")
    assert run["status"] == "succeeded"
    assert run_remotely_json(api, "pipeline", "explain", run["job_id"])["ended"] is True
    assert run_remotely_json(api, "job", "wait", run["job_id"], "--timeout", "0s")["status"] == "succeeded"


def test_waiting_for_an_unknown_job_is_an_error(api: Api) -> None:
    refusal = run_remotely_json(api, "job", "wait", "ffffffffffff", status=1)
    assert refusal["error"]["code"] == "not_found"


def test_following_shows_what_happens_until_the_daemon_stops(tmp_path: Path) -> None:
    """No entry is missed between two long polls."""
    workspace = an_api_workspace(tmp_path)
    assert workspace.ductile("config", "lock").status == 0
    with an_api(workspace) as api:
        first_id = run_remotely_json(api, "run", "echo")["job_id"]
        command = [
            *ductile_command(),
            "event",
            "tail",
            "--follow",
            "--json",
            "--url",
            f"http://localhost:{api.port}",
        ]
        environ = {"PATH": "", "HOME": str(tmp_path), "DUCTILE_TOKEN": token_for("*")}
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as tail:
            assert tail.stdout is not None
            assert any(json.loads(line)["job_id"] == first_id for line in lines_until(tail.stdout, first_id))
            second_id = run_remotely_json(api, "run", "echo")["job_id"]
            assert any(
                json.loads(line)["job_id"] == second_id for line in lines_until(tail.stdout, second_id)
            )
            assert workspace.ductile("system", "stop").status == 0
            tail.wait(PATIENCE)


def test_executions_are_followed_from_elsewhere(tmp_path: Path) -> None:
    """`logs -f` shows each execution as it ends, and ends with the daemon."""
    workspace = an_api_workspace(tmp_path)
    assert workspace.ductile("config", "lock").status == 0
    with an_api(workspace) as api:
        first_id = run_remotely_json(api, "run", "echo")["job_id"]
        command = [
            *ductile_command(),
            "logs",
            "echo",
            "-f",
            "--json",
            "--url",
            f"http://localhost:{api.port}",
        ]
        environ = {"PATH": "", "HOME": str(tmp_path), "DUCTILE_TOKEN": token_for("*")}
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as logs:
            assert logs.stdout is not None
            assert any(first_id in line for line in lines_until(logs.stdout, first_id))
            second_id = run_remotely_json(api, "run", "echo")["job_id"]
            assert any(second_id in line for line in lines_until(logs.stdout, second_id))
            assert workspace.ductile("system", "stop").status == 0
            logs.wait(PATIENCE)


def ductile_command() -> list[str]:
    return [str(Path(sys.executable).parent / "ductile")]


def lines_until(lines: Any, text: str) -> Iterator[str]:
    for line in lines:
        yield line
        if text in line:
            return


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("system", "start"), "does not work with --url"),
        (("config", "set", "service.name", "x"), "does not work with --url"),
        (("token", "list", "--config", "x"), "--config and --url cannot be used together"),
    ],
)
def test_commands_for_the_machine_of_the_daemon_say_so(words: tuple[str, ...], message: str) -> None:
    status, _, err = run_remotely("https://localhost:1", *words)
    assert status == 2
    assert message in err


def test_the_url_of_the_environment_is_for_daemons_only() -> None:
    """A command that needs no daemon ignores the URL; one that changes local files is refused."""
    environ = {"DUCTILE_URL": "https://localhost:1", "DUCTILE_TOKEN": "x", "HOME": "/nonexistent"}
    out, err = io.StringIO(), io.StringIO()
    assert run(["version"], environ, out, err) == 0
    assert run(["config", "lock"], environ, out, err) == 2
    assert "does not work with DUCTILE_URL" in err.getvalue()


@pytest.mark.parametrize(
    ("url", "environ", "status", "message"),
    [
        ("http://example.org", {}, 2, "in the clear"),
        ("https://user:pw@example.org", {}, 2, "no credentials"),
        ("nonsense", {}, 2, "is not the URL of a daemon"),
        ("https://localhost:1", {}, 69, "cannot be reached"),
        ("https://no.such.host.invalid", {}, 69, "is not known"),
        ("https://localhost:1", {"DUCTILE_TOKEN": ""}, 2, "the variable DUCTILE_TOKEN is not set"),
        ("https://localhost:1", {"DUCTILE_TOKEN_ENV": "OTHER"}, 2, "the variable OTHER is not set"),
        ("https://localhost:1", {"DUCTILE_TOKEN_ENV": "dtl_secret-1"}, 2, "takes the name of a variable"),
    ],
)
def test_mistakes_are_told_plainly(url: str, environ: dict[str, str], status: int, message: str) -> None:
    actual_status, _, err = run_remotely(url, "job", "list", **environ)
    assert actual_status == status, err
    assert message in err
    assert "dtl_secret" not in err
    assert "pw@" not in err


def test_a_wrong_token_and_a_missing_scope_are_denied(api: Api) -> None:
    for token, message in (("wrong", "refused the token: unknown token"), (token_for("jobs:ro"), "jobs:rw")):
        status, _, err = run_remotely(f"http://localhost:{api.port}", "queue", "purge", "--all", token=token)
        assert status == 77
        assert message in err
        assert "configuration:" not in err  # the configuration of this machine is not used


class _OtherServer(BaseHTTPRequestHandler):
    """A server that is not Ductile: it responds with a web page, or with a redirect."""

    paths: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.paths.append(self.path)
        is_moved = self.path.startswith("/moved/")
        self.send_response(302 if is_moved else 200)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html>")

    def log_message(self, *_: object) -> None:
        pass


def test_a_web_page_and_a_redirect_are_not_taken_for_a_daemon() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _OtherServer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        status, _, err = run_remotely(url, "job", "list")
        assert (status, "is not the API of Ductile: it answered 200 with text/html" in err) == (1, True)
        status, _, err = run_remotely(f"{url}/moved", "job", "list")
        assert (status, "redirect to /elsewhere" in err) == (1, True)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert not [path for path in _OtherServer.paths if path.startswith("/elsewhere")]


def make_certificate(directory: Path) -> tuple[Path, Path]:
    key, certificate = directory / "key.pem", directory / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-keyout", str(key), "-out", str(certificate), "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
    )
    return key, certificate


@contextmanager
def a_tls_proxy(directory: Path, port: int) -> Iterator[tuple[int, Path]]:
    """Start a proxy that ends TLS, as in front of a real daemon; yield its port and the authority's file."""
    key, certificate = make_certificate(directory)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass
        finally:
            target.close()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            try:
                client = context.wrap_socket(connection, server_side=True)
            except OSError:  # the client does not trust the certificate
                connection.close()
                continue
            upstream = socket.create_connection(("127.0.0.1", port))
            threading.Thread(target=pump, args=(client, upstream), daemon=True).start()
            threading.Thread(target=pump, args=(upstream, client), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], certificate
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(PATIENCE)


def test_a_certificate_is_verified(api: Api, tmp_path: Path) -> None:
    """A certificate is accepted only with its authority, and only for the host that it names."""
    with a_tls_proxy(tmp_path, api.port) as (port, authority):
        url = f"https://localhost:{port}"
        status, _, err = run_remotely(url, "job", "list")
        assert (status, "cannot be trusted" in err) == (77, True)
        status, out, err = run_remotely(url, "job", "list", "--json", "--ca", str(authority))
        assert status == 0, err
        assert "jobs" in json.loads(out)
        status, _, err = run_remotely(f"https://127.0.0.1:{port}", "job", "list", "--ca", str(authority))
        assert (status, "cannot be trusted" in err) == (77, True)


# --------------------------------------------------------------------------------------------- tokens


def jobs_status(api: Api, token: str) -> int:
    return api.ask("GET", "/jobs", token=token).status


def test_a_token_is_accepted_and_refused_at_once(api: Api) -> None:
    """No reload is needed; an event stream of a revoked token ends."""
    created = api.workspace.json("token", "create", "robot", "--scopes", "jobs:ro,events:ro")
    secret = created["token"]
    assert jobs_status(api, secret) == 200
    with closing(socket.create_connection(("127.0.0.1", api.port), timeout=PATIENCE)) as stream:
        head = f"GET /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\n\r\n"
        stream.sendall(head.encode())
        received = b""
        while b"retry: 2000" not in received:
            received += stream.recv(1000)
        assert api.workspace.json("token", "revoke", "robot")["written"] is True
        assert jobs_status(api, secret) == 401
        while b"0\r\n\r\n" not in received:
            part = stream.recv(1000)
            assert part
            received += part


def test_other_changes_on_disk_do_not_slip_in(api: Api) -> None:
    original = api.workspace.config.read_text()
    in_force = api.get("/config/view")["config"]["service"]
    api.workspace.config.write_text(original.replace("service:", "service:\n  max_hops: 7"))
    try:
        assert api.workspace.ductile("config", "lock").status == 0
        secret = api.workspace.json("token", "create", "other", "--scopes", "jobs:ro")["token"]
        assert jobs_status(api, secret) == 200
        assert api.get("/config/view")["config"]["service"] == in_force
        api.workspace.json("token", "revoke", "other")
        assert jobs_status(api, secret) == 401
        assert api.get("/config/view")["config"]["service"] == in_force
    finally:
        text = api.workspace.config.read_text()
        api.workspace.config.write_text(text.replace("service:\n  max_hops: 7", "service:"))
        assert api.workspace.ductile("config", "lock").status == 0


def test_a_rotated_token_has_two_secrets_for_a_time(tmp_path: Path) -> None:
    """Both secrets are valid until the old one expires, across a restart too."""
    workspace = an_api_workspace(tmp_path)
    assert workspace.ductile("config", "lock").status == 0
    old_secret = workspace.json("token", "create", "robot", "--scopes", "jobs:ro")["token"]
    with an_api(workspace) as api:
        rotated = workspace.json("token", "rotate", "robot", "--keep-old", "1h")
        new_secret = rotated["token"]
        assert (jobs_status(api, old_secret), jobs_status(api, new_secret)) == (200, 200)
        (row,) = [token for token in workspace.json("token", "list")["tokens"] if token["name"] == "robot"]
        assert row["previous_valid"] is True
        assert row["previous_expires_at"] == rotated["previous_expires_at"]
        assert workspace.json("token", "show", "robot")["previous_valid"] is True
    with an_api(workspace) as api:
        assert (jobs_status(api, old_secret), jobs_status(api, new_secret)) == (200, 200)
        last_secret = workspace.json("token", "rotate", "robot", "--keep-old", "0s")["token"]
        assert [jobs_status(api, secret) for secret in (old_secret, new_secret, last_secret)] == [
            401,
            401,
            200,
        ]
        rotated_again = workspace.json("token", "rotate", "robot", "--keep-old", "1s")
        assert jobs_status(api, rotated_again["token"]) == 200
        deadline = time.monotonic() + PATIENCE
        while (response := api.ask("GET", "/jobs", token=last_secret)).status != 401:
            assert time.monotonic() < deadline
        assert "has expired" in response.body["message"]
        assert workspace.json("token", "show", "robot")["previous_valid"] is False
    assert new_secret not in (tmp_path / "demo" / "tokens.yaml").read_text()


def test_tokens_over_http_give_no_more_than_the_caller_has(api: Api) -> None:
    """`system:rw` makes no token that may do more than itself; the secret is returned once."""
    denied = api.ask("POST", "/tokens", {"name": "up", "scopes": ["*"]}, token=token_for("system:rw"))
    assert (denied.status, denied.code) == (403, "denied")
    created = run_remotely_json(
        api, "token", "create", "web", "--scopes", "system:ro", token=token_for("system:rw")
    )
    assert api.ask("GET", "/tokens", token=created["token"]).status == 200
    assert created["token"] not in api.ask("GET", "/tokens").content.decode()
    strong_token = run_remotely_json(api, "token", "create", "strong", "--scopes", "jobs:rw")
    for action in ("rotate", "revoke"):
        response = api.ask("POST", f"/tokens/strong/{action}", token=token_for("system:rw"))
        assert response.status == 403
    fresh_secret = run_remotely_json(api, "token", "rotate", "strong", "--keep-old", "0s")["token"]
    assert (jobs_status(api, strong_token["token"]), jobs_status(api, fresh_secret)) == (401, 200)
    for name in ("web", "strong"):
        run_remotely_json(api, "token", "revoke", name)
    assert jobs_status(api, fresh_secret) == 401
