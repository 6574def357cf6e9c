"""Schedules of a real daemon: accounted time, the limit of outstanding polls, running them by hand."""

from __future__ import annotations

import os
import select
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from builders.daemons import Workspace, a_daemon, a_workspace, answering
from builders.postgres import STORES, keep_in

#: Writes its process id to the pipe beside it, then works for several intervals.
LONG = """#!/bin/sh
cat > /dev/null
echo $$ > "$0.pipe"
sleep 2.6
echo '{"status": "ok", "result": "done"}'
"""


def wait_for_exit(pid: int) -> None:
    """Wait for the exit of a process, also of one that its parent has not waited for."""
    handle = os.pidfd_open(pid)
    try:
        select.select([handle], [], [])
    finally:
        os.close(handle)


@pytest.mark.parametrize("policy", ["if_running: skip", "if_running: queue, catch_up: run_all"])
def test_a_starved_daemon_accounts_for_every_occurrence(tmp_path: Path, policy: str) -> None:
    """The daemon is stopped while a run ends and others fall due, as on an overloaded machine."""
    schedule = f"    schedules: [{{id: often, every: 1s, {policy}}}]\n"
    workspace = a_workspace(tmp_path, f"  long:\n    max_outstanding_polls: 100\n{schedule}")
    pipe = workspace.plugin("long", LONG) / "run.sh.pipe"
    os.mkfifo(pipe)
    with a_daemon(workspace) as daemon:
        for _ in range(3):
            pid = int(pipe.read_text())
            daemon.process.send_signal(signal.SIGSTOP)
            wait_for_exit(pid)
            daemon.process.send_signal(signal.SIGCONT)
        account = history(workspace)["account"]
        assert (account["complete"], account["gaps"]) == (True, [])


def history(workspace: Workspace) -> dict[str, Any]:
    return workspace.json("schedule", "history", "long", "--limit", "200")


#: Ends when a line is written to the pipe beside it.
WAITING = """#!/bin/sh
cat > /dev/null
read -r _ < "$0.pipe"
echo '{"status": "ok", "result": "done"}'
"""


@pytest.mark.parametrize("store", STORES)
def test_two_schedules_of_one_plugin_that_are_due_together_both_run(tmp_path: Path, store: str) -> None:
    """The second waits for the first, and list, explain and history say so."""
    schedules = "    schedules: [{id: a, every: 1h}, {id: b, every: 1h}]\n"
    workspace = a_workspace(tmp_path, f"  long:\n{schedules}")
    keep_in(store, workspace.config)
    pipe = workspace.plugin("long", WAITING) / "run.sh.pipe"
    os.mkfifo(pipe)
    with a_daemon(workspace) as daemon:
        deferred = daemon.wait_for("schedule.deferred")
        assert (deferred["plugin"], deferred["reason"]) == ("long", "outstanding_polls")
        waiting = deferred["schedule"]
        (running,) = {"a", "b"} - {waiting}
        waiting_since = {
            row["id"]: row["waiting_since"] for row in workspace.json("schedule", "list")["schedules"]
        }
        assert (waiting_since[running], waiting_since[waiting] is None) == (None, False)
        assert "waits for other polls since" in workspace.ductile("schedule", "list").out
        explanation = workspace.json("schedule", "explain", "long", waiting)
        assert (explanation["cause"], explanation["occurrences"]) == ("waiting", [])
        pipe.write_text("go\n")
        fired = daemon.wait_for("schedule.fired", lambda line: line["schedule"] == waiting)
        pipe.write_text("go\n")
        job = workspace.json("job", "wait", fired["job_id"])
        assert job["status"] == "succeeded"
        (row,) = workspace.json("schedule", "history", "long", waiting)["occurrences"]
        assert (row["outcome"], row["reason"], row["job_id"]) == (
            "late",
            "outstanding_polls",
            fired["job_id"],
        )
        assert "it waited for other polls" in workspace.ductile("schedule", "explain", "long", waiting).out
        for schedule_id in ("a", "b"):
            account = workspace.json("schedule", "history", "long", schedule_id)["account"]
            assert account["complete"] is True


def test_a_run_by_hand_before_the_first_occurrence_is_no_gap(tmp_path: Path) -> None:
    schedules = '    schedules: [{id: yearly, cron: "0 0 29 2 *"}]\n'
    workspace = a_workspace(tmp_path, f"  quick:\n{schedules}")
    workspace.plugin("quick", answering({"status": "ok", "result": "done"}))
    with a_daemon(workspace):
        job_id = workspace.json("schedule", "run", "quick")["job_id"]
        workspace.json("job", "wait", job_id)
        history = workspace.json("schedule", "history", "quick")
        assert [row["reason"] for row in history["occurrences"]] == ["run_now"]
        assert (history["account"]["complete"], history["account"]["gaps"]) == (None, [])
        findings = workspace.json("system", "doctor")["findings"]
        (finding,) = [row for row in findings if row["check"] == "schedules"]
        assert finding["level"] == "ok"


def test_next_goes_on_to_the_next_run_that_starts(tmp_path: Path) -> None:
    """Outside its hours a schedule is shown as skipped until an instant, and with the next run."""
    opens_at = (datetime.now(UTC) + timedelta(hours=3)).replace(minute=0, second=0, microsecond=0)
    hours = f"{opens_at:%H:%M}-{opens_at + timedelta(hours=1):%H:%M}"
    rule = f'{{every: 1s, only_between: "{hours}", timezone: UTC}}'
    workspace = a_workspace(tmp_path, f"  quick:\n    schedules: [{rule}]\n")
    workspace.plugin("quick", answering({"status": "ok", "result": "done"}))
    skipped, first, second = workspace.json("schedule", "next", "quick", "-n", "2")["occurrences"]
    expected = opens_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    assert (skipped["skip"], skipped["skipped_until"]) == ("outside_hours", expected)
    assert (first["skip"], second["skip"]) == (None, None)
    assert expected <= first["start_at"] < second["start_at"]
    assert f"skipped: outside_hours until {opens_at:%Y-%m-%d}" in workspace.ductile("schedule", "next").out
