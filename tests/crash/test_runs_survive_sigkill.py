"""Daemons die at random while pipeline runs are under way; no step is lost or doubled."""

from __future__ import annotations

import json
import stat
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import apsw
import pytest

from builders.invariants import violations
from builders.lives import Life, a_life
from ductile.control.client import call_daemon
from ductile.core.json import JsonObject
from ductile.errors import DuctileError
from ductile.telemetry.signals import Signal

STEPS = (Signal.JOB_CLAIMED, Signal.JOB_SUCCEEDED, Signal.JOB_ACCEPTED, Signal.JOB_RETRYING)

#: Answers by the step it is: `fan` with two events, `shaky` at the second try only, `bad` never.
PLUGIN = """#!{python}
import json, os, sys
request = json.load(sys.stdin)
notes = request["config"]["notes"]
step = request["context"]["ductile_step_id"].rpartition("/")[2]
with open(os.path.join(notes, request["job_id"]), "a+") as note:
    note.write("run\\n")
    note.seek(0)
    runs = note.read().count("run")
if step == "shaky" and runs == 1:
    json.dump({{"status": "error", "error": "not yet"}}, sys.stdout)
elif step == "bad":
    json.dump({{"status": "error", "error": "never", "retry": False}}, sys.stdout)
else:
    events = [{{"type": "made", "payload": {{"by": step}}}}] * (2 if step == "fan" else 0)
    json.dump({{"status": "ok", "result": step, "events": events}}, sys.stdout)
"""
CONFIG = """
service: {{max_workers: 4, log_level: debug, shutdown_grace: 1s}}
plugins:
  worker:
    config: {{notes: {notes}}}
    retry: {{backoff_base: 20ms, backoff_max: 40ms, max_attempts: 50}}
pipelines:
  - name: flow
    steps:
      - {{id: fan, uses: worker}}
      - id: both
        join: always
        split:
          - {{id: shaky, uses: worker}}
          - id: inner
            split:
              - {{id: plain, uses: worker}}
              - {{id: bad, uses: worker}}
          - {{id: never, uses: worker, if: {{path: payload.gone, op: exists}}}}
      - {{id: last, uses: worker}}
"""
#: Two events leave `fan`, so everything after it is there twice.
EXPECTED = Counter({"fan": 1, "both/shaky": 2, "both/inner/plain": 2, "both/inner/bad": 2, "last": 2})


@dataclass(slots=True)
class Ground:
    """A configuration, its store, and the runs that were accepted from us."""

    directory: Path
    accepted: list[str] = field(default_factory=list)

    @property
    def store(self) -> Path:
        return self.directory / "data" / "state.db"

    def start(self, dies_at: str = "never", times: int = 1, *, kill_after: int | None = None) -> Life:
        return a_life(self.directory, dies_at, times, kill_after=kill_after)

    def ask(self, operation: str, given: JsonObject) -> JsonObject:
        return call_daemon(self.directory / "data" / "ductile.sock", operation, given)

    def submit(self) -> None:
        self.accepted.append(
            str(self.ask("pipeline.run", {"pipeline": "flow", "payload": {"n": 1}})["job_id"])
        )

    def wait_for_all(self) -> None:
        for run_id in self.accepted:
            self.ask("job.wait", {"job_id": run_id})


def a_ground(directory: Path) -> Ground:
    notes, plugin = directory / "notes", directory / "plugins" / "worker"
    notes.mkdir()
    plugin.mkdir(parents=True)
    (plugin / "run").write_text(PLUGIN.format(python=sys.executable), encoding="utf-8")
    (plugin / "run").chmod(stat.S_IRWXU)
    manifest = {
        "manifest_spec": "ductile.plugin",
        "manifest_version": 1,
        "name": "worker",
        "version": "1",
        "protocol": 2,
        "entrypoint": "run",
        "commands": ["handle"],
    }
    (plugin / "manifest.yaml").write_text(json.dumps(manifest), encoding="utf-8")
    (directory / "config.yaml").write_text(CONFIG.format(notes=notes), encoding="utf-8")
    return Ground(directory=directory)


def live_through(ground: Ground, daemon: Life, *, runs: int) -> None:
    """One life: submit until it dies, or let it finish, then kill it."""
    try:
        if daemon.wait_until_ready():
            for _ in range(runs):
                ground.submit()
            ground.wait_for_all()
    except DuctileError:
        pass  # it died while we talked to it, which is the point
    daemon.end()
    if ground.store.exists():
        assert violations(ground.store) == []


def check_after_one_more_life(ground: Ground) -> None:
    daemon = ground.start()
    assert daemon.wait_until_ready()
    ground.submit()
    ground.wait_for_all()
    wait_for_runs_that_were_accepted_unheard(ground)
    daemon.end()
    assert violations(ground.store) == []
    check_every_run(ground)


def wait_for_runs_that_were_accepted_unheard(ground: Ground) -> None:
    """The daemon may have died between its commit and its answer."""
    for (run_id,) in rows(ground, "SELECT id FROM job_queue WHERE plugin = 'pipeline'"):
        ground.ask("job.wait", {"job_id": run_id})


def rows(ground: Ground, sql: str) -> list[tuple[str, ...]]:
    connection = apsw.Connection(str(ground.store), flags=apsw.SQLITE_OPEN_READONLY)
    found = connection.execute(sql).fetchall()
    connection.close()
    return [tuple(map(str, row)) for row in found]


def check_every_run(ground: Ground) -> None:
    """Each run ended as it has to, with each of its steps as often as it has to be there."""
    runs = rows(ground, "SELECT id, status, reason FROM job_queue WHERE plugin = 'pipeline'")
    ends = {run_id: (status, reason) for run_id, status, reason in runs}
    assert set(ground.accepted) <= set(ends)
    assert set(ends.values()) == {("failed", "partial_success")}
    steps = rows(ground, "SELECT run_id, step_path, status FROM job_queue WHERE run_id IS NOT NULL")
    for run_id in ends:
        mine = [(path, status) for run, path, status in steps if run == run_id]
        assert Counter(path for path, _ in mine) == EXPECTED
        assert {status for path, status in mine if path.endswith("bad")} == {"failed"}
        assert {status for path, status in mine if not path.endswith("bad")} == {"succeeded"}


@pytest.mark.parametrize("step", STEPS)
def test_runs_survive_death_at_every_step(tmp_path: Path, step: Signal) -> None:
    """Every accepted run ends, with each step once for each line, and no join missing or doubled."""
    ground = a_ground(tmp_path)
    for times in (2, 7, 15):
        live_through(ground, ground.start(step, times), runs=3)
    check_after_one_more_life(ground)


def test_runs_survive_death_at_random_instants(tmp_path: Path) -> None:
    ground, rng = a_ground(tmp_path), Random(1)
    for _ in range(5):
        live_through(ground, ground.start(kill_after=rng.randrange(10, 150)), runs=4)
    check_after_one_more_life(ground)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(4))
def test_runs_survive_a_hundred_deaths(tmp_path: Path, seed: int) -> None:
    """The nightly form."""
    ground, rng = a_ground(tmp_path), Random(seed)
    for number in range(25):
        live_through(ground, ground.start(kill_after=rng.randrange(10, 250)), runs=4 if number % 3 else 0)
    check_after_one_more_life(ground)
