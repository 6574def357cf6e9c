"""What the dashboard costs with a million jobs in the store: time to the first paint and to the whole page,
bytes, and memory of the daemon with twenty open pages. Beside it, the same on a store without jobs.

Needs a browser (chromium); without one the suite is left out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import store_depth
from benchmarks.table import Line, compared

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

OPEN_PAGES = 20
#: A page is shown when the last grey bar has gone.
_PAGES = {
    "Now": "/ui",
    "Jobs": "/ui/jobs",
    "Jobs, failed": "/ui/jobs?status=failed",
    "Jobs, a plugin that failed last week": "/ui/jobs?plugin=plugin-3&status=failed&since=7d",
    "Jobs, full-text search": "/ui/jobs?query=printed",
    "Log of executions": "/ui/jobs?list=log",
    "Figures of a week": "/ui/figures?span=week",
    "Plugins": "/ui/plugins",
    "Schedules": "/ui/schedules",
}
_TOKEN = "bench-token"  # noqa: S105 - of a daemon that lives for minutes
_CONFIG = f"""\
service:
  max_workers: 2
  shutdown_grace: 0s
  job_queue_retention: 90d
  job_log_retention: 90d
api:
  enabled: true
  listen: 127.0.0.1:0
  auth: {{tokens: [{{name: bench, token: {_TOKEN}, scopes: ["*"]}}]}}
plugins:
{"".join(f"  plugin-{number}: {{run: 'true'}}" + chr(10) for number in range(5))}"""
#: One in a hundred failed; the whole is spread over thirty days, which end now.
_ROWS = """
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :rows),
job (i, id, plugin, status, reason, error, at) AS (
  SELECT i, printf('%08x-%04x-7000-8000-%012x', i, i % 65536, i), 'plugin-' || (i % 5),
    iif(i % 100 = 3, 'failed', 'succeeded'), iif(i % 100 = 3, 'plugin_error', 'completed'),
    iif(i % 100 = 3, 'it does not answer', NULL),
    strftime('%Y-%m-%dT%H:%M:%f', :now - (:rows - i) * 2592000.0 / :rows, 'unixepoch') || '000Z' FROM n
)"""
_JOBS = """
INSERT INTO job_queue
  (id, plugin, command, payload, status, reason, max_attempts, execution, submitted_by, created_at,
   started_at, completed_at, last_error)
SELECT id, plugin, 'handle', '{}', status, reason, 4, 1, 'api', at, at, at, error FROM job"""
_LOG = """
INSERT INTO job_log
  (job_id, execution, attempt, max_attempts, plugin, command, status, reason, job_status, job_reason, result,
   stderr, duration_ms, submitted_by, created_at, started_at, completed_at, last_error)
SELECT id, 1, 1, 4, plugin, 'handle', status, reason, status, reason, '{"status": "ok"}',
  'printed by job ' || i, i % 1000, 'api', at, at, at, error FROM job"""
_TEXT = "INSERT INTO job_log_text (rowid, body) SELECT seq, result || char(10) || stderr FROM job_log"
_INDEXED = """
INSERT INTO store_meta (key, value) SELECT 'searchable_until', max(seq) FROM job_log WHERE :rows > 0
ON CONFLICT (key) DO UPDATE SET value = excluded.value"""
_FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
_BYTES = """[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
  .reduce((sum, entry) => sum + entry.transferSize, 0)"""


def measure(directory: Path, rounds: int) -> list[Line]:
    browser_path = os.environ.get("DUCTILE_TEST_BROWSER") or shutil.which("chromium")
    if browser_path is None:
        print("dashboard: left out, there is no chromium", file=sys.stderr)
        return []
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - half a second, for this suite only

    with ExitStack() as stack:
        full = stack.enter_context(_daemon(directory / "full", store_depth.FINISHED))
        empty = stack.enter_context(_daemon(directory / "empty", 0))
        playwright = stack.enter_context(sync_playwright())
        sandbox = () if os.geteuid() else ("--no-sandbox",)
        browser = playwright.chromium.launch(
            executable_path=browser_path, args=["--disable-gpu", "--disable-dev-shm-usage", *sandbox]
        )
        stack.callback(browser.close)
        return [
            *_page_lines(browser, full, empty, rounds),
            *_size_lines(browser, full),
            _memory_line(browser, full),
        ]


class _Daemon:
    def __init__(self, pid: int, port: int) -> None:
        self.pid, self.origin = pid, f"http://localhost:{port}"

    def resident(self) -> float:
        pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="utf-8").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE") / 1024 / 1024


def _page_lines(browser: Browser, full: _Daemon, empty: _Daemon, rounds: int) -> list[Line]:
    paints: dict[_Daemon, list[float]] = {full: [], empty: []}
    times: dict[tuple[str, _Daemon], list[float]] = {
        (name, daemon): [] for name in _PAGES for daemon in (full, empty)
    }
    for _ in range(rounds):
        for daemon in (full, empty):
            with _signed_in(browser, daemon) as context:
                for name, path in _PAGES.items():
                    page = context.new_page()
                    times[name, daemon].append(_open(page, daemon.origin + path))
                    if name == "Now":
                        paints[daemon].append(page.evaluate(_FIRST_PAINT))
                    page.close()
    jobs = f"{store_depth.FINISHED:,} jobs"
    lines = [
        compared(
            f"dashboard, first paint, nothing cached, {jobs}", paints[full], paints[empty], "ms", "<= 1.5"
        )
    ]
    return lines + [
        compared(f"dashboard, {name}, all shown, {jobs}", times[name, full], times[name, empty], "ms")
        for name in _PAGES
    ]


def _open(page: Page, address: str) -> float:
    """Milliseconds until everything on the page is shown."""
    began = time.perf_counter()
    page.goto(address, wait_until="commit")
    page.wait_for_selector("body:has(h1):not(:has([aria-busy]))", timeout=120_000)
    return (time.perf_counter() - began) * 1000


def _size_lines(browser: Browser, daemon: _Daemon) -> list[Line]:
    with _signed_in(browser, daemon) as context:
        figures = []
        for _ in range(2):
            page = context.new_page()
            _open(page, f"{daemon.origin}/ui")
            figures.append(page.evaluate(_BYTES) / 1024)
            page.close()
    cold, warm = figures
    return [
        Line(
            what="dashboard, bytes of Now, nothing cached, KB",
            ours=f"{cold:.0f} KB",
            bare=f"{warm:.0f} KB cached",
            ratio=cold,
            goal="<= 150",
        ),
    ]


def _memory_line(browser: Browser, daemon: _Daemon) -> Line:
    """Pages that are visible, each with its stream of events, in a browser context of its own."""
    before = daemon.resident()
    with ExitStack() as stack:
        for _ in range(OPEN_PAGES):
            context = stack.enter_context(_signed_in(browser, daemon))
            _open(context.new_page(), f"{daemon.origin}/ui")
        after = daemon.resident()
    return Line(
        what=f"dashboard, resident memory of the daemon with {OPEN_PAGES} open pages, MB",
        ours=f"{after:.0f} MB",
        bare=f"{before:.0f} MB with none",
        ratio=after / before,
        goal="<= 1.5",
    )


@contextmanager
def _signed_in(browser: Browser, daemon: _Daemon) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    try:
        response = context.request.post(
            f"{daemon.origin}/ui/session", data={"token": _TOKEN}, headers={"Origin": daemon.origin}
        )
        assert response.ok, response.text()
        yield context
    finally:
        context.close()


@contextmanager
def _daemon(config_dir: Path, rows: int) -> Iterator[_Daemon]:
    config_dir.mkdir(parents=True)
    (config_dir / "config.yaml").write_text(_CONFIG, encoding="utf-8")
    (config_dir / "data").mkdir()
    values: dict[str, Any] = {"rows": rows, "now": time.time()}
    filling = (
        [(_ROWS + _JOBS, values), (_ROWS + _LOG, values), (_TEXT, {}), (_INDEXED, values)] if rows else []
    )
    store_depth.fill_store(config_dir / "data" / "state.db", filling)
    command = [sys.executable, "-m", "ductile"]
    subprocess.run(
        [*command, "config", "lock", "--config", str(config_dir)], check=True, stdout=subprocess.DEVNULL
    )
    log = config_dir / "daemon.log"
    with log.open("wb") as output:
        process = subprocess.Popen([*command, "system", "start", "--config", str(config_dir)], stdout=output)
    try:
        while (port := _port(log.read_text(encoding="utf-8"))) is None:
            if process.poll() is not None:
                raise SystemExit(log.read_text(encoding="utf-8"))
            time.sleep(0.05)
        yield _Daemon(process.pid, port)
    finally:
        process.terminate()
        process.wait()


def _port(log: str) -> int | None:
    match = re.search(r'"signal":"api.listening".*"address":"[^"]*:(\d+)"', log)
    return None if match is None else int(match[1])
