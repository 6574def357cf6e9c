"""Disabling a plugin: its accepted jobs are counted, can be waited for, and are reported."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from builders.daemons import PATIENCE, Daemon, Workspace, a_daemon, a_workspace, answering
from builders.http import an_api, an_api_workspace
from builders.terminal import DUCTILE

#: A plugin that waits until a file `go` is beside it.
GATED = (
    "#!/bin/sh\ncat >/dev/null\n"
    'while [ ! -e "$(dirname "$0")/go" ]; do sleep 0.05; done\n'
    'echo \'{"status": "ok", "result": "done"}\'\n'
)
ONE_AT_A_TIME = "  gated:\n    parallelism: 1\n    retry: {backoff_base: 100ms}\n"
FLOW = """\
pipelines:
  - name: flow
    steps:
      - {id: first, uses: gated.poll}
      - {id: second, uses: late.poll}
"""


def a_gated_workspace(tmp_path: Path, more: str = "") -> Workspace:
    workspace = a_workspace(tmp_path, ONE_AT_A_TIME + more)
    workspace.plugin("gated", GATED)
    assert workspace.ductile("config", "lock").status == 0
    return workspace


def open_gate(workspace: Workspace) -> None:
    (workspace.config.parent / "plugins" / "gated" / "go").touch()


def submit(workspace: Workspace, plugin: str = "gated") -> str:
    return str(workspace.json("run", plugin, "poll", "--no-wait")["job_id"])


def submit_three_jobs(workspace: Workspace, daemon: Daemon) -> list[str]:
    """Submit three jobs, and return their ids when the first one runs."""
    jobs = [submit(workspace) for _ in range(3)]
    daemon.wait_until_started(jobs[0])
    return jobs


def disable_in_file(workspace: Workspace) -> None:
    workspace.config.write_text(
        workspace.config.read_text().replace("  gated:\n", "  gated:\n    enabled: false\n")
    )
    assert workspace.ductile("config", "lock").status == 0


@contextmanager
def a_running_command(workspace: Workspace, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command, and yield its process while it runs."""
    process = subprocess.Popen(
        [DUCTILE, *words, "--config", "demo", "--json"],
        cwd=workspace.directory,
        env={"PATH": os.environ["PATH"], "HOME": str(workspace.directory / "home"), "LANG": "C.UTF-8"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate(timeout=PATIENCE)


def statuses(workspace: Workspace, jobs: list[str]) -> list[tuple[str, str]]:
    rows = [workspace.json("job", "show", job) for job in jobs]
    return [(job["status"], job["reason"]) for job in rows]


def test_a_timeout_without_a_drain_is_a_mistake(tmp_path: Path) -> None:
    """`--timeout` limits a drain. A command that ignored it would promise a limit that does not exist."""
    workspace = an_api_workspace(tmp_path)
    with an_api(workspace) as api:
        result = workspace.ductile("reload", "--timeout", "5s")
        assert (result.status, result.out) == (2, "")
        assert "--timeout is how long --drain waits" in result.err
        refused = api.ask("POST", "/system/reload", {"drain_timeout": "5s"})
        assert (refused.status, refused.code) == (422, "refused")


def test_a_dry_run_counts_the_jobs_that_would_end(tmp_path: Path) -> None:
    """`plugin disable` and `reload` count them by plugin, and a reload reports which have ended."""
    workspace = a_gated_workspace(tmp_path)
    with a_daemon(workspace) as daemon:
        jobs = submit_three_jobs(workspace, daemon)
        planned = workspace.json("plugin", "disable", "gated", "--dry-run")
        assert planned["pending"] == {"plugin": "gated", "queued": 2, "running": 1, "runs": 0}
        assert planned["written"] is False
        disable_in_file(workspace)
        assert workspace.json("reload", "--dry-run")["ends"] == [{"plugin": "gated", "jobs": 2, "runs": 0}]
        result = workspace.ductile("reload", "--dry-run")
        assert "2 queued jobs of gated would end as dead (plugin_removed)" in result.out
        assert "ductile reload --drain" in result.out
        assert workspace.json("reload")["ends"] == [{"plugin": "gated", "jobs": 2, "runs": 0}]
        open_gate(workspace)
        workspace.json("job", "wait", jobs[0])
        ended = ("dead", "plugin_removed")
        assert statuses(workspace, jobs) == [("succeeded", "completed"), ended, ended]
        doctor = json.loads(workspace.ductile("system", "doctor", "--json").out)
        (finding,) = [row for row in doctor["findings"] if "removed or disabled" in row["message"]]
        assert finding["message"].startswith("2 queued jobs of gated poll ended")
        assert workspace.json("plugin", "enable", "gated")["reloaded"]["added"] == ["gated"]
        workspace.json("job", "retry", jobs[1])
        assert workspace.json("job", "wait", jobs[1])["status"] == "succeeded"


def test_a_drain_lets_accepted_jobs_run_before_the_plugin_is_disabled(tmp_path: Path) -> None:
    """During `plugin disable --drain` the plugin takes no jobs, and no file is written before its queue is
    empty.
    """
    workspace = a_gated_workspace(tmp_path, "    schedules: [{id: hourly, every: 1h, if_running: queue}]\n")
    with a_daemon(workspace) as daemon:
        daemon.wait_for("schedule.fired")
        jobs = submit_behind_a_schedule(workspace, daemon)
        with a_running_command(workspace, "plugin", "disable", "gated", "--drain") as command:
            daemon.wait_for("plugin.draining")
            refused = workspace.ductile("run", "gated", "poll", "--no-wait", "--json")
            assert json.loads(refused.out)["error"]["code"] == "conflict"
            assert "is being drained and takes no new jobs" in refused.out
            assert workspace.ductile("schedule", "run", "gated").status != 0
            assert "draining" in workspace.ductile("status").out
            # The file still has the plugin, so the drain continues.
            assert workspace.ductile("reload").status == 0
            assert "enabled: false" not in workspace.config.read_text()
            open_gate(workspace)
            out, _ = command.communicate(timeout=PATIENCE)
        assert command.returncode == 0, out
        report = json.loads(out)
        assert report["sealed"] is True
        assert report["reloaded"]["removed"] == ["gated"]
        assert report["reloaded"]["ends"] == []
        assert statuses(workspace, jobs) == [("succeeded", "completed")] * len(jobs)
        assert "enabled: false" in workspace.config.read_text()
        assert "is disabled" in workspace.ductile("run", "gated", "poll", "--no-wait").err
        assert workspace.ductile("config", "check").status == 0


def submit_behind_a_schedule(workspace: Workspace, daemon: Daemon) -> list[str]:
    """Wait until the scheduled job runs, submit three jobs behind it, and return their ids."""
    daemon.wait_for("job.started")
    return [submit(workspace) for _ in range(3)]


def test_a_reload_drains_what_the_file_no_longer_has(tmp_path: Path) -> None:
    """During `reload --drain` another reload that would end the jobs is refused."""
    workspace = a_gated_workspace(tmp_path)
    with a_daemon(workspace) as daemon:
        jobs = submit_three_jobs(workspace, daemon)
        disable_in_file(workspace)
        with a_running_command(workspace, "reload", "--drain") as command:
            daemon.wait_for("plugin.draining")
            refused = workspace.ductile("reload", "--json")
            assert json.loads(refused.out)["error"]["code"] == "conflict"
            assert "would end its jobs" in refused.out
            open_gate(workspace)
            out, _ = command.communicate(timeout=PATIENCE)
        assert command.returncode == 0, out
        assert json.loads(out)["ends"] == []
        assert statuses(workspace, jobs) == [("succeeded", "completed")] * 3


def test_a_drain_that_does_not_end_changes_nothing(tmp_path: Path) -> None:
    """After a timeout, or when the caller is gone, the plugin takes jobs again, and no file was written."""
    workspace = a_gated_workspace(tmp_path)
    with a_daemon(workspace) as daemon:
        submit_three_jobs(workspace, daemon)
        result = workspace.ductile("plugin", "disable", "gated", "--drain", "--timeout", "10ms")
        assert result.status == 75
        assert "gated: 2 queued, 1 running" in result.err
        daemon.wait_for("plugin.drain_abandoned")
        with a_running_command(workspace, "plugin", "disable", "gated", "--drain") as command:
            daemon.wait_for(
                "plugin.draining", lambda line: daemon.lines.index(line) > end_of_first_drain(daemon)
            )
            command.kill()
        daemon.wait_for(
            "plugin.drain_abandoned", lambda line: daemon.lines.index(line) > end_of_first_drain(daemon)
        )
        assert "enabled: false" not in workspace.config.read_text()
        submit(workspace)


def end_of_first_drain(daemon: Daemon) -> int:
    """Return the index of the log line that reports the end of the first drain."""
    return next(i for i, line in enumerate(daemon.lines) if line["signal"] == "plugin.drain_abandoned")


def test_a_drain_waits_for_the_runs_that_use_the_plugin(tmp_path: Path) -> None:
    """A later step of a run needs the plugin, although the queue of the plugin is empty."""
    workspace = a_gated_workspace(tmp_path, f"  late: {{}}\n{FLOW}")
    workspace.plugin("late", GATED.replace('$(dirname "$0")/go', "/dev/null"))
    with a_daemon(workspace) as daemon:
        run = str(workspace.json("pipeline", "run", "flow", "--no-wait")["job_id"])
        daemon.wait_for("job.started")
        assert workspace.json("plugin", "disable", "late", "--dry-run")["pending"]["runs"] == 1
        with a_running_command(workspace, "plugin", "disable", "late", "--drain") as command:
            daemon.wait_for("plugin.draining")
            refused = workspace.ductile("pipeline", "run", "flow", "--no-wait")
            assert refused.status == 1
            assert "the pipeline flow uses the plugin late, which is being drained" in refused.err
            open_gate(workspace)
            out, _ = command.communicate(timeout=PATIENCE)
        assert command.returncode == 0, out
        assert workspace.json("job", "show", run)["status"] == "succeeded"


def test_after_a_crash_during_a_drain_the_file_decides(tmp_path: Path) -> None:
    """`plugin disable --drain` writes at the end, so nothing is lost."""
    workspace = a_gated_workspace(tmp_path)
    with a_daemon(workspace) as daemon:
        jobs = submit_three_jobs(workspace, daemon)
        with a_running_command(workspace, "plugin", "disable", "gated", "--drain") as command:
            daemon.wait_for("plugin.draining")
            daemon.process.kill()
            command.communicate(timeout=PATIENCE)
        assert command.returncode != 0
    open_gate(workspace)
    with a_daemon(workspace):
        assert [workspace.json("job", "wait", job)["status"] for job in jobs] == ["succeeded"] * 3


def test_switching_without_a_daemon_and_by_a_wrong_name(tmp_path: Path) -> None:
    workspace = a_gated_workspace(tmp_path)
    assert "did you mean gated" in workspace.ductile("plugin", "disable", "gatde").err
    refused = workspace.ductile("plugin", "disable", "gated", "--drain")
    assert refused.status == 69
    assert "leave out --drain" in refused.err
    result = workspace.ductile("plugin", "disable", "gated")
    assert result.status == 0
    assert "the next start uses the change" in result.out
    assert "enabled: false" in workspace.config.read_text()
    result = workspace.ductile("plugin", "enable", "gated")
    assert result.status == 0
    assert "enabled: true" in workspace.config.read_text()


def test_switching_a_plugin_that_is_configured_under_another_name(tmp_path: Path) -> None:
    """An entry for the plugin itself would switch nothing, because its instances have their own entries."""
    workspace = a_gated_workspace(tmp_path, "  first: {uses: tool}\n")
    workspace.plugin("tool", answering({"status": "ok", "result": "done"}))
    for action in ("disable", "enable"):
        refused = workspace.ductile("plugin", action, "tool")
        assert refused.status == 1
        assert "the plugin tool is configured under other names only: first" in refused.err
    assert workspace.ductile("plugin", "disable", "first").status == 0


def test_a_reload_says_which_plugins_it_can_no_longer_run(tmp_path: Path) -> None:
    """Jobs of a plugin fail as soon as its directory is writable for all."""
    workspace = a_gated_workspace(tmp_path)
    with a_daemon(workspace):
        directory = workspace.directory / "demo" / "plugins" / "gated"
        directory.chmod(0o777)
        for words in (("reload", "--dry-run"), ("reload",)):
            (warning,) = workspace.json(*words)["warnings"]
            assert "gated cannot run any more, and its jobs will fail: every user" in warning["message"]
            assert warning["hint"] == f"chmod o-w {directory}"
        assert workspace.json("reload")["warnings"] == []
