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

from builders.dying_daemons import DaemonProcess, start_daemon
from builders.invariants import violations
from ductile.control.client import call_daemon
from ductile.core.json import JsonObject
from ductile.errors import DuctileError
from ductile.telemetry.signals import Signal

STEPS = (Signal.JOB_CLAIMED, Signal.JOB_SUCCEEDED, Signal.JOB_ACCEPTED, Signal.JOB_RETRYING)

#: Responds by its step: `fan` emits two events, `shaky` succeeds at the second attempt, `bad` never.
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
#: `fan` emits two events, so every later step runs twice.
EXPECTED = Counter({"fan": 1, "both/shaky": 2, "both/inner/plain": 2, "both/inner/bad": 2, "last": 2})


@dataclass(slots=True)
class Workspace:
    """A configuration, its store, and the accepted runs."""

    directory: Path
    accepted: list[str] = field(default_factory=list)

    @property
    def store(self) -> Path:
        return self.directory / "data" / "state.db"

    def start(
        self, dies_at: str = "never", times: int = 1, *, kill_after: int | None = None
    ) -> DaemonProcess:
        return start_daemon(self.directory, dies_at, times, kill_after=kill_after)

    def ask(self, operation: str, request: JsonObject) -> JsonObject:
        return call_daemon(self.directory / "data" / "ductile.sock", operation, request)

    def submit(self) -> None:
        self.accepted.append(
            str(self.ask("pipeline.run", {"pipeline": "flow", "payload": {"n": 1}})["job_id"])
        )

    def wait_for_all(self) -> None:
        for run_id in self.accepted:
            self.ask("job.wait", {"job_id": run_id})


def a_workspace(directory: Path) -> Workspace:
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
    return Workspace(directory=directory)


def run_until_killed(workspace: Workspace, daemon: DaemonProcess, *, runs: int) -> None:
    """Submit runs until the daemon dies or all have ended, then kill it."""
    try:
        if daemon.wait_until_ready():
            for _ in range(runs):
                workspace.submit()
            workspace.wait_for_all()
    except DuctileError:
        pass  # the daemon died meanwhile, as intended
    daemon.end()
    if workspace.store.exists():
        assert violations(workspace.store) == []


def check_after_another_start(workspace: Workspace) -> None:
    daemon = workspace.start()
    assert daemon.wait_until_ready()
    workspace.submit()
    workspace.wait_for_all()
    wait_for_runs_with_lost_responses(workspace)
    daemon.end()
    assert violations(workspace.store) == []
    check_every_run(workspace)


def wait_for_runs_with_lost_responses(workspace: Workspace) -> None:
    """The daemon may have died between its commit and its response."""
    for (run_id,) in rows(workspace, "SELECT id FROM job_queue WHERE plugin = 'pipeline'"):
        workspace.ask("job.wait", {"job_id": run_id})


def rows(workspace: Workspace, sql: str) -> list[tuple[str, ...]]:
    connection = apsw.Connection(str(workspace.store), flags=apsw.SQLITE_OPEN_READONLY)
    result = connection.execute(sql).fetchall()
    connection.close()
    return [tuple(map(str, row)) for row in result]


def check_every_run(workspace: Workspace) -> None:
    """Each run ended with the expected status and the expected number of each step."""
    runs = rows(workspace, "SELECT id, status, reason FROM job_queue WHERE plugin = 'pipeline'")
    ends = {run_id: (status, reason) for run_id, status, reason in runs}
    assert set(workspace.accepted) <= set(ends)
    assert set(ends.values()) == {("failed", "partial_success")}
    steps = rows(workspace, "SELECT run_id, step_path, status FROM job_queue WHERE run_id IS NOT NULL")
    for run_id in ends:
        own_steps = [(path, status) for run, path, status in steps if run == run_id]
        assert Counter(path for path, _ in own_steps) == EXPECTED
        assert {status for path, status in own_steps if path.endswith("bad")} == {"failed"}
        assert {status for path, status in own_steps if not path.endswith("bad")} == {"succeeded"}


@pytest.mark.parametrize("step", STEPS)
def test_runs_survive_death_at_every_step(tmp_path: Path, step: Signal) -> None:
    """Every accepted run ends, with each step once for each line, and no join missing or doubled."""
    workspace = a_workspace(tmp_path)
    for times in (2, 7, 15):
        run_until_killed(workspace, workspace.start(step, times), runs=3)
    check_after_another_start(workspace)


def test_runs_survive_death_at_random_instants(tmp_path: Path) -> None:
    workspace, rng = a_workspace(tmp_path), Random(1)
    for _ in range(5):
        run_until_killed(workspace, workspace.start(kill_after=rng.randrange(10, 150)), runs=4)
    check_after_another_start(workspace)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(4))
def test_runs_survive_a_hundred_deaths(tmp_path: Path, seed: int) -> None:
    """The nightly form."""
    workspace, rng = a_workspace(tmp_path), Random(seed)
    for number in range(25):
        run_until_killed(
            workspace, workspace.start(kill_after=rng.randrange(10, 250)), runs=4 if number % 3 else 0
        )
    check_after_another_start(workspace)
