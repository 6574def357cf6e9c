"""The daemon as a user has it: started, asked, changed and stopped by the command line."""

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
    """Commands reach the daemon over its socket; an orderly stop is exit 0."""
    workspace = a_workspace(tmp_path)
    with a_daemon(workspace) as daemon:
        ran = workspace.ductile("run", "echo")
        assert (ran.status, ran.out, ran.err) == (0, "done\n", "")
        status = workspace.json("status")
        assert status["daemon"]["pid"] == daemon.process.pid
        (echo,) = status["plugins"]
        assert (echo["name"], echo["last_run"]["status"]) == ("echo", "succeeded")
        assert "daemon: running" in workspace.ductile("status").out
        assert workspace.ductile("system", "stop", "--dry-run").out.startswith("Would stop")
        stopped = workspace.json("system", "stop")
        assert stopped == {"stopping": True, "pid": daemon.process.pid, "stopped": True}
        # The command came back when the process had gone, not before.
        assert daemon.process.poll() == 0
        assert daemon.wait_for("service.stopped")
    assert workspace.json("status")["daemon"] == {"running": False}


def test_health_is_asked_on_demand(tmp_path: Path) -> None:
    """Health runs on request, as a job of the core with one attempt, and is shown."""
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
    """0600 in a 0700 directory; nothing is left that looks like a daemon."""
    workspace = a_workspace(tmp_path)
    data = workspace.config.parent / "data"
    with a_daemon(workspace) as daemon:
        assert (data / "ductile.sock").stat().st_mode & 0o777 == 0o600
        assert data.stat().st_mode & 0o777 == 0o700
        assert daemon.end() == 0
    left = {path.name for path in (*data.iterdir(), *workspace.config.parent.iterdir())}
    assert not {name for name in left if name.endswith(".sock")}


def test_a_copy_of_the_configuration_does_not_command_the_original_s_daemon(tmp_path: Path) -> None:
    """Stopping staging, a copy of production, does not stop production."""
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
    """Like SIGTERM."""
    with a_daemon(a_workspace(tmp_path)) as daemon:
        assert daemon.end(signal.SIGINT) == 0
        assert daemon.wait_for("service.stopped")


def test_a_running_job_is_cancelled(tmp_path: Path) -> None:
    """Its processes are killed, and it ends dead/cancelled."""
    workspace = a_workspace(tmp_path, "  slow: {}\n")
    workspace.plugin("slow", SLOW)
    with a_daemon(workspace) as daemon:
        job_id = workspace.ductile("run", "slow", "--no-wait").out.strip()
        daemon.wait_until_started(job_id)
        assert job_id[-8:] in workspace.ductile("queue").out
        assert workspace.json("job", "cancel", job_id, "--dry-run")["status"] == "running"
        assert workspace.json("job", "cancel", job_id)["cancel"] == "requested"
        waited = workspace.ductile("job", "wait", job_id)
        assert waited.status == 1
        assert waited.out == f"{job_id} dead (cancelled)\n"
        again = workspace.json("job", "cancel", job_id, status=1)
        assert again["error"]["code"] == "conflict"
        assert "cancelled: cancelled" not in workspace.ductile("logs", "slow").out
        workspace.json("job", "retry", job_id)
        still = workspace.ductile("job", "wait", job_id, "--timeout", "100ms")
        assert still.status == 75
        assert "cancelled" not in still.out.replace("earlier: cancelled", "")


def test_waiting_has_an_end(tmp_path: Path) -> None:
    """Exit 75 when the time is up; the job goes on."""
    workspace = a_workspace(tmp_path, "  slow: {}\n")
    workspace.plugin("slow", SLOW)
    with a_daemon(workspace) as daemon:
        job_id = workspace.ductile("run", "slow", "--no-wait").out.strip()
        daemon.wait_until_started(job_id)
        assert workspace.ductile("job", "wait", job_id, "--timeout", "10ms").status == 75
        late = workspace.ductile("run", "slow", "--timeout", "10ms")
        assert late.status == 75
        assert "slow poll has not ended" in late.err


def test_the_main_facts_are_visible_on_a_narrow_terminal(tmp_path: Path) -> None:
    """At 80 columns the open breaker, the health, why a plugin is refused and why a job failed."""
    weak = "  weak:\n    retry: {max_attempts: 1}\n    circuit_breaker: {threshold: 1}\n"
    workspace = a_workspace(tmp_path, f"{weak}{HOURLY}  unrunnable: {{}}\n")
    workspace.plugin("weak", BROKEN)
    (workspace.plugin("unrunnable", SLOW) / "run.sh").chmod(0o600)
    with a_daemon(workspace) as daemon:
        daemon.wait_for("breaker.changed")
        shown = workspace.terminal.on_screen("status", "--config", "demo")
        assert max(len(line) for line in shown if "is refused: " not in line) <= 80
        heading = next(line for line in shown if line.startswith("PLUGIN"))
        assert heading.split() == ["PLUGIN", "STATUS", "LAST", "RUN", "NEXT", "RUN", "BREAKER"]
        # Those in trouble come first.
        rows = shown[shown.index(heading) + 1 :]
        assert [line.split()[0] for line in rows[:3]] == ["weak", "unrunnable", "echo"]
        (row,) = [line for line in shown if line.startswith("weak ")]
        assert row.endswith("poll open")
        (row,) = [line for line in shown if line.startswith("unrunnable  ")]
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
    """Exit 130, and by which name to find the job again or to end it."""
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
        out, said = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out) == (130, "")
        assert f"Job {job_id} continues" in said
        assert workspace.json("job", "show", job_id)["status"] == "running"


def test_a_waiting_command_reports_a_failed_attempt(tmp_path: Path) -> None:
    """At once and with its error, not when the last retry is spent; each attempt once."""
    workspace = a_workspace(
        tmp_path, "  broken:\n    retry: {max_attempts: 4, backoff_base: 1h, backoff_max: 1h}\n"
    )
    workspace.plugin("broken", BROKEN)
    with a_daemon(workspace):
        late = workspace.ductile("run", "broken", "--retry", "--timeout", "4s")
        assert (late.status, late.out) == (75, "")
        first, second, *_ = late.err.splitlines()
        attempt = (
            r"attempt 1 of 4 failed: it is broken; next try in (1h|59m)[0-9a-z]+ \(Ctrl-C leaves it queued\)"
        )
        assert re.fullmatch(attempt, first)
        assert second.startswith("error: broken poll has not ended")
        # Before the end, which has not come, and on a terminal above the line that counts.
        shown = workspace.terminal.on_screen(
            "run", "broken", "--retry", "--config", "demo", "--timeout", "4s", both=True, waiting=True
        )
        flow = "\n".join(shown)
        assert flow.count("attempt 1 of 4 failed") == 1
        assert flow.index("attempt 1 of 4 failed") < flow.index("2.0s")
        assert workspace.ductile("run", "broken", "--retry", "--timeout", "1500ms", "--json").err == ""


def test_attempts_that_failed_quickly_are_each_reported_once(tmp_path: Path) -> None:
    workspace = a_workspace(
        tmp_path, "  broken:\n    retry: {max_attempts: 3, backoff_base: 10ms, backoff_max: 10ms}\n"
    )
    workspace.plugin("broken", BROKEN)
    with a_daemon(workspace):
        ran = workspace.ductile("run", "broken", "--retry")
        assert ran.status == 1
        assert ran.err.splitlines()[:3] == [
            "attempt 1 of 3 failed: it is broken",
            "attempt 2 of 3 failed: it is broken",
            "error: broken poll is dead (attempts_exhausted): it is broken",
        ]


def test_a_plugin_that_is_not_loaded_differs_from_one_that_is_missing(tmp_path: Path) -> None:
    """Forgetting the reload is the commonest slip, and the configuration on disk shows it."""
    workspace = a_workspace(tmp_path)
    steps = "pipelines:\n  - {name: hello, steps: [{uses: echo}]}\n"
    with a_daemon(workspace):
        workspace.plugin("salute", answering({"status": "ok", "result": "hail"}))
        installed = workspace.json("run", "salute", status=1)["error"]
        assert installed["message"] == "the plugin salute is installed but not active"
        assert "`ductile config set plugins.salute.enabled true --config demo`" in installed["hint"]
        assert "`ductile apply --config demo`" in installed["hint"]
        workspace.append(f"  salute: {{}}\n  off: {{uses: echo, enabled: false}}\n{steps}")
        forgotten = "The configuration on disk has it, but the daemon has not loaded it: ductile apply"
        for words in (("run", "salute"), ("run", "salute", "--dry-run"), ("pipeline", "run", "hello")):
            shown = workspace.json(*words, status=1)["error"]
            assert (shown["code"], shown["hint"]) == ("not_found", f"{forgotten} --config demo")
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
    """By the names of the sections, and nothing of what is in them."""
    workspace = a_workspace(tmp_path)
    steps = "pipelines:\n  - {name: hello, steps: [{uses: echo}]}\n"
    with a_daemon(workspace):
        assert workspace.ductile("reload").out.splitlines()[0] == "Reloaded; nothing changed."
        workspace.append(f"tokens:\n  - {{name: door, key: canary-4711}}\n{steps}")
        workspace.json("config", "lock")
        tried = workspace.ductile("reload", "--dry-run").out
        assert tried.splitlines()[0] == "Would reload: pipelines and tokens changed."
        done = workspace.ductile("reload", "--json")
        assert "canary" not in done.out + done.err
        assert json.loads(done.out)["settings"] == ["pipelines", "tokens"]
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
    """`status` says that it is paused, and shows the time of another schedule that is not."""
    two = f"{HOURLY}      - {{id: daily, every: 1d}}\n"
    workspace = a_workspace(tmp_path, f"  twice:\n    uses: echo\n{two}")

    def standing() -> tuple[bool, bool, str]:
        lines = workspace.ductile("status").out.splitlines()
        (heading,) = [line for line in lines if line.startswith("PLUGIN ")]
        (row,) = [line for line in lines if line.startswith("twice ")]
        (twice,) = [each for each in workspace.json("status")["plugins"] if each["name"] == "twice"]
        cell = row[heading.index("NEXT RUN") :].split()[0] if "NEXT RUN" in heading else "-"
        return twice["next_run"] is not None, twice["paused"], cell

    with a_daemon(workspace):
        assert standing()[:2] == (True, False)
        assert standing()[2] in ("in", "now")
        workspace.json("schedule", "pause", "twice", "hourly")
        assert standing()[:2] == (True, False)
        workspace.json("schedule", "pause", "twice", "daily")
        assert standing() == (False, True, "paused")
        workspace.json("schedule", "resume", "twice", "daily")
        assert standing()[:2] == (True, False)
    assert standing()[2] == "-"


def test_a_dead_job_is_retried(tmp_path: Path) -> None:
    """Failed | dead → queued, with fresh attempts."""
    workspace = a_workspace(tmp_path, f"  broken:\n{ONE_ATTEMPT}")
    plugin = workspace.plugin("broken", BROKEN)
    with a_daemon(workspace):
        ran = workspace.ductile("run", "broken")
        assert ran.status == 1
        assert ran.out == ""
        assert "broken poll is dead (attempts_exhausted): it is broken" in ran.err
        assert "no paper" in ran.err
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
        wrong = workspace.json("schedule", "pause", "ecko", status=1)
        assert wrong["error"]["hint"] == "did you mean echo?"
        assert (
            workspace.json("schedule", "pause", "echo", "daily", status=1)["error"]["hint"]
            == "It has hourly."
        )


def test_a_reload_brings_a_plugin_and_refuses_what_needs_a_restart(tmp_path: Path) -> None:
    """All of it or none; the daemon is found although the file names another store by now."""
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
    """Exit 78, every problem with its line; the daemon goes on and can be stopped."""
    workspace = a_workspace(tmp_path)
    with a_daemon(workspace) as daemon:
        good = workspace.config.read_text()
        workspace.config.write_text(
            good.replace("log_level: debug", "log_level: loud") + "  other: {on: 1}\n"
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
        shown = {line["signal"] for line in daemon.lines if line.get("job_id") == job_id}
        assert shown == {"job.succeeded"}  # and no signal of level debug


def test_the_queue_is_purged(tmp_path: Path) -> None:
    """Queued jobs end dead/purged; they are kept, and the running one is left alone."""
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
    """Exit 1, saying who holds the store; the first goes on."""
    workspace = a_workspace(tmp_path)
    with a_daemon(workspace) as daemon:
        for words in ((), ("--dry-run",)):
            second = workspace.ductile("system", "start", *words)
            assert second.status == 1
            assert f"process {daemon.process.pid} uses this store already" in second.err
        assert workspace.ductile("run", "echo").status == 0


def test_a_job_that_sigterm_interrupts_goes_back_unspent(tmp_path: Path) -> None:
    """Queued/interrupted on its first attempt, and the caller gets an error."""
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
    """Exit 78, with every problem, and nothing is written."""
    workspace = a_workspace(tmp_path, "  other: {on: 1}\n")
    ran = workspace.ductile("system", "start")
    assert ran.status == 78
    assert "plugins.other.on" in ran.err
    assert ran.out == ""
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


def _like(beginning: str, *job_ids: str) -> set[str]:
    return {job_id for job_id in job_ids if job_id.startswith(beginning)}


def test_a_tree_and_a_job_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    """The descendants of a job are below it; part of an id is enough."""
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
        again = workspace.json("run", "source")["job_id"]
        # The first eight digits change once a minute, so of three jobs at least two share them.
        beginning = next(each for each in (root[:8], again[:8]) if len(_like(each, root, child, again)) > 1)
        refused = workspace.json("job", "show", beginning, status=1)
        assert set(refused["error"]["details"]["job_ids"]) >= _like(beginning, root, child, again)
        short = workspace.json("job", "show", root[:3], status=1)["error"]
        assert (short["code"], short["hint"][:22]) == ("not_found", "Give at least 4 digits")
        for typed in (root[-12:], root[-17:], root.replace("-", "")[-20:]):
            assert workspace.json("job", "show", typed)["job_id"] == root


def test_state_is_masked_unless_it_is_asked_for(tmp_path: Path) -> None:
    """Values whose keys look secret are not shown by accident."""
    workspace = a_workspace(tmp_path, "  keeper: {}\n")
    kept = {"access_token": "canary-5c1", "count": 3}
    workspace.plugin("keeper", answering({"status": "ok", "result": "kept", "state_updates": kept}))
    with a_daemon(workspace):
        assert workspace.ductile("run", "keeper").status == 0
        for words in (("status",), ("status", "--json")):
            shown = workspace.ductile(*words).out
            assert "canary-5c1" not in shown
            assert "access_token" in shown
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
        shown = workspace.ductile("system", "breaker", "broken").out
        assert "open → closed" in shown
        assert "manual_reset" in shown
        assert workspace.json("system", "reset", "brokn", status=1)["error"]["hint"] == "did you mean broken?"


@pytest.mark.parametrize(
    "words", [("status",), ("queue", "status"), ("job", "list"), ("schedule", "list"), ("run", "echo")]
)
def test_an_answer_of_the_daemon_needs_nothing_heavy(words: tuple[str, ...], tmp_path: Path) -> None:
    """Quick with a running daemon, on any machine: neither YAML nor the store is loaded."""
    workspace = a_workspace(tmp_path)
    heavy = ("asyncio", "msgspec", "yaml", "apsw")
    code = (
        "import sys\nfrom ductile.cli.main import main\nmain()\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    with a_daemon(workspace):
        python = Path(DUCTILE).parent / "python"
        done = subprocess.run(
            [python, "-I", "-c", code, *words, "--config", "demo"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("ending", [("job", "cancel"), ("queue", "purge", "--all")], ids=["cancel", "purge"])
def test_a_waiting_command_learns_of_every_kind_of_end(tmp_path: Path, ending: tuple[str, ...]) -> None:
    """A waiting caller is woken by the end of its job, also when it never ran."""
    workspace = a_workspace(tmp_path, "  slow: {parallelism: 1}\n")
    workspace.plugin("slow", SLOW)
    with a_daemon(workspace) as daemon:
        first = workspace.ductile("run", "slow", "--no-wait").out.strip()
        daemon.wait_until_started(first)
        queued = workspace.ductile("run", "slow", "--no-wait").out.strip()
        waiting = subprocess.Popen(
            [DUCTILE, "job", "wait", queued, "--config", "demo", "--json"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )
        # The daemon has it on its list: from here on only the end of the job can answer it in time.
        while not workspace.json("status")["daemon"]["waiting_callers"]:
            assert waiting.poll() is None
        assert workspace.ductile(*ending, *([queued] if ending[0] == "job" else [])).status == 0
        out, _ = waiting.communicate(timeout=PATIENCE)
        assert json.loads(out)["status"] == "dead"


def test_a_reload_that_makes_room_starts_what_waits(tmp_path: Path) -> None:
    """The new limits hold at once; nothing else has to happen first."""
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
    """A waiting command that was killed leaves nothing behind in the daemon."""
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
        # Two questions and answers: by then the daemon has seen the others go.
        for _ in range(2):
            workspace.json("status")
        assert len(list(descriptors.iterdir())) <= before + 2
