"""Typical mistakes of a new user: each error names the cause and a remedy."""

from __future__ import annotations

import io
import re
import shlex
import shutil
from pathlib import Path

import pytest

from builders.terminal import Terminal
from ductile.cli.command_table import NOUNS
from ductile.cli.main import run


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the files of `ductile init demo` and a store with one job."""
    directory = tmp_path_factory.mktemp("mistakes")
    terminal = Terminal(directory=directory)
    assert terminal.ductile("init", "demo").status == 0
    assert terminal.ductile("run", "echo", "--config", "demo").status == 0
    return directory


def run_line(directory: Path, line: str) -> tuple[int, str, str]:
    """Return exit status, output and errors of a line, run with the configuration in `demo`."""
    out, err = io.StringIO(), io.StringIO()
    words = [*shlex.split(line), "--config", str(directory / "demo")]
    status = run(words, {"HOME": str(directory), "EDITOR": "true"}, out, err)
    return status, out.getvalue(), err.getvalue()


MISTAKES = {
    "run ecko": ("there is no plugin or pipeline ecko", "did you mean echo?"),
    "run zebra": ("there is no plugin or pipeline zebra", "ductile plugin list"),
    "run fetch": ("the plugin fetch is installed but not active", "plugins.fetch.enabled true"),
    "run echo hadle": ("echo has no command hadle", "did you mean handle? It has poll, handle, health."),
    "run echo handle --payload '{name: Ada}'": ("the payload is not JSON", '--payload \'{"name": "Ada"}\''),
    "run echo handle --payload '[1]'": ("must be a JSON object", "wrap it"),
    "run echo handle --payload @nope.json": ("nope.json cannot be read", "it is looked for in "),
    "run echo --no-wait": ("no daemon is running", "ductile system start"),
    "reload": ("no daemon is running", "ductile system start"),
    "stop": ("no daemon is running", "nothing to stop"),
    "strat": ("unknown command 'strat'", "did you mean `ductile start"),
    "cancel": ("unknown command 'cancel'", "did you mean `ductile job cancel"),
    "job shwo 01": ("job has no action 'shwo'", "did you mean `ductile job show"),
    "job show": ("needs JOB", "ductile job show --help"),
    "job show 0000aaaa": ("there is no job 0000aaaa", "ductile job list"),
    "job show 01": ("there is no job 01", "at least 4 digits"),
    "job list -n": ("-n or --limit needs a value", "ductile job list --help"),
    "job list --status done": ("--status: unknown value 'done'", "succeeded"),
    "job list --plugin ecko": ("there is no plugin ecko", "did you mean echo?"),
    "schedule pause ecko": ("there is no plugin ecko", "did you mean echo?"),
    "schedule explain announce": ("announce has no schedule", "ductile schedule list"),
    "pipeline run helo": ("there is no pipeline helo", "did you mean hello?"),
    "pipeline run order": ("there is no pipeline order", "ductile pipeline list"),
    "config get plugins.ecko": ("nothing is set at plugins.ecko", "did you mean echo?"),
    "config get plugins.zebra": ("nothing is set at plugins.zebra", "plugins has echo, announce"),
    "config get service.log_lvl": ("there is no key service.log_lvl", "did you mean log_level?"),
    "token revoke nobody": ("there is no token nobody", "ductile token list"),
    "token create ci --scopes jobs:read": ("unknown scope 'jobs:read'", "did you mean jobs:ro?"),
    "plugin new x --lang perl": ("there is no template for 'perl'", "python, sh"),
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_reported_with_a_hint(line: str, starter: Path) -> None:
    message, remedy = MISTAKES[line]
    status, _, err = run_line(starter, line)
    error, separator, hint = err.partition("hint: ")
    assert status != 0
    assert error.startswith("error: ")
    assert message in error
    assert separator, err
    assert remedy in hint


def test_a_start_that_leaves_plugins_out_names_them(tmp_path: Path) -> None:
    terminal = Terminal(directory=tmp_path)
    terminal.ductile("init", "demo")
    assert (
        terminal.ductile("config", "set", "api.listen", "localhost:0", "--lock", "--config", "demo").status
        == 0
    )
    (tmp_path / "demo" / "plugins" / "echo" / "run.py").chmod(0o600)
    result = terminal.ductile("start", "--dry-run", "--config", "demo")
    assert "and 0 plugins." in result.out
    assert "Without echo, announce, which cannot run: `ductile plugin check --config demo`" in result.out


def test_status_without_plugins_says_so(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "config.yaml").write_text("{}\n")
    result = Terminal(directory=tmp_path).ductile("status", "--config", "demo")
    assert result.status == 0, result
    assert "No plugin is configured. `ductile plugin list --config demo`" in result.out


#: Examples that wait for ever, need a daemon, an endpoint, an account, a repository, a database server or an
#: id, or write elsewhere.
_NOT_TYPED = (
    "--follow",
    "webhook send",
    "plugin authorize",
    "ui open",
    "mcp serve",
    "move-store",
    "plugin update weather",
    "plugin remove weather",
    "8000a1b2c3d4",
    "59bfba07",
    "/var/backups",
    "--no-wait",
    "--stdin",
    "--drain",
    "@",
)
_EXAMPLES = [
    example.line
    for noun in NOUNS
    for action in noun.actions
    for example in action.examples
    if not any(part in example.line for part in _NOT_TYPED)
]


def test_every_example_of_the_help_works_in_a_starter_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Examples name plugins and pipelines that `ductile init` writes; `backup.sh` is the user's own."""
    terminal = Terminal(directory=tmp_path)
    assert terminal.ductile("init", "demo").status == 0
    monkeypatch.chdir(tmp_path)
    for line in ("new greet --lang sh", "new weather --lang sh"):
        assert run_line(tmp_path, f"plugin {line}")[0] == 0
    assert run_line(tmp_path, "config set service.log_level debug --lock")[0] == 0  # to be rolled back
    (tmp_path / "demo" / "tests").mkdir()
    for line in (
        'run hello --payload \'{"name": "Ada"}\'',
        "test hello --record last -o demo/tests/hello.yaml",
    ):
        assert run_line(tmp_path, f"pipeline {line}")[0] == 0  # cases to be tested
    assert run_line(tmp_path, "exec -- false")[0] == 1  # to be exported
    shutil.copytree(tmp_path / "demo" / "plugins" / "echo", tmp_path / "echo-new")
    script = tmp_path / "backup.sh"
    script.write_text("#!/bin/sh\necho saved.tar.gz\n")
    script.chmod(0o700)
    failures = []
    for line in sorted(_EXAMPLES, key=lambda line: line.endswith("--verify")):
        status, out, err = run_line(tmp_path, line.removeprefix("ductile "))
        if status != 0:
            failures.append((line, out, err))
    assert not failures, "\n".join(map(str, failures))


def test_the_next_steps_of_a_new_plugin_put_it_to_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line below `Next:` works as it is printed; after them the plugin can be run."""
    assert Terminal(directory=tmp_path).ductile("init", "demo").status == 0
    monkeypatch.chdir(tmp_path)
    _, out, _ = run_line(tmp_path, "plugin new greet --lang sh")
    steps = re.findall(r"^  ductile (.+)$", out.partition("Next:")[2], re.MULTILINE)
    assert steps == ["plugin test ./greet", "plugin add ./greet"]
    for step in (*steps, "run greet"):
        assert run_line(tmp_path, step)[0] == 0, step


def test_rotate_names_the_variable_that_has_the_new_secret(tmp_path: Path) -> None:
    """The old secret keeps its variable, which scripts may read, until it is refused."""
    terminal = Terminal(directory=tmp_path)
    assert terminal.ductile("init", "demo").status == 0
    result = terminal.ductile("token", "rotate", "admin", "--config", "demo")
    assert result.status == 0, result
    variable = re.search(r"tokens\.yaml, as (\w+)\.", result.out + result.err)
    assert variable is not None, result
    value = re.search(r"^dtl_\S+$", result.out, re.MULTILINE)
    assert value is not None, result
    assert f"{variable[1]}={value[0]}\n" in (tmp_path / "demo" / ".env").read_text()


def test_the_hint_for_a_job_that_waits_for_its_next_attempt_runs_it_now(tmp_path: Path) -> None:
    """The next attempt is an hour away: after the fault is mended, cancel and retry run the job at once."""
    terminal = Terminal(directory=tmp_path)
    assert terminal.ductile("init", "demo").status == 0
    night = '{run: "test -e demo-is-mended", retry: {backoff_base: 1h}}'
    assert terminal.ductile("config", "set", "plugins.night", night, "--lock", "--config", "demo").status == 0
    assert "it will be retried" in terminal.ductile("run", "night", "--retry", "--config", "demo").err
    refused = terminal.ductile("job", "retry", "last:night", "--config", "demo")
    assert refused.status == 1
    commands = re.findall(r"`ductile (job .+?)`", refused.err)
    assert [line.split()[1] for line in commands] == ["cancel", "retry"], refused
    for line in commands:
        assert terminal.ductile(*line.split()).status == 0, line
