"""A store moves from a file to PostgreSQL and back, and is backed up from there, by the printed advice."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from builders.daemons import Workspace, a_daemon, a_workspace
from builders.postgres import store_url, with_password
from builders.terminal import Terminal

PASSWORD = "canary-of-the-move"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """Return a workspace whose store has a job, and whose env file has the URL of an empty database."""
    workspace = a_workspace(tmp_path)
    (workspace.config.parent / ".env").write_text(
        f"THE_STORE={with_password(store_url(tmp_path), PASSWORD)}\n"
    )
    workspace.config.write_text("environment_vars: {include: [.env]}\n" + workspace.config.read_text())
    assert workspace.ductile("config", "lock").status == 0
    assert workspace.ductile("run", "echo").status == 0
    return workspace


def a_terminal_with_the_url(workspace: Workspace) -> Terminal:
    """Return a terminal whose environment has the URL."""
    url = with_password(store_url(workspace.directory), PASSWORD)
    return Terminal(directory=workspace.directory, variables={"THE_STORE": url})


def follow_advice(workspace: Workspace, printed: str) -> None:
    """Run every command below `Next:`, except the start."""
    lines = [line.strip() for line in printed.partition("Next:\n")[2].splitlines()]
    commands = [line for line in lines if line.startswith("ductile ") and "system start" not in line]
    assert commands
    for line in commands:
        result = Terminal(directory=workspace.directory).ductile(*shlex.split(line)[1:])
        assert result.status == 0, (line, result)


def jobs(workspace: Workspace) -> set[str]:
    return {job["job_id"] for job in workspace.json("job", "list")["jobs"]}


def test_to_postgres_with_a_backup_there_and_back_to_a_file(workspace: Workspace, tmp_path: Path) -> None:
    """Each step runs as an operator types it; no output has the password."""
    terminal = a_terminal_with_the_url(workspace)
    first_jobs = jobs(workspace)
    moved = terminal.ductile("system", "move-store", "--to", "env:THE_STORE", "--config", "demo")
    assert moved.status == 0, moved
    assert "every row was compared" in moved.out
    follow_advice(workspace, moved.out)
    archive = str(tmp_path / "saved.tar.gz")
    with a_daemon(workspace) as daemon:
        assert jobs(workspace) == first_jobs
        assert workspace.ductile("run", "echo").status == 0
        later_jobs = jobs(workspace)
        refused = terminal.ductile("system", "move-store", "--to", "new.db", "--config", "demo")
        assert (refused.status, "in use" in refused.err) == (1, True), refused
        dry_run = workspace.json("system", "backup", archive, "--dry-run")
        assert (dry_run["store"], Path(archive).exists()) == ("inside/data/state.db", False)
        saved = workspace.ductile("system", "backup", archive)
        assert saved.status == 0, saved
        assert daemon.end() == 0
    assert workspace.json("system", "backup", archive, "--verify")["schema_version"] > 0
    restored = restore(workspace, archive)
    assert jobs(restored) == later_jobs
    (workspace.config.parent / "data" / "state.db").rename(tmp_path / "old.db")
    moved_back = workspace.ductile("system", "move-store", "--to", "sqlite")
    assert moved_back.status == 0, moved_back
    follow_advice(workspace, moved_back.out)
    assert jobs(workspace) == later_jobs
    assert (workspace.config.parent / "data" / "state.db").exists()
    assert PASSWORD not in "".join(result.out + result.err for result in (moved, refused, saved, moved_back))


def restore(workspace: Workspace, archive: str) -> Workspace:
    """Restore into another directory and another empty database, as the output says."""
    directory = workspace.directory / "there"
    directory.mkdir()
    terminal = Terminal(directory=directory)
    result = terminal.ductile("system", "restore", archive, "--to", "demo")
    assert result.status == 0, result
    (directory / "demo" / ".env").write_text(f"THE_STORE={store_url(directory)}\n")
    assert terminal.ductile("config", "lock", "--config", "demo").status == 0
    (line,) = re.findall(r"^  ductile (system move-store .*)$", result.out, re.MULTILINE)
    for status in (0, 1):  # the second time the database is not empty
        assert terminal.ductile(*shlex.split(line)).status == status
    return Workspace(directory=directory)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "where to?"),
        (["--to", "env:NOT_SET_AT_ALL"], "the environment variable NOT_SET_AT_ALL is not set"),
        (["--to", f"mysql://root:{PASSWORD}@db/x"], "neither a PostgreSQL URL nor a path"),
        (["--to", f"postgresql://root:{PASSWORD}%zz@db/x"], "cannot be read"),
        (["--to", f"postgresql://root:{PASSWORD}@127.0.0.1:1/x"], "cannot be reached"),
        ([f"postgresql://root:{PASSWORD}@db/x"], "unexpected argument: postgresql://…@db/x"),
        (["--too", f"postgresql://root:{PASSWORD}@db/x"], "unexpected option: --too postgresql://…@db/x"),
        (["--to", "sqlite"], "source and target are the same store"),
        (["--from", "nowhere.db"], "there is no store at"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_is_explained_without_the_url(
    shared_workspace: Workspace, words: list[str], message: str
) -> None:
    result = shared_workspace.ductile("system", "move-store", *words)
    assert result.status != 0
    assert message in result.err
    assert "hint: " in result.err
    assert PASSWORD not in result.out + result.err


@pytest.fixture(scope="module")
def shared_workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = a_workspace(tmp_path_factory.mktemp("mistakes"))
    assert workspace.ductile("run", "echo").status == 0
    return workspace


def test_the_answer_in_json_has_what_the_text_has(shared_workspace: Workspace) -> None:
    report: dict[str, Any] = shared_workspace.json("system", "move-store", "--to", "other.db", "--dry-run")
    assert report["moved"] is False
    assert report["rows"] == sum(table["rows"] for table in report["tables"])
    assert report["next"][0].startswith("ductile config set state.path ")
