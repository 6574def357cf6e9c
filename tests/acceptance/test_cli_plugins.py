"""`ductile plugin …`: what becomes of each plugin, and why."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from builders.plugins import a_manifest, a_plugin
from builders.terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """\
plugins:
  echo: {}
  again:
    uses: echo
  resting:
    enabled: false
    uses: echo
  needy: {}
"""


def a_setup(directory: Path) -> Terminal:
    root = directory / "plugins"
    a_plugin(root, "echo")
    a_plugin(root, "spare")
    a_plugin(root, "open").chmod(0o777)
    a_plugin(root, "needy", manifest=a_manifest("needy", extra="config_keys: {required: [city, key]}\n"))
    (directory / "config.yaml").write_text(CONFIG)
    return Terminal(directory=directory, variables={"DUCTILE_CONFIG_DIR": str(directory)})


def statuses(terminal: Terminal) -> dict[str, Any]:
    listed = json.loads(terminal.ductile("plugin", "list", "--json").out)["plugins"]
    return {plugin["name"]: plugin for plugin in listed}


def test_every_plugin_is_listed_with_its_standing(tmp_path: Path) -> None:
    """Configured ones by their own name, others as available or refused."""
    listed = statuses(a_setup(tmp_path))
    assert {name: plugin["status"] for name, plugin in listed.items()} == {
        "echo": "active",
        "again": "active",
        "resting": "disabled",
        "needy": "refused",
        "spare": "available",
        "open": "refused",
    }
    assert listed["again"]["uses"] == "echo"
    assert listed["open"]["code"] == "world_writable"


def test_missing_required_config_refuses_the_instance_and_names_the_keys(tmp_path: Path) -> None:
    terminal = a_setup(tmp_path)
    assert "city, key" in statuses(terminal)["needy"]["reason"]
    (tmp_path / "config.yaml").write_text(CONFIG.replace("needy: {}", "needy: {config: {city: a, key: b}}"))
    assert statuses(terminal)["needy"]["status"] == "active"


def test_config_check_fails_for_configured_plugins_only(tmp_path: Path) -> None:
    """A refused plugin that is not configured is not an error of the configuration."""
    terminal = a_setup(tmp_path)
    report = terminal.ductile("config", "check", "--json")
    assert report.status == 78
    assert [plugin["name"] for plugin in json.loads(report.out)["refused"]] == ["needy"]
    (tmp_path / "config.yaml").write_text(CONFIG.replace("  needy: {}\n", ""))
    assert terminal.ductile("config", "check").status == 0
    assert terminal.ductile("plugin", "check").status == 78


def test_a_plugin_under_development_is_checked_without_a_configuration(tmp_path: Path) -> None:
    """Its author may have none."""
    directory = a_plugin(tmp_path / "somewhere", "mine")
    terminal = Terminal(directory=tmp_path)
    assert terminal.ductile("plugin", "check", "somewhere/mine").status == 0
    (directory / "run.sh").chmod(0o644)
    checked = terminal.ductile("plugin", "check", "somewhere/mine", "--json")
    assert checked.status == 78
    assert json.loads(checked.out)["plugins"][0]["code"] == "entrypoint_not_executable"


def test_looking_needs_no_seal(tmp_path: Path) -> None:
    """Commands that only read work with a broken seal, so that it can be repaired."""
    terminal = a_setup(tmp_path)
    (tmp_path / "config.yaml").write_text(CONFIG + "tokens: [{name: a, key: '${HOME}'}]\n")
    assert terminal.ductile("config", "check").status == 78
    for words in (
        ["plugin", "list"],
        ["plugin", "show", "echo"],
        ["config", "show"],
        ["config", "get", "plugins"],
    ):
        assert terminal.ductile(*words).status == 0, words


def test_a_description_cannot_drive_the_terminal(tmp_path: Path) -> None:
    """Text from files of others cannot steer the terminal."""
    manifest = a_manifest("echo", extra='description: "a\\e]0;title\\ab\\nsecond"\n')
    a_plugin(tmp_path / "plugins", manifest=manifest)
    (tmp_path / "config.yaml").write_text("plugins: {echo: {}}\n")
    terminal = Terminal(directory=tmp_path, variables={"DUCTILE_CONFIG_DIR": str(tmp_path)})
    for words in (["plugin", "list"], ["plugin", "show", "echo"]):
        assert "\x1b" not in terminal.ductile(*words).out


def test_a_plugin_that_is_used_under_other_names_only_is_shown_with_them(tmp_path: Path) -> None:
    """Its own name is not under `plugins`; it is asked for by that name all the same."""
    terminal = a_setup(tmp_path)
    (tmp_path / "config.yaml").write_text(
        "plugins:\n  one: {uses: spare}\n  two: {uses: spare}\n  again: {uses: echo}\n  echo: {}\n"
    )
    shown = terminal.ductile("plugin", "show", "spare")
    assert shown.status == 0, shown
    assert "used as" in shown.out
    assert "one, two" in shown.out
    said = json.loads(terminal.ductile("plugin", "show", "spare", "--json").out)
    assert (said["name"], said["uses"], said["status"]) == ("spare", "spare", "active")
    assert said["instances"] == ["one", "two"]
    assert [command["name"] for command in said["commands"]] == ["poll", "handle", "health"]
    both = json.loads(terminal.ductile("plugin", "show", "echo", "--json").out)
    assert (both["configured"], both["instances"]) == (True, ["again"])
    assert terminal.ductile("plugin", "check", "spare").status == 0
    # It cannot be run by that name; the error lists the names by which it can.
    ran = terminal.ductile("run", "spare")
    assert ran.status != 0
    assert "Name one of one, two." in ran.err
