"""`ductile init` writes a configuration that works at once and that other users cannot read."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from builders.terminal import Terminal


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(directory=tmp_path)


def files_in(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def test_the_files_of_init_pass_the_checks(terminal: Terminal) -> None:
    """`config check` right after `init` reports neither problems nor warnings."""
    assert terminal.ductile("init", "demo").status == 0
    result = terminal.ductile("config", "check", "--config", "demo", "--json")
    assert result.status == 0
    report = json.loads(result.out)
    assert report["valid"]
    assert report["warnings"] == []
    assert report["refused"] == []


def test_only_the_owner_can_read_it(terminal: Terminal) -> None:
    """Directories and executables have mode 0700, other files 0600."""
    old_umask = os.umask(0)
    try:
        assert terminal.ductile("init", "deep/demo").status == 0
    finally:
        os.umask(old_umask)
    modes = {
        str(path.relative_to(terminal.directory)): stat.S_IMODE(path.stat().st_mode)
        for path in (terminal.directory / "deep").rglob("*")
    }
    programs = {name for name, mode in modes.items() if name.endswith("run.py")}
    for name, mode in modes.items():
        is_program = name in programs or (terminal.directory / name).is_dir()
        assert mode == (0o700 if is_program else 0o600), name
    assert programs


def test_the_token_is_shown_once_and_kept_in_the_env_file(terminal: Terminal) -> None:
    """The configuration has a reference; the env file, with mode 0600, has the value."""
    token = json.loads(terminal.ductile("init", "demo", "--json").out)["token"]
    files = [name for name in files_in(terminal.directory / "demo") if token in _text(terminal, name)]
    assert files == [".env"]
    assert "${DUCTILE_ADMIN_TOKEN}" in _text(terminal, "tokens.yaml")


def _text(terminal: Terminal, name: str) -> str:
    return (terminal.directory / "demo" / name).read_text()


def test_every_init_draws_its_own_token(terminal: Terminal) -> None:
    tokens = {json.loads(terminal.ductile("init", name, "--json").out)["token"] for name in ("a", "b")}
    assert len(tokens) == 2


def test_a_dry_run_writes_nothing_and_tells_all(terminal: Terminal) -> None:
    """A dry run lists every file that the real run writes."""
    dry_run = json.loads(terminal.ductile("init", "demo", "--dry-run", "--json").out)
    assert not (terminal.directory / "demo").exists()
    assert dry_run["token"] is None
    terminal.ductile("init", "demo")
    written = {name for name in files_in(terminal.directory / "demo") if not name.startswith(".ductile/")}
    assert written == set(dry_run["files"])


def test_an_existing_configuration_is_never_touched(terminal: Terminal) -> None:
    """The command exits with 1, and every file stays as it is."""
    (terminal.directory / "demo").mkdir()
    (terminal.directory / "demo" / "config.yaml").write_text("service: {}\n")
    assert terminal.ductile("init", "demo").status == 1
    assert files_in(terminal.directory / "demo") == {"config.yaml"}


def test_a_file_in_the_way_stops_it_before_anything_is_written(terminal: Terminal) -> None:
    """`init` writes all files or none."""
    (terminal.directory / "demo").mkdir()
    (terminal.directory / "demo" / ".env").write_text("MINE=1\n")
    refused = terminal.ductile("init", "demo")
    assert refused.status == 1
    assert ".env" in refused.err
    assert files_in(terminal.directory / "demo") == {".env"}


def test_a_directory_that_holds_other_things_is_fine(terminal: Terminal) -> None:
    """`ductile init .` works in a fresh repository."""
    (terminal.directory / "demo" / ".git").mkdir(parents=True)
    assert terminal.ductile("init", "demo").status == 0
    assert terminal.ductile("config", "check", "--config", "demo").status == 0


def test_an_unfinished_init_removes_its_files(terminal: Terminal) -> None:
    """`init` writes all files or none. Here a file takes the path of the example plugin."""
    (terminal.directory / "demo").mkdir()
    (terminal.directory / "demo" / "plugins").write_text("in the way")
    refused = terminal.ductile("init", "demo")
    assert refused.status in {1, 77}
    assert refused.err.startswith("error:")
    assert files_in(terminal.directory / "demo") == {"plugins"}
