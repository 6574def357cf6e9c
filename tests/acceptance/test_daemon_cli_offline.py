"""The command line while no daemon runs, or while the daemon cannot be reached."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from builders.daemons import BROKEN, PATIENCE, SLOW, Workspace, a_daemon, a_workspace, answering
from builders.terminal import DUCTILE


@contextmanager
def a_held_store(directory: Path) -> Iterator[int]:
    """Hold the lock of the store in this process, which answers no request. Yields the process id."""
    directory.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(directory / "ductile.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    try:
        yield os.getpid()
    finally:
        os.close(descriptor)


def a_failed_job(workspace: Workspace) -> str:
    """Run the plugin `broken`, and return the id of its failed job."""
    assert workspace.ductile("run", "broken", "--retry").status == 1
    (job,) = workspace.json("job", "list", "--plugin", "broken")["jobs"]
    return str(job["job_id"])


def test_run_without_a_daemon(tmp_path: Path) -> None:
    """The result is shown, and the store has the job like any other."""
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("run", "echo").out == "done\n"
    shown_job = workspace.json("run", "echo", "handle", "--payload", '{"a": 1}')
    assert (shown_job["status"], shown_job["payload"], shown_job["submitted_by"]) == (
        "succeeded",
        {"a": 1},
        "cli",
    )
    assert [job["command"] for job in workspace.json("job", "list")["jobs"]] == ["handle", "poll"]


def test_run_shows_results_that_are_not_text_as_json(tmp_path: Path) -> None:
    """A result is text or any JSON value."""
    workspace = a_workspace(tmp_path, "  table: {}\n")
    workspace.plugin("table", answering({"status": "ok", "result": {"rows": [1, 2]}}))
    assert workspace.ductile("run", "table").out == '{\n  "rows": [\n    1,\n    2\n  ]\n}\n'


def test_run_also_runs_the_jobs_of_routes(tmp_path: Path) -> None:
    """The command runs the job and the jobs that follow from it."""
    workspace = a_workspace(
        tmp_path, "  source: {}\nroutes:\n  - {from: source, event_type: made, to: echo}\n"
    )
    workspace.plugin(
        "source", answering({"status": "ok", "result": "x", "events": [{"type": "made", "payload": {}}]})
    )
    assert workspace.ductile("run", "source").status == 0
    jobs = workspace.json("job", "list", "--status", "succeeded")["jobs"]
    assert [(job["plugin"], job["submitted_by"]) for job in jobs] == [("echo", "route"), ("source", "cli")]


def test_a_plugin_is_initialised_before_its_first_job(tmp_path: Path) -> None:
    """This holds without a daemon too, for the job and for its child jobs; each init runs once."""
    routes = "routes:\n  - {from: source, event_type: made, to: after}\n"
    workspace = a_workspace(tmp_path, f"  source: {{}}\n  after: {{}}\n{routes}")
    emitting = {"status": "ok", "result": "x", "events": [{"type": "made", "payload": {}}]}
    for name, response in (("source", emitting), ("after", {"status": "ok", "result": "seen"})):
        manifest = workspace.plugin(name, answering(response)) / "manifest.yaml"
        manifest.write_text(manifest.read_text().replace("[poll,", "[init, poll,"))
    for _ in range(2):
        assert workspace.ductile("run", "source").status == 0
    executions = [(row["plugin"], row["command"]) for row in workspace.json("logs")["logs"][::-1]]
    first_run = [("source", "init"), ("source", "poll"), ("after", "init"), ("after", "handle")]
    assert executions == [*first_run, ("source", "poll"), ("after", "handle")]


def test_a_failed_init_holds_nothing_up(tmp_path: Path) -> None:
    """A failed init marks the plugin and does not block it."""
    workspace = a_workspace(tmp_path, "  sulky: {}\n")
    script = (
        "#!/bin/sh\ncat >/dev/null\n"
        'test "$DUCTILE_COMMAND" = init && { echo \'{"status": "error", "error": "no"}\'; exit; }\n'
        'echo \'{"status": "ok", "result": "all the same"}\'\n'
    )
    manifest = workspace.plugin("sulky", script) / "manifest.yaml"
    manifest.write_text(manifest.read_text().replace("[poll,", "[init, poll,"))
    assert workspace.ductile("run", "sulky").out == "all the same\n"
    assert [row["status"] for row in workspace.json("logs", "sulky")["logs"]] == ["succeeded", "failed"]


def test_a_failed_init_marks_its_plugin_wherever_one_looks(tmp_path: Path) -> None:
    """Status, plugin list, plugin show and the doctor have the mark; the next successful init clears it."""
    workspace = a_workspace(tmp_path, "  sulky: {}\n")
    manifest = workspace.plugin("sulky", BROKEN) / "manifest.yaml"
    manifest.write_text(manifest.read_text().replace("[poll,", "[init, poll,"))
    assert workspace.json("plugin", "show", "sulky")["unhealthy"] is None
    assert not (workspace.config.parent / "data").exists()
    workspace.ductile("run", "sulky")
    (init,) = workspace.json("job", "list", "--command", "init")["jobs"]

    def marks() -> list[object]:
        listed = {plugin["name"]: plugin for plugin in workspace.json("plugins")["plugins"]}
        in_status = {plugin["name"]: plugin for plugin in workspace.json("status")["plugins"]}
        assert listed["echo"]["unhealthy"] is in_status["echo"]["unhealthy"] is None
        return [
            listed["sulky"]["unhealthy"],
            in_status["sulky"]["unhealthy"],
            workspace.json("plugin", "show", "sulky")["unhealthy"],
        ]

    for mark in marks():
        assert isinstance(mark, dict)
        assert (mark["job_id"], mark["error"]) == (init["job_id"], "it is broken")
    message = f"init failed: it is broken (`ductile job show {init['job_id']} --config demo`)"
    assert f"sulky is unhealthy: its {message}" in workspace.ductile("status").out
    assert "active, unhealthy" in workspace.ductile("plugins").out
    assert message in workspace.ductile("plugin", "show", "sulky").out
    assert "sulky is unhealthy: its init failed: it is broken" in workspace.ductile("system", "doctor").out
    (workspace.config.parent / "plugins" / "sulky" / "mended").touch()
    with a_daemon(workspace):
        assert marks()[0] is not None
        workspace.json("job", "retry", init["job_id"])
        workspace.json("job", "wait", init["job_id"])
        assert marks() == [None, None, None]


def test_a_run_records_its_configuration(tmp_path: Path) -> None:
    """Every configuration that a job ran with is recorded, with its origin."""
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("run", "echo").status == 0
    store = sqlite3.connect(workspace.config.parent / "data" / "state.db")
    assert store.execute("SELECT origin FROM config_snapshots").fetchall() == [("run",)]
    store.close()


def test_a_list_of_an_unknown_plugin_is_an_error(tmp_path: Path) -> None:
    """The command reports an error with the nearest name instead of an empty list."""
    workspace = a_workspace(tmp_path)
    for words in (
        ("job", "list", "--plugin", "ecko"),
        ("logs", "ecko"),
        ("queue", "list", "--plugin", "ecko"),
        ("queue", "purge", "ecko"),
        ("schedule", "list", "ecko"),
        ("schedule", "next", "ecko"),
        ("schedule", "history", "ecko"),
    ):
        error = workspace.json(*words, status=1)["error"]
        assert (error["code"], error["hint"]) == ("not_found", "did you mean echo?"), words


def test_a_plugin_that_is_gone_is_known_by_what_it_did(tmp_path: Path) -> None:
    """The jobs and the log of a removed plugin are shown as before."""
    workspace = a_workspace(tmp_path, "  broken: {}\n")
    workspace.plugin("broken", BROKEN)
    job_id = a_failed_job(workspace)
    workspace.config.write_text(workspace.config.read_text().replace("  broken: {}\n", ""))
    assert [job["job_id"] for job in workspace.json("job", "list", "--plugin", "broken")["jobs"]] == [job_id]
    assert [row["job_id"] for row in workspace.json("logs", "broken")["logs"]] == [job_id]


def test_a_job_is_found_by_its_beginning_when_only_the_log_has_it(tmp_path: Path) -> None:
    """A pruned job is found like one in the queue, with dashes or without."""
    workspace = a_workspace(tmp_path)
    job_id = workspace.json("run", "echo")["job_id"]
    store = sqlite3.connect(workspace.config.parent / "data" / "state.db")
    store.execute("DELETE FROM job_queue")  # what retention does after a day
    store.commit()
    store.close()
    for part in (job_id[:7], job_id[:13], job_id.replace("-", "")[:20]):
        assert workspace.json("job", "show", part)["job_id"] == job_id
    assert workspace.json("job", "show", job_id[:3], status=1)["error"]["code"] == "not_found"


def test_a_failing_run_says_that_the_daemon_will_try_again(tmp_path: Path) -> None:
    """The command exits with 1 and prints the error, the end of stderr and the time of the retry."""
    workspace = a_workspace(tmp_path, "  broken: {}\n")
    workspace.plugin("broken", BROKEN)
    result = workspace.ductile("run", "broken", "--retry")
    assert result.status == 1
    assert result.out == ""
    assert "broken poll has not ended: it is queued (retry): it is broken" in result.err
    assert "no paper" in result.err
    assert "it will be retried at 20" in result.err
    assert workspace.json("run", "broken", status=1)["stderr"] == "no paper\n"


def test_a_run_that_is_interrupted_goes_back_to_the_queue(tmp_path: Path) -> None:
    """Ctrl-C ends the plugin's processes and spends no attempt; so does the end of --timeout."""
    workspace = a_workspace(tmp_path, "  slow: {}\n")
    started = tmp_path / "started"
    os.mkfifo(started)
    workspace.plugin("slow", f"#!/bin/sh\ncat >/dev/null\necho $$ >{started}\nexec sleep 300\n")
    process = subprocess.Popen(
        [DUCTILE, "run", "slow", "--config", "demo"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    plugin = int(started.read_text())
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(plugin, 0)
    (job,) = workspace.json("job", "list")["jobs"]
    assert (job["status"], job["reason"], job["attempt"]) == ("queued", "interrupted", 1)
    assert f"ductile job cancel {job['job_id']}" in errors


def test_a_run_has_only_so_much_time(tmp_path: Path) -> None:
    """`--timeout` bounds the command, with a daemon or without."""
    workspace = a_workspace(tmp_path, "  slow: {}\n")
    workspace.plugin("slow", SLOW)
    job = workspace.json("run", "slow", "--timeout", "100ms", status=75)
    assert (job["status"], job["reason"], job["attempt"]) == ("queued", "interrupted", 1)
    assert workspace.ductile("run", "slow", "--timeout", "soon").status == 2


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ('{"a": }', "the payload is not JSON: Expecting value at line 1, column 7"),
        ("[1]", "the payload must be a JSON object"),
        ("@nowhere.json", "nowhere.json cannot be read: No such file or directory"),
        ("@bytes", "bytes is not UTF-8 text"),
        ("-", "standard input is not JSON"),
    ],
)
def test_a_payload_that_makes_no_sense_is_a_usage_error(payload: str, message: str, tmp_path: Path) -> None:
    """The command exits with 2 and names the place of the mistake; nothing is submitted."""
    workspace = a_workspace(tmp_path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    result = workspace.ductile("run", "echo", "--payload", payload)
    assert result.status == 2
    assert message in result.err
    assert not (workspace.config.parent / "data").exists()


def test_a_payload_from_a_file(tmp_path: Path) -> None:
    """`--payload @FILE` reads the payload from a file."""
    workspace = a_workspace(tmp_path)
    (tmp_path / "who.json").write_text('{"name": "Ada"}')
    assert workspace.json("run", "echo", "--payload", "@who.json")["payload"] == {"name": "Ada"}


def test_a_job_that_cannot_run_is_refused_with_a_hint(tmp_path: Path) -> None:
    """The plugin is unknown, disabled or without the command; a dry run reports the same error."""
    workspace = a_workspace(tmp_path, "  off: {enabled: false}\n")
    workspace.plugin("off", SLOW)
    for more in ((), ("--dry-run",)):
        assert workspace.json("run", "ecko", *more, status=1)["error"]["hint"] == "did you mean echo?"
        assert workspace.json("run", "off", *more, status=1)["error"]["code"] == "refused"
        unknown = workspace.json("run", "echo", "shout", *more, status=1)
        assert unknown["error"]["hint"] == "It has poll, handle, health."
    assert workspace.json("run", "echo", "--dry-run")["job_id"] is None
    assert workspace.json("job", "list")["jobs"] == []


def test_the_same_key_is_run_once(tmp_path: Path) -> None:
    """The second submission returns the job of the first."""
    workspace = a_workspace(tmp_path)
    first, second = (workspace.json("run", "echo", "--dedupe-key", "monday") for _ in range(2))
    assert first["job_id"] == second["job_id"]
    assert (first["deduplicated"], second["deduplicated"]) == (False, True)
    assert second["dedupe_key"] == "monday"
    result = workspace.ductile("run", "echo", "--dedupe-key", "monday")
    assert (result.status, result.out) == (0, "done\n")
    assert f"Not run again: job {first['job_id']} succeeded under this key at 20" in result.err


def test_reading_and_changing_the_store_works_without_a_daemon(tmp_path: Path) -> None:
    """All commands that need no engine work."""
    workspace = a_workspace(tmp_path, "  broken: {}\n")
    workspace.plugin("broken", BROKEN)
    job_id = a_failed_job(workspace)
    assert workspace.json("queue", "status")["waiting"] == 1
    assert [job["job_id"] for job in workspace.json("queue")["queued"]] == [job_id]
    assert workspace.json("job", "show", job_id)["stderr"] == "no paper\n"
    assert workspace.json("job", "tree", job_id)["tree"]["children"] == []
    assert workspace.json("logs", "broken")["logs"][0]["error"] == "it is broken"
    assert "no paper" in workspace.ductile("logs", "-v").out
    assert workspace.json("schedule", "list")["schedules"] == []
    assert workspace.json("system", "breaker", "broken")["breakers"] == {}
    assert workspace.json("system", "reset", "broken")["reset"] == 0
    assert workspace.json("job", "cancel", job_id)["cancel"] == "cancelled"
    assert workspace.json("job", "wait", job_id, status=1)["reason"] == "cancelled"
    assert workspace.json("job", "retry", job_id)["status"] == "queued"
    assert workspace.json("queue", "purge", "--all") == {"purged": 1}
    assert workspace.ductile("queue").out == "The queue is empty.\n"


def test_a_command_that_needs_the_daemon_says_so(tmp_path: Path) -> None:
    """The command exits with 69 and says how to start the daemon."""
    workspace = a_workspace(tmp_path, "  broken: {}\n")
    workspace.plugin("broken", BROKEN)
    job_id = a_failed_job(workspace)
    for words in (
        ("reload",),
        ("schedule", "run", "echo"),
        ("job", "wait", job_id),
        ("run", "echo", "--no-wait"),
        ("logs", "-f"),
    ):
        result = workspace.ductile(*words)
        assert result.status == 69, words
        assert "ductile system start" in result.err


@pytest.mark.parametrize(
    "words", [("status",), ("run", "echo"), ("system", "stop"), ("job", "list"), ("queue", "purge", "--all")]
)
def test_a_store_that_is_held_is_left_alone(words: tuple[str, ...], tmp_path: Path) -> None:
    """The command exits with 75 and names the process. Nothing is read or written."""
    workspace = a_workspace(tmp_path)
    with a_held_store(workspace.config.parent / "data") as holder:
        result = workspace.ductile(*words)
    assert result.status == 75
    assert f"process {holder} uses " in result.err
    assert "try again" in result.err
    assert not (workspace.config.parent / "data" / "state.db").exists()


@contextmanager
def a_run_under_way(workspace: Workspace) -> Iterator[int]:
    """Start `ductile run slow` without a daemon, yield its process id while the plugin runs, and end the
    command.
    """
    started = workspace.directory / "started"
    os.mkfifo(started)
    workspace.plugin("slow", f"#!/bin/sh\ncat >/dev/null\necho $$ >{started}\nexec sleep 300\n")
    process = subprocess.Popen(
        [DUCTILE, "run", "slow", "--config", "demo"],
        cwd=workspace.directory,
        env={"PATH": os.environ["PATH"], "HOME": str(workspace.directory)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        started.read_text()
        yield process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)


def test_reads_work_while_a_job_is_run_without_a_daemon(tmp_path: Path) -> None:
    """Reads never wait for a writer. A command that would write exits with 75 and names the process."""
    workspace = a_workspace(tmp_path, "  slow: {}\n")
    with a_run_under_way(workspace) as pid:
        (job,) = workspace.json("job", "list")["jobs"]
        assert (job["plugin"], job["status"]) == ("slow", "running")
        assert "orphaned" not in job
        assert workspace.json("job", "show", job["job_id"])["status"] == "running"
        assert "is running since" in workspace.json("job", "explain", job["job_id"])["verdict"]
        for words in (("queue",), ("queue", "status"), ("logs",), ("schedule", "list"), ("event", "tail")):
            assert workspace.ductile(*words).status == 0, words
        status = workspace.json("status")
        assert (status["daemon"], status["queue"]["orphaned"]) == ({"running": False, "run_pid": pid}, 0)
        assert f"process {pid} runs a job without one" in workspace.ductile("status").out
        assert workspace.ductile("system", "selfcheck").status == 0
        assert workspace.ductile("system", "doctor").status == 0
        for line in ("run echo", f"job cancel {job['job_id']}", "queue purge --all"):
            refused = workspace.ductile(*line.split())
            assert refused.status == 75, line
            assert f"process {pid} uses this store to run a job without a daemon" in refused.err
        start = workspace.ductile("system", "start")
        assert start.status == 1
        assert "Wait until that run has ended" in start.err
        assert workspace.ductile("system", "stop").status == 69


def test_after_a_crash_no_command_says_that_a_job_runs(tmp_path: Path) -> None:
    """Without a daemon, commands say that a `running` job has no process, and what the next start does."""
    workspace = a_workspace(tmp_path, "  slow: {}\n")
    workspace.plugin("slow", SLOW)
    with a_daemon(workspace) as daemon:
        job_id = workspace.ductile("run", "slow", "--retry", "--no-wait").out.strip()
        daemon.wait_until_started(job_id)
        daemon.end(signal.SIGKILL)
    explanation = workspace.json("job", "explain", job_id)
    assert "was running when the daemon died, attempt 1 of 4" in explanation["verdict"]
    assert "The next start runs it again, as attempt 2 of 4." in explanation["verdict"]
    assert explanation["advice"] == ["ductile system start"]
    assert workspace.json("job", "show", job_id)["orphaned"]
    assert "running (no process runs it any more)" in workspace.ductile("job", "show", job_id).out
    assert "no process runs it any more" in workspace.ductile("queue").out
    assert workspace.json("status")["queue"]["orphaned"] == 1
    assert "1 running (no process runs them any more" in workspace.ductile("status").out
    assert "1 job was running when the process that ran" in workspace.ductile("system", "doctor").out
    cancelled = workspace.ductile("job", "cancel", job_id)
    assert cancelled.status == 0
    assert "will be cancelled at the next start" in cancelled.out
    assert "The next start ends it as cancelled." in workspace.json("job", "explain", job_id)["verdict"]
    with a_daemon(workspace):
        ended = workspace.json("job", "wait", job_id, status=1)
    assert (ended["status"], ended["reason"]) == ("dead", "cancelled")
    assert "orphaned" not in ended
    (execution,) = ended["executions"]
    assert execution["duration_ms"] is None


@pytest.mark.parametrize("words", [("system", "start"), ("status",), ("run", "echo")])
def test_a_store_that_cannot_be_made_is_no_traceback(words: tuple[str, ...], tmp_path: Path) -> None:
    """The command exits with 77 and names the directory."""
    workspace = a_workspace(tmp_path)
    (workspace.config.parent / "data").write_text("a file, where a directory is wanted")
    result = workspace.ductile(*words)
    assert result.status == 77
    assert "demo/data cannot be used" in result.err


def test_a_result_is_piped_as_it_is(tmp_path: Path) -> None:
    """A pipe gets the output of a plugin verbatim; control characters are masked only on a terminal."""
    workspace = a_workspace(tmp_path, "  tabs: {}\n")
    workspace.plugin("tabs", answering({"status": "ok", "result": "a\tb"}))
    assert workspace.ductile("run", "tabs").out == "a\tb\n"


def test_an_invalid_argument_is_not_taken_for_another(tmp_path: Path) -> None:
    """A usage error exits with 2, a missing thing with 1. No invalid argument is replaced by a default."""
    workspace = a_workspace(tmp_path, "  timed: {uses: echo, schedules: [{every: 1h}]}\n")
    for line, status, message in (
        ("job list -n 0", 2, "-n has to be a whole number from 1 to 200"),
        ("schedule next -n 0", 2, "-n has to be a whole number from 1"),
        ("run echo --timeout 0s", 2, "--timeout must be greater than 0"),
        ("system reset echo --command shout", 1, "echo has no command shout"),
        ("queue purge echo --all", 2, "contradict each other"),
        ("event send ", 2, "an event needs a type"),
        ("system backup nowhere/x", 1, "there is no directory"),
        ("run --bogus", 2, "see `ductile run --help`"),
        ("run echo --payload", 2, "see `ductile run --help`"),
        ("run echo --payload=@", 2, "--payload @ names no file"),
        ("run echo --payloda x", 2, "did you mean `--payload`?"),
        ("plugin test ./nosuch", 1, "there is no directory ./nosuch"),
        ("plugin test /bin/sh", 1, "A script is named as it is under `plugins`"),
        ("schedule history timed/default", 1, "Write it as two words: timed default"),
    ):
        result = workspace.ductile(*line.split(" "))
        assert result.status == status, (line, result)
        assert message in result.err, line
        assert line.startswith("run echo --payloda") or "did you mean" not in result.err, line
    assert workspace.ductile("system", "reset", "echo").out == "No breaker of echo is open.\n"


def test_the_advice_where_no_daemon_runs_fits_what_was_asked(tmp_path: Path) -> None:
    """The command exits with 69, with a hint that fits the command."""
    workspace = a_workspace(tmp_path, "  timed: {uses: echo, schedules: [{every: 1h}]}\n")
    for line, hint in (
        ("system stop", "There is nothing to stop. Another configuration's daemon: name it with --config."),
        ("system stop --dry-run", "There is nothing to stop."),
        ("reload", "The configuration is read when it starts: `ductile system start"),
        ("run echo --no-wait", "or leave out --no-wait to run it here."),
        ("status --health", "Start it with `ductile system start"),
        ("schedule run timed", "Start it with `ductile system start"),
        ("logs --follow", "Start it with `ductile system start"),
        ("event tail --follow", "Start it with `ductile system start"),
    ):
        result = workspace.ductile(*line.split(" "))
        assert result.status == 69, (line, result)
        assert "error: no daemon is running here\n" in result.err, line
        assert hint in result.err, (line, result.err)
        assert ("system start" in result.err) is ("stop" not in line), line


def test_a_check_finds_every_cause_that_prevents_the_start(tmp_path: Path) -> None:
    """`config check` and `system start --dry-run` report what would prevent `system start`."""
    workspace = a_workspace(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listen = f"127.0.0.1:{listener.getsockname()[1]}"
        workspace.config.write_text(
            f"api:\n  enabled: true\n  listen: '{listen}'\n"
            "  auth: {tokens: [{token: '${T}', scopes: ['*']}]}\n"
            "environment_vars: {include: [.env]}\n" + workspace.config.read_text()
        )
        (workspace.config.parent / ".env").write_text("T=a-long-enough-secret-of-the-api\n")
        (workspace.config.parent / ".env").chmod(0o644)
        assert workspace.ductile("config", "lock").status == 0
        warnings = workspace.json("config", "check")["warnings"]
        assert "other users can read it, and it holds secrets" in [warning["message"] for warning in warnings]
        dry_run = workspace.ductile("system", "start", "--dry-run")
        assert dry_run.status == 1
        assert f"{listen} cannot be listened on: Address already in use" in dry_run.err


def test_a_failed_run_tells_its_stderr_once(tmp_path: Path) -> None:
    """The output has the error and then the end of stderr, and neither repeats the other."""
    workspace = a_workspace(tmp_path, "  loud: {retry: {max_attempts: 1}}\n")
    workspace.plugin("loud", "#!/bin/sh\ncat >/dev/null\necho 'no such paper' >&2\nexit 3\n")
    result = workspace.ductile("run", "loud")
    assert result.status == 1
    assert result.err.count("no such paper") == 1
    (job,) = workspace.json("job", "list", "--plugin", "loud")["jobs"]
    assert "no such paper" in job["last_error"]
    (evidence,) = workspace.json("job", "explain", job["job_id"])["evidence"]
    assert evidence.count("no such paper") == 1


def test_numbers_are_numbers(tmp_path: Path) -> None:
    """A value that is no valid number is a usage error that names the option."""
    workspace = a_workspace(tmp_path)
    assert "--limit needs a whole number, not 'many'" in workspace.ductile("job", "list", "-n", "many").err
    assert workspace.ductile("job", "list", "-n", "201").status == 2
    assert workspace.ductile("job", "list", "--from", "once").status == 2
    assert workspace.ductile("job", "list", "--status", "sleepy").status == 2
