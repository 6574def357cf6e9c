"""`ductile system watch` over a real daemon: its tables, its keys, and its picture."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, RichLog, Static

from builders.daemons import BROKEN, SLOW, Daemon, Workspace, a_daemon, a_workspace
from ductile.cli.commands.job.inspect import job_text
from ductile.cli.console.console import Console
from ductile.control.client import call_daemon
from ductile.errors import DaemonNotRunningError, StoreBusyError
from ductile.watch.screen import Confirm, Details, WatchApp

PIPELINES = """\
  slow: {}
  broken: {retry: {max_attempts: 1}}
  talker: {run: "echo half done; read -r _ < gate; echo all done"}
  timed: {uses: echo, schedules: [{id: nightly, cron: "0 3 * * *"}]}
pipelines:
  - name: report
    on: report.wanted
    steps:
      - {id: gather, uses: echo}
      - {id: wait, uses: slow}
"""
PICTURE = Path(__file__).parents[2] / "docs" / "images" / "watch.svg"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = a_workspace(tmp_path, PIPELINES)
    workspace.plugin("slow", SLOW)
    workspace.plugin("broken", BROKEN)
    return workspace


@pytest.fixture
def daemon(workspace: Workspace) -> Iterator[Daemon]:
    with a_daemon(workspace) as daemon:
        yield daemon


def client_of(workspace: Workspace) -> Callable[[str, Mapping[str, object]], dict[str, Any]]:
    socket = workspace.config.parent / "data" / "ductile.sock"
    return lambda operation, arguments: call_daemon(socket, operation, dict(arguments))  # type: ignore[arg-type]  # JSON it is


def show_job(job: Mapping[str, Any], width: int) -> str:
    return job_text(dict(job), Console(width=width))


def cells(app: WatchApp, table: str) -> str:
    data_table = app.query_one(f"#{table}", DataTable)
    return "\n".join(" | ".join(map(str, data_table.get_row_at(row))) for row in range(data_table.row_count))


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    """Let the screen follow the daemon until the condition holds."""
    for _ in range(600):
        if condition():
            return
        await pilot.pause(0.05)
    raise AssertionError("the screen never showed it")


async def test_it_shows_what_runs_and_what_happened(workspace: Workspace, daemon: Daemon) -> None:
    """The screen has running jobs, advancing runs, failures with causes, schedules and events."""
    workspace.ductile("run", "broken")
    run_id = workspace.json("pipeline", "run", "report", "--no-wait")["job_id"]
    app = WatchApp(client_of(workspace), show_job)
    async with app.run_test(size=(160, 46)) as pilot:
        await until(pilot, lambda: "slow handle (wait) | running" in cells(app, "jobs"))
        assert re.search(rf"{run_id[-8:]} \| report \| running \| 1/2 \| wait", cells(app, "runs"))
        assert "it is broken" in cells(app, "failed")
        assert "timed | nightly" in cells(app, "schedules")
        assert "broken | failed" in cells(app, "plugins")
        assert "1 running" in str(app.query_one("#head", Static).render())
        # Events are read before the tables; the next refresh shows an event that came in between.
        events = app.query_one("#events", RichLog)
        await until(
            pilot, lambda: any("running → succeeded (completed)" in line.text for line in events.lines)
        )


async def test_a_key_cancels_what_is_selected(workspace: Workspace, daemon: Daemon) -> None:
    """Only `y` confirms the question; any other key leaves the job alone."""
    job_id = workspace.json("run", "slow", "handle", "--no-wait")["job_id"]
    app = WatchApp(client_of(workspace), show_job)
    async with app.run_test(size=(160, 46)) as pilot:
        await until(pilot, lambda: job_id[-8:] in cells(app, "jobs"))
        app.query_one("#jobs", DataTable).focus()
        for key in ("n", "enter", "escape"):
            await pilot.press("c")
            await until(pilot, lambda: isinstance(app.screen, Confirm))
            question = str(app.screen.query_one("#question", Static).render())
            assert f"Cancel slow handle {job_id[-8:]}?" in question
            await pilot.press(key)
            await until(pilot, lambda: not isinstance(app.screen, Confirm))
        assert workspace.json("job", "show", job_id)["cancel_requested_at"] is None
        await pilot.press("c")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        await pilot.press("y")
        await until(pilot, lambda: job_id[-8:] not in cells(app, "jobs"))
    assert workspace.json("job", "show", job_id)["reason"] == "cancelled"


async def test_a_key_retries_what_ended_badly(workspace: Workspace, daemon: Daemon) -> None:
    job_id = workspace.json("run", "broken", status=1)["job_id"]
    (workspace.config.parent / "plugins" / "broken" / "mended").touch()
    app = WatchApp(client_of(workspace), show_job)
    async with app.run_test(size=(160, 46)) as pilot:
        await until(pilot, lambda: job_id[-8:] in cells(app, "failed"))
        app.query_one("#failed", DataTable).focus()
        await pilot.press("t")
        await until(pilot, lambda: job_id[-8:] not in cells(app, "failed"))
    assert workspace.json("job", "wait", job_id)["status"] == "succeeded"


async def test_keys_run_pause_and_resume_a_schedule(workspace: Workspace, daemon: Daemon) -> None:
    app = WatchApp(client_of(workspace), show_job)
    async with app.run_test(size=(160, 46)) as pilot:
        await until(pilot, lambda: "nightly" in cells(app, "schedules"))
        app.query_one("#schedules", DataTable).focus()
        await pilot.press("p")
        await until(pilot, lambda: "paused" in cells(app, "schedules"))
        await pilot.press("p")
        await until(pilot, lambda: "paused" not in cells(app, "schedules"))
        await pilot.press("r")
        await until(pilot, lambda: "never" not in cells(app, "schedules"))
    (job,) = workspace.json("job", "list", "--plugin", "timed")["jobs"]
    assert job["submitted_by"] == "scheduler"


async def test_enter_shows_everything_about_a_job(workspace: Workspace, daemon: Daemon) -> None:
    """The document is what `job show` prints."""
    job_id = workspace.json("run", "slow", "handle", "--no-wait")["job_id"]
    app = WatchApp(client_of(workspace), show_job)
    async with app.run_test(size=(160, 46)) as pilot:
        await until(pilot, lambda: job_id[-8:] in cells(app, "jobs"))
        app.query_one("#jobs", DataTable).focus()
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Details))
        text = str(app.screen.query_one("#document", Static).render())
        assert text.startswith("slow handle: running")
        assert job_id in text
        assert re.search(r"queued → running +claimed", text)
        await pilot.press("escape")
        assert not isinstance(app.screen, Details)


async def test_the_output_of_a_running_job_is_shown_as_it_comes(workspace: Workspace, daemon: Daemon) -> None:
    """The output is below the document; once the job has ended, the document has its result."""
    gate = workspace.config.parent / "gate"
    os.mkfifo(gate)
    job_id = workspace.json("run", "talker", "--no-wait")["job_id"]
    app = WatchApp(client_of(workspace), show_job)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: job_id[-8:] in cells(app, "jobs"))
        app.query_one("#jobs", DataTable).focus()
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Details))
        output = app.screen.query_one("#output", Static)
        await until(pilot, lambda: "half done" in str(output.render()))
        gate.write_text("go on\n")
        document = app.screen.query_one("#document", Static)
        await until(pilot, lambda: "talker poll: succeeded" in str(document.render()))
        assert "all done" in str(document.render())
        assert str(output.render()) == ""


async def test_a_daemon_that_stops_is_told(workspace: Workspace, daemon: Daemon) -> None:
    app = WatchApp(client_of(workspace), show_job)
    async with app.run_test(size=(160, 46)) as pilot:
        await until(pilot, lambda: "up" in str(app.query_one("#head", Static).render()))
        daemon.end()
        await until(pilot, lambda: "daemon" in str(app.query_one("#head", Static).render()))


async def test_its_picture_is_in_the_docs(workspace: Workspace, daemon: Daemon, tmp_path: Path) -> None:
    """The SVG names no font from the network, and the picture in the docs has the present tables."""
    workspace.ductile("run", "broken")
    workspace.json("pipeline", "run", "report", "--no-wait")
    app = WatchApp(client_of(workspace), show_job)
    async with app.run_test(size=(160, 46)) as pilot:
        await until(pilot, lambda: "slow handle (wait) | running" in cells(app, "jobs"))
        await pilot.pause()  # the screen is laid out now
        current = without_fonts(app.export_screenshot(title="ductile system watch"))
    if not PICTURE.exists():
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        PICTURE.write_text(current)
    stored = PICTURE.read_text()
    for picture in (current, stored):
        assert "http" not in picture.replace("http://www.w3.org", "")
    titles = re.compile(
        r"(Running&#160;and&#160;queued|Pipelines|Failed&#160;and&#160;dead|Schedules|Events)"
    )
    assert set(titles.findall(stored)) == set(titles.findall(current)) != set()


def without_fonts(svg: str) -> str:
    """Remove the fonts that Textual's picture requests from a server."""
    return re.sub(r"@font-face \{.*?\}|<!--.*?-->", "", svg, flags=re.DOTALL)


async def test_a_momentary_error_does_not_end_the_screen() -> None:
    """The screen stays when the store is closing, and then shows that no daemon is running."""
    errors = [StoreBusyError("the store is closing"), DaemonNotRunningError("no daemon is running here")]

    def raise_next_error(_operation: str, _given: Mapping[str, object]) -> dict[str, Any]:
        raise errors.pop(0)

    app = WatchApp(raise_next_error, show_job)
    async with app.run_test(size=(160, 46)) as pilot:
        await until(pilot, lambda: "daemon" in str(app.query_one("#head", Static).render()))
    assert errors == []


async def test_events_can_be_read_in_a_terminal_of_80_columns(workspace: Workspace, daemon: Daemon) -> None:
    """Events with their jobs fit the screen."""
    workspace.ductile("run", "broken")
    app = WatchApp(client_of(workspace), show_job)
    async with app.run_test(size=(80, 24)) as pilot:
        events = app.query_one("#events", RichLog)
        await until(pilot, lambda: any("broken" in line.text for line in events.lines))
        width = events.scrollable_content_region.width
        assert max(line.cell_length for line in events.lines) <= width < 80
        lines = [line.text.rstrip() for line in events.lines]
        assert any(line.endswith(" broken poll queued → running (claimed)") for line in lines)
        assert any(line.endswith(" broken poll running → failed (plugin_error)") for line in lines)
        jobs, failed = app.query_one("#jobs", DataTable), app.query_one("#failed", DataTable)
        assert jobs.region.width == failed.region.width >= 76, "tables use the whole width"
        assert jobs.region.bottom <= failed.region.y, "and are below each other"


async def test_every_table_can_be_reached_in_a_small_terminal(workspace: Workspace, daemon: Daemon) -> None:
    """Tab goes through all tables, and the focused one is scrolled into view."""
    app = WatchApp(client_of(workspace), show_job)
    async with app.run_test(size=(60, 20)) as pilot:
        await until(pilot, lambda: "nightly" in cells(app, "schedules"))
        app.query_one("#jobs", DataTable).focus()
        reached = set()
        for _ in range(6):
            focused = app.focused
            assert focused is not None
            await until(pilot, lambda: focused.region.intersection(app.screen.region).height >= 3)  # noqa: B023
            reached.add(focused.id)
            await pilot.press("tab")
        assert reached == {"jobs", "runs", "failed", "events", "schedules", "plugins"}
