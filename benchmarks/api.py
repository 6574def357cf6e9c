"""The accept path of the API: jobs on disk a second over 64 connections, beside a handler with no store.

One worker sleeps meanwhile, so that what is measured is accepting and not running.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.table import Line, compared

SECONDS = 2.0
#: Rather often than long: the machine's own pace changes from one minute to the next.
OFTEN = 3
_TOKEN = "bench-token"  # noqa: S105 - of a daemon that lives for seconds
_CONFIG = f"""\
service: {{max_workers: 1, log_level: info, shutdown_grace: 0s}}
api:
  enabled: true
  listen: 127.0.0.1:0
  auth: {{tokens: [{{name: bench, token: {_TOKEN}, scopes: ["*"]}}]}}
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


def measure(directory: Path, rounds: int) -> list[Line]:
    ground = directory / "api"
    plugin = ground / "plugins" / "sleeper"
    plugin.mkdir(parents=True)
    (plugin / "run").write_text("#!/bin/sh\nexec sleep 600\n", encoding="utf-8")
    (plugin / "run").chmod(0o755)
    (plugin / "manifest.yaml").write_text(_MANIFEST, encoding="utf-8")
    (ground / "config.yaml").write_text(_CONFIG, encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "ductile", "config", "lock", "--config", str(ground)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    ours, bare = [], []
    with _bare_server() as bare_port, _daemon(ground) as port:
        for _ in range(rounds * OFTEN):
            bare.append(_load(bare_port))
            ours.append(_load(port))
    p99 = median(each["p99_ms"] for each in ours)
    rates = compared(
        "jobs accepted over HTTP, on disk, 64 connections",
        [each["rate"] for each in ours],
        [each["rate"] for each in bare],
        "jobs/s",
        goal=">= 0.4",
    )
    beside = median(each["p99_ms"] for each in bare)
    slowest = Line(
        what="accept p99, milliseconds", ours=f"{p99:.1f} ms", bare=f"{beside:.1f} ms", ratio=p99 / beside
    )
    return [rates, slowest]


def _load(port: int) -> dict[str, float]:
    words = [sys.executable, "-m", "benchmarks.http_load", str(port), _TOKEN, str(SECONDS)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


@contextmanager
def _bare_server() -> Iterator[int]:
    with _running([sys.executable, "-m", "benchmarks.bare_http"]) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


@contextmanager
def _daemon(ground: Path) -> Iterator[int]:
    log = ground / "daemon.log"
    words = f"exec {sys.executable} -m ductile system start --config {ground} > {log}"
    with _running(["/bin/sh", "-c", words]) as process:
        while process.poll() is None:
            for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
                if '"signal":"api.listening"' in line:
                    yield int(json.loads(line)["address"].rpartition(":")[2])
                    return
    raise SystemExit(log.read_text(encoding="utf-8"))


@contextmanager
def _running(words: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
