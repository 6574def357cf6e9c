"""A daemon that is suspended (SIGSTOP) answers no command: commands say so and end."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.daemons import Daemon, Workspace, a_daemon, a_workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return a_workspace(tmp_path)


@pytest.fixture
def frozen(workspace: Workspace) -> Iterator[Daemon]:
    with a_daemon(workspace) as daemon:
        daemon.process.send_signal(signal.SIGSTOP)
        yield daemon
        daemon.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize(
    "words",
    ["status", "job list", "queue", "webhook list", "system doctor", "plugin state echo", "system stop"],
)
def test_a_command_ends_and_says_why(workspace: Workspace, frozen: Daemon, words: str) -> None:
    result = workspace.ductile(*words.split())
    assert result.status == 75
    assert f"the daemon (process {frozen.process.pid}) is suspended and does not answer" in result.err
    assert f"kill -CONT {frozen.process.pid}" in result.err


def test_json_output_says_the_same(workspace: Workspace, frozen: Daemon) -> None:
    result = workspace.ductile("status", "--json")
    error = json.loads(result.out)["error"]
    assert (result.status, error["code"], error["details"]) == (75, "store_busy", {"pid": frozen.process.pid})


@pytest.mark.usefixtures("frozen")
def test_a_backup_works_beside_a_frozen_daemon(workspace: Workspace) -> None:
    assert workspace.ductile("system", "backup", "copy.tar.gz").status == 0
    assert (workspace.directory / "copy.tar.gz").exists()


def test_the_daemon_answers_after_it_continues(workspace: Workspace) -> None:
    with a_daemon(workspace) as daemon:
        daemon.process.send_signal(signal.SIGSTOP)
        assert workspace.ductile("job", "list").status == 75
        daemon.process.send_signal(signal.SIGCONT)
        assert workspace.ductile("job", "list").status == 0
