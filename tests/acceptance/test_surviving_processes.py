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
#: Both run until a file `go` lies beside them, and note their process id.
COLD = """\
#!/bin/sh
cat >/dev/null
here=$(dirname "$0")
echo $$ > "$here/pid.new" && mv "$here/pid.new" "$here/pid"
while [ ! -e "$here/go" ]; do sleep 0.05; done
echo '{"status": "ok", "result": "done"}'
"""
WARM = f"""\
#!{sys.executable}
import os, select, sys
sys.stdin.read()
here = os.path.dirname(os.path.abspath(__file__))
with open(here + "/pid.new", "w") as file:
    file.write(str(os.getpid()))
os.rename(here + "/pid.new", here + "/pid")
while not os.path.exists(here + "/go"):
    select.select([], [], [], 0.05)
print('{{"status": "ok", "result": "done"}}')
"""
PLUGINS = {"cold": COLD, "warm": WARM}


def a_workspace_with_long_jobs(directory: Path, retry: str = ONCE) -> Workspace:
    workspace = a_workspace(directory, "".join(f"  {name}:\n{retry}" for name in PLUGINS))
    for name, script in PLUGINS.items():
        workspace.plugin(name, script)
    return workspace


def started_jobs(workspace: Workspace, daemon: Daemon, *plugins: str) -> list[str]:
    """One job of each plugin, with a process that runs."""
    jobs = [workspace.json("run", name, "--no-wait")["job_id"] for name in plugins or PLUGINS]
    for job_id in jobs:
        daemon.wait_until_started(job_id)
    return jobs


def pid_of(workspace: Workspace, plugin: str) -> int:
    """The process of a job that has been started, when it has noted its number."""
    noted = workspace.config.parent / "plugins" / plugin / "pid"
    while not noted.exists():
        os.sched_yield()
    return int(noted.read_text())


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def let_go(workspace: Workspace) -> None:
    for name in PLUGINS:
        (workspace.config.parent / "plugins" / name / "go").touch()


def status_of(workspace: Workspace, job_id: str) -> str:
    return str(workspace.json("job", "wait", job_id)["status"])


def copy_with_restore(original: Workspace) -> None:
    assert original.ductile("system", "backup", "saved.tar.gz").status == 0
    ran = original.terminal.ductile("system", "restore", "saved.tar.gz", "--to", "second/demo")
    assert ran.status == 0, ran


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
        closing(sqlite3.connect(directory / "data" / "state.db")) as before,
        closing(sqlite3.connect(target / "state.db")) as after,
    ):
        before.backup(after)


@pytest.mark.parametrize("copied", [copy_with_restore, copy_the_files])
def test_a_daemon_on_a_copy_leaves_the_processes_of_the_original_alone(
    tmp_path: Path, copied: Callable[[Workspace], None]
) -> None:
    """Jobs from before and after the copy, cold and warm, run to their end, each at its first attempt."""
    workspace = a_workspace_with_long_jobs(tmp_path)
    with a_daemon(workspace) as daemon:
        jobs = started_jobs(workspace, daemon)
        copied(workspace)
        jobs += started_jobs(workspace, daemon)
        with a_daemon(Workspace(directory=tmp_path / "second")) as other:
            let_go(workspace)
            assert [status_of(workspace, job_id) for job_id in jobs] == ["succeeded"] * len(jobs)
            assert [line for line in other.whole_log() if line["signal"] == "survivor.ended"] == []


def test_a_daemon_on_the_original_leaves_the_processes_of_a_copy_alone(tmp_path: Path) -> None:
    """The other way round, although the daemon of the copy is dead: its processes are not the original's."""
    workspace = a_workspace_with_long_jobs(tmp_path, QUICKLY)
    second = Workspace(directory=tmp_path / "second")
    with a_daemon(workspace) as daemon:
        (job_id,) = started_jobs(workspace, daemon, "cold")
        copy_the_files(workspace)
        daemon.end(signal.SIGKILL)
        with a_daemon(second) as other:
            other.wait_until_started(job_id)
            other.end(signal.SIGKILL)
            pid = pid_of(second, "cold")
            with a_daemon(workspace) as again:
                again.wait_until_started(job_id)
                os.kill(pid, 0)
                ended = [line["pid"] for line in again.whole_log() if line["signal"] == "survivor.ended"]
                assert pid not in ended


def test_survivors_of_an_earlier_life_are_ended_after_several_kills(tmp_path: Path) -> None:
    """Cold and warm ones, although the second daemon was killed before it had looked for them.

    The fork server is stopped, so that it cannot end its own process.
    """
    workspace = a_workspace_with_long_jobs(tmp_path, QUICKLY)
    with a_daemon(workspace) as daemon:
        started_jobs(workspace, daemon)
        survivors = {pid_of(workspace, name) for name in PLUGINS}
        (server,) = {parent_of(pid) for pid in survivors} - {daemon.process.pid}
        os.kill(server, signal.SIGSTOP)
        daemon.end(signal.SIGKILL)
        start_daemon(workspace.config.parent, "service.starting").end()
        assert all(Path(f"/proc/{pid}").exists() for pid in survivors)
        with a_daemon(workspace) as last:
            assert not any(is_running(pid) for pid in (*survivors, server))
            ended = {line["pid"] for line in last.lines if line["signal"] == "survivor.ended"}
            assert ended >= {server, *survivors}


def test_a_script_that_outlives_its_daemon_is_ended_and_run_again(tmp_path: Path) -> None:
    """After kill -9 of the daemon, of a script by its path and of one that a shell reads."""
    workspace = a_workspace(tmp_path)
    demo = workspace.config.parent
    at = demo.absolute()
    body = (
        f"echo $$ > {at}/$NAME.new; mv {at}/$NAME.new {at}/$NAME.pid; "
        f"test -e {at}/again || cat {at}/gate; echo fine"
    )
    os.mkfifo(demo / "gate")
    (demo / "long.sh").write_text(f"#!/bin/sh\n{body}\n")
    (demo / "long.sh").chmod(0o755)
    for name, run in (("path", "./long.sh"), ("shell", body)):
        retry = {"max_attempts": 9, "backoff_base": "1ms"}
        settings = {"run": run, "env": {"NAME": name}, "retry": retry}
        workspace.append(f"  {name}: {json.dumps(settings)}\n")

    def noted_pid(name: str) -> int:
        while not (demo / f"{name}.pid").exists():
            os.sched_yield()
        return int((demo / f"{name}.pid").read_text())

    with a_daemon(workspace) as daemon:
        jobs = started_jobs(workspace, daemon, "path", "shell")
        pids = [noted_pid("path"), noted_pid("shell")]
        daemon.end(signal.SIGKILL)
        assert all(is_running(pid) for pid in pids)
        (demo / "again").touch()
        with a_daemon(workspace):
            assert [status_of(workspace, job) for job in jobs] == ["succeeded", "succeeded"]
            assert not any(is_running(pid) for pid in pids)
        for job in jobs:
            shown = workspace.json("job", "show", job)
            assert (shown["result"]["result"], shown["execution"]) == ("fine", 2)
