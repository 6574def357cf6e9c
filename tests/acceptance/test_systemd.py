"""The daemon as a systemd service: its notifications, and the unit."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from builders.daemons import PATIENCE, a_daemon, a_workspace
from ductile.admin.config import open_configuration
from ductile.admin.systemd_unit import systemd_unit


@contextmanager
def a_manager(path: Path) -> Iterator[socket.socket]:
    """Open the notification socket of systemd."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(PATIENCE)
        yield manager


def read_notifications(manager: socket.socket, state: str) -> str:
    """Wait for a notification; return all notifications up to it."""
    notifications = ""
    while state not in notifications.splitlines():
        notifications += manager.recv(4096).decode() + "\n"
    return notifications


def test_systemd_is_notified_of_each_stage(tmp_path: Path) -> None:
    """The daemon notifies systemd when it is ready, when it reloads and when it stops."""
    workspace = a_workspace(tmp_path)
    address = tmp_path / "notify"
    with a_manager(address) as manager, a_daemon(workspace, {"NOTIFY_SOCKET": str(address)}) as daemon:
        assert read_notifications(manager, "READY=1").startswith("READY=1")
        workspace.ductile("reload")
        notifications = read_notifications(manager, "READY=1")
        assert notifications.startswith("RELOADING=1\nMONOTONIC_USEC=")
        assert daemon.end() == 0
        read_notifications(manager, "STOPPING=1")


def test_the_watchdog_is_fed_while_the_loop_turns(tmp_path: Path) -> None:
    """The loop notifies the watchdog again and again; a daemon whose loop hangs does not."""
    workspace = a_workspace(tmp_path)
    address = tmp_path / "notify"
    variables = {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "200000"}
    with a_manager(address) as manager, a_daemon(workspace, variables):
        for _ in range(3):
            read_notifications(manager, "WATCHDOG=1")


def test_a_watchdog_for_another_process_is_not_ours(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    address = tmp_path / "notify"
    variables = {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}
    with a_manager(address) as manager, a_daemon(workspace, variables) as daemon:
        daemon.end()
        assert "WATCHDOG=1" not in read_notifications(manager, "STOPPING=1")


def test_the_unit_says_how_to_run_it(tmp_path: Path) -> None:
    """The unit notifies, reloads, restarts except after exit status 78, and leaves time for a stop."""
    workspace = a_workspace(tmp_path)
    unit = workspace.ductile("system", "unit", "--user", "robot").out
    settings = dict(re.findall(r"^([A-Za-z]+)=(.*)$", unit, re.MULTILINE))
    expected = {
        "Type": "notify",
        "User": "robot",
        "Restart": "on-failure",
        "RestartPreventExitStatus": "78",
        "StartLimitIntervalSec": "0",
        "After": "network.target",
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "ReadWritePaths": str(tmp_path / "demo" / "data"),
    }
    assert {name: settings.get(name) for name in expected} == expected
    assert settings["LimitCORE"] == "0"
    assert "kill -HUP $MAINPID" in settings["ExecReload"]
    assert int(settings["TimeoutStopSec"]) > 0.1
    assert f"system start --config {tmp_path / 'demo'}" in settings["ExecStart"]


@pytest.mark.parametrize(
    ("version", "missing"),
    [
        (257, set()),
        (254, set()),
        (253, {"RestartSteps", "RestartMaxDelaySec"}),
        (None, {"RestartSteps", "RestartMaxDelaySec"}),
        (241, {"RestartSteps", "RestartMaxDelaySec", "ProtectHostname", "RestrictSUIDSGID"}),
    ],
)
def test_the_unit_uses_keys_that_its_systemd_knows(
    tmp_path: Path, version: int | None, missing: set[str]
) -> None:
    """An unknown key is a warning at each start. Without growing pauses the only pause is longer."""
    workspace = a_workspace(tmp_path)
    snapshot = open_configuration(workspace.config, {}).snapshot
    unit = systemd_unit(snapshot, workspace.config.parent, Path("/bin/ductile"), "robot", version=version)
    keys = dict(re.findall(r"^([A-Za-z]+)=(.*)$", unit, re.MULTILINE))
    assert missing.isdisjoint(keys)
    assert keys["RestartSec"] == ("10" if missing else "1")
    assert ("RestartMaxDelaySec" in keys) is not bool(missing)
    assert keys["LimitCORE"] == "0"


def test_a_store_below_var_lib_is_made_by_systemd(tmp_path: Path) -> None:
    """The directory belongs to the user of the service before the daemon looks at it."""
    workspace = a_workspace(tmp_path)
    assert "StateDirectory=" not in workspace.ductile("system", "unit").out
    workspace.config.write_text(
        workspace.config.read_text() + "state: {path: /var/lib/ductile-test/state.db}\n"
    )
    unit = workspace.ductile("system", "unit").out
    assert "\nStateDirectory=ductile-test\nStateDirectoryMode=0700\n" in unit
    assert "\nWorkingDirectory=/var/lib/ductile-test\n" in unit


def test_the_unit_names_the_user_to_operate_it_as(tmp_path: Path) -> None:
    """The socket and the files are for the user of the service alone."""
    unit = a_workspace(tmp_path).ductile("system", "unit", "--user", "robot").out
    assert re.search(
        rf"^#   sudo -u robot \S*ductile status --config {tmp_path / 'demo'}$", unit, re.MULTILINE
    )


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    (tmp_path / "demo" / "data").mkdir()
    file = tmp_path / "ductile-test.service"
    file.write_text(workspace.ductile("system", "unit", "--user", "root").out + "\n")
    process = subprocess.run(
        ["systemd-analyze", "verify", file], capture_output=True, text=True, check=False, timeout=60
    )
    assert [line for line in process.stderr.splitlines() if "ductile-test" in line] == []
