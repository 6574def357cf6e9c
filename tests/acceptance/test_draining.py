"""Disabling a plugin: what happens to its accepted jobs is counted, can be waited for, and is reported."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from builders.daemons import PATIENCE, Daemon, Place, a_daemon, a_place, answering
from builders.http import an_api, an_api_place
from builders.terminal import DUCTILE

#: Waits until a file `go` lies beside it.
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


def a_gated_place(tmp_path: Path, more: str = "") -> Place:
    place = a_place(tmp_path, ONE_AT_A_TIME + more)
    place.plugin("gated", GATED)
    assert place.ductile("config", "lock").status == 0
    return place


def open_gate(place: Place) -> None:
    (place.config.parent / "plugins" / "gated" / "go").touch()


def submit(place: Place, plugin: str = "gated") -> str:
    return str(place.said("run", plugin, "poll", "--no-wait")["job_id"])


def three_jobs(place: Place, daemon: Daemon) -> list[str]:
    """One that runs, and two behind it."""
    jobs = [submit(place) for _ in range(3)]
    daemon.wait_until_started(jobs[0])
    return jobs


def disable_in_file(place: Place) -> None:
    place.config.write_text(place.config.read_text().replace("  gated:\n", "  gated:\n    enabled: false\n"))
    assert place.ductile("config", "lock").status == 0


@contextmanager
def typed(place: Place, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A command that is still at work."""
    process = subprocess.Popen(
        [DUCTILE, *words, "--config", "demo", "--json"],
        cwd=place.directory,
        env={"PATH": os.environ["PATH"], "HOME": str(place.directory / "home"), "LANG": "C.UTF-8"},
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


def statuses(place: Place, jobs: list[str]) -> list[tuple[str, str]]:
    shown = [place.said("job", "show", job) for job in jobs]
    return [(job["status"], job["reason"]) for job in shown]


def test_a_timeout_without_a_drain_is_a_mistake(tmp_path: Path) -> None:
    """It is how long a drain may take; ignored, it would promise something."""
    place = an_api_place(tmp_path)
    with an_api(place) as api:
        ran = place.ductile("reload", "--timeout", "5s")
        assert (ran.status, ran.out) == (2, "")
        assert "--timeout is how long --drain waits" in ran.err
        refused = api.ask("POST", "/system/reload", {"drain_timeout": "5s"})
        assert (refused.status, refused.code) == (422, "refused")


def test_a_dry_run_counts_the_jobs_that_would_end(tmp_path: Path) -> None:
    """By plugin, of a reload and of `plugin disable`; and a reload says which have ended."""
    place = a_gated_place(tmp_path)
    with a_daemon(place) as daemon:
        jobs = three_jobs(place, daemon)
        planned = place.said("plugin", "disable", "gated", "--dry-run")
        assert planned["pending"] == {"plugin": "gated", "queued": 2, "running": 1, "runs": 0}
        assert planned["written"] is False
        disable_in_file(place)
        assert place.said("reload", "--dry-run")["ends"] == [{"plugin": "gated", "jobs": 2, "runs": 0}]
        shown = place.ductile("reload", "--dry-run")
        assert "2 queued jobs of gated would end as dead (plugin_removed)" in shown.out
        assert "ductile reload --drain" in shown.out
        assert place.said("reload")["ends"] == [{"plugin": "gated", "jobs": 2, "runs": 0}]
        open_gate(place)
        place.said("job", "wait", jobs[0])
        ended = ("dead", "plugin_removed")
        assert statuses(place, jobs) == [("succeeded", "completed"), ended, ended]
        doctor = json.loads(place.ductile("system", "doctor", "--json").out)
        (finding,) = [row for row in doctor["findings"] if "removed or disabled" in row["message"]]
        assert finding["message"].startswith("2 queued jobs of gated poll ended")
        assert place.said("plugin", "enable", "gated")["reloaded"]["added"] == ["gated"]
        place.said("job", "retry", jobs[1])
        assert place.said("job", "wait", jobs[1])["status"] == "succeeded"


def test_a_drain_lets_accepted_jobs_run_before_the_plugin_is_disabled(tmp_path: Path) -> None:
    """`plugin disable --drain`: no intake, no schedule; nothing is written before the queue is dry."""
    place = a_gated_place(tmp_path, "    schedules: [{id: hourly, every: 1h, if_running: queue}]\n")
    with a_daemon(place) as daemon:
        daemon.wait_for("schedule.fired")
        jobs = three_jobs_behind_a_schedule(place, daemon)
        with typed(place, "plugin", "disable", "gated", "--drain") as command:
            daemon.wait_for("plugin.draining")
            refused = place.ductile("run", "gated", "poll", "--no-wait", "--json")
            assert json.loads(refused.out)["error"]["code"] == "conflict"
            assert "is being drained and takes no new jobs" in refused.out
            assert place.ductile("schedule", "run", "gated").status != 0
            assert "draining" in place.ductile("status").out
            assert place.ductile("reload").status == 0  # the file still has the plugin: the drain goes on
            assert "enabled: false" not in place.config.read_text()
            open_gate(place)
            out, _ = command.communicate(timeout=PATIENCE)
        assert command.returncode == 0, out
        done = json.loads(out)
        assert done["sealed"] is True
        assert done["reloaded"]["removed"] == ["gated"]
        assert done["reloaded"]["ends"] == []
        assert statuses(place, jobs) == [("succeeded", "completed")] * len(jobs)
        assert "enabled: false" in place.config.read_text()
        assert "is disabled" in place.ductile("run", "gated", "poll", "--no-wait").err
        assert place.ductile("config", "check").status == 0


def three_jobs_behind_a_schedule(place: Place, daemon: Daemon) -> list[str]:
    """The scheduled one runs; three are queued behind it."""
    daemon.wait_for("job.started")
    return [submit(place) for _ in range(3)]


def test_a_reload_drains_what_the_file_no_longer_has(tmp_path: Path) -> None:
    """`reload --drain`: also while another reload asks for the same at once, which is refused."""
    place = a_gated_place(tmp_path)
    with a_daemon(place) as daemon:
        jobs = three_jobs(place, daemon)
        disable_in_file(place)
        with typed(place, "reload", "--drain") as command:
            daemon.wait_for("plugin.draining")
            refused = place.ductile("reload", "--json")
            assert json.loads(refused.out)["error"]["code"] == "conflict"
            assert "would end its jobs" in refused.out
            open_gate(place)
            out, _ = command.communicate(timeout=PATIENCE)
        assert command.returncode == 0, out
        assert json.loads(out)["ends"] == []
        assert statuses(place, jobs) == [("succeeded", "completed")] * 3


def test_a_drain_that_does_not_end_changes_nothing(tmp_path: Path) -> None:
    """Its time is over, or its caller goes away: the plugin takes jobs again, and nothing was written."""
    place = a_gated_place(tmp_path)
    with a_daemon(place) as daemon:
        three_jobs(place, daemon)
        ran = place.ductile("plugin", "disable", "gated", "--drain", "--timeout", "10ms")
        assert ran.status == 75
        assert "gated: 2 queued, 1 running" in ran.err
        daemon.wait_for("plugin.drain_abandoned")
        with typed(place, "plugin", "disable", "gated", "--drain") as command:
            daemon.wait_for("plugin.draining", lambda line: daemon.lines.index(line) > first(daemon))
            command.kill()
        daemon.wait_for("plugin.drain_abandoned", lambda line: daemon.lines.index(line) > first(daemon))
        assert "enabled: false" not in place.config.read_text()
        submit(place)


def first(daemon: Daemon) -> int:
    """Return the index of the log line that reports the end of the first drain."""
    return next(i for i, line in enumerate(daemon.lines) if line["signal"] == "plugin.drain_abandoned")


def test_a_drain_waits_for_the_runs_that_use_the_plugin(tmp_path: Path) -> None:
    """The step of a run that is still to come needs the plugin, although its queue is empty."""
    place = a_gated_place(tmp_path, f"  late: {{}}\n{FLOW}")
    place.plugin("late", GATED.replace('$(dirname "$0")/go', "/dev/null"))
    with a_daemon(place) as daemon:
        run = str(place.said("pipeline", "run", "flow", "--no-wait")["job_id"])
        daemon.wait_for("job.started")
        assert place.said("plugin", "disable", "late", "--dry-run")["pending"]["runs"] == 1
        with typed(place, "plugin", "disable", "late", "--drain") as command:
            daemon.wait_for("plugin.draining")
            refused = place.ductile("pipeline", "run", "flow", "--no-wait")
            assert refused.status == 1
            assert "the pipeline flow uses the plugin late, which is being drained" in refused.err
            open_gate(place)
            out, _ = command.communicate(timeout=PATIENCE)
        assert command.returncode == 0, out
        assert place.said("job", "show", run)["status"] == "succeeded"


def test_after_a_crash_during_a_drain_the_file_decides(tmp_path: Path) -> None:
    """`plugin disable --drain` writes at the end, so nothing is lost."""
    place = a_gated_place(tmp_path)
    with a_daemon(place) as daemon:
        jobs = three_jobs(place, daemon)
        with typed(place, "plugin", "disable", "gated", "--drain") as command:
            daemon.wait_for("plugin.draining")
            daemon.process.kill()
            command.communicate(timeout=PATIENCE)
        assert command.returncode != 0
    open_gate(place)
    with a_daemon(place):
        assert [place.said("job", "wait", job)["status"] for job in jobs] == ["succeeded"] * 3


def test_switching_without_a_daemon_and_by_a_wrong_name(tmp_path: Path) -> None:
    place = a_gated_place(tmp_path)
    assert "did you mean gated" in place.ductile("plugin", "disable", "gatde").err
    drained = place.ductile("plugin", "disable", "gated", "--drain")
    assert drained.status == 69
    assert "leave out --drain" in drained.err
    done = place.ductile("plugin", "disable", "gated")
    assert done.status == 0
    assert "it counts from the next start" in done.out
    assert "enabled: false" in place.config.read_text()
    again = place.ductile("plugin", "enable", "gated")
    assert again.status == 0
    assert "enabled: true" in place.config.read_text()


def test_switching_a_plugin_that_is_configured_under_another_name(tmp_path: Path) -> None:
    """An entry for the plugin itself would switch nothing: its instances have their own."""
    place = a_gated_place(tmp_path, "  first: {uses: tool}\n")
    place.plugin("tool", answering({"status": "ok", "result": "done"}))
    for action in ("disable", "enable"):
        refused = place.ductile("plugin", action, "tool")
        assert refused.status == 1
        assert "the plugin tool is configured under other names only: first" in refused.err
    assert place.ductile("plugin", "disable", "first").status == 0


def test_a_reload_says_which_plugins_it_can_no_longer_run(tmp_path: Path) -> None:
    """A directory was made writable for all: jobs of the plugin fail from now on."""
    place = a_gated_place(tmp_path)
    with a_daemon(place):
        directory = place.directory / "demo" / "plugins" / "gated"
        directory.chmod(0o777)
        for words in (("reload", "--dry-run"), ("reload",)):
            (warning,) = place.said(*words)["warnings"]
            assert "gated cannot run any more, and its jobs will fail: every user" in warning["message"]
            assert warning["hint"] == f"chmod o-w {directory}"
        assert place.said("reload")["warnings"] == []
