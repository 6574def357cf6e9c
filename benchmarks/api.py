"""Jobs stored per second over 64 connections, by the API and by signed webhooks, beside a bare handler.

The only worker sleeps meanwhile, so that accepting is measured and not running.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.table import Line, compared
from ductile.core.webhooks.signatures import sign_body

SECONDS = 2.0
#: Often rather than long: the speed of the machine changes from one minute to the next.
OFTEN = 3
TOKEN = "bench-token"  # noqa: S105 - of a daemon that lives for seconds
_SECRET = "a-shared-secret"  # noqa: S105 - as above
_CONFIG = f"""\
service: {{max_workers: 1, log_level: info, shutdown_grace: 0s}}
tokens: [{{name: shared, key: {_SECRET}}}]
api:
  enabled: true
  listen: 127.0.0.1:0
  auth: {{tokens: [{{name: bench, token: {TOKEN}, scopes: ["*"]}}]}}
webhooks:
  listen: 127.0.0.1:0
  endpoints: [{{path: /hook, plugin: sleeper, command: poll, secret_ref: shared}}]
plugins:
  sleeper: {{}}
"""
_MANIFEST = """\
manifest_spec: ductile.plugin
manifest_version: 1
name: sleeper
version: "1"
protocol: 2
entrypoint: run
commands: [poll]
"""
_JOB = b'{"payload": {"name": "Ada", "number": 7}}'
_WEBHOOK = b'{"text": "' + b"x" * 500 + b'"}'
LISTENING = {"api": '"signal":"api.listening"', "webhooks": '"signal":"webhook.listening"'}


def measure(directory: Path, rounds: int) -> list[Line]:
    config_dir = directory / "api"
    write_config(config_dir, _CONFIG)
    lines = []
    with _bare_server() as bare_port, running_daemon(config_dir, LISTENING) as ports:
        job = job_request()
        webhook = _post("/hook", _WEBHOOK, _signed(_WEBHOOK))
        for what, port, request, goal in (
            ("jobs accepted over HTTP", ports["api"], job, ">= 0.4"),
            # Without a goal: an event and its job are twice as much to write as a job alone.
            ("signed webhooks accepted", ports["webhooks"], webhook, ""),
        ):
            ours, bare = [], []
            for _ in range(rounds * OFTEN):
                bare.append(load(bare_port, request))
                ours.append(load(port, request))
            lines += _lines(what, ours, bare, goal)
    return lines


def write_config(config_dir: Path, config: str) -> None:
    """Write a configuration with the plugin `sleeper`, and lock it."""
    plugin = config_dir / "plugins" / "sleeper"
    plugin.mkdir(parents=True)
    (plugin / "run").write_text("#!/bin/sh\nexec sleep 600\n", encoding="utf-8")
    (plugin / "run").chmod(0o755)
    (plugin / "manifest.yaml").write_text(_MANIFEST, encoding="utf-8")
    (config_dir / "config.yaml").write_text(config, encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "ductile", "config", "lock", "--config", str(config_dir)],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def _authorization() -> str:
    return f"Authorization: Bearer {TOKEN}"


def job_request() -> bytes:
    return _post("/plugin/sleeper/poll", _JOB, _authorization())


def _signed(body: bytes) -> str:
    return f"X-Hub-Signature-256: {sign_body(_SECRET, body)}"


def _post(path: str, body: bytes, proof: str) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{proof}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _lines(what: str, ours: list[dict[str, float]], bare: list[dict[str, float]], goal: str) -> list[Line]:
    rates = compared(
        f"{what}, on disk, 64 connections",
        [load["rate"] for load in ours],
        [load["rate"] for load in bare],
        "jobs/s",
        goal=goal,
    )
    p99, beside = (median(load["p99_ms"] for load in loads) for loads in (ours, bare))
    slowest = Line(
        what=f"{what}, p99 in milliseconds", ours=f"{p99:.1f} ms", bare=f"{beside:.1f} ms", ratio=p99 / beside
    )
    return [rates, slowest]


def load(port: int, request: bytes) -> dict[str, float]:
    words = [sys.executable, "-m", "benchmarks.http_load", str(port), str(SECONDS)]
    done = subprocess.run(words, check=True, capture_output=True, input=request)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


@contextmanager
def _bare_server() -> Iterator[int]:
    with _running([sys.executable, "-m", "benchmarks.bare_http"]) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


@contextmanager
def running_daemon(config_dir: Path, listening: Mapping[str, str]) -> Iterator[dict[str, int]]:
    """Start a daemon. Yields its ports by listener, when it has logged the signals of all of them."""
    log = config_dir / "daemon.log"
    words = f"exec {sys.executable} -m ductile system start --config {config_dir} > {log}"
    with _running(["/bin/sh", "-c", words]) as process:
        while process.poll() is None:
            ports = _ports(log.read_text(encoding="utf-8") if log.exists() else "", listening)
            if len(ports) == len(listening):
                yield ports
                return
            time.sleep(0.01)
    raise SystemExit(log.read_text(encoding="utf-8"))


def _ports(log: str, listening: Mapping[str, str]) -> dict[str, int]:
    return {
        listener: int(json.loads(line)["address"].rpartition(":")[2])
        for line in log.splitlines()
        for listener, signal in listening.items()
        if signal in line
    }


@contextmanager
def _running(words: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
