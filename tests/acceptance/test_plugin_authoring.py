"""`ductile plugin new|test|run --request|lock|state|facts`, as authors and operators type them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from builders.daemons import Workspace, a_daemon, a_workspace, answering
from builders.plugins import a_manifest, a_plugin
from builders.terminal import DUCTILE, CommandResult, Terminal

REQUEST = {"protocol": 2, "job_id": "j", "command": "poll", "config": {}, "state": {}, "context": {}}


def tool_works(tool: str, *words: str) -> bool:
    """Return whether a tool is installed, and not only the stand-in of a version manager."""
    if shutil.which(tool) is None:
        return False
    return subprocess.run([tool, *words], capture_output=True, check=False).returncode == 0


def create_plugin(tmp_path: Path, language: str) -> Path:
    result = Terminal(directory=tmp_path).ductile("plugin", "new", "greet", "--lang", language, "--json")
    assert result.status == 0, result
    return Path(json.loads(result.out)["directory"])


def run_contract_test(tmp_path: Path) -> CommandResult:
    return Terminal(directory=tmp_path).ductile("plugin", "test", "./greet", "--json")


def assert_keeps_the_protocol(tmp_path: Path) -> None:
    result = run_contract_test(tmp_path)
    report = json.loads(result.out)
    assert [check for check in report["checks"] if check["verdict"] != "passed"] == []
    assert (result.status, report["passed"]) == (0, True)


@pytest.mark.parametrize("language", ["python", "sh"])
def test_a_new_plugin_runs_and_keeps_the_protocol(tmp_path: Path, language: str) -> None:
    """A template runs unchanged, with nothing to install, and exits with 78 on a protocol mismatch."""
    create_plugin(tmp_path, language)
    assert_keeps_the_protocol(tmp_path)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_a_new_node_plugin_keeps_the_protocol(tmp_path: Path) -> None:
    create_plugin(tmp_path, "node")
    assert_keeps_the_protocol(tmp_path)


def follow_the_next_steps(tmp_path: Path, name: str, language: str) -> str:
    """Run the lines that `plugin new` prints under Next in one shell, and return their output."""
    result = Terminal(directory=tmp_path).ductile("plugin", "new", name, "--lang", language)
    assert result.status == 0, result
    steps = result.out.partition("Next:")[2]
    path = f"{DUCTILE.parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.run(
        ["sh", "-e", "-c", steps],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "CARGO_NET_OFFLINE": "true", "GOPROXY": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process
    return process.stdout


@pytest.mark.skipif(not tool_works("go", "version"), reason="there is no go here that works")
@pytest.mark.parametrize("name", ["greet", "internal"])
def test_a_new_go_plugin_is_built_and_keeps_the_protocol(tmp_path: Path, name: str) -> None:
    """The build needs no module, so no network; the name may be a special one of Go."""
    assert f"ok: {name}, 11 checks passed" in follow_the_next_steps(tmp_path, name, "go")


@pytest.mark.skipif(not tool_works("cargo", "--version"), reason="there is no cargo here that works")
def test_a_new_rust_plugin_is_built_and_keeps_the_protocol(tmp_path: Path) -> None:
    """The build needs no crate, so no network."""
    assert "ok: greet, 11 checks passed" in follow_the_next_steps(tmp_path, "greet", "rust")


@pytest.mark.parametrize(
    ("language", "step"), [("go", "go build -o run ."), ("rust", "cargo build --release")]
)
def test_a_compiled_plugin_says_how_it_is_built(tmp_path: Path, language: str, step: str) -> None:
    """A plugin that is not built is refused."""
    terminal = Terminal(directory=tmp_path)
    assert f"cd greet && {step}" in terminal.ductile("plugin", "new", "greet", "--lang", language).out
    assert run_contract_test(tmp_path).status == 1
    assert "does not exist" in run_contract_test(tmp_path).out


def test_a_new_plugin_can_be_used_at_once(tmp_path: Path) -> None:
    """A plugin that is written below a plugin root and named in the configuration runs."""
    workspace = a_workspace(tmp_path, "  greet: {config: {name: Ada}}\n")
    assert workspace.terminal.ductile("plugin", "new", "greet", "--dir", "demo/plugins").status == 0
    assert workspace.ductile("run", "greet").out == "hello Ada\n"
    assert workspace.ductile("run", "greet", "handle", "--payload", '{"name": "Bob"}').out == "hello Bob\n"


def test_new_overwrites_nothing_and_can_be_tried(tmp_path: Path) -> None:
    """With `--dry-run` nothing is written."""
    terminal = Terminal(directory=tmp_path)
    dry_run = terminal.ductile("plugin", "new", "greet", "--dry-run")
    assert "Nothing was written." in dry_run.out
    assert not (tmp_path / "greet").exists()
    (tmp_path / "greet").mkdir()
    result = terminal.ductile("plugin", "new", "greet")
    assert result.status == 1
    assert "exists already" in result.err
    assert list((tmp_path / "greet").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["../evil"], "has to begin with a letter"),
        (["core"], "is reserved"),
        (["greet", "--lang", "cobol"], "one of python, sh, node, go, rust"),
    ],
)
def test_new_refuses_what_makes_no_sense(tmp_path: Path, words: list[str], message: str) -> None:
    """A wrong name or language is a usage error."""
    result = Terminal(directory=tmp_path).ductile("plugin", "new", *words)
    assert result.status == 2
    assert message in result.err
    assert list(tmp_path.iterdir()) == []


def test_new_takes_back_what_it_wrote_when_it_fails(tmp_path: Path) -> None:
    """A failed `plugin new` leaves no file."""
    (tmp_path / "file").write_text("")
    result = Terminal(directory=tmp_path).ductile("plugin", "new", "greet", "--dir", "file")
    assert result.status == 77
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_plugin_is_tested_by_name_with_its_configuration(tmp_path: Path) -> None:
    """The plugin gets its configured values."""
    workspace = a_workspace(tmp_path, "  keyed: {config: {api_key: canary}}\n")
    script = '#!/bin/sh\ngrep -q \'"api_key":"canary"\' && echo \'{"status": "ok", "result": 1}\'\n'
    workspace.plugin("keyed", script)
    checks = json.loads(workspace.ductile("plugin", "test", "keyed", "--json").out)["checks"]
    answers = [check["verdict"] for check in checks if check["check"] == "answers"]
    assert answers == ["passed"] * 3
    assert "canary" not in workspace.ductile("plugin", "test", "keyed").out


def test_a_plugin_that_breaks_the_protocol_fails_its_test(tmp_path: Path) -> None:
    """The exit status is 1, and each fault has a remedy."""
    a_plugin(tmp_path, "bad", script="#!/bin/sh\necho hello\n")
    result = Terminal(directory=tmp_path).ductile("plugin", "test", "./bad")
    assert result.status == 1
    assert "stdout is not one JSON object" in result.out
    assert "failed: bad, " in result.out
    assert "wrong_protocol: compare `protocol` with 2 and exit with 78 if it differs" in result.out


def test_testing_stores_nothing(tmp_path: Path) -> None:
    """A test of a plugin creates no store."""
    workspace = a_workspace(tmp_path)
    assert workspace.ductile("plugin", "test", "echo").status == 0
    assert not (tmp_path / "demo" / "data").exists()


def test_exactly_this_request_is_run(tmp_path: Path) -> None:
    """The output has stdout, stderr, exit status and their meaning."""
    script = '#!/bin/sh\ncat >&2\necho \'{"status": "error", "error": "no", "retry": false}\'\nexit 3\n'
    a_plugin(tmp_path, "mine", script=script)
    request = '{ "command" : "poll" }\n'
    (tmp_path / "request.json").write_text(request)
    terminal = Terminal(directory=tmp_path)
    result = terminal.ductile("plugin", "run", "./mine", "--request", "request.json", "--json")
    response = json.loads(result.out)
    assert result.status == 1
    assert response["stderr"] == request
    assert (response["judgement"], response["reason"], response["permanent"]) == (
        "error",
        "plugin_error",
        True,
    )
    assert (response["exit_code"], response["error"]) == (3, "no")
    output = terminal.ductile("run", "./mine", "--request", "request.json").out
    assert output.startswith("error, and not to be retried\n")
    assert "stdout\n" in output


def test_a_request_that_succeeds_ends_with_0(tmp_path: Path) -> None:
    a_plugin(tmp_path, "mine")
    (tmp_path / "request.json").write_text(json.dumps(REQUEST))
    result = Terminal(directory=tmp_path).ductile("run", "./mine", "--request", "request.json", "--json")
    assert result.status == 0
    assert json.loads(result.out)["result"] == "done"


def test_a_request_for_a_configured_plugin_leaves_no_job(tmp_path: Path) -> None:
    """The process has the environment and the timeout of the plugin."""
    workspace = a_workspace(tmp_path, "  timid: {env: {WORD: w}, timeout: 2s}\n")
    workspace.plugin("timid", '#!/bin/sh\necho "$WORD $DUCTILE_COMMAND"\nexec sleep 100\n')
    (tmp_path / "request.json").write_text(json.dumps(REQUEST))
    response = workspace.json("run", "timid", "--request", "request.json", status=1)
    assert (response["judgement"], response["stdout"]) == ("timeout", "w poll\n")
    assert workspace.json("job", "list")["jobs"] == []


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["./mine", "--request", "gone.json"], 2, "gone.json cannot be read"),
        (["./mine", "poll", "--request", "r.json"], 2, "COMMAND has no effect with --request"),
        (["./mine", "--payload", "{}", "--request", "r.json"], 2, "--payload has no effect with --request"),
        (["./gone", "--request", "r.json"], 1, "there is no directory ./gone"),
        (["./open", "--request", "r.json"], 78, "every user of this machine can change"),
    ],
)
def test_a_request_that_cannot_be_run(tmp_path: Path, words: list[str], status: int, message: str) -> None:
    a_plugin(tmp_path, "mine")
    a_plugin(tmp_path, "open").chmod(0o777)
    (tmp_path / "r.json").write_text("{}")
    result = Terminal(directory=tmp_path).ductile("run", *words)
    assert result.status == status
    assert message in result.err


def a_workspace_with_keeper(tmp_path: Path) -> Workspace:
    """Return a workspace with a plugin that keeps a token and a count, as state and as facts."""
    workspace = a_workspace(tmp_path, "  keeper: {}\n")
    answer = {"status": "ok", "result": "kept", "state_updates": {"access_token": "canary", "count": 3}}
    workspace.plugin("keeper", answering(answer))
    rule = "fact_outputs: [{when: {command: poll}, from: state_updates, fact_type: keeper.count}]\n"
    (tmp_path / "demo" / "plugins" / "keeper" / "manifest.yaml").write_text(a_manifest("keeper", extra=rule))
    return workspace


@pytest.mark.parametrize("with_daemon", [True, False])
def test_state_and_facts_are_shown_masked(tmp_path: Path, with_daemon: bool) -> None:
    """Secrets are shown only with `--reveal`, with a daemon and without."""
    workspace = a_workspace_with_keeper(tmp_path)
    assert workspace.json("plugin", "state", "keeper") == {
        "plugin": "keeper",
        "state": {},
        "updated_at": None,
    }
    for _ in range(2):
        assert workspace.ductile("run", "keeper").status == 0

    def assert_shown() -> None:
        assert workspace.json("plugin", "state", "keeper")["state"] == {
            "access_token": "********",
            "count": 3,
        }
        assert workspace.json("plugin", "state", "keeper", "--reveal")["state"]["access_token"] == "canary"
        page = workspace.json("plugin", "facts", "keeper", "-n", "1")
        (fact,) = page["facts"]
        assert (fact["fact_type"], fact["command"]) == ("keeper.count", "poll")
        assert fact["fact"] == {"access_token": "********", "count": 3}
        (next_fact,) = workspace.json("plugin", "facts", "keeper", "--cursor", page["next_cursor"])["facts"]
        assert next_fact["seq"] < fact["seq"]
        for words in (["state"], ["facts"]):
            output = workspace.ductile("plugin", *words, "keeper").out
            assert '"count": 3' in output
            assert "canary" not in output

    if with_daemon:
        with a_daemon(workspace):
            assert_shown()
    else:
        assert_shown()


def test_an_unknown_plugin_has_neither_state_nor_facts(tmp_path: Path) -> None:
    workspace = a_workspace_with_keeper(tmp_path)
    for noun in ("state", "facts"):
        result = workspace.ductile("plugin", noun, "keper")
        assert result.status == 1
        assert "did you mean keeper" in result.err
    assert workspace.ductile("plugin", "facts", "keeper").out == "keeper has no facts.\n"
    assert workspace.ductile("plugin", "state", "keeper").out == "keeper has no stored state.\n"


def checksums(workspace: Workspace) -> dict[str, dict[str, str]]:
    sealed: dict[str, dict[str, str]] = json.loads((workspace.directory / "demo" / ".checksums").read_text())
    return sealed


def test_lock_renews_plugins_and_leaves_files_as_they_were(tmp_path: Path) -> None:
    """Authorising a plugin does not authorise a change to the configuration."""
    workspace = a_workspace_with_keeper(tmp_path)
    assert workspace.ductile("config", "lock").status == 0
    before = checksums(workspace)
    for name in ("echo", "keeper"):
        with (tmp_path / "demo" / "plugins" / name / "run.sh").open("a") as script:
            script.write("# more\n")
    workspace.config.write_text(f"# more\n{workspace.config.read_text()}")
    dry_run = workspace.json("plugin", "lock", "--dry-run")
    assert [(entry["name"], entry["change"]) for entry in dry_run["sealed"]] == [
        ("echo", "changed"),
        ("keeper", "changed"),
    ]
    assert checksums(workspace) == before
    assert workspace.json("plugin", "lock", "echo")["written"] is True
    after = checksums(workspace)
    assert after["plugins"]["echo"] != before["plugins"]["echo"]
    assert after["plugins"]["keeper"] == before["plugins"]["keeper"]
    assert workspace.ductile("plugin", "lock").status == 0
    assert checksums(workspace)["files"] == before["files"]
    warnings = [problem["message"] for problem in workspace.json("config", "check")["warnings"]]
    assert warnings == ["config.yaml has changed since it was sealed:\n  only comments or formatting"]


def test_lock_needs_a_seal_and_a_plugin_that_is_used(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    a_plugin(tmp_path / "demo" / "plugins", "spare")
    assert "was never sealed" in workspace.ductile("plugin", "lock").err
    workspace.ductile("config", "lock")
    for name, message in (("spare", "is not configured"), ("gone", "there is no plugin")):
        result = workspace.ductile("plugin", "lock", name)
        assert result.status == 1
        assert message in result.err
