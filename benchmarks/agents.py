"""What the MCP server costs a daemon: nothing until the first request to `/mcp`, then the library.

Beside it, a daemon for which the library is not there, as if the extra were not installed. Each round starts
both, one after the other.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.life import resident, wait_for
from benchmarks.table import Line, compared

#: Calls after the first, in one connection.
CALLS = 200
_TOKEN = "bench-token"  # noqa: S105 - of a daemon that lives for seconds
_CONFIG = f"""\
service: {{max_workers: 2, shutdown_grace: 0s}}
api:
  enabled: true
  listen: 127.0.0.1:0
  auth: {{tokens: [{{name: bench, token: {_TOKEN}, scopes: ["*"]}}]}}
plugins:
  nothing: {{run: 'true'}}
"""
_MESSAGE = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "queue", "arguments": {}}}
_HEADERS = {
    "Authorization": f"Bearer {_TOKEN}",
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
}
_PORT = re.compile(r'"signal":"api.listening".*"address":"[^"]*:(\d+)"')


def measure(directory: Path, rounds: int) -> list[Line]:
    config_dir = directory / "agents"
    config_dir.mkdir()
    (config_dir / "config.yaml").write_text(_CONFIG, encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "ductile", "config", "lock", "--config", str(config_dir)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    missing = directory / "missing"
    missing.mkdir()
    (missing / "mcp_types.py").write_text("raise ModuleNotFoundError('none here', name='mcp_types')\n")
    starts: dict[bool, list[float]] = {True: [], False: []}
    sizes: dict[bool, list[float]] = {True: [], False: []}
    used, first, next_calls = [], [], []
    for _ in range(rounds):
        for is_there in (False, True):
            with _daemon(config_dir, None if is_there else missing) as (pid, port, seconds):
                starts[is_there].append(seconds * 1000)
                sizes[is_there].append(resident(pid))
                if is_there:
                    once, later = _call(port)
                    first.append(once)
                    next_calls.append(later)
                    used.append(resident(pid))
    return [
        compared("start to ready with /mcp, unused", starts[True], starts[False], "ms", "<= 1.1"),
        compared("resident memory with /mcp, unused", sizes[True], sizes[False], "MB", "<= 1.02"),
        compared("resident memory after requests to /mcp", used, sizes[True], "MB", "<= 2"),
        Line(
            what="first request to /mcp, milliseconds",
            ours=f"{median(first):,.0f} ms",
            bare=f"{median(next_calls):.1f} ms, those after it",
            ratio=median(first) / median(next_calls),
        ),
    ]


def _call(port: int) -> tuple[float, float]:
    """Milliseconds of the first call, and the median of those that follow."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    taken = []
    for _ in range(1 + CALLS):
        began = time.perf_counter()
        connection.request("POST", "/mcp", json.dumps(_MESSAGE), _HEADERS)
        answer = connection.getresponse()
        content = answer.read()
        taken.append((time.perf_counter() - began) * 1000)
        if answer.status != http.HTTPStatus.OK:
            raise SystemExit(content.decode())
    connection.close()
    return taken[0], median(taken[1:])


@contextmanager
def _daemon(config_dir: Path, modules: Path | None) -> Iterator[tuple[int, int, float]]:
    """The process id of a daemon, the port of its API, and the seconds until it was ready."""
    log = config_dir / "daemon.log"
    began = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "ductile", "system", "start", "--config", str(config_dir)],
            stdout=output,
            env=os.environ if modules is None else {**os.environ, "PYTHONPATH": str(modules)},
        )
    try:
        wait_for(config_dir / "data" / "ductile.sock")
        seconds = time.perf_counter() - began
        while (match := _PORT.search(log.read_text(encoding="utf-8"))) is None:
            time.sleep(0.01)
        yield process.pid, int(match[1]), seconds
    finally:
        process.terminate()
        process.wait()
