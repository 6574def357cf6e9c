"""Times are shown in the local zone and relative to now, ids by their end; exactly with -v and in JSON."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from builders.daemons import a_workspace
from builders.terminal import Terminal
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console

INSTANT = "2026-11-18T09:30:12.123456Z"
VIENNA = Console(now=datetime(2026, 11, 18, 9, 33, 13, tzinfo=UTC), zone=ZoneInfo("Europe/Vienna"))


def test_an_instant_is_shown_in_the_zone_and_by_the_clock_of_the_console() -> None:
    assert fmt.local_time(INSTANT, VIENNA) == "2026-11-18 10:30:12"
    assert fmt.relative_time(INSTANT, VIENNA) == "3 min ago"
    assert fmt.local_and_relative_time(INSTANT, VIENNA) == "2026-11-18 10:30:12 (3 min ago)"
    assert fmt.relative_time("2026-11-18T11:34:00Z", VIENNA) == "in 2 h"
    assert fmt.relative_time("2026-11-10T11:34:00Z", VIENNA) == "2026-11-10 12:34"
    verbose = VIENNA._replace(verbose=True)
    assert {
        text_of(INSTANT, verbose)
        for text_of in (fmt.local_time, fmt.relative_time, fmt.local_and_relative_time)
    } == {INSTANT}
    assert fmt.local_time(None, VIENNA) == "-"


def test_lists_of_jobs_are_short_and_exact_if_asked(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("run", "echo").status == 0
    (job,) = workspace.json("job", "list")["jobs"]
    row = workspace.ductile("job", "list").out.splitlines()[1]
    assert row.startswith(f"{job['job_id'][-8:]}  echo")
    assert re.search(r" (now|\d+ (?:s|min) ago)$", row)
    verbose_row = workspace.ductile("job", "list", "-v").out.splitlines()[1]
    assert verbose_row.startswith(job["job_id"])
    assert verbose_row.endswith(job["created_at"])
    assert workspace.json("job", "show", row.split()[0])["job_id"] == job["job_id"]


def test_the_time_zone_of_the_user_counts(tmp_path: Path) -> None:
    """The zone is used for output and for arguments."""
    workspace = a_workspace(tmp_path)
    workspace.ductile("run", "echo")
    (job,) = workspace.json("job", "list")["jobs"]
    zone = "Pacific/Kiritimati"
    terminal = Terminal(directory=tmp_path, variables={"TZ": zone})
    local = datetime.fromisoformat(job["created_at"]).astimezone(ZoneInfo(zone))
    assert f"created       {local:%Y-%m-%d %H:%M:%S} (" in terminal.ductile("job", "show", "last").out
    output = terminal.ductile("job", "list", "--since", f"{local:%Y-%m-%d %H:%M:%S}").out
    assert job["job_id"][-8:] in output
    assert terminal.ductile("job", "list", "--until", "1h").out == "No jobs found.\n"
    assert (
        job["job_id"][-8:]
        in terminal.ductile("job", "list", "--from", "today").out
        + terminal.ductile("job", "list", "--since", "yesterday").out
    )
    assert "echo poll" in terminal.ductile("logs", "--since", "5m").out
    result = terminal.ductile("logs", "--since", "whenever")
    assert (result.status, "yesterday" in result.err) == (2, True)
