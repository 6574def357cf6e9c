"""A daemon whose store is a PostgreSQL server works as on a file, and no command shows the URL."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from builders.daemons import Daemon, Workspace, a_daemon, a_workspace, answering
from builders.postgres import server_url, start_pooler, store_url, with_password
from builders.terminal import Terminal
from ductile.config.snapshot import describe_server

PASSWORD = "canary-of-the-database"
#: Responds with the directory for its files.
KEEPER = '#!/bin/sh\ncat >/dev/null\nprintf \'{"status": "ok", "result": "%s"}\' "$DUCTILE_DATA_DIR"\n'


def put_on_postgres(workspace: Workspace, url: str) -> None:
    workspace.config.write_text(f"state: {{url: '{url}'}}\n" + workspace.config.read_text())


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    directory = tmp_path_factory.mktemp("postgres")
    workspace = a_workspace(directory, "  keeper: {}\n")
    workspace.plugin("keeper", KEEPER)
    put_on_postgres(workspace, with_password(store_url(directory), PASSWORD))
    return workspace


@pytest.fixture(scope="module")
def daemon(workspace: Workspace) -> Iterator[Daemon]:
    with a_daemon(workspace) as daemon:
        yield daemon
        assert daemon.end() == 0
        assert PASSWORD not in json.dumps(daemon.whole_log())


def test_a_daemon_runs_jobs_and_keeps_them_on_the_server(workspace: Workspace, daemon: Daemon) -> None:
    started = daemon.wait_for("service.starting")
    assert started["store"] == describe_server(server_url())
    result = workspace.ductile("run", "echo")
    assert (result.status, result.out) == (0, "done\n")
    (job,) = workspace.json("job", "list", "--plugin", "echo")["jobs"]
    assert job["status"] == "succeeded"
    with psycopg.connect(store_url(workspace.directory)) as connection:
        rows = connection.execute("SELECT id, status FROM job_queue WHERE plugin = 'echo'").fetchall()
    assert rows == [(job["job_id"], "succeeded")]
    assert not (workspace.config.parent / "data" / "state.db").exists()


def test_files_of_plugins_are_in_the_directory_of_this_machine(workspace: Workspace, daemon: Daemon) -> None:
    result = workspace.ductile("run", "keeper")
    assert result.out.strip() == str(workspace.config.parent / "data" / "plugin-data" / "keeper")


def test_doctor_and_selfcheck_describe_the_server(workspace: Workspace, daemon: Daemon) -> None:
    report = workspace.json("doctor")
    (finding,) = [finding for finding in report["findings"] if finding["check"] == "store"]
    assert (finding["level"], finding["where"]) == ("ok", describe_server(server_url()))
    assert workspace.json("system", "selfcheck")["sound"] is True


def test_a_second_daemon_of_this_machine_is_refused(workspace: Workspace, daemon: Daemon) -> None:
    result = workspace.ductile("system", "start")
    assert result.status == 1
    assert f"process {daemon.process.pid} uses this store already" in result.err


def test_no_command_shows_the_url(workspace: Workspace, daemon: Daemon) -> None:
    for words in (("config", "show"), ("config", "get", "state.url"), ("status",), ("doctor",)):
        for form in ((), ("--json",), ("-v",)):
            result = workspace.ductile(*words, *form)
            assert result.status == 0, result
            assert PASSWORD not in result.out + result.err, words
    command = Path(f"/proc/{daemon.process.pid}/cmdline").read_bytes()
    assert PASSWORD.encode() not in command


@pytest.fixture(scope="module")
def idle_workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Return a workspace whose store a daemon has used, and on which no daemon runs."""
    directory = tmp_path_factory.mktemp("left")
    workspace = a_workspace(directory, "  nightly: {schedule: {every: 1d}}\n")
    workspace.plugin("nightly", answering({"status": "ok"}))
    put_on_postgres(workspace, store_url(directory))
    with a_daemon(workspace) as daemon:
        assert workspace.ductile("run", "echo").status == 0
        assert daemon.end() == 0
    return workspace


def test_commands_read_the_server_without_a_daemon(idle_workspace: Workspace) -> None:
    (job,) = idle_workspace.json("job", "list", "--plugin", "echo")["jobs"]
    assert idle_workspace.json("job", "show", job["job_id"])["status"] == "succeeded"
    assert idle_workspace.json("status")["daemon"] == {"running": False}
    assert idle_workspace.ductile("doctor").status == 0


def test_short_commands_change_the_server_without_a_daemon(idle_workspace: Workspace) -> None:
    assert idle_workspace.ductile("schedule", "pause", "nightly").status == 0
    (entry,) = idle_workspace.json("schedule", "list")["schedules"]
    assert entry["paused_at"] is not None


def test_no_job_is_run_without_a_daemon(idle_workspace: Workspace) -> None:
    result = idle_workspace.ductile("run", "echo")
    assert result.status == 69
    assert "only a daemon runs jobs of a store on PostgreSQL" in result.err
    assert "ductile system start" in result.err


@pytest.mark.parametrize(
    ("old", "new", "status", "message"),
    [
        ("/postgres?", "/no_such_database?", 1, 'database "no_such_database" does not exist'),
        ("//postgres:", "//no_such_user:", 1, 'role "no_such_user" does not exist'),
        ("host=", "host=/nowhere", 75, "cannot be reached"),
    ],
)
def test_a_start_without_a_usable_server_says_why(
    tmp_path: Path, old: str, new: str, status: int, message: str
) -> None:
    if "DUCTILE_TEST_POSTGRES" in os.environ:
        pytest.skip("the URL of another server is not known")
    workspace = a_workspace(tmp_path)
    put_on_postgres(workspace, with_password(server_url(), PASSWORD).replace(old, new))
    for command in (("system", "start"), ("status",), ("job", "list")):
        result = workspace.ductile(*command)
        assert result.status == status, result
        assert message in result.err
        assert "hint: " in result.err
        assert PASSWORD not in result.out + result.err
    assert message in workspace.ductile("doctor").out


def test_a_pooler_in_transaction_mode_is_refused_with_what_to_do(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    store_url(tmp_path)
    put_on_postgres(workspace, store_url(tmp_path, proxied=True))
    pooler = start_pooler(tmp_path, session_mode=False)
    try:
        for command in (("system", "start"), ("job", "list")):
            result = workspace.ductile(*command)
            assert result.status == 1, result
            assert "a connection pooler in transaction mode" in result.err
            assert "pool_mode=session" in result.err
        assert "a connection pooler in transaction mode" in workspace.ductile("doctor").out
    finally:
        pooler.close()


def test_a_missing_driver_is_named_with_what_to_install(tmp_path: Path) -> None:
    """The driver is an extra; a driver without its library is reported as a missing one."""
    workspace = a_workspace(tmp_path)
    put_on_postgres(workspace, "postgresql://user@127.0.0.1:1/database")
    (tmp_path / "psycopg.py").write_text("raise ImportError('no pq wrapper available')\n")
    terminal = Terminal(directory=tmp_path, variables={"PYTHONPATH": str(tmp_path)})
    for command in (("system", "start"), ("config", "check"), ("status",)):
        result = terminal.ductile(*command, "--config", "demo")
        assert result.status == 78, result
        assert "pip install 'ductile-runtime[postgres]'" in result.out + result.err
