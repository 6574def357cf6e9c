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
    ran = workspace.ductile(*words.split())
    assert ran.status == 75
    assert f"the daemon (process {frozen.process.pid}) is suspended and does not answer" in ran.err
    assert f"kill -CONT {frozen.process.pid}" in ran.err


def test_json_output_says_the_same(workspace: Workspace, frozen: Daemon) -> None:
    ran = workspace.ductile("status", "--json")
    error = json.loads(ran.out)["error"]
    assert (ran.status, error["code"], error["details"]) == (75, "store_busy", {"pid": frozen.process.pid})


@pytest.mark.usefixtures("frozen")
def test_it_does_not_keep_anybody_from_a_backup(workspace: Workspace) -> None:
    assert workspace.ductile("system", "backup", "copy.tar.gz").status == 0
    assert (workspace.directory / "copy.tar.gz").exists()


def test_it_answers_when_it_goes_on(workspace: Workspace) -> None:
    with a_daemon(workspace) as daemon:
        daemon.process.send_signal(signal.SIGSTOP)
        assert workspace.ductile("job", "list").status == 75
        daemon.process.send_signal(signal.SIGCONT)
        assert workspace.ductile("job", "list").status == 0
