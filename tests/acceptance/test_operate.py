"""Commands that operate an installation: doctor, selfcheck, explain, backup, restore and sweep."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from builders.daemons import BROKEN, SLOW, Workspace, a_daemon, a_workspace
from builders.terminal import DUCTILE
from ductile.core.jobs.model import JobReason
from ductile.operations.diagnose.remedies import REMEDIES, remedy_for

ONCE = "    retry: {max_attempts: 1}\n"
HOURLY = "    schedules:\n      - {id: hourly, every: 1h}\n"
SPLIT = """\
pipelines:
  - name: flow
    on: echo.poll
    steps:
      - id: both
        split:
          - {id: left, uses: echo}
          - {id: right, uses: broken}
"""
#: Fails while a file `broken` lies beside it.
FRAGILE = (
    "#!/bin/sh\ncat >/dev/null\n"
    'if [ -e "$(dirname "$0")/broken" ]; then echo "out of paper" >&2; exit 3; fi\n'
    'echo \'{"status": "ok", "result": "fine"}\'\n'
)


def findings(report: dict[str, Any], check: str) -> list[dict[str, Any]]:
    return [row for row in report["findings"] if row["check"] == check]


def make_private(workspace: Workspace) -> Workspace:
    """Restrict the files as `ductile init` does: those of the builders are readable by all users."""
    workspace.config.parent.chmod(0o700)
    workspace.config.chmod(0o600)
    return workspace


# -------------------------------------------------------------------------------------------- doctor


def test_the_doctor_without_a_daemon(tmp_path: Path) -> None:
    """No daemon is needed, and no file is created, not even a store."""
    workspace = make_private(a_workspace(tmp_path))
    report = workspace.json("system", "doctor")
    assert report["verdict"] == "warn"
    assert findings(report, "daemon")[0]["fix"] == "ductile system start"
    assert "no store yet" in findings(report, "store")[0]["message"]
    assert not (workspace.config.parent / "data").exists()
    workspace.ductile("run", "echo")
    report_with_store = workspace.json("system", "doctor")
    assert "the store is undamaged" in findings(report_with_store, "store")[0]["message"]
    result = workspace.ductile("system", "doctor", "-v")
    assert result.status == 0
    assert "no daemon is running" in result.out
    assert "no job failed for good" in result.out


def test_the_doctor_with_a_daemon_asks_for_health(tmp_path: Path) -> None:
    """Health commands are run; an unhealthy plugin is an error, and the exit status is 1."""
    workspace = make_private(a_workspace(tmp_path, "  sick: {}\n"))
    workspace.plugin("sick", BROKEN)
    with a_daemon(workspace) as daemon:
        report = workspace.json("system", "doctor", status=1)
        (finding,) = [row for row in findings(report, "health") if row["level"] == "error"]
        assert "sick is not healthy: it is broken" in finding["message"]
        assert findings(report, "daemon")[0]["where"] == f"process {daemon.process.pid}"
        # The fix of the finding is a command that works.
        result = workspace.ductile(*finding["fix"].split()[1:])
        assert result.status == 0
        assert "it is broken" in result.out


def test_every_problem_of_a_broken_configuration_is_a_finding(tmp_path: Path) -> None:
    """Each finding has its place; the daemon continues with the configuration in force."""
    workspace = make_private(a_workspace(tmp_path))
    with a_daemon(workspace):
        text = workspace.config.read_text()
        workspace.config.write_text(text.replace("max_workers: 4", "max_workers: many\n  wrong_key: 1"))
        report_with_daemon = workspace.json("system", "doctor", status=1)
        assert len([row for row in findings(report_with_daemon, "config") if row["level"] == "error"]) == 2
        assert findings(report_with_daemon, "daemon")[0]["level"] == "ok"
        workspace.config.write_text(text.replace("max_workers: 4", "max_workers: 3"))
        report_of_change = workspace.json("system", "doctor")
        assert [row["fix"] for row in findings(report_of_change, "config") if row["level"] == "warn"] == [
            "ductile apply"
        ]
    workspace.config.write_text("plugins: [")
    report_without_daemon = workspace.json("system", "doctor", status=1)
    assert report_without_daemon["verdict"] == "error"
    assert "demo/config.yaml:2" in findings(report_without_daemon, "config")[0]["where"]
    result = workspace.terminal.ductile("system", "doctor", "--config", "nowhere")
    assert result.status == 1
    assert "there is no configuration at" in result.out


def test_a_finding_has_its_location_and_its_fix(tmp_path: Path) -> None:
    """Refused plugins, open files, paused schedules, failed jobs and a damaged store are findings."""
    workspace = make_private(a_workspace(tmp_path, f"  broken:\n{ONCE}  gone: {{}}\n"))
    workspace.config.write_text(workspace.config.read_text().replace("  echo: {}\n", f"  echo:\n{HOURLY}"))
    workspace.plugin("broken", BROKEN)
    workspace.config.chmod(0o666)
    with a_daemon(workspace):
        workspace.ductile("run", "broken")
        workspace.ductile("schedule", "pause", "echo")
        report = workspace.json("system", "doctor", status=1)
    (plugin_finding,) = findings(report, "plugins")
    assert (plugin_finding["level"], plugin_finding["where"]) == ("error", "plugins.gone")
    (permission_finding,) = findings(report, "permissions")
    assert (permission_finding["level"], permission_finding["fix"]) == (
        "error",
        f"chmod 600 {workspace.config}",
    )
    (schedule_finding,) = findings(report, "schedules")
    assert schedule_finding["fix"] == "ductile schedule resume echo hourly"
    (job_finding,) = findings(report, "jobs")
    assert job_finding["fix"].startswith("ductile job explain ")
    store = workspace.config.parent / "data" / "state.db"
    for file in store.parent.glob("state.db-*"):  # its write-ahead log could repair it
        file.unlink()
    store.write_bytes(b"not a database" * 1000)
    damaged_report = workspace.json("system", "doctor", status=1)
    assert "damaged" in findings(damaged_report, "store")[0]["message"]


# ----------------------------------------------------------------------------------------- selfcheck


def test_plugins_that_others_can_change_are_refused_and_reported(tmp_path: Path) -> None:
    """`config check` reports them, and so does the doctor, with and without a daemon."""
    workspace = make_private(a_workspace(tmp_path))
    root = workspace.config.parent / "plugins"
    with a_daemon(workspace) as daemon:
        assert findings(workspace.json("system", "doctor", "--verbose"), "plugins")[0]["level"] == "ok"
        root.chmod(0o777)
        (finding,) = [
            finding
            for finding in findings(workspace.json("system", "doctor", status=1), "plugins")
            if finding["level"] == "error"
        ]
        assert "every user of this machine can change the directory" in finding["message"]
        assert finding["fix"] == f"chmod o-w {root}"
        assert workspace.json("system", "reload")["warnings"] is not None
        daemon.wait_for("plugin.refused")
        assert "every user" in workspace.ductile("run", "echo").err
    assert workspace.ductile("config", "check").status == 78
    (finding,) = findings(workspace.json("system", "doctor", status=1), "plugins")
    assert finding["message"].startswith("echo cannot run: every user of this machine")
    subprocess.run(finding["fix"].split(), check=True)
    assert workspace.ductile("config", "check").status == 0


def test_selfcheck_beside_and_without_a_daemon(tmp_path: Path) -> None:
    """The store is sound also after a split whose branch failed, was fixed and retried."""
    workspace = a_workspace(tmp_path, f"  broken:\n{ONCE}{SPLIT}")
    mended_file = workspace.plugin("broken", BROKEN) / "mended"
    with a_daemon(workspace):
        run = workspace.ductile("pipeline", "run", "flow")
        assert run.status == 1, run
        assert workspace.json("system", "selfcheck")["sound"] is True
        (job,) = workspace.json("job", "list", "--plugin", "pipeline")["jobs"]
        mended_file.touch()
        workspace.ductile("job", "retry", job["job_id"])
        workspace.ductile("job", "wait", job["job_id"])
        assert workspace.json("system", "selfcheck")["sound"] is True
    assert "rules of the store hold" in workspace.ductile("system", "selfcheck").out
    connection = sqlite3.connect(workspace.config.parent / "data" / "state.db")
    connection.execute("UPDATE job_queue SET attempt = max_attempts + 1 WHERE id = ?", (job["job_id"],))
    connection.commit()
    connection.close()
    report = workspace.json("system", "selfcheck", status=1)
    assert [(row["name"], row["offenders"]) for row in report["checks"] if not row["holds"]] == [
        ("attempts_within_limit", [job["job_id"]])
    ]
    assert job["job_id"] in workspace.ductile("system", "selfcheck").out


# ------------------------------------------------------------------------------------------- explain


@pytest.mark.parametrize("reason", JobReason)
def test_there_is_advice_for_every_reason(reason: JobReason) -> None:
    """Every reason has a remedy without an unfilled placeholder."""
    assert reason in REMEDIES
    assert "{" not in remedy_for(reason, plugin="p", command="c", job_id="j")


def test_a_failed_job_is_explained_against_the_last_good_run(tmp_path: Path) -> None:
    """The explanation has a verdict, the origin, and the differences from the last good run."""
    workspace = a_workspace(tmp_path, f"  fragile:\n    config: {{paper: A4, api_key: sesame}}\n{ONCE}")
    plugin = workspace.plugin("fragile", FRAGILE)
    with a_daemon(workspace):
        assert workspace.ductile("run", "fragile", "--payload", '{"n": 1}').status == 0
        (good_job,) = workspace.json("job", "list", "--plugin", "fragile")["jobs"]
        workspace.config.write_text(workspace.config.read_text().replace("paper: A4", "paper: A5"))
        workspace.ductile("reload")
        (plugin / "broken").touch()
        assert workspace.ductile("run", "fragile", "--payload", '{"n": 2, "token": "sesame"}').status == 1
        (failed_job,) = workspace.json("job", "list", "--status", "dead")["jobs"]
        explanation = workspace.json("job", "explain", failed_job["job_id"])
        text = workspace.ductile("job", "explain", failed_job["job_id"][:18]).out
    assert explanation["verdict"].startswith("fragile handle failed in its only attempt (bad_exit)")
    assert explanation["compared_with"] == good_job["job_id"]
    differences = {row["what"]: (row["good"], row["now"]) for row in explanation["differences"]}
    assert differences["plugins.fragile.config.paper"] == ('"A4"', '"A5"')
    assert differences["exit status"] == ("0", "3")
    assert differences["first line of stderr"] == (None, "out of paper")
    assert differences["payload.n"] == ("a value", "another value")
    assert explanation["chain"][0]["what"].startswith("the command line")
    assert explanation["chain"][-1]["job_id"] == failed_job["job_id"]
    assert explanation["saw"]["payload"] == {"n": 2, "token": "********"}
    assert any("out of paper" in line for line in explanation["evidence"])
    assert text.splitlines()[0] == explanation["verdict"]
    assert "What to do" in text
    assert "sesame" not in json.dumps(explanation) + text


def test_a_failed_run_is_explained_by_the_step_that_failed(tmp_path: Path) -> None:
    """The verdict about a run names the step and its error."""
    workspace = a_workspace(tmp_path, f"  broken:\n{ONCE}{SPLIT}")
    workspace.plugin("broken", BROKEN)
    with a_daemon(workspace):
        workspace.ductile("pipeline", "run", "flow")
        (run,) = workspace.json("job", "list", "--plugin", "pipeline")["jobs"]
        explanation = workspace.json("job", "explain", run["job_id"])
        (step,) = workspace.json("job", "list", "--plugin", "broken")["jobs"]
        step_explanation = workspace.json("job", "explain", step["job_id"])
    assert "it is broken" in explanation["verdict"]
    assert step["job_id"] in explanation["verdict"]
    assert f"ductile job explain {run['job_id']}" in step_explanation["advice"][0]
    assert [link["job_id"] for link in step_explanation["chain"]][1:] == [run["job_id"], step["job_id"]]


def test_why_a_job_waits(tmp_path: Path) -> None:
    """A job waits for a dedupe key, for a limit, for a retry or for a daemon."""
    more = "  slow: {parallelism: 1}\n  broken: {retry: {max_attempts: 2, backoff_base: 1h}}\n"
    workspace = a_workspace(tmp_path, more)
    workspace.plugin("slow", SLOW)
    workspace.plugin("broken", BROKEN)
    with a_daemon(workspace) as daemon:
        holder = workspace.json("run", "slow", "--dedupe-key", "k", "--no-wait")["job_id"]
        daemon.wait_until_started(holder)
        same_key = workspace.json("run", "slow", "--dedupe-key", "k", "--no-wait")["job_id"]
        over_limit = workspace.json("run", "slow", "--no-wait")["job_id"]
        retried = workspace.json("run", "broken", "--retry", "--no-wait")["job_id"]
        daemon.wait_for("job.retrying")
        explanations = {
            job: workspace.json("job", "explain", job) for job in (same_key, over_limit, retried, holder)
        }
        text = workspace.ductile("job", "explain", over_limit).out
    verdicts = {job: explanation["verdict"] for job, explanation in explanations.items()}
    since = explanations[holder]["verdict"].partition("since ")[2][:20]
    running = f"job {holder} (slow poll, running since {since} (for "
    assert running in verdicts[same_key]
    assert "has the same dedupe key and has not ended." in verdicts[same_key]
    assert "1 job of slow runs, and no more may (plugins.slow.parallelism)." in verdicts[over_limit]
    assert running in verdicts[over_limit]
    for job in (same_key, over_limit):
        assert explanations[job]["waits_for"]["job_id"] == holder
        assert f"ductile job cancel {holder}" in " ".join(explanations[job]["advice"])
    assert "ductile config set plugins.slow.parallelism 2 --lock --config demo" in text
    assert "attempt 2 of 2 is due at" in verdicts[retried]
    assert "it is broken." in verdicts[retried]
    assert "is running since" in verdicts[holder]
    for job in (same_key, over_limit, retried):
        explanation = workspace.json("job", "explain", job)
        assert "no daemon is running." in explanation["verdict"].lower()
        assert explanation["advice"] == ["ductile system start"]


def explain_waiting_job(
    tmp_path: Path, settings: str, *, workers: int, concurrency_safe: bool = True
) -> dict[str, Any]:
    """Return the explanation of a job that waits while another one of its plugin runs."""
    workspace = a_workspace(tmp_path, f"  slow: {settings}\n")
    workspace.config.write_text(
        workspace.config.read_text().replace("max_workers: 4", f"max_workers: {workers}")
    )
    manifest = workspace.plugin("slow", SLOW) / "manifest.yaml"
    if not concurrency_safe:
        manifest.write_text(f"{manifest.read_text()}\nconcurrency_safe: false\n")
    with a_daemon(workspace) as daemon:
        daemon.wait_until_started(workspace.json("run", "slow", "--no-wait")["job_id"])
        return workspace.json("job", "explain", workspace.json("run", "slow", "--no-wait")["job_id"])


@pytest.mark.parametrize(
    ("settings", "workers", "limits"),
    [
        ("{parallelism: 1}", 4, ["plugins.slow.parallelism 2"]),
        # Without a limit of its own the plugin has that of the workers.
        ("{}", 1, ["service.max_workers 2"]),
    ],
)
def test_the_limit_that_is_advised_to_be_raised_helps(
    tmp_path: Path, settings: str, workers: int, limits: list[str]
) -> None:
    advice = explain_waiting_job(tmp_path, settings, workers=workers)["advice"]
    advised_limits = [
        line.partition("config set ")[2].removesuffix(" --lock") for line in advice if "config set" in line
    ]
    assert advised_limits == limits


def test_a_plugin_that_is_not_concurrency_safe_is_not_advised_to_run_twice(tmp_path: Path) -> None:
    explanation = explain_waiting_job(tmp_path, "{}", workers=4, concurrency_safe=False)
    assert "its manifest says `concurrency_safe: false`" in explanation["verdict"]
    assert [line for line in explanation["advice"] if "config set" in line] == []


def test_a_run_shows_its_position_and_its_wait(tmp_path: Path) -> None:
    """The explanation of a run names its running step, or the job whose slot its step waits for."""
    pipelines = "pipelines:\n  - {name: flow, steps: [{id: nap, uses: slow}]}\n"
    workspace = a_workspace(tmp_path, f"  slow: {{parallelism: 1}}\n{pipelines}")
    workspace.plugin("slow", SLOW)
    with a_daemon(workspace) as daemon:
        first_id = workspace.json("pipeline", "run", "flow", "--no-wait")["job_id"]
        step = daemon.wait_for("job.started")["job_id"]
        second_id = workspace.json("pipeline", "run", "flow", "--no-wait")["job_id"]
        running_explanation, waiting_explanation = (
            workspace.json("job", "explain", job) for job in (first_id, second_id)
        )
        status = workspace.json("status")
        text = workspace.ductile("status").out
        assert f"step nap (slow handle, job {step}) is running since" in running_explanation["verdict"]
        assert f"ductile job cancel {first_id}" in " ".join(running_explanation["advice"])
        assert "step nap (slow handle, job " in waiting_explanation["verdict"]
        assert (
            f"waits: 1 job of slow runs, and no more may (plugins.slow.parallelism). The longest: job {step}"
            in (waiting_explanation["verdict"])
        )
        assert waiting_explanation["waits_for"]["job_id"] == step
        # The advice helps: the slot becomes free, and the run that waited goes on.
        assert workspace.ductile("job", "cancel", step).status == 0
        daemon.wait_for("job.started", lambda line: line["job_id"] != step)
    (running,) = [job for job in status["running"] if job["plugin"] == "slow"]
    assert (running["job_id"], running["step"], running["attempt"]) == (step, "nap", 1)
    assert running["started_at"] is not None
    assert running["running_ms"] >= 0
    age = r"(now|\d+ (?:s|min) ago)"
    assert re.search(rf"^{step[-8:]} +slow handle \(flow/nap\) +{age} +\S+ +1/4$", text, re.MULTILINE), text


def test_a_job_behind_another_names_the_first_in_line(tmp_path: Path) -> None:
    """Runs with one key follow one another; the explanation of the last one names the running one."""
    pipelines = "pipelines:\n  - {name: flow, steps: [{id: nap, uses: slow}]}\n"
    workspace = a_workspace(tmp_path, f"  slow: {{}}\n{pipelines}")
    workspace.plugin("slow", SLOW)
    with a_daemon(workspace) as daemon:
        run_ids = [
            workspace.json("pipeline", "run", "flow", "--no-wait", "--dedupe-key", "k")["job_id"]
            for _ in range(3)
        ]
        daemon.wait_for("job.started")
        explanation = workspace.json("job", "explain", run_ids[2])
    assert f"job {run_ids[1]} (run of pipeline flow, queued since" in explanation["verdict"]
    assert (
        f"The first in line is job {run_ids[0]} (run of pipeline flow, running since"
        in explanation["verdict"]
    )
    assert explanation["waits_for"]["job_id"] == run_ids[0]


def test_why_a_run_waits_where_no_daemon_is(tmp_path: Path) -> None:
    """The explanation says what to do, not only that no step has started."""
    workspace = a_workspace(tmp_path, "pipelines: [{name: flow, on: made, steps: [{uses: echo}]}]\n")
    (run,) = workspace.json("event", "send", "made")["started"]
    explanation = workspace.json("job", "explain", run["job_id"])
    assert explanation["verdict"].endswith("waits: it is ready to start. No daemon is running.")
    assert explanation["advice"] == ["ductile system start"]


def test_why_a_schedule_does_not_run(tmp_path: Path) -> None:
    """Each obstacle is explained, and the advice removes it."""
    workspace = a_workspace(tmp_path, f"  broken:\n{ONCE}    circuit_breaker: {{threshold: 1}}\n{HOURLY}")
    workspace.config.write_text(workspace.config.read_text().replace("  echo: {}\n", f"  echo:\n{HOURLY}"))
    mended_file = workspace.plugin("broken", BROKEN) / "mended"

    def cause(plugin: str) -> str:
        return str(workspace.json("schedule", "explain", plugin)["cause"])

    assert cause("echo") == "no_daemon"
    with a_daemon(workspace) as daemon:
        daemon.wait_for("job.succeeded", lambda line: line["plugin"] == "echo")
        daemon.wait_for("breaker.changed")
        assert cause("echo") == "on_time"
        workspace.ductile("schedule", "pause", "echo")
        explanation = workspace.json("schedule", "explain", "echo", "hourly")
        assert explanation["cause"] == "paused"
        assert workspace.ductile(*explanation["advice"][0].split()[1:]).status == 0
        assert cause("echo") == "on_time"
        explanation = workspace.json("schedule", "explain", "broken")
        assert explanation["cause"] == "breaker_open"
        assert "circuit breaker is open" in explanation["verdict"]
        assert explanation["advice"][0].startswith("ductile job explain ")
        mended_file.touch()
        workspace.ductile("system", "reset", "broken")
        assert cause("broken") == "last_failed"
        workspace.ductile("job", "wait", workspace.json("schedule", "run", "broken")["job_id"])
        assert cause("broken") == "on_time"
        text = workspace.ductile("schedule", "explain", "broken").out
        assert text.startswith("broken hourly: Nothing is wrong")
        workspace.config.write_text(
            workspace.config.read_text().replace("  echo:\n", "  echo:\n    enabled: false\n")
        )
        workspace.ductile("reload")
        assert cause("echo") == "plugin_disabled"
    assert workspace.ductile("schedule", "explain", "unknown").status == 1


# ------------------------------------------------------------------------------------- backup, restore


def test_a_backup_of_a_running_daemon_can_be_started(tmp_path: Path) -> None:
    """Jobs accepted before the backup are in it; the copy is its own store and keeps the invariants."""
    workspace = a_workspace(tmp_path, "  slow: {}\n")
    workspace.plugin("slow", SLOW)
    with a_daemon(workspace) as daemon:
        ended_id = workspace.json("run", "echo")["job_id"]
        running_id = workspace.json("run", "slow", "--no-wait")["job_id"]
        daemon.wait_until_started(running_id)
        backup = workspace.json("system", "backup", "saved.tar.gz")
        assert backup["files"]["state"] == 1
        workspace.ductile("run", "echo")
        assert workspace.ductile("system", "backup", "--verify", "saved.tar.gz").out.startswith("ok:")
        second_backup = workspace.json("system", "backup", "saved.tar.gz", status=1)
        assert second_backup["error"]["code"] == "conflict"
    result = workspace.ductile("system", "restore", "saved.tar.gz")
    assert result.status == 1
    assert "nothing is overwritten" in result.err
    assert workspace.terminal.ductile("system", "restore", "saved.tar.gz", "--to", "second/demo").status == 0
    second = Workspace(directory=tmp_path / "second")
    assert second.json("job", "show", ended_id)["status"] == "succeeded"
    assert second.json("job", "show", running_id)["status"] == "running"
    assert len(second.json("job", "list", "--plugin", "echo")["jobs"]) == 1
    assert second.json("system", "selfcheck")["sound"] is True
    with a_daemon(second):
        assert second.json("job", "show", running_id)["reason"] in ("recovered", "claimed")
        assert second.ductile("run", "echo").status == 0


def test_secrets_stay_at_home_unless_they_are_asked_for(tmp_path: Path) -> None:
    """The file of variables is listed as left out; with --secrets it is included, and the output says so."""
    workspace = a_workspace(tmp_path)
    (workspace.config.parent / ".env").write_text("KEY=canary-9b1d\n")
    workspace.config.write_text(
        "environment_vars: {include: [.env]}\n"
        + workspace.config.read_text()
        + "  other: {uses: echo, env: {PASSWORD: '${KEY}'}}\n"
    )
    result = workspace.ductile("system", "backup", "without.tar.gz")
    assert "left out: demo/.env" in result.out
    assert "add --secrets to include them" in result.out
    assert "--secrets" not in workspace.ductile("system", "backup", "all.tar.gz", "--secrets").out
    assert "holds secrets" in workspace.ductile("system", "backup", "with.tar.gz", "--secrets").out
    for name, included in (("without.tar.gz", False), ("with.tar.gz", True)):
        with tarfile.open(tmp_path / name) as archive:
            assert ("inside/.env" in archive.getnames()) is included
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    restore_result = workspace.terminal.ductile("system", "restore", "without.tar.gz", "--to", "new")
    assert "put it back at its place in new" in restore_result.out
    check_result = workspace.terminal.ductile("config", "check", "--config", "new")
    assert "new/.env cannot be read" in check_result.out
    assert "put back" in check_result.out
    assert ":-" not in check_result.out, "a secret is not to be written into the configuration"


def test_a_restore_goes_to_the_place_that_the_archive_names_only_if_it_is_known(tmp_path: Path) -> None:
    """An archive may come from an untrusted source, and name ~/.ssh."""
    workspace = a_workspace(tmp_path)
    workspace.ductile("system", "backup", "saved.tar.gz", "--scope", "config,plugins")
    workspace.config.parent.rename(tmp_path / "before")
    result = workspace.terminal.ductile("system", "restore", "saved.tar.gz")
    assert result.status == 1
    assert f"names {workspace.config.parent} as its place" in result.err
    assert f"ductile system restore {tmp_path / 'saved.tar.gz'} --to restored" in result.err
    assert not workspace.config.parent.exists()
    assert workspace.ductile("system", "restore", "saved.tar.gz").status == 0
    assert workspace.ductile("config", "check").status == 0


def test_relative_plugin_roots_work_after_a_restore(tmp_path: Path) -> None:
    """A root may lie outside of the directory of the configuration."""
    workspace = a_workspace(tmp_path / "first")
    (workspace.config.parent / "plugins").rename(tmp_path / "first" / "shared")
    workspace.config.write_text("plugin_roots: [../shared]\n" + workspace.config.read_text())
    assert workspace.ductile("run", "echo").status == 0
    workspace.ductile("system", "backup", "saved.tar.gz")
    (tmp_path / "first" / "demo").rename(tmp_path / "first" / "demo-before")
    (tmp_path / "first" / "shared").rename(tmp_path / "first" / "shared-before")
    restored = json.loads(
        workspace.terminal.ductile(
            "system", "restore", "saved.tar.gz", "--to", str(tmp_path / "second"), "--json"
        ).out
    )
    assert restored["outside"] == []
    assert restored["config"] == str(tmp_path / "second" / "demo" / "config.yaml")
    second = Workspace(directory=tmp_path / "second")
    assert second.ductile("config", "check").status == 0
    assert second.json("run", "echo")["result"]["result"] == "done"
    assert len(second.json("job", "list")["jobs"]) == 2


def test_a_damaged_archive_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    workspace.ductile("system", "backup", "saved.tar.gz")
    data = bytearray((tmp_path / "saved.tar.gz").read_bytes())
    data[len(data) // 2] ^= 0xFF
    (tmp_path / "saved.tar.gz").write_bytes(data)
    for words in (
        ("system", "backup", "--verify", "saved.tar.gz"),
        ("system", "restore", "saved.tar.gz", "--to", "new"),
    ):
        result = workspace.terminal.ductile(*words)
        assert result.status == 1
        assert "is not a whole backup" in result.err
    assert not (tmp_path / "new").exists()


def test_trying_a_backup_and_a_restore(tmp_path: Path) -> None:
    """With `--dry-run` both commands say what they would write."""
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("system", "backup", "saved.tar.gz", "--dry-run").out.startswith("Would write")
    assert not (tmp_path / "saved.tar.gz").exists()
    workspace.ductile("system", "backup", "saved.tar.gz", "--scope", "config,plugins")
    result = workspace.terminal.ductile("system", "restore", "saved.tar.gz", "--to", "new", "--dry-run")
    assert result.out.startswith("Would restore")
    assert not (tmp_path / "new").exists()
    assert workspace.ductile("system", "backup", "x.tar.gz", "--scope", "all").status == 2


def test_progress_is_for_a_terminal_only(tmp_path: Path) -> None:
    """A program that reads the output sees no progress."""
    workspace = a_workspace(tmp_path)
    workspace.ductile("run", "echo")
    leader, follower = os.openpty()
    try:
        with subprocess.Popen(
            [DUCTILE, "system", "backup", "saved.tar.gz", "--config", "demo"],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=follower,
        ) as process:
            out, _ = process.communicate(timeout=60)
        progress = os.read(leader, 65536).decode()
    finally:
        os.close(leader)
        os.close(follower)
    assert "copying the store: 100%" in progress
    assert "writing the archive: 100%" in progress
    assert progress.endswith("\r\x1b[K"), "the line is taken away when it is done"
    assert out.decode().startswith("Wrote saved.tar.gz")
    assert workspace.ductile("system", "backup", "other.tar.gz").err == ""


# --------------------------------------------------------------------------------------------- sweep


def test_a_sweep_removes_now_what_has_been_kept_long_enough(tmp_path: Path) -> None:
    """A sweep works with and without a daemon; a dry run counts, and the job is still found in the log."""
    workspace = a_workspace(tmp_path)
    settings = "  tick_interval: 1h\n  dedupe_ttl: 1ms\n  job_queue_retention: 1ms\n  log_level: debug\n"
    workspace.config.write_text(workspace.config.read_text().replace("  log_level: debug\n", settings))
    with a_daemon(workspace):
        first_id = workspace.json("run", "echo")["job_id"]
        workspace.json("run", "echo")
        assert workspace.json("system", "sweep", "--dry-run")["removed"] == {"succeeded_jobs": 1}
        assert workspace.json("system", "sweep")["removed"] == {"succeeded_jobs": 1}
        assert "Nothing is older than its retention" in workspace.ductile("system", "sweep").out
        assert workspace.json("job", "show", first_id)["status"] == "succeeded"
    workspace.json("run", "echo")
    result = workspace.ductile("system", "sweep")
    assert "Removed:\n  succeeded jobs  1" in result.out


# ------------------------------------------------------------------------------- what a retry would say

TEMPLATED = """\
pipelines:
  - name: flow
    steps:
      - {id: first, uses: echo.poll}
      - {id: second, uses: echo, with: {name: "{payload.naem}"}}
"""


def test_a_dry_run_and_the_advice_agree_with_the_retry(tmp_path: Path) -> None:
    """Neither the dry run nor the advice promises a refused retry of a step that could not be created."""
    workspace = a_workspace(tmp_path, TEMPLATED)
    with a_daemon(workspace):
        run_id = workspace.json("pipeline", "run", "flow", status=1)["job_id"]
        refusal = workspace.json("job", "retry", run_id, status=1)
        assert workspace.json("job", "retry", run_id, "--dry-run", status=1) == refusal
        failed = workspace.json("job", "list", "--status", "failed")["jobs"]
        (step,) = [row for row in failed if row["reason"] == "bad_template"]
        commands = {
            line.rpartition(": ")[2]
            for job in (run_id, step["job_id"])
            for line in workspace.json("job", "explain", job)["advice"]
            if "job retry" in line
        }
        assert commands == {f"ductile job retry {run_id} --from-step second"}
        workspace.config.write_text(workspace.config.read_text().replace("payload.naem", "payload.result"))
        assert workspace.ductile("reload").status == 0
        (command,) = commands
        retry_id = workspace.json(*command.split()[1:])["job_id"]
        assert workspace.json("job", "wait", retry_id)["status"] == "succeeded"
        dry_refusal = workspace.json("job", "retry", run_id, "--from-step", "third", "--dry-run", status=1)
        assert dry_refusal == workspace.json("job", "retry", run_id, "--from-step", "third", status=1)
