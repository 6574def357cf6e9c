"""The daemon as a process: how soon it is ready, what it costs at rest, and whether it grows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from benchmarks.plugins import write_plugins
from benchmarks.table import Line
from ductile.control.client import call_daemon

JOBS = 20_000
#: The median of this many: a single one depends on what else the machine did.
STARTS = 5
#: The most used commands and their goals in milliseconds. The daemon runs meanwhile.
COMMANDS = (("--help", "<= 100"), ("job --help", "<= 100"), ("status --config .", "<= 200"))
COMMAND_ROUNDS = 15
IDLE_SECONDS = 10
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def measure(directory: Path, _rounds: int) -> list[Line]:
    config_dir = directory / "life"
    config_dir.mkdir()
    write_plugins(config_dir, workers=8)
    socket = config_dir / "data" / "ductile.sock"
    starts = [timed_start(config_dir, socket)[1] for _ in range(STARTS - 1)]
    daemon, last = timed_start(config_dir, socket, stays=True)
    ready = median([*starts, last])
    commands = [timed_command(*command, config_dir=config_dir) for command in COMMANDS]
    before_idle = cpu_seconds(daemon.pid)
    time.sleep(IDLE_SECONDS)
    idle = (cpu_seconds(daemon.pid) - before_idle) / IDLE_SECONDS * 100
    open_all_readers(socket)
    run(socket, JOBS // 4)
    early, open_early = resident(daemon.pid), descriptors(daemon.pid)
    run(socket, JOBS - JOBS // 4)
    late, open_late = resident(daemon.pid), descriptors(daemon.pid)
    daemon.terminate()
    daemon.wait()
    return [
        Line(what="start to ready, seconds", ours=f"{ready:.2f} s", bare="", ratio=ready, goal="<= 0.5"),
        *commands,
        Line(what="processor at rest, per cent", ours=f"{idle:.2f} %", bare="", ratio=idle, goal="<= 0.5"),
        Line(
            what=f"resident memory after {JOBS:,} jobs, MB",
            ours=f"{late:.0f} MB",
            bare="",
            ratio=late,
            goal="<= 60",
        ),
        Line(
            what=f"resident memory, {JOBS:,} jobs beside {JOBS // 4:,}",
            ours=f"{late:.1f} MB",
            bare=f"{early:.1f} MB",
            ratio=late / early,
            goal="<= 1.05",
        ),
        Line(
            what=f"descriptors after {JOBS:,} jobs",
            ours=str(open_late),
            bare=f"{open_early} after {JOBS // 4:,}",
            ratio=open_late / open_early,
            goal="<= 1.1",
        ),
    ]


def timed_command(words: str, goal: str, *, config_dir: Path) -> Line:
    """Milliseconds of a command, as a process of its own, beside a Python that does nothing."""
    ductile = str(Path(sys.executable).with_name("ductile"))
    ours, bare = [], []
    for _ in range(COMMAND_ROUNDS):
        bare.append(_milliseconds([sys.executable, "-c", "pass"], config_dir))
        ours.append(_milliseconds([ductile, *words.split()], config_dir))
    return Line(
        what=f"ductile {words}, milliseconds",
        ours=f"{median(ours):.0f} ms",
        bare=f"{median(bare):.0f} ms",
        ratio=median(ours),
        goal=goal,
    )


def _milliseconds(words: list[str], config_dir: Path) -> float:
    began = time.perf_counter()
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True, cwd=config_dir)
    return (time.perf_counter() - began) * 1000


def timed_start(
    config_dir: Path, socket: Path, *, stays: bool = False
) -> tuple[subprocess.Popen[bytes], float]:
    """Start a daemon. Yields it with the seconds until it responded."""
    began = time.perf_counter()
    daemon = subprocess.Popen(
        [sys.executable, "-m", "ductile", "system", "start", "--config", str(config_dir)],
        stdout=subprocess.DEVNULL,
    )
    wait_for(socket)
    ready = time.perf_counter() - began
    if not stays:
        daemon.terminate()
        daemon.wait()
    return daemon, ready


def wait_for(socket: Path) -> None:
    while True:
        try:
            call_daemon(socket, "queue.status", {})
        except Exception:  # noqa: BLE001 - it is not up yet
            time.sleep(0.005)
        else:
            return


def run(socket: Path, jobs: int) -> None:
    """Submit over the socket, a few at a time, then wait for the last."""
    last = ""
    for _ in range(jobs):
        last = str(call_daemon(socket, "plugin.run", {"plugin": "c", "command": "handle"})["job_id"])
    call_daemon(socket, "job.wait", {"job_id": last})


def open_all_readers(socket: Path) -> None:
    """Each of the store's readers opens the file when it is first needed, and keeps it open."""
    with ThreadPoolExecutor(8) as pool:
        for call in [pool.submit(call_daemon, socket, "job.list", {}) for _ in range(64)]:
            call.result()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) * _PAGE / 1e6


def descriptors(pid: int) -> int:
    """Return the minimum of several counts: a job or client that is just ending holds some for a moment."""
    seen = []
    for _ in range(20):
        seen.append(len(os.listdir(f"/proc/{pid}/fd")))  # noqa: PTH208 - names only
        time.sleep(0.02)
    return min(seen)
