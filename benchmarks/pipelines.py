"""A synchronous pipeline over HTTP beside the same programs started by hand, one after the other.

Reports what the queue, the store and waiting for the result add to three processes: the difference for one
caller, and the rate of several beside as many bare loops.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

from benchmarks.life import wait_for
from benchmarks.plugins import encoded_request, write_plugins
from benchmarks.table import Line, compared
from ductile.core.json import JsonObject

STEPS = 3
RUNS = 200
CALLERS = 8
RUNS_EACH = 25
TOKEN = "a-token-for-the-benchmark"  # noqa: S105 - of a daemon that lives for some seconds
PAYLOAD: JsonObject = {"text": "x" * 400}
CONTEXT: JsonObject = {
    "ductile_plugin": "sh",
    "ductile_pipeline": "three",
    "ductile_step_id": "step-1",
    "ductile_trace_id": "0" * 32,
}
REQUEST = encoded_request("01a1e1b0-0000-7000-8000-000000000000", "sh", PAYLOAD, CONTEXT).encode()
BODY = json.dumps({"payload": PAYLOAD}).encode()
CONFIG = """\
api:
  enabled: true
  listen: 127.0.0.1:{port}
  auth: {{tokens: [{{name: bench, token: {token}, scopes: ["*"]}}]}}
pipelines:
  - name: three
    execution_mode: synchronous
    steps: [{steps}]
"""


def measure(directory: Path, rounds: int) -> list[Line]:
    config_dir = directory / "pipelines"
    config_dir.mkdir()
    script = write_plugins(config_dir, workers=CALLERS)["sh"]
    with _daemon(config_dir) as port:
        with _connection(port) as call:
            for _ in range(10):
                call()
            bare, ours = _one_caller(script, call)
        lines = [_overhead(bare, ours)]
        several_bare, several_ours = [], []
        for _ in range(rounds):
            several_bare.append(_rate(lambda: _by_hand(script)))
            several_ours.append(_rate_of_calls(port))
    lines.append(_overhead_of_the_slowest(bare, ours))
    what = f"pipeline runs of {STEPS} sh steps, {CALLERS} callers, beside bare loops"
    lines.append(compared(what, several_ours, several_bare, "runs/s"))
    return lines


def _one_caller(script: Path, call: Callable[[], None]) -> tuple[list[float], list[float]]:
    """Alternate, so that both see the same machine."""
    bare, ours = [], []
    for _ in range(RUNS):
        bare.append(_milliseconds(lambda: _by_hand(script)))
        ours.append(_milliseconds(call))
    return bare, ours


def _overhead(bare: list[float], ours: list[float]) -> Line:
    return Line(
        what=f"synchronous pipeline of {STEPS} sh steps over HTTP: p50 more than by hand, ms",
        ours=f"{median(ours):.1f} ms",
        bare=f"{median(bare):.1f} ms",
        ratio=median(ours) - median(bare),
        goal="<= 10",
    )


def _overhead_of_the_slowest(bare: list[float], ours: list[float]) -> Line:
    slowest_bare, slowest = quantiles(bare, n=100)[98], quantiles(ours, n=100)[98]
    return Line(
        what=f"synchronous pipeline of {STEPS} sh steps over HTTP: p99 more than by hand, ms",
        ours=f"{slowest:.1f} ms",
        bare=f"{slowest_bare:.1f} ms",
        ratio=slowest - slowest_bare,
        goal="<= 25",
    )


def _by_hand(script: Path) -> None:
    for _ in range(STEPS):
        subprocess.run([script], input=REQUEST, capture_output=True, check=True)


def _milliseconds(do: Callable[[], None]) -> float:
    began = time.perf_counter()
    do()
    return (time.perf_counter() - began) * 1000


def _rate(do: Callable[[], None]) -> float:
    def often() -> None:
        for _ in range(RUNS_EACH):
            do()

    return _rate_of([often] * CALLERS)


def _rate_of_calls(port: int) -> float:
    def often() -> None:
        with _connection(port) as call:
            for _ in range(RUNS_EACH):
                call()

    return _rate_of([often] * CALLERS)


def _rate_of(callers: list[Callable[[], None]]) -> float:
    with ThreadPoolExecutor(len(callers)) as pool:
        began = time.perf_counter()
        for done in [pool.submit(caller) for caller in callers]:
            done.result()
        return CALLERS * RUNS_EACH / (time.perf_counter() - began)


@contextmanager
def _connection(port: int) -> Iterator[Callable[[], None]]:
    """A connection that is kept, and the call that is made over it again and again."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}

    def call() -> None:
        connection.request("POST", "/pipeline/three", body=BODY, headers=headers)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != http.client.OK or b'"succeeded"' not in content:
            raise RuntimeError(content.decode())

    try:
        yield call
    finally:
        connection.close()


@contextmanager
def _daemon(config_dir: Path) -> Iterator[int]:
    port = _free_port()
    steps = ", ".join(["{uses: sh}"] * STEPS)
    config = config_dir / "config.yaml"
    written = CONFIG.format(port=port, token=TOKEN, steps=steps)
    config.write_text(config.read_text(encoding="utf-8") + written, encoding="utf-8")
    ductile = [sys.executable, "-m", "ductile"]
    subprocess.run([*ductile, "config", "lock", "--config", str(config_dir)], check=True, capture_output=True)
    start = [*ductile, "system", "start", "--config", str(config_dir)]
    daemon = subprocess.Popen(start, stdout=subprocess.DEVNULL)
    try:
        wait_for(config_dir / "data" / "ductile.sock")
        _wait_for_port(port)
        yield port
    finally:
        daemon.terminate()
        daemon.wait()


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
