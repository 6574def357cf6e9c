"""`ductile config …`: the cases that no transcript shows."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING

import pytest

from builders.terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    assert Terminal(directory=tmp_path).ductile("init", "demo").status == 0
    return Terminal(directory=tmp_path, variables={"DUCTILE_CONFIG_DIR": str(tmp_path / "demo")})


def test_show_prints_the_effective_configuration(terminal: Terminal) -> None:
    """The output has the set values and the defaults of every file."""
    configuration = json.loads(terminal.ductile("config", "show", "--json").out)
    assert configuration["service"]["log_level"] == "info"
    assert configuration["service"]["max_hops"] == 20
    assert configuration["plugins"]["echo"]["schedules"][0]["every"] == "5m"
    assert configuration["pipelines"][0]["name"] == "greeting"
    assert configuration["tokens"][0]["key"] == "${DUCTILE_ADMIN_TOKEN}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("service.log_level", "info"),
        ("service.max_hops", "20"),
        ("plugins.echo.config.message", "hello from Ductile"),
        ("plugins.echo.schedules[0].every", "5m"),
        ("api.enabled", "true"),
        ("plugin_roots", "- ./plugins"),
        ("service.facts_retention", "for ever"),
    ],
)
def test_get_prints_a_value_a_script_can_use(terminal: Terminal, key: str, value: str) -> None:
    """Text is printed without quotes."""
    assert terminal.ductile("config", "get", key).out == f"{value}\n"


def test_set_changes_the_file_that_defines_the_key(terminal: Terminal) -> None:
    """Every other line of the file stays."""
    path = terminal.directory / "demo" / "pipelines.yaml"
    before = path.read_text()
    result = terminal.ductile("config", "set", "pipelines[0].on", "echo.heard", "--json")
    assert json.loads(result.out)["file"] == str(path)
    assert path.read_text() == before.replace("on: echo.said", "on: echo.heard")


@pytest.mark.parametrize("key", ["pipelines.0.timeout", "pipelines[0].timeout"])
def test_get_returns_what_set_wrote(terminal: Terminal, key: str) -> None:
    dry_run = json.loads(terminal.ductile("config", "set", key, "5s", "--dry-run", "--json").out)
    result = terminal.ductile("config", "set", key, "5s", "--lock", "--json")
    assert result.status == 0, result
    report = json.loads(result.out)
    path = terminal.directory / "demo" / "pipelines.yaml"
    assert report["file"] == dry_run["file"] == str(path)
    assert (report["written"], report["sealed"], dry_run["written"]) == (True, True, False)
    assert terminal.ductile("config", "get", key).out == "5s\n"
    assert terminal.ductile("config", "check").status == 0


def test_set_adds_an_entry_to_a_list(terminal: Terminal) -> None:
    entry = "{name: more, on: echo.heard, steps: [{uses: echo}]}"
    count = len(json.loads(terminal.ductile("config", "get", "pipelines", "--json").out)["value"])
    result = terminal.ductile("config", "set", "pipelines[+]", entry, "--lock", "--json")
    assert result.status == 0, result
    report = json.loads(result.out)
    assert report["key"] == f"pipelines[{count}]"
    assert report["file"] == str(terminal.directory / "demo" / "pipelines.yaml")
    assert terminal.ductile("config", "get", f"{report['key']}.name").out == "more\n"
    assert terminal.ductile("config", "check").status == 0


def test_set_refuses_a_change_without_effect(terminal: Terminal) -> None:
    demo = terminal.directory / "demo"
    (demo / "pipelines.yaml").write_text(
        (demo / "pipelines.yaml").read_text() + "\nartifacts: {roots: [./there]}\n"
    )
    config = demo / "config.yaml"
    config.write_text(config.read_text() + "\nartifacts: {roots: [./here]}\n")
    before = config.read_text()
    result = terminal.ductile("config", "set", "artifacts.roots", "[./only]")
    assert result.status == 78
    assert "nothing was written" in result.err
    assert "hint: " in result.err
    assert config.read_text() == before


@pytest.mark.parametrize("key", ["service.max_hops", "plugins.echo.parallelism"])
def test_get_of_a_computed_default_is_a_number(terminal: Terminal, key: str) -> None:
    response = json.loads(terminal.ductile("config", "get", key, "--json").out)
    assert isinstance(response["value"], int)
    assert response["default"] is True


def test_set_with_lock_renews_that_file_only(terminal: Terminal) -> None:
    """Another unauthorised change stays unauthorised."""
    tokens = terminal.directory / "demo" / "tokens.yaml"
    tokens.write_text(tokens.read_text() + "# changed\n")
    assert terminal.ductile("config", "set", "service.log_level", "debug", "--lock").status == 0
    result = terminal.ductile("config", "check")
    assert result.status == 78
    assert "tokens.yaml" in result.out
    assert "config.yaml has changed" not in result.out


def test_set_with_lock_refuses_a_file_that_was_changed_before(terminal: Terminal) -> None:
    """A renewal of the seal would authorise a change that was not reviewed."""
    path = terminal.directory / "demo" / "config.yaml"
    path.write_text(path.read_text() + "# changed\n")
    before = path.read_text()
    assert terminal.ductile("config", "set", "service.log_level", "debug", "--lock").status == 78
    assert path.read_text() == before


def test_a_change_that_does_not_fit_the_plugins_is_not_written(terminal: Terminal) -> None:
    """The whole configuration is checked first, with its plugins."""
    path = terminal.directory / "demo" / "config.yaml"
    before = path.read_text()
    result = terminal.ductile("config", "set", "plugins.echo.schedules[0].command", "dance")
    assert result.status == 78
    assert "nothing was written" in result.err
    assert path.read_text() == before


def test_lock_repairs_an_unreadable_seal(terminal: Terminal) -> None:
    """An unreadable seal is an error; a new lock repairs it."""
    seal = terminal.directory / "demo" / ".checksums"
    seal.write_text("{")
    assert terminal.ductile("config", "check").status == 78
    assert terminal.ductile("config", "lock").status == 0
    assert terminal.ductile("config", "check").status == 0
    assert stat.S_IMODE(seal.stat().st_mode) == 0o600


def test_check_reports_a_mistake_in_a_changed_file_beside_the_seal(terminal: Terminal) -> None:
    """All problems are reported at once, before the file is sealed."""
    tokens = terminal.directory / "demo" / "tokens.yaml"
    tokens.write_text("tokens: [{name: admin, ky: hunter2-in-the-clear}]\n")
    result = terminal.ductile("config", "check", "--json")
    document = json.loads(result.out)
    messages = [problem["message"] for problem in document["problems"]]
    assert result.status == 78
    assert messages[0].startswith("tokens.yaml has changed since it was sealed:\n")
    assert "+ tokens[admin].ky: ********" in messages[0]
    assert {'"key" is missing', 'there is no key "ky"'} < set(messages)
    assert document["message"].startswith("the configuration is not what was sealed, and there are ")
    assert document["error"]["code"] == "integrity_violation"
    assert "hunter2" not in result.out + terminal.ductile("config", "check").out


def test_check_reports_refused_plugins_and_warnings_beside_the_seal(terminal: Terminal) -> None:
    """A broken seal hides no other problem."""
    tokens = terminal.directory / "demo" / "tokens.yaml"
    tokens.write_text(tokens.read_text() + "# changed\n")
    (terminal.directory / "demo" / ".env").chmod(0o644)
    (terminal.directory / "demo" / "plugins" / "echo" / "run.py").chmod(0o600)
    output = terminal.ductile("config", "check").out
    assert "tokens.yaml has changed since it was sealed" in output
    assert "other users can read it" in output
    assert "and 2 configured plugins cannot run: echo, announce" in output
    document = json.loads(terminal.ductile("config", "check", "--json").out)
    assert [problem["message"] for problem in document["problems"]] == [
        "tokens.yaml has changed since it was sealed:\n  only comments or formatting"
    ]
    assert [plugin["name"] for plugin in document["refused"]] == ["echo", "announce"]


def test_the_daemon_reads_nothing_beyond_a_broken_seal(terminal: Terminal) -> None:
    """An unauthorised configuration is not examined at start."""
    tokens = terminal.directory / "demo" / "tokens.yaml"
    tokens.write_text(tokens.read_text().replace("key:", "ky:"))
    result = terminal.ductile("system", "start")
    assert result.status == 78
    assert "tokens.yaml has changed since it was sealed" in result.err
    assert "no key" not in result.err


def test_a_misspelt_plugin_is_reported_where_it_is_misspelt(terminal: Terminal) -> None:
    """The correct name elsewhere is not reported."""
    config = terminal.directory / "demo" / "config.yaml"
    config.write_text(config.read_text().replace("\n  echo:", "\n  ecko:"))
    problems = json.loads(terminal.ductile("config", "check", "--json").out)["problems"]
    assert [(problem["key"], problem["hint"].partition(" Otherwise")[0]) for problem in problems] == [
        ("pipelines[0].from_plugin", "add it under `plugins`"),
        ("plugins.ecko", "did you mean echo?"),
    ]
    assert problems[1]["message"] == 'no plugin "ecko" was found in the plugin roots'


def test_missing_plugins_are_reported_only_if_the_roots_are_known(terminal: Terminal) -> None:
    """Problems that may only follow from others are not reported."""
    config = terminal.directory / "demo" / "config.yaml"
    config.write_text(config.read_text().replace("plugin_roots: [./plugins]", "plugin_roots: {a: b}"))
    (problem,) = json.loads(terminal.ductile("config", "check", "--json").out)["problems"]
    assert problem["key"] == "plugin_roots"


def test_lock_lists_what_it_authorises(terminal: Terminal) -> None:
    """The list has added, changed and removed files, and plugins."""
    demo = terminal.directory / "demo"
    config = demo / "config.yaml"
    config.write_text(config.read_text().replace("pipelines.yaml", "more.yaml"))
    (demo / "more.yaml").write_text("")
    plugin = demo / "plugins" / "echo" / "run.py"
    plugin.write_text(plugin.read_text() + "# changed\n")
    expected = {"config.yaml": "changed", "more.yaml": "new", "echo": "changed", "pipelines.yaml": "gone"}
    assert [_changes(terminal, *words) for words in (["--dry-run"], [], [])] == [expected, expected, {}]


def _changes(terminal: Terminal, *words: str) -> dict[str, str]:
    entries = json.loads(terminal.ductile("config", "lock", "--json", *words).out)["sealed"]
    return {entry["name"]: entry["change"] for entry in entries if entry["change"] != "same"}


def test_the_schema_is_a_json_document(terminal: Terminal) -> None:
    """Text and --json print the same."""
    schema = json.loads(terminal.ductile("config", "schema").out)
    assert schema == json.loads(terminal.ductile("config", "schema", "--json").out)
    assert "service" in json.dumps(schema)


def test_lock_with_names_leaves_other_changes_unsealed(terminal: Terminal) -> None:
    """Only the named file is authorised."""
    demo = terminal.directory / "demo"
    for name in ("config.yaml", "tokens.yaml"):
        (demo / name).write_text((demo / name).read_text() + "# changed\n")
    report = json.loads(terminal.ductile("config", "lock", "config.yaml", "--json").out)
    assert [(entry["name"], entry["change"]) for entry in report["sealed"]] == [("config.yaml", "changed")]
    result = terminal.ductile("config", "check")
    assert result.status == 78
    assert "tokens.yaml has changed" in result.out
    assert "config.yaml has changed" not in result.out
    assert "did you mean tokens.yaml?" in terminal.ductile("config", "lock", "token.yaml").err
    assert terminal.ductile("config", "lock", "tokens.yaml", "echo").status == 0
    assert terminal.ductile("config", "check").status == 0


def test_an_unsealed_change_is_reported_key_by_key_without_secrets(terminal: Terminal) -> None:
    """No copy of an environment file is kept, so only the fact of its change is reported."""
    demo = terminal.directory / "demo"
    config = demo / "config.yaml"
    config.write_text(config.read_text().replace("every: 5m", "every: 10m"))
    (demo / ".env").write_text("DUCTILE_ADMIN_TOKEN=hunter2-hunter2\nMORE=hunter3\n")
    output = terminal.ductile("config", "check").out
    assert ".env has changed since it was sealed" in output
    assert "hunter" not in output
    assert terminal.ductile("config", "lock", ".env").status == 0
    output = terminal.ductile("config", "check").out
    assert "~ plugins.echo.schedules[greeting].every: 5m → 10m" in output


def test_kept_copies_are_private(terminal: Terminal) -> None:
    directory = terminal.directory / "demo" / ".ductile" / "files"
    copies = list(directory.iterdir())
    assert len(copies) == 4  # none of .env, which consists of secrets
    assert {stat.S_IMODE(path.stat().st_mode) for path in copies} == {0o600}
    assert stat.S_IMODE(directory.stat().st_mode) == stat.S_IMODE(directory.parent.stat().st_mode) == 0o700


def test_unset_keeps_comments_and_order(terminal: Terminal) -> None:
    path = terminal.directory / "demo" / "config.yaml"
    before = path.read_text()
    assert "log_level: info" in before
    dry_run = terminal.ductile("config", "unset", "service.log_level", "--dry-run")
    assert "-  log_level: info" in dry_run.out
    assert path.read_text() == before
    assert terminal.ductile("config", "unset", "plugins.echo.schedules[0].jitter", "--lock").status == 0
    lines = [line for line in before.splitlines() if "jitter" not in line]
    assert path.read_text().splitlines() == lines
    assert terminal.ductile("config", "check").status == 0
    result = terminal.ductile("config", "unset", "plugins.echo.schedules[0].jitter")
    assert result.status == 1
    assert "its default applies already" in result.err
    assert "did you mean service?" in terminal.ductile("config", "unset", "servce").err


def with_editor(terminal: Terminal, command: str) -> Terminal:
    return Terminal(directory=terminal.directory, variables={**terminal.variables, "EDITOR": command})


def test_edit_checks_the_text_before_it_is_written(terminal: Terminal) -> None:
    """Without a terminal the command asks nothing. A text with an error is kept; the file is unchanged."""
    path = terminal.directory / "demo" / "config.yaml"
    before = path.read_text()
    editor = with_editor(terminal, "sed -i s/5m/never/")
    refused = editor.ductile("config", "edit")
    assert refused.status == 78
    assert "plugins.echo.schedules[0].every" in refused.err
    assert "nothing was written" in refused.err
    assert path.read_text() == before
    copy = refused.err.rpartition("your text is kept in ")[2].partition("\n")[0]
    assert "every: never" in (terminal.directory / copy).read_text()
    saved = with_editor(terminal, "sed -i s/5m/7m/").ductile("config", "edit", "--lock")
    assert saved.status == 0, saved
    assert path.read_text() == before.replace("5m", "7m")
    assert terminal.ductile("config", "check").status == 0
    unchanged = with_editor(terminal, "true").ductile("config", "edit", "tokens.yaml")
    assert (unchanged.status, unchanged.out) == (0, "Nothing was changed.\n")
    failed = with_editor(terminal, "false").ductile("config", "edit")
    assert failed.status == 1
    assert "the editor false ended with status 1" in failed.err
