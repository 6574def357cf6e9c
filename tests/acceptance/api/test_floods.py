"""Floods of unknown callers are counted, and do not fill the log."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from builders.http import Api, an_api, an_api_workspace, read_all

MANY = 300
HOOKS = (
    "webhooks:\n  listen: 127.0.0.1:0\n  endpoints:\n"
    "    - {path: /hook, plugin: echo, command: poll, secret: a-canary-of-hooks}\n"
)


def flood(api: Api, request: bytes) -> None:
    """Send the request many times on one connection, so that the requests follow each other at once."""
    with api.connect() as connection:
        connection.sendall(
            request * (MANY - 1) + request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
        )
        assert read_all(connection).count(b"HTTP/1.1 ") == MANY


def count_sampled(lines: list[dict[str, Any]], listener: str, result: str) -> int:
    sampled = [
        line for line in lines if line["signal"] == "listener.sampled" and line["listener"] == listener
    ]
    return sum(line["requests"].get(result, 0) for line in sampled)


def assert_sampled(
    lines: list[dict[str, Any]], listener: str, result: str, matches: Callable[[dict[str, Any]], bool]
) -> None:
    """Assert that each request is logged or counted, once, and that most of them are counted."""
    logged = sum(matches(line) for line in lines)
    assert 1 <= logged < MANY / 2
    assert logged + count_sampled(lines, listener, result) == MANY


def test_unknown_callers_do_not_fill_the_log(tmp_path: Path) -> None:
    workspace = an_api_workspace(tmp_path, more=HOOKS)
    workspace.config.write_text(workspace.config.read_text().replace("log_level: debug", "log_level: info"))
    with an_api(workspace) as api:
        address = api.daemon.wait_for("webhook.listening")["address"]
        hooks = replace(api, port=int(address.rpartition(":")[2]))
        flood(hooks, b"POST /hook HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        flood(api, b"GET /jobs HTTP/1.1\r\nHost: localhost\r\n\r\n")
        flood(api, b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"x" * 5000))
        flood(api, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        metrics = api.ask("GET", "/metrics").content.decode()
        lines = api.daemon.whole_log()

    assert_sampled(lines, "webhooks", "403", lambda line: line["signal"] == "webhook.refused")
    for status in (401, 404, 200):
        assert_sampled(
            lines,
            "api",
            str(status),
            lambda line, status=status: (  # type: ignore[misc]  # a default is how a loop's value is kept
                line["signal"] == "api.request" and line["status"] == status and line["token"] is None
            ),
        )
    assert f'ductile_webhook_requests_total{{result="refused"}} {MANY}.0' in metrics
    unauthorized = re.search(
        r'ductile_http_requests_total{endpoint="/jobs",method="GET",status="401"} (\d+)', metrics
    )
    assert unauthorized is not None
    assert int(unauthorized[1]) == MANY
