"""Shipped plugins in a configuration whose plugin roots do not name them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from builders.daemons import Workspace, a_daemon, a_workspace, answering
from builders.plugins import a_plugin
from builders.shipped import ROOT

CONFIG = "plugins:\n  echo: {config: {message: hello}}\n  again: {uses: echo}\n"
SOURCE = Path(__file__).parents[2] / "src" / "ductile"
OTHER_USER = 65534


class Installation:
    """A copy of the package as a wheel installs it, with the shipped plugins inside."""

    def __init__(self, directory: Path) -> None:
        self.package = directory / "site" / "ductile"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(SOURCE, self.package, ignore=ignored)
        shutil.copytree(ROOT, self.package / "shipped_plugins", ignore=ignored)
        self.directory = directory

    def json(self, *words: str, status: int = 0) -> dict[str, Any]:
        process = subprocess.run(
            [sys.executable, "-m", "ductile", *words, "--config", "demo", "--json"],
            cwd=self.directory,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.directory),
                "LANG": "C.UTF-8",
                "PYTHONPATH": str(self.package.parent),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == status, process
        document: dict[str, Any] = json.loads(process.stdout)
        return document


def write_config(directory: Path, text: str) -> Path:
    config = directory / "demo" / "config.yaml"
    config.parent.mkdir(exist_ok=True)
    config.write_text(text)
    return config


def test_a_shipped_plugin_runs_without_a_root(tmp_path: Path) -> None:
    """The name is enough, also for an alias, and a missing default root is no warning then."""
    write_config(tmp_path, CONFIG)
    workspace = Workspace(directory=tmp_path)
    workspace.ductile("config", "lock")
    with a_daemon(workspace):
        job = workspace.json("run", "again")
    assert job["result"]["status"] == "ok"
    assert workspace.json("config", "check")["warnings"] == []
    report = workspace.json("plugin", "list")
    assert {plugin["name"]: plugin["from"] for plugin in report["plugins"]} == {
        "echo": "shipped",
        "again": "shipped",
    }
    assert "fetch" in report["shipped"]
    assert "echo" not in report["shipped"]


def test_an_own_plugin_of_that_name_is_used_instead(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    workspace.plugin("fetch", answering({"status": "ok", "result": "my own"}))
    workspace.append("  fetch: {}\n")
    assert workspace.json("run", "fetch")["result"]["result"] == "my own"
    report = workspace.json("plugin", "list")
    sources = {plugin["name"]: plugin["from"] for plugin in report["plugins"]}
    assert sources["fetch"] == str(tmp_path / "demo" / "plugins")
    messages = [warning["message"] for warning in workspace.json("config", "check")["warnings"]]
    assert messages == ["the configuration has never been sealed"]


def test_a_refused_own_plugin_is_not_replaced_by_the_shipped_one(tmp_path: Path) -> None:
    """The shipped plugin of the same name may do something else."""
    workspace = a_workspace(tmp_path, "  fetch: {}\n")
    a_plugin(tmp_path / "demo" / "plugins", "fetch", mode=0o644)
    refused = workspace.json("config", "check", status=78)["refused"]
    assert [(plugin["name"], plugin["code"]) for plugin in refused] == [
        ("fetch", "entrypoint_not_executable")
    ]


def test_an_unused_shipped_plugin_is_described_and_suggested(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    assert workspace.json("plugin", "show", "fetch")["status"] == "available"
    assert "did you mean fetch?" in workspace.ductile("plugin", "show", "fetsch").err
    assert "installed but not active" in workspace.ductile("run", "fetch").err
    workspace.append("  fetsch: {}\n")
    assert "did you mean fetch?" in workspace.ductile("config", "check").out


def test_an_upgrade_of_ductile_needs_no_new_seal(tmp_path: Path) -> None:
    """A shipped plugin changes with the program, without a refusal in strict mode and without a warning."""
    write_config(tmp_path, f"service: {{strict_mode: true}}\n{CONFIG}")
    installation = Installation(tmp_path)
    installation.json("config", "lock")
    entrypoint = installation.package / "shipped_plugins" / "echo" / "run.py"
    entrypoint.write_text(f"{entrypoint.read_text()}\n# of the next version\n")
    assert installation.json("config", "check")["warnings"] == []
    assert installation.json("run", "echo")["result"]["status"] == "ok"


def test_a_root_that_names_the_shipped_plugins_needs_no_new_seal_either(tmp_path: Path) -> None:
    """An older seal may have the fingerprints of shipped plugins."""
    installation = Installation(tmp_path)
    root = installation.package / "shipped_plugins"
    write_config(tmp_path, f"service: {{strict_mode: true}}\nplugin_roots: [{root}]\n{CONFIG}")
    installation.json("config", "lock")
    seal = tmp_path / "demo" / ".checksums"
    content = json.loads(seal.read_text())
    assert content["plugins"] == {}
    content["plugins"]["echo"] = f"blake3:{'0' * 64}"
    seal.write_text(json.dumps(content))
    assert installation.json("config", "check")["warnings"] == []


def test_a_sealed_own_plugin_that_vanished_is_reported(tmp_path: Path) -> None:
    """The shipped plugin of the same name would replace it unnoticed."""
    workspace = a_workspace(tmp_path)
    workspace.ductile("config", "lock")
    shutil.rmtree(tmp_path / "demo" / "plugins" / "echo")
    messages = [warning["message"] for warning in workspace.json("config", "check")["warnings"]]
    assert messages == ["plugin echo has changed since it was sealed"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_an_installation_that_another_user_can_change_is_refused(tmp_path: Path) -> None:
    """The hint is about the installation. Plugins that are not in use are no problem of `plugin check`."""
    write_config(tmp_path, CONFIG)
    installation = Installation(tmp_path)
    os.chown(installation.package / "shipped_plugins" / "lib" / "README.md", OTHER_USER, OTHER_USER)
    refused = installation.json("config", "check", status=78)["refused"]
    assert {plugin["code"] for plugin in refused} == {"foreign_owner"}
    assert all("install Ductile as root or as the user who runs it" in plugin["hint"] for plugin in refused)
    write_config(tmp_path, "plugins: {}\n")
    assert installation.json("plugin", "check")["plugins"] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_installation_of_root_serves_another_user() -> None:
    """A daemon that runs as its own user may use plugins that root has installed."""
    program = (
        "import os, sys\n"
        "from ductile.plugins.discovery import load_shipped\n"
        "load_shipped(['echo'])  # Python loads what it needs while it may read its own files\n"
        "os.setuid(int(sys.argv[1]))\n"
        "print([type(plugin).__name__ for plugin in load_shipped(['echo'])])\n"
    )
    # The directories of pytest are for one user only.
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        installation = Installation(Path(directory))
        process = subprocess.run(
            [sys.executable, "-c", program, str(OTHER_USER)],
            env={"PYTHONPATH": str(installation.package.parent), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
        )
    assert process.stdout == "['InstalledPlugin']\n", process
