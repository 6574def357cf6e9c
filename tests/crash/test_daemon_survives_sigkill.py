"""The daemon is killed at every durable step, again and again, and loses nothing."""

from __future__ import annotations

import json
import stat
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, LiteralString

import apsw
import psycopg
import pytest

from builders.dying_daemons import DaemonProcess, start_daemon
from builders.invariants import violations
from builders.postgres import keep_in, store_url
from ductile.control.client import call_daemon
from ductile.core.json import JsonObject
from ductile.errors import DuctileError
from ductile.telemetry.signals import Signal

#: The daemon dies at each of these signals, at each of these times. With the random instants, 60 kills.
STEPS = [
    Signal.SERVICE_STARTING,
    Signal.CONFIG_LOADED,
    Signal.SERVICE_READY,
    Signal.JOB_CLAIMED,
    Signal.JOB_STARTED,
    Signal.JOB_EXITED,
    Signal.JOB_SUCCEEDED,
    Signal.JOB_ACCEPTED,
    Signal.JOB_RETRYING,
    Signal.JOB_RECOVERED,
    Signal.JOB_STDERR,
    Signal.SERVICE_STOPPING,
]
TIMES = (1, 2, 3, 7)
POSTGRES_STEPS = [
    Signal.JOB_ACCEPTED,
    Signal.JOB_CLAIMED,
    Signal.JOB_STARTED,
    Signal.JOB_EXITED,
    Signal.JOB_SUCCEEDED,
]

#: Notes every run under a lock that dies with the process, so that two executions at once are detected.
SOURCE = """#!{python}
import fcntl, json, os, select, sys
request = json.load(sys.stdin)
notes = request["config"]["notes"]
lock = open(os.path.join(notes, request["job_id"]), "a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open(os.path.join(notes, "overlap"), "a").write(request["job_id"] + "\\n")
lock.write("run\\n")
lock.flush()
select.select([], [], [], 0.01)
runs = open(os.path.join(notes, request["job_id"])).read().count("run")
if request["payload"]["n"] % 3 == 0 and runs == 1:
    sys.stderr.write("the first try fails\\n")
    json.dump({{"status": "error", "error": "not yet"}}, sys.stdout)
else:
    event = {{"type": "found", "payload": {{"n": request["payload"]["n"]}}}}
    json.dump({{"status": "ok", "result": "done", "events": [event, event]}}, sys.stdout)
"""
SINK = """#!/bin/sh
cat > /dev/null
echo '{"status": "ok", "result": "kept"}'
"""
CONFIG = """
service: {{max_workers: 4, log_level: debug, shutdown_grace: 1s}}
plugins:
  source:
    config: {{notes: {notes}}}
    retry: {{backoff_base: 20ms, max_attempts: 50}}
  sink:
    retry: {{backoff_base: 20ms, max_attempts: 50}}
routes:
  - {{from: source, event_type: found, to: sink}}
"""


@dataclass(slots=True)
class Workspace:
    """A configuration, its store, and the accepted jobs."""

    directory: Path
    accepted: list[str] = field(default_factory=list)
    kills: int = 0

    @property
    def store(self) -> Path:
        return self.directory / "data" / "state.db"

    @property
    def socket(self) -> Path:
        return self.directory / "data" / "ductile.sock"

    def start(self, dies_at: str, times: int = 1, *, kill_after: int | None = None) -> DaemonProcess:
        return start_daemon(self.directory, dies_at, times, kill_after=kill_after)

    def submit(self, number: int) -> None:
        request: JsonObject = {"plugin": "source", "command": "handle", "payload": {"n": number}}
        self.accepted.append(str(call_daemon(self.socket, "plugin.run", request)["job_id"]))

    def query(self, statement: LiteralString) -> list[tuple[Any, ...]]:
        if self.store.exists():
            connection = apsw.Connection(str(self.store), flags=apsw.SQLITE_OPEN_READONLY)
            try:
                return connection.execute(statement).fetchall()
            finally:
                connection.close()
        with psycopg.connect(store_url(self.directory)) as server:
            return server.execute(statement).fetchall()

    def wait_for_all(self) -> None:
        for job_id in self.accepted:
            call_daemon(self.socket, "job.wait", {"job_id": job_id})


def a_workspace(directory: Path) -> Workspace:
    notes = directory / "notes"
    notes.mkdir()
    for name, script in (("source", SOURCE.format(python=sys.executable)), ("sink", SINK)):
        plugin = directory / "plugins" / name
        plugin.mkdir(parents=True)
        (plugin / "run").write_text(script, encoding="utf-8")
        (plugin / "run").chmod(stat.S_IRWXU)
        manifest = {
            "manifest_spec": "ductile.plugin",
            "manifest_version": 1,
            "name": name,
            "version": "1",
            "protocol": 2,
            "entrypoint": "run",
            "commands": ["handle"],
        }
        (plugin / "manifest.yaml").write_text(json.dumps(manifest), encoding="utf-8")
    (directory / "config.yaml").write_text(CONFIG.format(notes=notes), encoding="utf-8")
    return Workspace(directory=directory)


def run_until_killed(
    workspace: Workspace, daemon: DaemonProcess, *, jobs: int = 8, terminate: bool = False
) -> None:
    """Submit jobs until the daemon dies or all have ended, then kill it."""
    try:
        if daemon.wait_until_ready():
            for number in range(jobs):
                workspace.submit(number)
            if terminate:
                daemon.process.terminate()
            workspace.wait_for_all()
    except DuctileError:
        pass  # the daemon died meanwhile, as intended
    daemon.end()
    workspace.kills += 1
    if workspace.store.exists():  # the daemon may have died before it created one
        assert violations(workspace.store) == []


def die_at_a_step(workspace: Workspace, step: Signal, times: Iterable[int]) -> None:
    for count in times:
        terminate = step is Signal.SERVICE_STOPPING
        run_until_killed(workspace, workspace.start(step, count), terminate=terminate)


def die_at_random(workspace: Workspace, rng: Random, kills: int) -> None:
    for _ in range(kills):
        run_until_killed(workspace, workspace.start("never", kill_after=rng.randrange(1, 160)), jobs=16)


def check_after_another_start(workspace: Workspace, kills: int) -> None:
    daemon = workspace.start("never")
    assert daemon.wait_until_ready()
    workspace.submit(99)
    workspace.wait_for_all()
    assert call_daemon(workspace.socket, "system.selfcheck", {})["sound"] is True
    daemon.end()
    assert workspace.kills == kills
    if workspace.store.exists():
        assert violations(workspace.store) == []
    assert not (workspace.directory / "notes" / "overlap").exists(), "a job ran twice at the same time"
    check_everything_ended(workspace)


@pytest.mark.parametrize("step", STEPS)
def test_nothing_is_lost_or_doubled_whichever_step_it_dies_at(tmp_path: Path, step: Signal) -> None:
    """Every accepted job ends, no job runs twice at once, no child exists twice, every row is sound."""
    workspace = a_workspace(tmp_path)
    die_at_a_step(workspace, step, TIMES)
    check_after_another_start(workspace, kills=len(TIMES))


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_lost_or_doubled_at_random_instants_under_load(tmp_path: Path, seed: int) -> None:
    workspace = a_workspace(tmp_path)
    die_at_random(workspace, Random(seed), kills=6)
    check_after_another_start(workspace, kills=6)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("step", STEPS)
def test_hundreds_of_kills(tmp_path: Path, step: Signal) -> None:
    """The nightly form: over five hundred kills in all."""
    workspace = a_workspace(tmp_path)
    die_at_a_step(workspace, step, range(1, 33))
    die_at_random(workspace, Random(step), kills=12)
    check_after_another_start(workspace, kills=44)


def test_nothing_is_lost_or_doubled_on_postgresql(tmp_path: Path) -> None:
    """The same with a store on a server: the next start recovers the jobs of the node that was killed."""
    workspace = a_workspace(tmp_path)
    keep_in("postgres", tmp_path / "config.yaml")
    for step in POSTGRES_STEPS:
        die_at_a_step(workspace, step, (2,))
    check_after_another_start(workspace, kills=len(POSTGRES_STEPS))


def check_everything_ended(workspace: Workspace) -> None:
    rows = {str(job_id): status for job_id, status in workspace.query("SELECT id, status FROM job_queue")}
    assert [job_id for job_id in workspace.accepted if rows.get(job_id) != "succeeded"] == []
    origins = workspace.query("SELECT origin_job_id, origin_event_index FROM job_queue WHERE plugin = 'sink'")
    # Two events and one route: two children for each succeeded job, whichever daemon ran it.
    succeeded = [job_id for job_id, status in rows.items() if status == "succeeded"]
    sources = {job_id for job_id in succeeded if job_id in {origin for origin, _ in origins}}
    assert set(workspace.accepted) <= sources
    assert set(Counter(origin for origin, _ in origins).values()) == {2}
