"""Scripts as plugins, and `ductile exec`, with and without a daemon."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from builders.daemons import Workspace, a_daemon, a_workspace
from ductile.operations.table import OPERATIONS

FAILS = "#!/bin/sh\necho begun\necho 'no space left' >&2\nexit ${STATUS:-3}\n"
ONCE = "    retry: {max_attempts: 1}\n"


def a_script(workspace: Workspace, name: str, text: str, mode: int = 0o755) -> Path:
    path = workspace.config.parent / name
    path.write_text(text)
    path.chmod(mode)
    return path


def a_workspace_with(directory: Path, name: str, settings: str) -> Workspace:
    return a_workspace(directory, f"  {name}:\n" + "".join(f"    {line}\n" for line in settings.splitlines()))


# ------------------------------------------------------------------------------------------ scripts


@pytest.mark.parametrize("command", ["run", "handle", "poll"])
def test_a_script_is_a_plugin_and_its_commands_do_the_same(tmp_path: Path, command: str) -> None:
    workspace = a_workspace_with(tmp_path, "hello", "run: ./hello.sh one 'two three'")
    a_script(workspace, "hello.sh", '#!/bin/sh\nprintf " %s|" "$@"; pwd\n')
    result = workspace.ductile("run", "hello", command)
    assert (result.status, result.out.strip()) == (0, f"one| two three|{workspace.config.parent}"), result


def test_the_payload_is_data_and_never_text_of_the_shell(tmp_path: Path) -> None:
    """A script gets the payload on stdin and in variables; the shell does not evaluate it."""
    workspace = a_workspace_with(
        tmp_path, "show", """run: 'cat; echo "$DUCTILE_PAYLOAD"; echo "$PAYLOAD_USER_NAME,$PAYLOAD_OK"'"""
    )
    payload = {"user-name": "$(id); `id`", "ok": True, "deep": {"x": 1}}
    lines = workspace.ductile("run", "show", "--payload", json.dumps(payload)).out.splitlines()
    assert json.loads(lines[0]) == json.loads(lines[1]) == payload
    assert lines[2] == "$(id); `id`,true"


def test_a_list_is_an_argv_and_cwd_and_env_are_its_own(tmp_path: Path) -> None:
    workspace = a_workspace_with(
        tmp_path, "look", "run: [sh, -c, 'pwd; echo $WORD $1', x, '$HOME']\ncwd: below\nenv: {WORD: w}"
    )
    (workspace.config.parent / "below").mkdir()
    assert workspace.ductile("run", "look").out.split() == [
        str(workspace.config.parent / "below"),
        "w",
        "$HOME",
    ]


def test_json_is_parsed_and_a_parse_failure_is_a_protocol_error(tmp_path: Path) -> None:
    workspace = a_workspace_with(tmp_path, "js", f"run: [cat, answer]\noutput: json\n{ONCE.strip()}")
    (workspace.config.parent / "answer").write_text('{"n": 12345678901234567890}')
    assert workspace.json("run", "js")["result"]["result"] == {"n": 12345678901234567890}
    (workspace.config.parent / "answer").write_text("nothing")
    job = workspace.json("run", "js", status=1)
    assert job["executions"][0]["reason"] == "protocol_error"
    assert job["result"]["stdout"] == "nothing"


def test_a_script_may_answer_in_the_protocol(tmp_path: Path) -> None:
    """Such a script gets the request, and its state is kept."""
    workspace = a_workspace_with(tmp_path, "plug", "run: ./plug.sh\noutput: protocol")
    a_script(
        workspace,
        "plug.sh",
        "#!/bin/sh\n"
        """grep -q '"protocol":2' && echo '{"status": "ok", "result": "r", "state_updates": {"a": 1}}'\n""",
    )
    assert workspace.ductile("run", "plug").out == "r\n"
    assert workspace.json("plugin", "state", "plug")["state"] == {"a": 1}


def test_an_empty_output_is_a_success(tmp_path: Path) -> None:
    workspace = a_workspace_with(tmp_path, "quiet", "run: 'true'")
    job = workspace.json("run", "quiet")
    assert (job["status"], job["result"]["result"]) == ("succeeded", "")


def test_a_failure_keeps_both_outputs_and_shows_each_once(tmp_path: Path) -> None:
    workspace = a_workspace_with(tmp_path, "bad", f"run: ./bad.sh\n{ONCE.strip()}")
    a_script(workspace, "bad.sh", FAILS)
    result = workspace.ductile("run", "bad")
    assert result.status == 1
    assert result.err.count("begun") == result.err.count("no space left") == 1
    job = workspace.json("job", "show", "last")
    assert job["last_error"] == "exited with status 3; stderr ends with: no space left"
    assert (job["result"]["stdout"], job["result"]["stderr"]) == ("begun\n", "no space left\n")
    (execution,) = workspace.json("job", "logs", "last")["executions"]
    assert (execution["result"], execution["stdout"], execution["stderr"]) == (
        None,
        "begun\n",
        "no space left\n",
    )
    assert workspace.ductile("job", "show", "last").out.count("begun") == 1


def test_the_output_of_a_success_is_shown_once(tmp_path: Path) -> None:
    workspace = a_workspace_with(tmp_path, "good", "run: echo unmistakable")
    workspace.ductile("run", "good")
    assert workspace.ductile("job", "show", "last").out.count("unmistakable") == 1
    assert workspace.ductile("job", "logs", "last").out.count("unmistakable") == 1
    (execution,) = workspace.json("job", "logs", "last")["executions"]
    assert (execution["result"], execution["stdout"]) == (None, "unmistakable\n")


def test_a_timeout_keeps_what_was_printed(tmp_path: Path) -> None:
    workspace = a_workspace_with(tmp_path, "slow", f"run: echo begun; sleep 60\ntimeout: 2s\n{ONCE.strip()}")
    workspace.ductile("run", "slow")
    job = workspace.json("job", "show", "last")
    assert (job["reason"], job["executions"][0]["status"]) == ("attempts_exhausted", "timed_out")
    assert job["result"]["stdout"] == "begun\n"


@pytest.mark.parametrize(
    ("rule", "status", "retried"),
    [("", 3, True), ("", 78, False), ("[75]", 75, True), ("[75]", 3, False), ("never", 75, False)],
)
def test_retry_on_decides_which_exit_is_retried(
    tmp_path: Path, rule: str, status: int, retried: bool
) -> None:
    setting = f"\nretry_on: {rule}" if rule else ""
    workspace = a_workspace_with(tmp_path, "bad", f"run: ./bad.sh\nenv: {{STATUS: {status}}}{setting}")
    a_script(workspace, "bad.sh", FAILS)
    job = workspace.json("run", "bad", "--retry", status=1)
    assert (job["status"] == "queued") is retried, job


def test_events_of_a_script_are_routed_and_pipelines_use_scripts(tmp_path: Path) -> None:
    workspace = a_workspace(
        tmp_path,
        "  first: {run: echo out}\n  second: {run: cat}\n  third: {run: 'echo \"got $PAYLOAD_RESULT\"'}\n"
        "routes:\n  - {from: first, event_type: first.done, to: second}\n"
        "pipelines:\n  - {name: flow, steps: [{id: a, uses: first}, {id: b, uses: third}]}\n",
    )
    assert workspace.ductile("config", "check").status == 0, workspace.ductile("config", "check")
    workspace.ductile("run", "first")
    (listed_job,) = workspace.json("job", "list", "--plugin", "second")["jobs"]
    job = workspace.json("job", "show", listed_job["job_id"])
    assert json.loads(job["result"]["result"]) == {"exit_code": 0, "result": "out"}
    assert workspace.json("pipeline", "run", "flow")["result"]["result"] == "got out"


def test_a_schedule_runs_a_script_in_the_daemon(tmp_path: Path) -> None:
    workspace = a_workspace_with(tmp_path, "tick", "run: echo tick\nschedule: {after: 1s}")
    with a_daemon(workspace) as daemon:
        daemon.wait_until(
            lambda: bool(workspace.json("job", "list", "--plugin", "tick", "--status", "ok")["jobs"])
        )
    (job,) = workspace.json("job", "list", "--plugin", "tick")["jobs"]
    assert (job["command"], job["submitted_by"]) == ("poll", "scheduler")


# --------------------------------------------------------------------------------- trust and the seal


def test_the_program_is_sealed_and_a_change_is_reported(tmp_path: Path) -> None:
    workspace = a_workspace_with(tmp_path, "job", "run: ./job.sh | cat")
    program = a_script(workspace, "job.sh", "#!/bin/sh\necho one\n")
    assert "plugin job" in workspace.ductile("config", "lock").out
    assert "job" not in str(workspace.json("config", "check")["warnings"])
    program.write_text("#!/bin/sh\necho two\n")
    assert "plugin job has changed since it was sealed" in str(workspace.json("config", "check")["warnings"])
    assert "plugin job" in workspace.ductile("plugin", "lock", "job").out


def test_a_program_from_the_path_is_not_sealed(tmp_path: Path) -> None:
    workspace = a_workspace_with(tmp_path, "job", "run: echo hello")
    assert "plugin job" not in workspace.ductile("config", "lock").out
    assert not workspace.json("config", "check")["warnings"]
    assert "found by PATH" in workspace.ductile("plugin", "lock", "job").err


@pytest.mark.parametrize(
    ("run", "mode", "message"),
    [
        ("./missing.sh", 0o755, "missing.sh does not exist"),
        ("./missing.sh | cat", 0o755, "missing.sh does not exist"),
        ("./it.sh", 0o644, "it.sh is not executable"),
        ("./it.sh", 0o777, "every user of this machine can change the file"),
        ("it.sh", 0o755, "no program it.sh was found in PATH"),
        ("no-such-program-anywhere", 0o755, "no program no-such-program-anywhere"),
    ],
)
def test_a_program_that_cannot_run_is_refused(tmp_path: Path, run: str, mode: int, message: str) -> None:
    workspace = a_workspace_with(tmp_path, "job", f"run: {run}")
    a_script(workspace, "it.sh", "#!/bin/sh\n", mode)
    (job_plugin,) = [
        plugin for plugin in workspace.json("plugin", "list")["plugins"] if plugin["name"] == "job"
    ]
    assert job_plugin["status"] == "refused"
    assert message in job_plugin["reason"]
    assert workspace.ductile("config", "check").status == 78
    assert message in workspace.ductile("plugin", "check", "job").out
    assert message in workspace.ductile("run", "job").err


@pytest.mark.parametrize(
    ("plugins", "message"),
    [
        ("  x: {run: 'true', uses: echo}\n", "`run` and `uses` are both set"),
        ("  x: {run: ''}\n", "this cannot be run"),
        ("  x: {run: []}\n", "this cannot be run"),
        ("  x: {uses: echo, output: json}\n", "`output` is for scripts"),
        ("  x: {run: 'true', retry_on: [0]}\n", "not the exit status of a failure"),
        ("  x: {run: 'true'}\n  y: {uses: x}\n", "x is a script of this configuration"),
        ("  exec: {run: 'true'}\n", 'the plugin name "exec" is reserved'),
    ],
)
def test_mistakes_are_named(tmp_path: Path, plugins: str, message: str) -> None:
    result = a_workspace(tmp_path, plugins).ductile("config", "check")
    assert result.status == 78
    assert message in result.out


# --------------------------------------------------------------------------------------------- exec


def last_exec_job(workspace: Workspace) -> dict[str, Any]:
    return workspace.json("job", "show", "last:exec")


def test_exec_runs_a_command_once_where_it_was_typed(tmp_path: Path) -> None:
    """Without a daemon the command is a job with a log, and its outcome is the exit status."""
    workspace = a_workspace(tmp_path)
    result = workspace.terminal.ductile(
        "exec", "--name", "where", "--config", "demo", "--", "sh", "-c", "pwd; echo e >&2; cat"
    )
    assert result.status == 0, result
    assert result.out.strip() == str(workspace.directory)
    assert "e" in result.err
    job = last_exec_job(workspace)
    assert (job["plugin"], job["command"], job["max_attempts"]) == ("exec", "where", 1)
    assert job["payload"]["argv"][1:] == ["-c", "pwd; echo e >&2; cat"]
    assert workspace.terminal.ductile("exec", "--config", "demo", "--", "sh", "-c", "exit 5").status == 1
    assert "exited with status 5" in workspace.ductile("job", "explain", "last:exec").out


def test_exec_in_the_daemon_survives_a_reload_and_can_be_retried(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    command = ("sh", "-c", f"test -e {tmp_path}/ok || {{ cat {gate}; exit 4; }}; echo fine")
    with a_daemon(workspace) as daemon:
        # The first job may fill the only worker; the others are queued or running.
        held_id = workspace.terminal.ductile(
            "exec", "--no-wait", "--config", "demo", "--", *command
        ).out.strip()
        daemon.wait_until_started(held_id)
        queued_ids = [
            workspace.terminal.ductile(
                "exec", "--no-wait", "--config", "demo", "--", "sh", "-c", f"cat {gate}"
            ).out.strip()
            for _ in range(os.cpu_count() or 1)
        ]
        workspace.append("  more: {run: 'true'}\n")
        assert workspace.ductile("reload").status == 0
        states = {workspace.json("job", "show", job_id)["status"] for job_id in queued_ids}
        assert states <= {"queued", "running"}
        for job_id in queued_ids:
            workspace.ductile("job", "cancel", job_id)
        gate.write_bytes(b"")
        assert workspace.ductile("job", "wait", held_id).status == 1
        (tmp_path / "ok").touch()
        workspace.ductile("job", "retry", held_id)
        assert workspace.ductile("job", "wait", held_id).status == 0
        assert workspace.json("job", "show", held_id)["result"]["result"] == "fine"


def test_exec_ends_a_command_at_its_timeout(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    assert (
        workspace.terminal.ductile(
            "exec", "--timeout", "300ms", "--config", "demo", "--", "sleep", "60"
        ).status
        == 1
    )
    job = last_exec_job(workspace)
    assert job["executions"][0]["status"] == "timed_out"
    assert job["executions"][0]["signal"] == signal.SIGTERM


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "needs COMMAND"),
        (("--", "no-such-program-anywhere"), "was found in PATH"),
        (("--", "./missing"), "there is no file ./missing"),
        (("--name", "init", "--", "true"), "cannot be used"),
    ],
)
def test_mistakes_with_exec(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    result = a_workspace(tmp_path).terminal.ductile("exec", "--config", "demo", *words)
    assert result.status in (1, 2)
    assert message in result.err


def test_exec_cannot_be_reached_over_http(tmp_path: Path) -> None:
    """The operation has no route, and no token can run its plugin by name."""
    assert OPERATIONS["job.exec"].http is None
    workspace = a_workspace(tmp_path)
    result = workspace.ductile(
        "run", "exec", "run", "--payload", '{"argv": ["/bin/true"], "cwd": "/", "timeout": 1}'
    )
    assert result.status != 0
    assert "there is no plugin or pipeline exec" in result.err


def test_a_dry_run_of_exec_runs_nothing(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    file = tmp_path / "made"
    result = workspace.terminal.ductile(
        "exec", "--config", "demo", "--dry-run", "--json", "--", "touch", str(file)
    )
    assert json.loads(result.out)["dry_run"] is True
    assert not file.exists()
    assert not workspace.json("job", "list", "--plugin", "exec")["jobs"]


def test_a_configuration_of_scripts_needs_no_plugin_root(tmp_path: Path) -> None:
    workspace = Workspace(directory=tmp_path)
    workspace.config.parent.mkdir()
    workspace.config.write_text("plugins:\n  hello: {run: echo hello}\n")
    workspace.ductile("config", "lock")
    assert workspace.json("config", "check")["warnings"] == []
    assert workspace.ductile("run", "hello").out == "hello\n"


def test_plugin_test_reads_a_script_by_its_exit_status(tmp_path: Path) -> None:
    """A script need not keep the protocol. It gets the payload as in a job."""
    workspace = a_workspace(tmp_path)
    workspace.append(
        """  greet: {run: 'echo "hello $PAYLOAD_NAME"'}\n  broken: {run: "echo why >&2; exit 3"}\n"""
    )
    report = workspace.json("plugin", "test", "greet", "--payload", '{"name": "Ada"}')
    assert [(check["check"], check["verdict"]) for check in report["checks"]] == [
        ("manifest", "passed"),
        ("answers", "passed"),
        ("repeats", "passed"),
    ]
    assert "hello Ada" in report["checks"][1]["message"]
    result = workspace.ductile("plugin", "test", "broken")
    assert result.status == 1
    assert "exited with status 3; stderr ends with: why" in result.out


def test_a_request_of_a_script_is_run_as_a_job_is(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    workspace.append("""  greet: {run: 'echo "hello $PAYLOAD_NAME"'}\n""")
    request = tmp_path / "request.json"
    request.write_text('{"payload": {"name": "Ada"}}')
    response = workspace.json("plugin", "run", "greet", "--request", str(request))
    assert (response["judgement"], response["result"], response["stdout"]) == (
        "ok",
        "hello Ada",
        "hello Ada\n",
    )
