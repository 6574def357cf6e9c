"""Properties of every shipped plugin."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import pytest

from builders.shipped import ROOT
from builders.terminal import Terminal
from ductile.config.snapshot import InstalledPlugin
from ductile.plugins.discovery import discover, load_directory, load_shipped
from ductile.plugins.shipped import shipped_names

NAMES = [
    "echo",
    "fetch",
    "file_watch",
    "folder_watch",
    "garmin",
    "github",
    "google_calendar",
    "health_analyzer",
    "if",
    "mail",
    "notify",
    "ollama",
    "openai_compatible",
    "rss",
    "shell",
    "sqlite_query",
    "withings",
]
GARMIN_URLS = ("sso_url", "auth_url", "api_url")
#: Settings with which each plugin works.
SETTINGS = {
    "if": {"rules": [{"when": {"path": "payload.a", "op": "exists"}, "emit": "x"}]},
    "file_watch": {"paths": ["/nowhere/at/all"]},
    "folder_watch": {"path": str(ROOT)},
    "garmin": {"username": "a", "password": "b", **dict.fromkeys(GARMIN_URLS, "http://127.0.0.1:9")},
    "mail": {
        "smtp": {"host": "127.0.0.1", "port": 9, "security": "none"},
        "from": "a@b.org",
        "to": "a@b.org",
    },
    "google_calendar": {"client_id": "a", "client_secret": "b"},
    "notify": {"secret_urls": ["json://localhost"]},
    "ollama": {"base_url": "http://127.0.0.1:9", "model": "m"},
    "openai_compatible": {"base_url": "http://127.0.0.1:9/v1", "model": "m"},
    "rss": {"feeds": ["http://127.0.0.1:9/"]},
    "sqlite_query": {"database": "/nowhere/at/all.db"},
    "shell": {"programs": {"text": ["true"]}, "poll": "text"},
    "withings": {"client_id": "a", "client_secret": "b"},
}


def load_plugin(name: str) -> InstalledPlugin:
    plugin = load_directory(ROOT / name)
    assert isinstance(plugin, InstalledPlugin)
    return plugin


def test_these_are_shipped_and_trusted() -> None:
    """All plugins load without a warning; lib/ is not taken for a plugin."""
    discovery = discover([ROOT])
    assert sorted(discovery.installed) == NAMES
    assert not discovery.refused
    assert not discovery.warnings


@pytest.mark.parametrize("name", NAMES)
def test_it_passes_the_contract_checks(name: str, tmp_path: Path) -> None:
    """`ductile plugin test` finds nothing, with a usable config and with none."""
    terminal = Terminal(directory=tmp_path)
    for settings in (SETTINGS.get(name, {}), {}):
        result = terminal.ductile(
            "plugin", "test", str(ROOT / name), "--settings", json.dumps(settings), "--json"
        )
        assert result.status == 0, result.out
        failed = [check for check in json.loads(result.out)["checks"] if check["verdict"] != "passed"]
        # Without the package apprise, notify says so by exit 78.
        assert [check["message"] for check in failed if "apprise" not in check["message"]] == []


@pytest.mark.parametrize("name", NAMES)
def test_its_manifest_describes_it(name: str) -> None:
    """Catalogues and agents read the description of a plugin."""
    manifest = load_plugin(name).manifest
    assert manifest.description
    assert "health" in manifest.commands
    for command in manifest.commands.values():
        assert command.description, command.name
        assert command.idempotent is not None, command.name


@pytest.mark.parametrize("name", NAMES)
def test_its_page_names_every_command_key_and_event(name: str) -> None:
    """The page of a plugin is its README."""
    manifest = load_plugin(name).manifest
    page = (ROOT / name / "README.md").read_text()
    for name_on_page in (*manifest.commands, *manifest.required_config, *manifest.optional_config):
        assert f"`{name_on_page}`" in page, name_on_page
    for command in manifest.commands.values():
        for event in command.emits:
            assert event.type.split(".")[0] in page


@pytest.mark.parametrize("name", NAMES)
def test_the_example_on_its_page_is_a_configuration(name: str, tmp_path: Path) -> None:
    """The example can be copied, and has only keys of the plugin."""
    (example,) = re.findall(
        r"^```yaml\n(.*?)^```$", (ROOT / name / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    (tmp_path / "config.yaml").write_text(f"plugin_roots: [{ROOT}]\n{example}")
    secrets = dict.fromkeys(re.findall(r"\$\{(\w+)\}", example), "secret")
    variables = {"DUCTILE_CONFIG_DIR": str(tmp_path), **secrets}
    terminal = Terminal(directory=tmp_path, variables=variables)
    assert terminal.ductile("config", "lock").status == 0
    result = terminal.ductile("config", "check", "--json")
    assert (result.status, json.loads(result.out)["warnings"]) == (0, []), result.out
    plugins = json.loads(terminal.ductile("config", "show", "plugins", "--json").out)
    manifest = load_plugin(name).manifest
    configs = [
        plugin.get("config", {}) for key, plugin in plugins.items() if name in (key, plugin.get("uses"))
    ]
    assert configs
    for config in configs:
        assert set(config) <= {*manifest.required_config, *manifest.optional_config}


@pytest.mark.parametrize("name", NAMES)
def test_it_imports_the_standard_library_and_the_sdk(name: str) -> None:
    """Shipped plugins import only their own modules, those of lib/ and packages that their page names."""
    nodes = [node for file in (ROOT / name).glob("*.py") for node in ast.walk(ast.parse(file.read_text()))]
    imported = {(node.module or "").partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    imported |= {
        alias.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names
    }
    own = {file.stem for file in (*(ROOT / name).glob("*.py"), *(ROOT / "lib").iterdir())}
    assert imported - sys.stdlib_module_names <= own | ({"apprise"} if name == "notify" else set())


def test_a_shipped_plugin_is_in_the_directory_of_its_name() -> None:
    """A plugin is found by its name without reading all manifests."""
    assert [plugin.name for plugin in load_shipped(shipped_names())] == [*shipped_names()]
    assert shipped_names()
