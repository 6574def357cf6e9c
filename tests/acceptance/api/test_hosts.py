"""A web page whose name resolves to 127.0.0.1 reads nothing; proxies and signed requests work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from builders.http import Api, an_api, an_api_workspace, token_for
from ductile.core.webhooks.signatures import sign_body

SECRET = "a-canary-of-hooks"
HOOKS = (
    "webhooks:\n  listen: 127.0.0.1:0\n  endpoints:\n"
    f"    - {{path: /hook, plugin: echo, command: poll, secret: {SECRET}}}\n"
)
CATALOGUE = (
    "/skills",
    "/plugins",
    "/openapi.json",
    "/plugin/echo/openapi.json",
)
OPEN = ("/", "/healthz", "/readyz")
FOREIGN = (
    {"Host": "evil.example"},
    {"Host": "evil.example:8080", "Origin": "http://evil.example:8080"},
    {"Host": "localhost", "Origin": "http://evil.example"},
    {"Host": "localhost", "Origin": "null"},
)
#: The headers that Caddy adds.
PROXIED = {"Host": "ductile.example.org", "X-Forwarded-For": "192.0.2.1"}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with an_api(an_api_workspace(tmp_path_factory.mktemp("api"), more=HOOKS)) as api:
        yield api


@pytest.fixture(scope="module")
def hooks(api: Api) -> Api:
    address = api.daemon.wait_for("webhook.listening")["address"]
    return replace(api, port=int(address.rpartition(":")[2]))


@pytest.mark.parametrize("headers", FOREIGN)
def test_a_foreign_page_learns_nothing(api: Api, hooks: Api, headers: dict[str, str]) -> None:
    for path in (*CATALOGUE, *OPEN):
        response = api.ask("GET", path, token=None, headers=headers)
        assert (response.status, response.code) == (421, "misdirected")
    assert hooks.ask("GET", "/healthz", token=None, headers=headers).code == "misdirected"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1234", "[::1]", "LocalHost:8080"])
def test_this_machine_is_answered_in_full(api: Api, hooks: Api, host: str) -> None:
    headers = {"Host": host, "Origin": f"http://{host}"}
    for path in CATALOGUE:
        assert api.ask("GET", path, token=None, headers=headers).status == 200
    assert api.get("/", token=None, headers=headers)["version"] is not None
    for listener in (api, hooks):
        assert "queue_depth" in listener.get("/healthz", token=None, headers=headers)


def test_a_token_is_enough_behind_a_proxy(api: Api) -> None:
    """A proxy passes on its own name; a foreign web page has no token."""
    for headers in (PROXIED, {"Host": "ductile.example.org", "Origin": "https://ductile.example.org"}):
        for path in (*CATALOGUE, *OPEN, "/jobs"):
            assert api.ask("GET", path, headers=headers).status == 200
        assert api.ask("POST", "/plugin/echo/poll", headers=headers).status == 202
    response = api.ask("GET", "/plugins", token=None, headers=PROXIED)
    assert response.code == "misdirected"
    assert api.ask("GET", "/plugins", token="wrong", headers=PROXIED).code == "unauthorized"  # it is counted


def test_a_monitor_behind_a_proxy_learns_the_status(api: Api, hooks: Api) -> None:
    for listener in (api, hooks):
        assert set(listener.get("/healthz", token=None, headers=PROXIED)) == {"status", "message"}


def test_signed_calls_come_under_any_name(hooks: Api) -> None:
    """Tunnels and proxies have names of their own; the signature authenticates the sender."""
    headers = {"Host": "hooks.example.org", "X-Hub-Signature-256": sign_body(SECRET, b"{}")}
    assert hooks.ask("POST", "/hook", b"{}", token=None, headers=headers).status == 202


def test_a_catalogue_that_was_opened_is_open_under_any_name(tmp_path_factory: pytest.TempPathFactory) -> None:
    workspace = an_api_workspace(tmp_path_factory.mktemp("open"), api="  open_discovery: true\n")
    with an_api(workspace) as api:
        for path in CATALOGUE:
            assert api.ask("GET", path, token=None, headers=PROXIED).status == 200


@pytest.mark.parametrize(
    "repeated", ["Authorization: Bearer wrong", "Host: evil.example", "Idempotency-Key: b"]
)
def test_headers_that_decide_come_once(api: Api, repeated: str) -> None:
    """A proxy may read the first header of a name and the daemon the last, so both at once are refused."""
    lines = [
        "POST /plugin/echo/poll HTTP/1.1",
        repeated,
        "Host: localhost",
        f"Authorization: Bearer {token_for('*')}",
        "Idempotency-Key: a",
        "Connection: close",
        "Content-Length: 0",
    ]
    response = api.send_raw(("\r\n".join(lines) + "\r\n\r\n").encode())
    assert response.startswith(b"HTTP/1.1 400 ")
    assert b"more than one" in response


def test_the_host_comes_once_at_the_listener_for_webhooks_too(hooks: Api) -> None:
    response = hooks.send_raw(
        b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    assert response.startswith(b"HTTP/1.1 400 ")
