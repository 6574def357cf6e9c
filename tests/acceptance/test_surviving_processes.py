"""Processes that outlive their daemon are ended by the next one on the same store, and by no other.

A copy of a store beside its original ends no process of the daemon that runs on the original.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from builders.daemons import Daemon, Workspace, a_daemon, a_workspace
from builders.dying_daemons import start_daemon

ONCE = "    retry: {max_attempts: 1}\n"
QUICKLY = "    retry: {max_attempts: 9, backoff_base: 1ms}\n"
#: Both run until a file `go` lies beside them, and write their process id to a file.
COLD = """\
#!/bin/sh
cat >/dev/null
directory=$(dirname "$0")
echo $$ > "$directory/pid.new" && mv "$directory/pid.new" "$directory/pid"
while [ ! -e "$directory/go" ]; do sleep 0.05; done
echo '{"status": "ok", "result": "done"}'
"""
WARM = f"""\
#!{sys.executable}
import os, select, sys
sys.stdin.read()
directory = os.path.dirname(os.path.abspath(__file__))
with open(directory + "/pid.new", "w") as file:
    file.write(str(os.getpid()))
os.rename(directory + "/pid.new", directory + "/pid")
while not os.path.exists(directory + "/go"):
    select.select([], [], [], 0.05)
print('{{"status": "ok", "result": "done"}}')
"""
PLUGINS = {"cold": COLD, "warm": WARM}


def a_workspace_with_long_jobs(directory: Path, retry: str = ONCE) -> Workspace:
    workspace = a_workspace(directory, "".join(f"  {name}:\n{retry}" for name in PLUGINS))
    for name, script in PLUGINS.items():
        workspace.plugin(name, script)
    return workspace


def start_jobs(workspace: Workspace, daemon: Daemon, *plugins: str) -> list[str]:
    """Start one job of each plugin; return their ids when their processes run."""
    jobs = [workspace.json("run", name, "--no-wait")["job_id"] for name in plugins or PLUGINS]
    for job_id in jobs:
        daemon.wait_until_started(job_id)
    return jobs


def pid_of(workspace: Workspace, plugin: str) -> int:
    """Wait until the process of a started job has written its id; return the id."""
    pid_file = workspace.config.parent / "plugins" / plugin / "pid"
    while not pid_file.exists():
        os.sched_yield()
    return int(pid_file.read_text())


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def release_jobs(workspace: Workspace) -> None:
    for name in PLUGINS:
        (workspace.config.parent / "plugins" / name / "go").touch()


def status_of(workspace: Workspace, job_id: str) -> str:
    return str(workspace.json("job", "wait", job_id)["status"])


def copy_with_restore(original: Workspace) -> None:
    assert original.ductile("system", "backup", "saved.tar.gz").status == 0
    result = original.terminal.ductile("system", "restore", "saved.tar.gz", "--to", "second/demo")
    assert result.status == 0, result


def copy_the_files(original: Workspace) -> None:
    """Copy the files as `cp` does while nothing is written."""
    directory = original.config.parent
    shutil.copytree(
        directory,
        original.directory / "second" / "demo",
        ignore=shutil.ignore_patterns("data", ".*.sock", "pid"),
    )
    target = original.directory / "second" / "demo" / "data"
    target.mkdir()
    with (
        closing(sqlite3.connect(directory / "data" / "state.db")) as source,
        closing(sqlite3.connect(target / "state.db")) as copy,
    ):
        source.backup(copy)


@pytest.mark.parametrize("copy", [copy_with_restore, copy_the_files])
def test_a_daemon_on_a_copy_leaves_the_processes_of_the_original_alone(
    tmp_path: Path, copy: Callable[[Workspace], None]
) -> None:
    """Jobs from before and after the copy, cold and warm, run to their end, each at its first attempt."""
    workspace = a_workspace_with_long_jobs(tmp_path)
    with a_daemon(workspace) as daemon:
        jobs = start_jobs(workspace, daemon)
        copy(workspace)
        jobs += start_jobs(workspace, daemon)
        with a_daemon(Workspace(directory=tmp_path / "second")) as second_daemon:
            release_jobs(workspace)
            assert [status_of(workspace, job_id) for job_id in jobs] == ["succeeded"] * len(jobs)
            assert [line for line in second_daemon.whole_log() if line["signal"] == "survivor.ended"] == []


def test_a_daemon_on_the_original_leaves_the_processes_of_a_copy_alone(tmp_path: Path) -> None:
    """A process of the copy is left alone although its daemon is dead."""
    workspace = a_workspace_with_long_jobs(tmp_path, QUICKLY)
    second = Workspace(directory=tmp_path / "second")
    with a_daemon(workspace) as daemon:
        (job_id,) = start_jobs(workspace, daemon, "cold")
        copy_the_files(workspace)
        daemon.end(signal.SIGKILL)
        with a_daemon(second) as second_daemon:
            second_daemon.wait_until_started(job_id)
            second_daemon.end(signal.SIGKILL)
            pid = pid_of(second, "cold")
            with a_daemon(workspace) as restarted:
                restarted.wait_until_started(job_id)
                os.kill(pid, 0)
                ended_pids = [
                    line["pid"] for line in restarted.whole_log() if line["signal"] == "survivor.ended"
                ]
                assert pid not in ended_pids


def test_survivors_of_an_earlier_life_are_ended_after_several_kills(tmp_path: Path) -> None:
    """Cold and warm processes are ended, although the second daemon was killed before it searched for them.

    The fork server is stopped, so that it cannot end its own process.
    """
    workspace = a_workspace_with_long_jobs(tmp_path, QUICKLY)
    with a_daemon(workspace) as daemon:
        start_jobs(workspace, daemon)
        survivors = {pid_of(workspace, name) for name in PLUGINS}
        (server,) = {parent_of(pid) for pid in survivors} - {daemon.process.pid}
        os.kill(server, signal.SIGSTOP)
        daemon.end(signal.SIGKILL)
        start_daemon(workspace.config.parent, "service.starting").end()
        assert all(Path(f"/proc/{pid}").exists() for pid in survivors)
        with a_daemon(workspace) as third:
            assert not any(is_running(pid) for pid in (*survivors, server))
            ended_pids = {line["pid"] for line in third.lines if line["signal"] == "survivor.ended"}
            assert ended_pids >= {server, *survivors}


def test_a_script_that_outlives_its_daemon_is_ended_and_run_again(tmp_path: Path) -> None:
    """A script with a path and one that a shell reads outlive a killed daemon."""
    workspace = a_workspace(tmp_path)
    demo = workspace.config.parent
    path = demo.absolute()
    body = (
        f"echo $$ > {path}/$NAME.new; mv {path}/$NAME.new {path}/$NAME.pid; "
        f"test -e {path}/again || cat {path}/gate; echo fine"
    )
    os.mkfifo(demo / "gate")
    (demo / "long.sh").write_text(f"#!/bin/sh\n{body}\n")
    (demo / "long.sh").chmod(0o755)
    for name, run in (("path", "./long.sh"), ("shell", body)):
        retry = {"max_attempts": 9, "backoff_base": "1ms"}
        settings = {"run": run, "env": {"NAME": name}, "retry": retry}
        workspace.append(f"  {name}: {json.dumps(settings)}\n")

    def read_pid(name: str) -> int:
        while not (demo / f"{name}.pid").exists():
            os.sched_yield()
        return int((demo / f"{name}.pid").read_text())

    with a_daemon(workspace) as daemon:
        job_ids = start_jobs(workspace, daemon, "path", "shell")
        pids = [read_pid("path"), read_pid("shell")]
        daemon.end(signal.SIGKILL)
        assert all(is_running(pid) for pid in pids)
        (demo / "again").touch()
        with a_daemon(workspace):
            assert [status_of(workspace, job_id) for job_id in job_ids] == ["succeeded", "succeeded"]
            assert not any(is_running(pid) for pid in pids)
        for job_id in job_ids:
            job = workspace.json("job", "show", job_id)
            assert (job["result"]["result"], job["execution"]) == ("fine", 2)
