"""`plugin add`, `update` and `remove`, with real repositories, hostile archives and a running daemon."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from builders.daemons import Workspace, a_daemon, a_workspace, answering
from builders.plugins import a_manifest, a_plugin

SCRIPT_TEXT = answering({"status": "ok", "result": "{}"})
CONFIG_KEYS = "config_keys: {required: [city], optional: [unit]}\n"


def a_weather_plugin(root: Path, *, result: str = "sunny", manifest: str | None = None) -> Path:
    return a_plugin(root, "weather", manifest=manifest, script=answering({"status": "ok", "result": result}))


def a_sealed_workspace(directory: Path, more: str = "") -> Workspace:
    """Return a workspace in strict mode, so that everything that is not sealed is an error."""
    workspace = a_workspace(directory, more)
    workspace.config.write_text(
        workspace.config.read_text().replace("service:\n", "service:\n  strict_mode: true\n")
    )
    workspace.json("config", "lock")
    return workspace


def git(repository: Path, *words: str) -> str:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "init.defaultBranch=main")
    process = subprocess.run(
        ["git", *identity, *words], cwd=repository, check=True, capture_output=True, text=True
    )
    return process.stdout.strip()


def a_repository(directory: Path) -> Path:
    """Return a repository with two plugins below `plugins`, and a tag for each of two versions."""
    repository = directory / "repository"
    a_weather_plugin(repository / "plugins")
    a_plugin(repository / "plugins", "wind")
    git(repository, "init", "--quiet")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "first")
    git(repository, "tag", "v1")
    manifest = a_manifest("weather").replace("1.0.0", "1.1.0").replace("health]", "health, forecast]")
    (repository / "plugins" / "weather" / "manifest.yaml").write_text(manifest)
    git(repository, "commit", "--quiet", "--all", "--message", "second")
    git(repository, "tag", "--annotate", "v2", "--message", "v2")
    return repository


def plugins_by_name(workspace: Workspace) -> dict[str, Any]:
    return {plugin["name"]: plugin for plugin in workspace.json("plugin", "list")["plugins"]}


def files_below(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def test_a_shipped_plugin_is_only_named(tmp_path: Path) -> None:
    """A shipped plugin is not copied; comments of the configuration stay."""
    workspace = a_sealed_workspace(tmp_path)
    workspace.config.write_text(f"# mine\n{workspace.config.read_text()}")
    workspace.json("config", "lock")
    added = workspace.json(
        "plugin", "add", "fetch", "--as", "web", "--settings", '{"url": "https://example.org"}'
    )
    assert (added["name"], added["plugin"], added["source"], added["directory"]) == (
        "web",
        "fetch",
        "shipped",
        None,
    )
    assert workspace.config.read_text().startswith("# mine\n")
    assert workspace.json("config", "check")["warnings"] == []
    assert plugins_by_name(workspace)["web"]["from"] == "shipped"


def test_a_directory_is_added_to_a_running_daemon(tmp_path: Path) -> None:
    """One command copies, seals, configures and reloads; the plugin runs after it."""
    workspace = a_sealed_workspace(tmp_path)
    source = a_weather_plugin(tmp_path / "elsewhere")
    with a_daemon(workspace):
        added = workspace.json("plugin", "add", str(source))
        assert added["reloaded"]["added"] == ["weather"]
        assert workspace.json("run", "weather")["result"]["result"] == "sunny"
    installed = tmp_path / "demo" / "plugins" / "weather"
    assert stat.S_IMODE((installed / "run.sh").stat().st_mode) & 0o022 == 0
    record = json.loads((installed / ".ductile-source.json").read_text())
    assert (record["source"], record["hash"]) == (str(source), added["hash"])
    assert sorted(record["files"]) == ["manifest.yaml", "run.sh"]
    assert workspace.json("config", "check")["warnings"] == []
    assert workspace.json("plugin", "show", "weather")["source"] == str(source)


def test_a_dry_run_shows_everything_and_changes_nothing(tmp_path: Path) -> None:
    workspace = a_sealed_workspace(tmp_path)
    source = a_weather_plugin(tmp_path / "elsewhere", manifest=a_manifest("weather", extra=CONFIG_KEYS))
    before = files_below(tmp_path / "demo")
    output = workspace.ductile("plugin", "add", str(source), "--dry-run").out
    for text in (
        "required config  city",
        "poll",
        "run.sh (",
        "unrestricted",
        "not confined",
        "+  weather: {}",
    ):
        assert text in output
    assert "ductile config set plugins.weather.config.city VALUE --apply --config demo" in output
    assert files_below(tmp_path / "demo") == before


def test_a_required_key_is_asked_for_and_the_advice_works(tmp_path: Path) -> None:
    """The plugin is refused until the key is set."""
    workspace = a_sealed_workspace(tmp_path)
    source = a_weather_plugin(tmp_path / "elsewhere", manifest=a_manifest("weather", extra=CONFIG_KEYS))
    assert workspace.json("plugin", "add", str(source))["missing_config"] == ["city"]
    refused = workspace.json("config", "check", status=78)["refused"]
    assert [plugin["code"] for plugin in refused] == ["missing_config"]
    assert "ductile config set plugins.weather.config.city VALUE" in refused[0]["hint"]
    workspace.json("config", "set", "plugins.weather.config.city", "Wien", "--apply")
    assert workspace.json("run", "weather")["result"]["result"] == "sunny"


def test_a_tag_of_a_repository_is_added_updated_and_removed(tmp_path: Path) -> None:
    workspace, repository = a_sealed_workspace(tmp_path), a_repository(tmp_path)
    source = f"git+file://{repository}@v1"
    result = workspace.ductile("plugin", "add", source)
    assert result.status == 2
    assert "weather, wind" in result.err
    assert "--plugin NAME" in result.err
    unknown = workspace.ductile("plugin", "add", f"git+file://{repository}@v9").err
    assert "its tags are v2, v1" in unknown
    with a_daemon(workspace):
        added = workspace.json("plugin", "add", f"{source}#path=plugins/weather")
        assert added["commit"] == git(repository, "rev-parse", "v1")
        workspace.json("run", "weather")
        updated = workspace.json("plugin", "update", "weather", "--to", "v2")
        assert updated["after"]["commit"] == git(repository, "rev-parse", "v2^{commit}")
        assert updated["interface"] == ["version 1.0.0 becomes 1.1.0", "command forecast is new (write)"]
        assert [file["name"] for file in updated["files"]] == ["manifest.yaml"]
        assert updated["reloaded"]["changed"] == ["weather"]
        workspace.json("run", "weather", "forecast")
        assert workspace.json("config", "check")["warnings"] == []
        removed = workspace.json("plugin", "remove", "weather")
        assert removed["reloaded"]["removed"] == ["weather"]
    assert [path.name for path in (tmp_path / "demo" / "plugins").iterdir()] == ["echo"]
    assert workspace.json("config", "check")["warnings"] == []
    assert "weather" not in plugins_by_name(workspace)


def test_a_commit_is_taken_by_its_id_and_a_branch_is_refused(tmp_path: Path) -> None:
    workspace, repository = a_sealed_workspace(tmp_path), a_repository(tmp_path)
    commit = git(repository, "rev-parse", "v1")
    assert (
        workspace.json("plugin", "add", f"git+file://{repository}@{commit}", "--plugin", "wind")["commit"]
        == commit
    )
    assert (
        "has no tag or commit main" in workspace.ductile("plugin", "add", f"git+file://{repository}@main").err
    )
    assert (
        "the tag or commit is missing" in workspace.ductile("plugin", "add", f"git+file://{repository}").err
    )
    error = workspace.ductile("plugin", "add", "git+https://ada:canary@example.org/x.git@v1").err
    assert "must not hold a password" in error
    assert "canary" not in error


def test_a_commit_is_not_replaced_by_a_tag_of_its_name(tmp_path: Path) -> None:
    """A pinned commit is used also if the repository has a tag with its digits as the name."""
    workspace, repository = a_sealed_workspace(tmp_path), a_repository(tmp_path)
    commit = git(repository, "rev-parse", "v1")
    git(repository, "update-ref", f"refs/tags/{commit}", git(repository, "rev-parse", "v2^{commit}"))
    source = f"git+file://{repository}@{commit}#path=plugins/weather"
    assert workspace.json("plugin", "add", source)["version"] == "1.0.0"


def test_no_filter_of_the_user_runs_for_a_repository(tmp_path: Path) -> None:
    """The attributes of a repository name filters, such as that of LFS: none of them starts a program."""
    workspace, repository = a_sealed_workspace(tmp_path), a_repository(tmp_path)
    (repository / ".gitattributes").write_text("* filter=mine\n")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "third")
    git(repository, "tag", "v3")
    home = workspace.terminal.directory / "home"
    home.mkdir(exist_ok=True)
    (home / ".gitconfig").write_text(f'[filter "mine"]\n  smudge = tee {tmp_path}/ran\n  required = true\n')
    workspace.json("plugin", "add", f"git+file://{repository}@v3", "--plugin", "wind")
    assert not (tmp_path / "ran").exists()


def test_a_token_in_the_address_of_a_repository_is_refused(tmp_path: Path) -> None:
    """Some services take a token as the user name. An accepted URL is stored beside the plugin, and shown."""
    result = a_sealed_workspace(tmp_path).ductile("plugin", "add", "git+https://canary@example.org/x.git@v1")
    assert result.status == 2
    assert "must not hold" in result.err
    assert "canary" not in result.err + result.out


def test_names_and_contents_that_cannot_be_read_are_errors_with_a_reason(tmp_path: Path) -> None:
    workspace = a_sealed_workspace(tmp_path)
    content = bytearray()
    with zipfile.ZipFile(tmp_path / "broken.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("manifest.yaml", a_manifest("wind") * 50)
    content += (tmp_path / "broken.zip").read_bytes()
    content[60:90] = bytes(30)
    (tmp_path / "broken.zip").write_bytes(content)
    tar_with(tmp_path / "odd.tgz", MANIFEST, SCRIPT, plain("weather/\udcff.txt"))
    for source in ("broken.zip", "odd.tgz"):
        result = workspace.ductile("plugin", "add", str(tmp_path / source))
        assert result.status == 1, result
        assert "Traceback" not in result.err
        assert "unexpected" not in result.err


def tar_with(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def plain(name: str, data: bytes = b"", mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.mode = mode
    return info, data


def special(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


MANIFEST = plain("weather/manifest.yaml", a_manifest("weather").encode(), 0o644)
SCRIPT = plain("weather/run.sh", SCRIPT_TEXT.encode())
HOSTILE = {
    "leads out": (MANIFEST, SCRIPT, plain("weather/../../escaped")),
    "leads out of it": (MANIFEST, SCRIPT, plain("/etc/escaped")),
    "is a symbolic link": (MANIFEST, SCRIPT, special("weather/link", tarfile.SYMTYPE, "/etc/passwd")),
    "is not a plain file": (MANIFEST, SCRIPT, special("weather/hard", tarfile.LNKTYPE, "weather/run.sh")),
    "weather/device in": (MANIFEST, SCRIPT, special("weather/device", tarfile.CHRTYPE)),
    "twice": (MANIFEST, SCRIPT, SCRIPT),
    "more than 5000 files": (MANIFEST, *(plain(f"weather/{number}") for number in range(5001))),
    "does not exist": (MANIFEST,),
    "holds no plugin": (SCRIPT,),
}


@pytest.mark.parametrize("problem", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing(problem: str, tmp_path: Path) -> None:
    workspace = a_sealed_workspace(tmp_path)
    archive = tar_with(tmp_path / "weather.tar.gz", *HOSTILE[problem])
    before = files_below(tmp_path / "demo")
    result = workspace.ductile("plugin", "add", str(archive))
    assert result.status == 1, result
    assert problem.replace("weather/device in", "not a plain file") in result.err
    assert files_below(tmp_path / "demo") == before
    assert not (tmp_path / "escaped").exists()


def test_archives_of_both_kinds_are_added(tmp_path: Path) -> None:
    """A zip file need not have modes; one that unpacks to too much is refused."""
    workspace = a_sealed_workspace(tmp_path)
    workspace.json("plugin", "add", str(tar_with(tmp_path / "weather.tgz", MANIFEST, SCRIPT)))
    with zipfile.ZipFile(tmp_path / "wind.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo("manifest.yaml"), a_manifest("wind"))
        archive.writestr(zipfile.ZipInfo("run.sh"), SCRIPT_TEXT)
    workspace.json("plugin", "add", str(tmp_path / "wind.zip"))
    assert workspace.json("run", "wind")["status"] == "succeeded"
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.yaml", b"#" * (129 * 1024 * 1024))
    assert "128 MiB" in workspace.ductile("plugin", "add", str(tmp_path / "bomb.zip")).err
    (tmp_path / "no.zip").write_bytes(b"PK nonsense")
    assert "cannot be read" in workspace.ductile("plugin", "add", str(tmp_path / "no.zip")).err


def test_local_changes_are_not_lost_unless_asked(tmp_path: Path) -> None:
    workspace = a_sealed_workspace(tmp_path)
    source = a_weather_plugin(tmp_path / "elsewhere")
    workspace.json("plugin", "add", str(source))
    installed = tmp_path / "demo" / "plugins" / "weather" / "run.sh"
    installed.write_text(installed.read_text() + "# mine\n")
    for words in (("update", "weather"), ("remove", "weather")):
        result = workspace.ductile("plugin", *words)
        assert "were changed since it was added: run.sh" in result.err
    assert "# mine" in installed.read_text()
    workspace.json("plugin", "update", "weather", "--discard-changes")
    assert "# mine" not in installed.read_text()
    assert workspace.json("config", "check")["warnings"] == []


def test_an_update_that_does_not_fit_is_taken_back(tmp_path: Path) -> None:
    """The new version lacks a command that a route names."""
    workspace = a_sealed_workspace(tmp_path)
    source = a_weather_plugin(tmp_path / "elsewhere")
    workspace.json("plugin", "add", str(source))
    workspace.append("routes:\n  - {from: echo, event_type: x, to: weather}\n")
    workspace.json("config", "lock")
    (source / "manifest.yaml").write_text(a_manifest("weather").replace("[poll, handle, health]", "[poll]"))
    before = files_below(tmp_path / "demo" / "plugins")
    result = workspace.ductile("plugin", "update", "weather")
    assert "weather has no command handle" in result.err
    assert files_below(tmp_path / "demo" / "plugins") == before
    assert workspace.json("config", "check")["warnings"] == []


def test_a_plugin_in_use_is_not_removed(tmp_path: Path) -> None:
    """Every place that names it is listed with file and line."""
    workspace = a_sealed_workspace(tmp_path)
    workspace.json("plugin", "add", str(a_weather_plugin(tmp_path / "elsewhere")))
    workspace.append("routes:\n  - {from: echo, event_type: x, to: weather}\n")
    line = len(workspace.config.read_text().splitlines())
    result = workspace.ductile("plugin", "remove", "weather")
    assert result.status == 78
    assert "weather is still in use" in result.err
    assert f"demo/config.yaml:{line}:" in result.err
    assert "weather" in plugins_by_name(workspace)


def test_removing_counts_the_jobs_that_would_end(tmp_path: Path) -> None:
    workspace = a_sealed_workspace(tmp_path)
    workspace.json("plugin", "add", str(a_weather_plugin(tmp_path / "elsewhere")))
    workspace.json("run", "weather")
    with a_daemon(workspace):
        pending = workspace.json("plugin", "remove", "weather", "--dry-run")["pending"]
        assert pending["queued"] == 0
        workspace.json("plugin", "remove", "weather")
        assert workspace.json("job", "list", "--plugin", "weather")["jobs"]


def test_files_of_the_operator_are_left_alone(tmp_path: Path) -> None:
    """A plugin that was not added is taken out of the configuration; its directory stays."""
    workspace = a_sealed_workspace(tmp_path, "  mine: {}\n")
    directory = workspace.plugin("mine", SCRIPT_TEXT)
    workspace.json("config", "lock")
    removed = workspace.json("plugin", "remove", "mine")
    assert "was not added" in removed["kept"]
    assert directory.is_dir()
    assert "was not added" in workspace.ductile("plugin", "update", "mine", ".").err
    result = workspace.ductile("plugin", "add", str(a_plugin(tmp_path / "elsewhere", "mine")))
    assert "holds other files" in result.err


#: Kills the process with SIGKILL before the n-th change of the file system that it makes in a directory.
KILLER = """\
import os, signal, sys
directory, remaining = os.environ["KILL_IN"], int(os.environ["KILL_AT"])
def hook(event, arguments):
    global remaining
    if event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir") and directory in str(arguments[0]):
        remaining -= 1
        if remaining < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
"""


def run_until_killed(workspace: Workspace, number: int, *words: str) -> bool:
    """Run a command and kill it at its n-th step. Return False if it has fewer steps, and has succeeded."""
    hook_directory = workspace.directory / "hooks"
    hook_directory.mkdir(exist_ok=True)
    (hook_directory / "sitecustomize.py").write_text(KILLER)
    process = subprocess.run(
        [sys.executable, "-m", "ductile", *words, "--config", "demo", "--json"],
        cwd=workspace.directory,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(workspace.directory),
            "PYTHONPATH": str(hook_directory),
            "KILL_IN": str(workspace.config.parent),
            "KILL_AT": str(number),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode in (0, -9), process
    return process.returncode == -9


@pytest.mark.parametrize("action", ["add", "update", "remove"])
def test_a_kill_at_any_step_leaves_a_configuration_that_loads(action: str, tmp_path: Path) -> None:
    """Strict mode accepts the configuration, the plugin is whole or absent, and a repetition works."""
    workspace = a_sealed_workspace(tmp_path)
    source = a_weather_plugin(tmp_path / "elsewhere", result="old")
    command = ["plugin", action, *([str(source)] if action == "add" else ["weather"])]
    number = 0
    while True:
        if action != "add" and "weather" not in workspace.config.read_text():
            workspace.json("plugin", "add", str(source))
        if action == "update":
            (source / "run.sh").write_text(answering({"status": "ok", "result": f"version {number}"}))
        killed = run_until_killed(workspace, number, *command)
        assert workspace.json("config", "check")["warnings"] == []
        plugin = plugins_by_name(workspace).get("weather")
        assert plugin is None or plugin["status"] in ("active", "available")
        if plugin is not None and plugin["status"] == "active":
            assert workspace.json("run", "weather")["status"] == "succeeded"
        if not killed:
            break
        if action == "add" or plugin is not None:
            workspace.json(*command)
            assert not list((tmp_path / "demo" / "plugins").glob(".*"))
        if action == "add":
            workspace.json("plugin", "remove", "weather")
        number += 1
    assert number > 3
