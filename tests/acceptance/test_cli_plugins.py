"""`ductile plugin …`: the status of each plugin, and the reason for it."""

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


def a_terminal_with_plugins(directory: Path) -> Terminal:
    root = directory / "plugins"
    a_plugin(root, "echo")
    a_plugin(root, "spare")
    a_plugin(root, "open").chmod(0o777)
    a_plugin(root, "needy", manifest=a_manifest("needy", extra="config_keys: {required: [city, key]}\n"))
    (directory / "config.yaml").write_text(CONFIG)
    return Terminal(directory=directory, variables={"DUCTILE_CONFIG_DIR": str(directory)})


def plugins_by_name(terminal: Terminal) -> dict[str, Any]:
    plugins = json.loads(terminal.ductile("plugin", "list", "--json").out)["plugins"]
    return {plugin["name"]: plugin for plugin in plugins}


def test_every_plugin_is_listed_with_its_status(tmp_path: Path) -> None:
    """Configured plugins are listed by their own name, others as available or refused."""
    plugins = plugins_by_name(a_terminal_with_plugins(tmp_path))
    assert {name: plugin["status"] for name, plugin in plugins.items()} == {
        "echo": "active",
        "again": "active",
        "resting": "disabled",
        "needy": "refused",
        "spare": "available",
        "open": "refused",
    }
    assert plugins["again"]["uses"] == "echo"
    assert plugins["open"]["code"] == "world_writable"


def test_missing_required_config_refuses_the_instance_and_names_the_keys(tmp_path: Path) -> None:
    terminal = a_terminal_with_plugins(tmp_path)
    assert "city, key" in plugins_by_name(terminal)["needy"]["reason"]
    (tmp_path / "config.yaml").write_text(CONFIG.replace("needy: {}", "needy: {config: {city: a, key: b}}"))
    assert plugins_by_name(terminal)["needy"]["status"] == "active"


def test_config_check_fails_for_configured_plugins_only(tmp_path: Path) -> None:
    """A refused plugin that is not configured is not an error of the configuration."""
    terminal = a_terminal_with_plugins(tmp_path)
    result = terminal.ductile("config", "check", "--json")
    assert result.status == 78
    assert [plugin["name"] for plugin in json.loads(result.out)["refused"]] == ["needy"]
    (tmp_path / "config.yaml").write_text(CONFIG.replace("  needy: {}\n", ""))
    assert terminal.ductile("config", "check").status == 0
    assert terminal.ductile("plugin", "check").status == 78


def test_a_plugin_under_development_is_checked_without_a_configuration(tmp_path: Path) -> None:
    """The author of a plugin may have no configuration."""
    directory = a_plugin(tmp_path / "somewhere", "mine")
    terminal = Terminal(directory=tmp_path)
    assert terminal.ductile("plugin", "check", "somewhere/mine").status == 0
    (directory / "run.sh").chmod(0o644)
    result = terminal.ductile("plugin", "check", "somewhere/mine", "--json")
    assert result.status == 78
    assert json.loads(result.out)["plugins"][0]["code"] == "entrypoint_not_executable"


def test_looking_needs_no_seal(tmp_path: Path) -> None:
    """Commands that only read work with a broken seal, so that it can be repaired."""
    terminal = a_terminal_with_plugins(tmp_path)
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
    """`plugin show` accepts the plugin's own name, although `plugins` does not have it."""
    terminal = a_terminal_with_plugins(tmp_path)
    (tmp_path / "config.yaml").write_text(
        "plugins:\n  one: {uses: spare}\n  two: {uses: spare}\n  again: {uses: echo}\n  echo: {}\n"
    )
    result = terminal.ductile("plugin", "show", "spare")
    assert result.status == 0, result
    assert "used as" in result.out
    assert "one, two" in result.out
    spare = json.loads(terminal.ductile("plugin", "show", "spare", "--json").out)
    assert (spare["name"], spare["uses"], spare["status"]) == ("spare", "spare", "active")
    assert spare["instances"] == ["one", "two"]
    assert [command["name"] for command in spare["commands"]] == ["poll", "handle", "health"]
    echo = json.loads(terminal.ductile("plugin", "show", "echo", "--json").out)
    assert (echo["configured"], echo["instances"]) == (True, ["again"])
    assert terminal.ductile("plugin", "check", "spare").status == 0
    # The plugin cannot be run by its own name; the error lists the names by which it can.
    refused = terminal.ductile("run", "spare")
    assert refused.status != 0
    assert "Name one of one, two." in refused.err
