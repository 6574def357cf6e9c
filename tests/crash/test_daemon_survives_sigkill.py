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

from builders.invariants import violations
from builders.lives import Life, a_life
from builders.postgres import keep_in, store_url
from ductile.control.client import call_daemon
from ductile.core.json import JsonObject
from ductile.errors import DuctileError
from ductile.telemetry.signals import Signal

#: Where to die, and at the how manieth time. With those at random instants, 60 kills.
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

#: Notes every run under a lock that dies with the process: two at once for one job would be seen.
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
class Ground:
    """A configuration, its store, and what has been accepted from us."""

    directory: Path
    accepted: list[str] = field(default_factory=list)
    kills: int = 0

    @property
    def store(self) -> Path:
        return self.directory / "data" / "state.db"

    @property
    def socket(self) -> Path:
        return self.directory / "data" / "ductile.sock"

    def start(self, dies_at: str, times: int = 1, *, kill_after: int | None = None) -> Life:
        return a_life(self.directory, dies_at, times, kill_after=kill_after)

    def submit(self, number: int) -> None:
        given: JsonObject = {"plugin": "source", "command": "handle", "payload": {"n": number}}
        self.accepted.append(str(call_daemon(self.socket, "plugin.run", given)["job_id"]))

    def query(self, statement: LiteralString) -> list[tuple[Any, ...]]:
        if self.store.exists():
            connection = apsw.Connection(str(self.store), flags=apsw.SQLITE_OPEN_READONLY)
            try:
                return connection.execute(statement).fetchall()
            finally:
                connection.close()
        with psycopg.connect(store_url(self.directory)) as on_server:
            return on_server.execute(statement).fetchall()

    def wait_for_all(self) -> None:
        for job_id in self.accepted:
            call_daemon(self.socket, "job.wait", {"job_id": job_id})


def a_ground(directory: Path) -> Ground:
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
    return Ground(directory=directory)


def live_through(ground: Ground, daemon: Life, *, jobs: int = 8, terminate: bool = False) -> None:
    """One life: submit until it dies, or let it finish, then kill it."""
    try:
        if daemon.wait_until_ready():
            for number in range(jobs):
                ground.submit(number)
            if terminate:
                daemon.process.terminate()
            ground.wait_for_all()
    except DuctileError:
        pass  # it died while we talked to it, which is the point
    daemon.end()
    ground.kills += 1
    if ground.store.exists():  # it may have died before it made one
        assert violations(ground.store) == []


def die_at_a_step(ground: Ground, step: Signal, times: Iterable[int]) -> None:
    for count in times:
        terminate = step is Signal.SERVICE_STOPPING
        live_through(ground, ground.start(step, count), terminate=terminate)


def die_at_random(ground: Ground, rng: Random, kills: int) -> None:
    for _ in range(kills):
        live_through(ground, ground.start("never", kill_after=rng.randrange(1, 160)), jobs=16)


def check_after_one_more_life(ground: Ground, kills: int) -> None:
    daemon = ground.start("never")
    assert daemon.wait_until_ready()
    ground.submit(99)
    ground.wait_for_all()
    assert call_daemon(ground.socket, "system.selfcheck", {})["sound"] is True
    daemon.end()
    assert ground.kills == kills
    if ground.store.exists():
        assert violations(ground.store) == []
    assert not (ground.directory / "notes" / "overlap").exists(), "a job ran twice at the same time"
    check_everything_ended(ground)


@pytest.mark.parametrize("step", STEPS)
def test_nothing_is_lost_or_doubled_whichever_step_it_dies_at(tmp_path: Path, step: Signal) -> None:
    """Every accepted job ends, no job runs twice at once, no child exists twice, every row is sound."""
    ground = a_ground(tmp_path)
    die_at_a_step(ground, step, TIMES)
    check_after_one_more_life(ground, kills=len(TIMES))


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_lost_or_doubled_at_random_instants_under_load(tmp_path: Path, seed: int) -> None:
    ground = a_ground(tmp_path)
    die_at_random(ground, Random(seed), kills=6)
    check_after_one_more_life(ground, kills=6)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("step", STEPS)
def test_hundreds_of_kills(tmp_path: Path, step: Signal) -> None:
    """The nightly form: over five hundred kills in all."""
    ground = a_ground(tmp_path)
    die_at_a_step(ground, step, range(1, 33))
    die_at_random(ground, Random(step), kills=12)
    check_after_one_more_life(ground, kills=44)


def test_nothing_is_lost_or_doubled_on_postgresql(tmp_path: Path) -> None:
    """The same with a store on a server: the next start recovers the jobs of the node that was killed."""
    ground = a_ground(tmp_path)
    keep_in("postgres", tmp_path / "config.yaml")
    for step in POSTGRES_STEPS:
        die_at_a_step(ground, step, (2,))
    check_after_one_more_life(ground, kills=len(POSTGRES_STEPS))


def check_everything_ended(ground: Ground) -> None:
    rows = {str(job_id): status for job_id, status in ground.query("SELECT id, status FROM job_queue")}
    assert [job_id for job_id in ground.accepted if rows.get(job_id) != "succeeded"] == []
    origins = ground.query("SELECT origin_job_id, origin_event_index FROM job_queue WHERE plugin = 'sink'")
    # Two events, one route: two children for each job that succeeded, whichever life it succeeded in.
    done = [job_id for job_id, status in rows.items() if status == "succeeded"]
    sources = {job_id for job_id in done if job_id in {origin for origin, _ in origins}}
    assert set(ground.accepted) <= sources
    assert set(Counter(origin for origin, _ in origins).values()) == {2}
