"""`make bench`: Ductile beside the bare machine, as ratios taken in one run.

Rates of a machine drift from minute to minute, so a figure alone says little. Each round measures the
bare thing and ours one after the other; what is reported is the median of the rounds' ratios.
With `--write` the table replaces the one in docs/explanation/performance.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import apsw

from benchmarks import (
    agents,
    api,
    dashboard,
    jobs,
    life,
    nodes,
    pipelines,
    store_depth,
    store_throughput,
)
from benchmarks.table import Line, render

PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "performance.md"
BEGIN, END = "<!-- begin: measured -->", "<!-- end: measured -->"

SUITES: dict[str, Callable[[Path, int], list[Line]]] = {
    "throughput": store_throughput.measure,
    "depth": store_depth.measure,
    "jobs": jobs.measure,
    "life": life.measure,
    "api": api.measure,
    "pipelines": pipelines.measure,
    "nodes": nodes.measure,
    "dashboard": dashboard.measure,
    "agents": agents.measure,
}


def main() -> None:
    options = argparse.ArgumentParser(prog="make bench ARGS=...", description=__doc__)
    options.add_argument("suites", nargs="*", choices=[*SUITES, []], help="which to run (all)")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--finished", type=int, default=1_000_000, help="finished jobs for the depth suite")
    options.add_argument("--write", action="store_true", help="put the table into the docs")
    chosen = options.parse_args()
    store_depth.FINISHED = chosen.finished
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="ductile-bench-", dir=os.environ.get("BENCH_DIR")) as directory:
        for name in chosen.suites or SUITES:
            print(f"{name} ...", file=sys.stderr, flush=True)
            lines += SUITES[name](Path(directory), chosen.rounds)
    table = f"{machine()}\n\n{render(lines)}"
    print(table)
    if chosen.write:
        write(table)
    missed = [line for line in lines if line.missed]
    for line in missed:
        print(f"below its goal: {line.what}: {line.ratio:.2f}, goal {line.goal}", file=sys.stderr)


def machine() -> str:
    system = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    return f"{system}, Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}."


def write(table: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}\n{table}\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
