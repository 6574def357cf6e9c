"""The daemon is started, queried, changed and stopped by the command line."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from builders.daemons import BROKEN, PATIENCE, SLOW, a_daemon, a_workspace, answering
from builders.terminal import DUCTILE, Terminal

ONE_ATTEMPT = "    retry: {max_attempts: 1}\n"
HOURLY = "    schedules:\n      - {id: hourly, every: 1h}\n"


def test_start_run_status_stop(tmp_path: Path) -> None:
    """Commands reach the daemon over its socket; after an orderly stop it exits with 0."""
    workspace = a_workspace(tmp_path)
    with a_daemon(workspace) as daemon:
        result = workspace.ductile("run", "echo")
        assert (result.status, result.out, result.err) == (0, "done\n", "")
        status = workspace.json("status")
        assert status["daemon"]["pid"] == daemon.process.pid
        (echo,) = status["plugins"]
        assert (echo["name"], echo["last_run"]["status"]) == ("echo", "succeeded")
        assert "daemon: running" in workspace.ductile("status").out
        assert workspace.ductile("system", "stop", "--dry-run").out.startswith("Would stop")
        stopped = workspace.json("system", "stop")
        assert stopped == {"stopping": True, "pid": daemon.process.pid, "stopped": True}
        # The command returns after the process has ended, not before.
        assert daemon.process.poll() == 0
        assert daemon.wait_for("service.stopped")
    assert workspace.json("status")["daemon"] == {"running": False}


def test_health_is_asked_on_demand(tmp_path: Path) -> None:
    """A health check runs on request, as a job of the core with one attempt, and its result is shown."""
    workspace = a_workspace(tmp_path, "  sick: {}\n")
    workspace.plugin("sick", BROKEN)
    with a_daemon(workspace):
        before = {plugin["name"]: plugin["health"] for plugin in workspace.json("status")["plugins"]}
        assert before["sick"] is None
        after = {
            plugin["name"]: plugin["health"] for plugin in workspace.json("status", "--health")["plugins"]
        }
        assert after["sick"] == "failed"
        (job,) = workspace.json("job", "list", "--plugin", "sick")["jobs"]
        assert (job["command"], job["submitted_by"], job["max_attempts"]) == ("health", "core", 1)
    assert workspace.ductile("status", "--health").status == 69


def test_the_socket_is_ours_alone_and_is_gone_after_the_stop(tmp_path: Path) -> None:
    """The socket has mode 0600 in a directory with mode 0700, and does not outlive the daemon."""
    workspace = a_workspace(tmp_path)
    data = workspace.config.parent / "data"
    with a_daemon(workspace) as daemon:
        assert (data / "ductile.sock").stat().st_mode & 0o777 == 0o600
        assert data.stat().st_mode & 0o777 == 0o700
        assert daemon.end() == 0
    files = {path.name for path in (*data.iterdir(), *workspace.config.parent.iterdir())}
    assert not {name for name in files if name.endswith(".sock")}


def test_a_copy_of_the_configuration_does_not_command_the_original_s_daemon(tmp_path: Path) -> None:
    """A stop of staging, a copy of production, does not stop production."""
    workspace = a_workspace(tmp_path)
    with a_daemon(workspace) as daemon:
        shutil.copytree(
            tmp_path / "demo", tmp_path / "copy", symlinks=True, ignore=shutil.ignore_patterns("data")
        )
        assert (tmp_path / "copy" / ".config.yaml.sock").is_symlink()
        copy = Terminal(directory=tmp_path)
        assert copy.ductile("system", "stop", "--config", "copy").status == 69
        assert json.loads(copy.ductile("status", "--json", "--config", "copy").out)["daemon"] == {
            "running": False
        }
        assert daemon.process.poll() is None
        # The original is found by its link, also if its store cannot be found.
        workspace.config.write_text("plugins: [")
        assert workspace.json("status")["daemon"]["pid"] == daemon.process.pid


def test_ctrl_c_is_an_orderly_stop(tmp_path: Path) -> None:
    """SIGINT has the effect of SIGTERM."""
    with a_daemon(a_workspace(tmp_path)) as daemon:
        assert daemon.end(signal.SIGINT) == 0
        assert daemon.wait_for("service.stopped")


def test_a_running_job_is_cancelled(tmp_path: Path) -> None:
    """The processes of the job are killed, and the job ends as dead (cancelled)."""
    workspace = a_workspace(tmp_path, "  slow: {}\n")
    workspace.plugin("slow", SLOW)
    with a_daemon(workspace) as daemon:
        job_id = workspace.ductile("run", "slow", "--no-wait").out.strip()
        daemon.wait_until_started(job_id)
        assert job_id[-8:] in workspace.ductile("queue").out
        assert workspace.json("job", "cancel", job_id, "--dry-run")["status"] == "running"
        assert workspace.json("job", "cancel", job_id)["cancel"] == "requested"
        result = workspace.ductile("job", "wait", job_id)
        assert result.status == 1
        assert result.out == f"{job_id} dead (cancelled)\n"
        repeated = workspace.json("job", "cancel", job_id, status=1)
        assert repeated["error"]["code"] == "conflict"
        assert "cancelled: cancelled" not in workspace.ductile("logs", "slow").out
        workspace.json("job", "retry", job_id)
        result = workspace.ductile("job", "wait", job_id, "--timeout", "100ms")
        assert result.status == 75
        assert "cancelled" not in result.out.replace("earlier: cancelled", "")


def test_waiting_has_an_end(tmp_path: Path) -> None:
    """The command exits with 75 when the time is up; the job continues."""
    workspace = a_workspace(tmp_path, "  slow: {}\n")
    workspace.plugin("slow", SLOW)
    with a_daemon(workspace) as daemon:
        job_id = workspace.ductile("run", "slow", "--no-wait").out.strip()
        daemon.wait_until_started(job_id)
        assert workspace.ductile("job", "wait", job_id, "--timeout", "10ms").status == 75
        result = workspace.ductile("run", "slow", "--timeout", "10ms")
        assert result.status == 75
        assert "slow poll has not ended" in result.err


def test_the_main_facts_are_visible_on_a_narrow_terminal(tmp_path: Path) -> None:
    """80 columns show the open breaker, the health, why a plugin is refused and why a job failed."""
    weak = "  weak:\n    retry: {max_attempts: 1}\n    circuit_breaker: {threshold: 1}\n"
    workspace = a_workspace(tmp_path, f"{weak}{HOURLY}  unrunnable: {{}}\n")
    workspace.plugin("weak", BROKEN)
    (workspace.plugin("unrunnable", SLOW) / "run.sh").chmod(0o600)
    with a_daemon(workspace) as daemon:
        daemon.wait_for("breaker.changed")
        lines = workspace.terminal.on_screen("status", "--config", "demo")
        assert max(len(line) for line in lines if "is refused: " not in line) <= 80
        heading = next(line for line in lines if line.startswith("PLUGIN"))
        assert heading.split() == ["PLUGIN", "STATUS", "LAST", "RUN", "NEXT", "RUN", "BREAKER"]
        # Plugins with problems come first.
        rows = lines[lines.index(heading) + 1 :]
        assert [line.split()[0] for line in rows[:3]] == ["weak", "unrunnable", "echo"]
        (row,) = [line for line in lines if line.startswith("weak ")]
        assert row.endswith("poll open")
        (row,) = [line for line in lines if line.startswith("unrunnable  ")]
        assert row.split()[1] == "refused"
        assert any(
            "unrunnable is refused: the entrypoint" in line
            for line in workspace.ductile("status").out.splitlines()
        )
        jobs = workspace.terminal.on_screen("job", "list", "--config", "demo")
        assert max(len(line) for line in jobs) <= 80
        (row,) = [line for line in jobs if " weak " in line]
        assert "it is broken" in row
        (job,) = workspace.json("job", "list", "--plugin", "weak")["jobs"]
        assert row.startswith(job["job_id"][-8:])
        assert workspace.json("job", "show", job["job_id"][-12:])["job_id"] == job["job_id"]
        schedules = workspace.terminal.on_screen("schedule", "list", "--config", "demo")
        assert any("every 1h" in line and "breaker open" in line for line in schedules)


def test_an_interrupted_wait_says_that_the_job_goes_on(tmp_path: Path) -> None:
    """The command exits with 130 and names the job, so that the user can find it or end it."""
    workspace = a_workspace(tmp_path, "  slow: {}\n")
    workspace.plugin("slow", SLOW)
    with a_daemon(workspace) as daemon:
        process = subprocess.Popen(
            [DUCTILE, "run", "slow", "--config", "demo"],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        job_id = daemon.wait_for("job.started")["job_id"]
        while not workspace.json("status")["daemon"]["waiting_callers"]:
            pass  # the job may have started before its id was returned
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out) == (130, "")
        assert f"Job {job_id} continues" in errors
        assert workspace.json("job", "show", job_id)["status"] == "running"


def test_a_waiting_command_reports_a_failed_attempt(tmp_path: Path) -> None:
    """Each failed attempt is reported once, with its error, before the last retry is spent."""
    workspace = a_workspace(
        tmp_path, "  broken:\n    retry: {max_attempts: 4, backoff_base: 1h, backoff_max: 1h}\n"
    )
    workspace.plugin("broken", BROKEN)
    with a_daemon(workspace):
        result = workspace.ductile("run", "broken", "--retry", "--timeout", "4s")
        assert (result.status, result.out) == (75, "")
        first, second, *_ = result.err.splitlines()
        attempt = (
            r"attempt 1 of 4 failed: it is broken; next try in (1h|59m)[0-9a-z]+ \(Ctrl-C leaves it queued\)"
        )
        assert re.fullmatch(attempt, first)
        assert second.startswith("error: broken poll has not ended")
        # The report comes before the end of the job, on a terminal above the line with the waiting time.
        lines = workspace.terminal.on_screen(
            "run", "broken", "--retry", "--config", "demo", "--timeout", "4s", both=True, waiting=True
        )
        text = "\n".join(lines)
        assert text.count("attempt 1 of 4 failed") == 1
        assert text.index("attempt 1 of 4 failed") < text.rindex("waiting for")
        assert workspace.ductile("run", "broken", "--retry", "--timeout", "1500ms", "--json").err == ""


def test_attempts_that_failed_quickly_are_each_reported_once(tmp_path: Path) -> None:
    workspace = a_workspace(
        tmp_path, "  broken:\n    retry: {max_attempts: 3, backoff_base: 10ms, backoff_max: 10ms}\n"
    )
    workspace.plugin("broken", BROKEN)
    with a_daemon(workspace):
        result = workspace.ductile("run", "broken", "--retry")
        assert result.status == 1
        assert result.err.splitlines()[:3] == [
            "attempt 1 of 3 failed: it is broken",
            "attempt 2 of 3 failed: it is broken",
            "error: broken poll is dead (attempts_exhausted): it is broken",
        ]


def test_a_plugin_that_is_not_loaded_differs_from_one_that_is_missing(tmp_path: Path) -> None:
    """A forgotten reload is the commonest slip, and the configuration on disk shows it."""
    workspace = a_workspace(tmp_path)
    steps = "pipelines:\n  - {name: hello, steps: [{uses: echo}]}\n"
    with a_daemon(workspace):
        workspace.plugin("salute", answering({"status": "ok", "result": "hail"}))
        error = workspace.json("run", "salute", status=1)["error"]
        assert error["message"] == "the plugin salute is installed but not active"
        assert "`ductile config set plugins.salute.enabled true --config demo`" in error["hint"]
        assert "`ductile apply --config demo`" in error["hint"]
        workspace.append(f"  salute: {{}}\n  off: {{uses: echo, enabled: false}}\n{steps}")
        advice = "The configuration on disk has it, but the daemon has not loaded it: ductile apply"
        for words in (("run", "salute"), ("run", "salute", "--dry-run"), ("pipeline", "run", "hello")):
            error = workspace.json(*words, status=1)["error"]
            assert (error["code"], error["hint"]) == ("not_found", f"{advice} --config demo")
        assert "the plugin off is disabled." in workspace.json("run", "off", status=1)["error"]["hint"]
        assert "salute" in workspace.json("run", "salut", status=1)["error"]["hint"]
        assert workspace.ductile("reload").status == 0
        assert workspace.ductile("run", "salute").out == "hail\n"
        assert workspace.ductile("pipeline", "run", "hello").status == 0
        workspace.config.write_text("plugins: [")
        assert (
            workspace.json("run", "nobody", status=1)["error"]["message"]
            == "there is no plugin or pipeline nobody"
        )


def test_a_reload_tells_what_changed_besides_plugins(tmp_path: Path) -> None:
    """The output has the names of the changed sections, and nothing of their content."""
    workspace = a_workspace(tmp_path)
    steps = "pipelines:\n  - {name: hello, steps: [{uses: echo}]}\n"
    with a_daemon(workspace):
        assert workspace.ductile("reload").out.splitlines()[0] == "Reloaded; nothing changed."
        workspace.append(f"tokens:\n  - {{name: door, key: canary-4711}}\n{steps}")
        workspace.json("config", "lock")
        output = workspace.ductile("reload", "--dry-run").out
        assert output.splitlines()[0] == "Would reload: pipelines and tokens changed."
        result = workspace.ductile("reload", "--json")
        assert "canary" not in result.out + result.err
        assert json.loads(result.out)["settings"] == ["pipelines", "tokens"]
        workspace.config.write_text(workspace.config.read_text().replace("canary-4711", "canary-4712"))
        workspace.json("config", "lock")
        assert workspace.ductile("reload").out.splitlines()[0] == "Reloaded: tokens changed."
        text = workspace.config.read_text().replace("log_level: debug", "log_level: info")
        workspace.config.write_text(text.replace("echo: {}", f"echo:\n{HOURLY}"))
        workspace.json("config", "lock")
        assert workspace.ductile("reload").out.splitlines()[:3] == [
            "Reloaded:",
            "  changed: echo",
            "  settings: service",
        ]
        assert workspace.json("reload")["settings"] == []


def test_a_paused_schedule_has_no_next_run(tmp_path: Path) -> None:
    """`status` shows the pause of a plugin, or the time of another schedule that is not paused."""
    schedules = f"{HOURLY}      - {{id: daily, every: 1d}}\n"
    workspace = a_workspace(tmp_path, f"  twice:\n    uses: echo\n{schedules}")

    def next_run_state() -> tuple[bool, bool, str]:
        lines = workspace.ductile("status").out.splitlines()
        (heading,) = [line for line in lines if line.startswith("PLUGIN ")]
        (row,) = [line for line in lines if line.startswith("twice ")]
        (twice,) = [plugin for plugin in workspace.json("status")["plugins"] if plugin["name"] == "twice"]
        cell = row[heading.index("NEXT RUN") :].split()[0] if "NEXT RUN" in heading else "-"
        return twice["next_run"] is not None, twice["paused"], cell

    with a_daemon(workspace):
        assert next_run_state()[:2] == (True, False)
        assert next_run_state()[2] in ("in", "now")
        workspace.json("schedule", "pause", "twice", "hourly")
        assert next_run_state()[:2] == (True, False)
        workspace.json("schedule", "pause", "twice", "daily")
        assert next_run_state() == (False, True, "paused")
        workspace.json("schedule", "resume", "twice", "daily")
        assert next_run_state()[:2] == (True, False)
    assert next_run_state()[2] == "-"


def test_a_dead_job_is_retried(tmp_path: Path) -> None:
    """A retry puts a dead job on the queue, with fresh attempts."""
    workspace = a_workspace(tmp_path, f"  broken:\n{ONE_ATTEMPT}")
    plugin = workspace.plugin("broken", BROKEN)
    with a_daemon(workspace):
        result = workspace.ductile("run", "broken")
        assert result.status == 1
        assert result.out == ""
        assert "broken poll is dead (attempts_exhausted): it is broken" in result.err
        assert "no paper" in result.err
        (job,) = workspace.json("job", "list", "--status", "dead", "--plugin", "broken")["jobs"]
        (plugin / "mended").touch()
        assert workspace.json("job", "retry", job["job_id"], "--dry-run")["status"] == "dead"
        assert workspace.json("job", "retry", job["job_id"])["status"] == "queued"
        ended = workspace.json("job", "wait", job["job_id"])
        assert (ended["status"], ended["attempt"], len(ended["executions"])) == ("succeeded", 1, 2)
        assert workspace.json("job", "retry", job["job_id"], status=1)["error"]["code"] == "conflict"
        logs = workspace.ductile("job", "logs", job["job_id"]).out
        assert "no paper" in logs
        assert '"result": "mended"' in logs


def test_a_schedule_is_paused_resumed_and_run_now(tmp_path: Path) -> None:
    """Pauses survive a restart, and every run is accounted for."""
    workspace = a_workspace(tmp_path)
    workspace.config.write_text(workspace.config.read_text().replace("  echo: {}\n", f"  echo:\n{HOURLY}"))
    with a_daemon(workspace) as daemon:
        first = daemon.wait_for("job.succeeded")
        assert workspace.json("schedule", "run", "echo", "hourly", "--dry-run")["job_id"] is None
        second = workspace.json("schedule", "run", "echo")["job_id"]
        assert workspace.json("job", "wait", second)["submitted_detail"] == "hourly"
        history = workspace.json("schedule", "history", "echo")["occurrences"]
        assert [row["job_id"] for row in history] == [second, first["job_id"]]
        account = workspace.json("schedule", "history", "echo")["account"]
        assert (account["complete"], account["gaps"]) == (True, [])
        assert "Every due time from 20" in workspace.ductile("schedule", "history", "echo").out
        assert workspace.json("schedule", "pause", "echo", "--dry-run")["paused"] is False
        assert workspace.json("schedule", "pause", "echo")["paused"] is True
        assert workspace.json("schedule", "next")["occurrences"] == []
        assert daemon.end() == 0
    assert "paused" in workspace.ductile("schedule", "list").out
    with a_daemon(workspace):
        (entry,) = workspace.json("schedule", "list")["schedules"]
        assert entry["paused_at"]
        assert workspace.json("schedule", "resume", "echo")["paused"] is False
        assert len(workspace.json("schedule", "next", "-n", "3")["occurrences"]) == 3
        refused = workspace.json("schedule", "pause", "ecko", status=1)
        assert refused["error"]["hint"] == "did you mean echo?"
        assert (
            workspace.json("schedule", "pause", "echo", "daily", status=1)["error"]["hint"]
            == "It has hourly."
        )


def test_a_reload_brings_a_plugin_and_refuses_what_needs_a_restart(tmp_path: Path) -> None:
    """A reload applies all changes or none. The daemon is found although the file names another store by
    then.
    """
    workspace = a_workspace(tmp_path)
    with a_daemon(workspace) as daemon:
        assert workspace.ductile("run", "later").status == 1
        workspace.plugin("later", answering({"status": "ok", "result": "here I am"}))
        workspace.append("  later: {}\n")
        assert workspace.json("reload", "--dry-run")["added"] == ["later"]
        assert workspace.ductile("run", "later").status == 1
        assert workspace.json("reload")["added"] == ["later"]
        assert workspace.ductile("run", "later").out == "here I am\n"
        workspace.append("state: {path: ./elsewhere/state.db}\n")
        for words in (("reload",), ("reload", "--dry-run")):
            refused = workspace.json(*words, status=1)
            assert refused["error"]["details"] == {"settings": ["state"]}
        assert workspace.json("status")["daemon"]["pid"] == daemon.process.pid


def test_a_reload_of_a_broken_configuration_changes_nothing_and_tells_all(tmp_path: Path) -> None:
    """The reload exits with 78 and names every problem with its line. The daemon continues and can be
    stopped.
    """
    workspace = a_workspace(tmp_path)
    with a_daemon(workspace) as daemon:
        valid_text = workspace.config.read_text()
        workspace.config.write_text(
            valid_text.replace("log_level: debug", "log_level: loud") + "  other: {on: 1}\n"
        )
        refused = workspace.json("reload", status=78)
        problems = refused["error"]["details"]["problems"]
        assert {problem["key"] for problem in problems} == {"service.log_level", "plugins.other.on"}
        assert all(problem["line"] for problem in problems)
        assert "config.yaml:3" in workspace.ductile("reload").err
        daemon.wait_for("config.refused")
        workspace.config.write_text("service: [\n")
        assert workspace.ductile("run", "echo").out == "done\n"
        assert workspace.ductile("system", "stop").status == 0


def test_sighup_reloads(tmp_path: Path) -> None:
    """A refused reload is logged, and does not change the log level."""
    workspace = a_workspace(tmp_path)
    with a_daemon(workspace) as daemon:
        text = workspace.config.read_text()
        workspace.config.write_text(text.replace("debug", "error") + "state: {path: ./elsewhere/state.db}\n")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for("config.refused")
        workspace.config.write_text(text.replace("debug", "info"))
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for("config.loaded", lambda line: line["origin"] == "reload")
        job_id = workspace.json("run", "echo")["job_id"]
        daemon.wait_for("job.succeeded", lambda line: line["job_id"] == job_id)
        signals = {line["signal"] for line in daemon.lines if line.get("job_id") == job_id}
        assert signals == {"job.succeeded"}  # and no signal of level debug


def test_the_queue_is_purged(tmp_path: Path) -> None:
    """Queued jobs end as dead (purged) and are kept; the running job continues."""
    workspace = a_workspace(tmp_path, "  slow: {parallelism: 1}\n")
    workspace.plugin("slow", SLOW)
    with a_daemon(workspace) as daemon:
        running, *queued = [workspace.ductile("run", "slow", "--no-wait").out.strip() for _ in range(3)]
        daemon.wait_until_started(running)
        assert workspace.ductile("queue", "purge").status == 2
        assert workspace.json("queue", "purge", "slwo", status=1)["error"]["hint"] == "did you mean slow?"
        assert set(workspace.json("queue", "purge", "slow", "--dry-run")["would_purge"]) == set(queued)
        assert workspace.json("queue", "status")["ready"] == 2
        assert workspace.json("queue", "purge", "slow") == {"purged": 2}
        assert workspace.json("queue", "status") | {"workers": 0} == {
            "depth": 1,
            "ready": 0,
            "waiting": 0,
            "running": 1,
            "orphaned": 0,
            "workers": 0,
        }
        dead = workspace.json("job", "list", "--status", "dead")["jobs"]
        assert {(job["job_id"], job["reason"]) for job in dead} == {(job_id, "purged") for job_id in queued}


def test_a_second_daemon_is_refused(tmp_path: Path) -> None:
    """The second start exits with 1 and names the process that uses the store; the first daemon continues."""
    workspace = a_workspace(tmp_path)
    with a_daemon(workspace) as daemon:
        for words in ((), ("--dry-run",)):
            result = workspace.ductile("system", "start", *words)
            assert result.status == 1
            assert f"process {daemon.process.pid} uses this store already" in result.err
        assert workspace.ductile("run", "echo").status == 0


def test_a_job_that_sigterm_interrupts_is_queued_on_the_same_attempt(tmp_path: Path) -> None:
    """The job is queued (interrupted), still on its first attempt."""
    workspace = a_workspace(tmp_path, "  slow: {}\n")
    workspace.plugin("slow", SLOW)
    with a_daemon(workspace) as daemon:
        job_id = workspace.ductile("run", "slow", "--no-wait").out.strip()
        daemon.wait_until_started(job_id)
        assert daemon.end() == 0
        daemon.wait_for("job.interrupted")
    job = workspace.json("job", "show", job_id)
    assert (job["status"], job["reason"], job["attempt"]) == ("queued", "interrupted", 1)
    assert [row["status"] for row in job["executions"]] == ["interrupted"]


def test_a_configuration_that_cannot_be_used_starts_nothing(tmp_path: Path) -> None:
    """The start exits with 78, names every problem and writes nothing."""
    workspace = a_workspace(tmp_path, "  other: {on: 1}\n")
    result = workspace.ductile("system", "start")
    assert result.status == 78
    assert "plugins.other.on" in result.err
    assert result.out == ""
    assert not (workspace.config.parent / "data").exists()


def test_the_log_is_followed(tmp_path: Path) -> None:
    """`logs -f` shows each execution as it ends, and ends with the daemon."""
    workspace = a_workspace(tmp_path)
    with a_daemon(workspace) as daemon:
        assert workspace.ductile("run", "echo").status == 0
        follower = subprocess.Popen(
            [DUCTILE, "logs", "echo", "-f", "--json", "--config", "demo"],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert follower.stdout is not None
        first = json.loads(follower.stdout.readline())
        job_id = workspace.json("run", "echo", "handle")["job_id"]
        second = json.loads(follower.stdout.readline())
        assert (first["command"], second["command"]) == ("poll", "handle")
        assert second["job_id"] == job_id
        assert daemon.end() == 0
        assert follower.stdout.read() == ""
        assert follower.wait(PATIENCE) == 0
        follower.stdout.close()


def _with_prefix(prefix: str, *job_ids: str) -> set[str]:
    """Return those of the job ids that start with the prefix."""
    return {job_id for job_id in job_ids if job_id.startswith(prefix)}


def test_a_tree_and_a_job_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    """A tree shows the descendants of a job below it; a part of an id is enough to name a job."""
    workspace = a_workspace(tmp_path, "  after: {}\n")
    workspace.plugin(
        "source", answering({"status": "ok", "result": "x", "events": [{"type": "made", "payload": {}}]})
    )
    workspace.plugin("after", answering({"status": "ok", "result": "seen"}))
    workspace.append("  source: {}\nroutes:\n  - {from: source, event_type: made, to: after}\n")
    with a_daemon(workspace) as daemon:
        root = workspace.json("run", "source")["job_id"]
        child = daemon.wait_for("job.succeeded", lambda line: line.get("plugin") == "after")["job_id"]
        tree = workspace.json("job", "tree", root)["tree"]
        assert [node["job_id"] for node in tree["children"]] == [child]
        lines = workspace.ductile("job", "tree", root).out.splitlines()
        assert lines[0].startswith("source poll")
        assert lines[1].startswith("└─ after handle")
        assert workspace.json("job", "show", root[:23])["job_id"] == root
        second_root = workspace.json("run", "source")["job_id"]
        # The first eight digits change once a minute, so of three jobs at least two share them.
        prefix = next(
            start
            for start in (root[:8], second_root[:8])
            if len(_with_prefix(start, root, child, second_root)) > 1
        )
        refused = workspace.json("job", "show", prefix, status=1)
        assert set(refused["error"]["details"]["job_ids"]) >= _with_prefix(prefix, root, child, second_root)
        short = workspace.json("job", "show", root[:3], status=1)["error"]
        assert (short["code"], short["hint"][:22]) == ("not_found", "Give at least 4 digits")
        for part in (root[-12:], root[-17:], root.replace("-", "")[-20:]):
            assert workspace.json("job", "show", part)["job_id"] == root


def test_state_is_masked_unless_it_is_asked_for(tmp_path: Path) -> None:
    """Values whose keys look secret are not shown by accident."""
    workspace = a_workspace(tmp_path, "  keeper: {}\n")
    state = {"access_token": "canary-5c1", "count": 3}
    workspace.plugin("keeper", answering({"status": "ok", "result": "kept", "state_updates": state}))
    with a_daemon(workspace):
        assert workspace.ductile("run", "keeper").status == 0
        for words in (("status",), ("status", "--json")):
            output = workspace.ductile(*words).out
            assert "canary-5c1" not in output
            assert "access_token" in output
            assert "canary-5c1" in workspace.ductile(*words, "--reveal").out


def test_an_open_breaker_is_shown_and_reset(tmp_path: Path) -> None:
    """Failed jobs of the scheduler open it; `system reset` closes it."""
    workspace = a_workspace(
        tmp_path, f"  broken:\n{ONE_ATTEMPT}{HOURLY}    circuit_breaker: {{threshold: 1}}\n"
    )
    workspace.plugin("broken", BROKEN)
    with a_daemon(workspace) as daemon:
        daemon.wait_for("breaker.changed")
        assert workspace.json("system", "breaker", "broken")["breakers"]["poll"]["state"] == "open"
        assert "poll open" in workspace.ductile("status").out
        assert workspace.json("system", "reset", "broken", "--dry-run")["would_reset"] == ["poll"]
        assert workspace.json("system", "reset", "broken") == {"plugin": "broken", "reset": 1}
        output = workspace.ductile("system", "breaker", "broken").out
        assert "open → closed" in output
        assert "manual_reset" in output
        assert workspace.json("system", "reset", "brokn", status=1)["error"]["hint"] == "did you mean broken?"


@pytest.mark.parametrize(
    "words", [("status",), ("queue", "status"), ("job", "list"), ("schedule", "list"), ("run", "echo")]
)
def test_an_answer_of_the_daemon_needs_nothing_heavy(words: tuple[str, ...], tmp_path: Path) -> None:
    """Commands are quick on any machine while a daemon runs: they load neither YAML nor the store."""
    workspace = a_workspace(tmp_path)
    heavy = ("asyncio", "msgspec", "yaml", "apsw")
    code = (
        "import sys\nfrom ductile.cli.main import main\nmain()\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    with a_daemon(workspace):
        python = Path(DUCTILE).parent / "python"
        result = subprocess.run(
            [python, "-I", "-c", code, *words, "--config", "demo"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
    assert result.stderr.strip() == "[]"


@pytest.mark.parametrize("words", [("job", "cancel"), ("queue", "purge", "--all")], ids=["cancel", "purge"])
def test_a_waiting_command_learns_of_every_kind_of_end(tmp_path: Path, words: tuple[str, ...]) -> None:
    """A waiting caller is woken by the end of its job, also when it never ran."""
    workspace = a_workspace(tmp_path, "  slow: {parallelism: 1}\n")
    workspace.plugin("slow", SLOW)
    with a_daemon(workspace) as daemon:
        first = workspace.ductile("run", "slow", "--no-wait").out.strip()
        daemon.wait_until_started(first)
        queued = workspace.ductile("run", "slow", "--no-wait").out.strip()
        command = subprocess.Popen(
            [DUCTILE, "job", "wait", queued, "--config", "demo", "--json"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )
        # The daemon knows the waiting command: now only the end of the job can answer the command in time.
        while not workspace.json("status")["daemon"]["waiting_callers"]:
            assert command.poll() is None
        assert workspace.ductile(*words, *([queued] if words[0] == "job" else [])).status == 0
        out, _ = command.communicate(timeout=PATIENCE)
        assert json.loads(out)["status"] == "dead"


def test_a_reload_that_makes_room_starts_what_waits(tmp_path: Path) -> None:
    """The new limits hold at once, without another event."""
    workspace = a_workspace(tmp_path, "  slow: {}\n")
    workspace.config.write_text(workspace.config.read_text().replace("max_workers: 4", "max_workers: 1"))
    workspace.plugin("slow", SLOW)
    with a_daemon(workspace) as daemon:
        first = workspace.ductile("run", "slow", "--no-wait").out.strip()
        daemon.wait_until_started(first)
        second = workspace.ductile("run", "slow", "--no-wait").out.strip()
        workspace.config.write_text(workspace.config.read_text().replace("max_workers: 1", "max_workers: 2"))
        assert workspace.ductile("reload").status == 0
        daemon.wait_until_started(second)


def test_a_killed_command_leaves_nothing_behind_in_the_daemon(tmp_path: Path) -> None:
    """The daemon closes the connections of waiting commands that were killed."""
    workspace = a_workspace(tmp_path, "  slow: {}\n")
    workspace.plugin("slow", SLOW)
    with a_daemon(workspace) as daemon:
        job_id = workspace.ductile("run", "slow", "--no-wait").out.strip()
        daemon.wait_until_started(job_id)
        descriptors = Path(f"/proc/{daemon.process.pid}/fd")
        workspace.json("status")
        before = len(list(descriptors.iterdir()))
        request = json.dumps({"operation": "job.wait", "given": {"job_id": job_id}}).encode() + b"\n"
        clients = [socket.socket(socket.AF_UNIX) for _ in range(20)]
        for client in clients:
            client.connect(str(workspace.config.parent / "data" / "ductile.sock"))
            client.sendall(request)
        for client in clients:
            client.close()
        # After two more requests the daemon has noticed that the other clients are gone.
        for _ in range(2):
            workspace.json("status")
        assert len(list(descriptors.iterdir())) <= before + 2
