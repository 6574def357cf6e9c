"""Everything at once: submissions, cancels, retries, reloads, freezes and kills. Nothing is lost or doubled.

Several clients work on one daemon, each on jobs of its own, while the daemon is frozen for moments, reloaded
and killed at random instants. Some daemons lose the files of their store instead. Each client records the
acknowledgements. A last daemon finishes all jobs, and every acknowledgement is compared with the store.
"""

from __future__ import annotations

import json
import signal
import stat
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import apsw
import pytest

from builders.dying_daemons import DaemonProcess, start_daemon
from builders.invariants import violations
from ductile.control.client import call_daemon
from ductile.core.json import JsonObject
from ductile.errors import ConflictError, DaemonNotRunningError, DuctileError

CLIENTS = 3
#: Jobs of one client that are not known to have ended.
PENDING = 4
#: Clients of a frozen daemon wait so long; a later response counts as lost.
ANSWER_SECONDS = 30.0

#: Notes under a lock that it runs, so that two executions at once are detected. Its payload may make it fail.
WORKER = """#!{python}
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
payload = request.get("payload", {{}})
select.select([], [], [], payload.get("seconds", 0.01))
runs = open(os.path.join(notes, request["job_id"])).read().count("run")
if payload.get("fails") and runs % 2:
    json.dump({{"status": "error", "error": "not yet", "retry": payload["fails"] == "once"}}, sys.stdout)
else:
    json.dump({{"status": "ok", "result": "done"}}, sys.stdout)
"""
CONFIG = """
service: {{max_workers: 4, log_level: debug, shutdown_grace: 1s}}
plugins:
  worker:
    config: {{notes: {notes}}}
    retry: {{backoff_base: 20ms, max_attempts: 50}}
    schedules:
      - {{id: often, every: 200ms, command: poll, payload: {{seconds: 0.02}}, catch_up: run_once}}
      - {{id: queued, every: 300ms, command: sweep, if_running: queue, catch_up: run_all}}
  spare: {{uses: worker, enabled: {spare}, config: {{notes: {notes}}}}}
pipelines:
  - name: flow
    steps:
      - {{id: first, uses: worker}}
      - id: both
        join: always
        split:
          - {{id: quick, uses: worker}}
          - {{id: slow, uses: worker, with: {{seconds: 0.05}}}}
      - {{id: last, uses: worker}}
"""
SCHEDULES = ("often", "queued")


@dataclass(slots=True)
class Workspace:
    directory: Path

    @property
    def store(self) -> Path:
        return self.directory / "data" / "state.db"

    def ask(self, operation: str, request: JsonObject) -> JsonObject:
        return call_daemon(
            self.directory / "data" / "ductile.sock", operation, request, timeout=ANSWER_SECONDS
        )

    def write_config(self, *, spare: bool) -> None:
        text = CONFIG.format(notes=self.directory / "notes", spare="true" if spare else "false")
        replacement = self.directory / "config.new"
        replacement.write_text(text, encoding="utf-8")
        replacement.replace(self.directory / "config.yaml")

    def rows(self, sql: str) -> list[tuple[str, ...]]:
        connection = apsw.Connection(str(self.store), flags=apsw.SQLITE_OPEN_READONLY)
        rows = connection.execute(sql).fetchall()
        connection.close()
        return [tuple(map(str, row)) for row in rows]


def a_workspace(directory: Path) -> Workspace:
    notes, plugin = directory / "notes", directory / "plugins" / "worker"
    notes.mkdir()
    plugin.mkdir(parents=True)
    (plugin / "run").write_text(WORKER.format(python=sys.executable), encoding="utf-8")
    (plugin / "run").chmod(stat.S_IRWXU)
    manifest = {
        "manifest_spec": "ductile.plugin",
        "manifest_version": 1,
        "name": "worker",
        "version": "1",
        "protocol": 2,
        "entrypoint": "run",
        "commands": ["handle", "poll", "sweep"],
    }
    (plugin / "manifest.yaml").write_text(json.dumps(manifest), encoding="utf-8")
    workspace = Workspace(directory=directory)
    workspace.write_config(spare=True)
    return workspace


@dataclass(slots=True)
class Client:
    """Works on jobs of its own, one request after the other, and records the acknowledgements."""

    workspace: Workspace
    rng: Random
    accepted: list[str] = field(default_factory=list)
    #: Accepted jobs that may not have ended; bounded, so that schedules find free workers too.
    pending: list[str] = field(default_factory=list)
    #: Jobs with an acknowledged cancel and no later request.
    cancelled: set[str] = field(default_factory=set)
    faults: list[BaseException] = field(default_factory=list)

    def work(self, stop: threading.Event) -> None:
        """Send requests until the daemon has ended."""
        actions = (self._submit, self._submit, self._submit_run, self._cancel, self._cancel, self._retry)
        while not stop.is_set():
            try:
                self.rng.choice(actions)()
            except ConflictError:
                continue  # whether the job had ended is decided by the store
            except DuctileError:
                return  # the daemon was killed or frozen meanwhile
            except BaseException as error:  # noqa: BLE001 - the test raises it in its own thread
                self.faults.append(error)
                return

    def _submit(self) -> None:
        payload: JsonObject = {"seconds": self.rng.choice([0, 0.01, 0.1, 1])}
        if (fails := self.rng.choice([None, None, "once", "for good"])) is not None:
            payload["fails"] = fails
        request: JsonObject = {"plugin": "worker", "command": "handle", "payload": payload}
        self._remember(self.workspace.ask("plugin.run", request))

    def _submit_run(self) -> None:
        request: JsonObject = {"pipeline": "flow", "payload": {"seconds": 0.01}}
        self._remember(self.workspace.ask("pipeline.run", request))

    def _remember(self, response: JsonObject) -> None:
        job_id = str(response["job_id"])
        self.accepted.append(job_id)
        self.pending.append(job_id)
        if len(self.pending) > PENDING:
            self.workspace.ask("job.wait", {"job_id": self.pending.pop(0)})

    def _cancel(self) -> None:
        if job_id := self._recent():
            self.workspace.ask("job.cancel", {"job_id": job_id})
            self.cancelled.add(job_id)

    def _retry(self) -> None:
        if job_id := self._recent():
            self.cancelled.discard(job_id)  # if the response is lost, the job may run again or not
            self.workspace.ask("job.retry", {"job_id": job_id})

    def _recent(self) -> str | None:
        return self.rng.choice(self.accepted[-6:]) if self.accepted else None


def freeze(daemon: DaemonProcess, rng: Random, stop: threading.Event) -> None:
    """Stop and continue the daemon's process, as an overloaded machine would."""
    while not stop.wait(rng.uniform(0.05, 0.6)):
        with suppress(ProcessLookupError):
            daemon.process.send_signal(signal.SIGSTOP)
            stop.wait(rng.uniform(0.05, 1.2))
            daemon.process.send_signal(signal.SIGCONT)


def reload_often(workspace: Workspace, rng: Random, stop: threading.Event) -> None:
    spare = False
    while not stop.wait(rng.uniform(0.2, 0.8)):
        workspace.write_config(spare=spare)
        spare = not spare
        try:
            workspace.ask("system.reload", {})
        except DuctileError:
            continue  # another reload is under way, or the daemon has ended


def remove_store(workspace: Workspace, daemon: DaemonProcess, rng: Random, stop: threading.Event) -> None:
    """Stop the daemon, remove files of its store, and continue it. It ends by itself after that."""
    stop.wait(rng.uniform(0.5, 3))
    daemon.process.send_signal(signal.SIGSTOP)
    for name in rng.sample(["state.db", "state.db-wal", "state.db-shm"], rng.randrange(1, 4)):
        (workspace.store.parent / name).unlink()
    daemon.process.send_signal(signal.SIGCONT)


def run_until_killed(workspace: Workspace, clients: list[Client], rng: Random) -> None:
    """Run a daemon until it is killed at a random instant, or has lost its store."""
    removes_store = rng.random() < 0.2
    daemon = start_daemon(workspace.directory, kill_after=None if removes_store else rng.randrange(20, 700))
    stop = threading.Event()
    if daemon.wait_until_ready():
        threads = [threading.Thread(target=client.work, args=(stop,)) for client in clients]
        seeds = [Random(rng.random()) for _ in range(2)]
        fault_thread = (
            threading.Thread(target=remove_store, args=(workspace, daemon, seeds[0], stop))
            if removes_store
            else threading.Thread(target=freeze, args=(daemon, seeds[0], stop))
        )
        threads += [fault_thread, threading.Thread(target=reload_often, args=(workspace, seeds[1], stop))]
        for thread in threads:
            thread.start()
        daemon.process.wait()
        stop.set()
        for thread in threads:
            thread.join()
    daemon.end(by_itself=removes_store)
    if workspace.store.exists():
        assert violations(workspace.store) == []


def check_after_another_start(workspace: Workspace, clients: list[Client]) -> None:
    daemon = start_daemon(workspace.directory)
    assert daemon.wait_until_ready()
    histories: dict[str, JsonObject] = {}
    try:
        for (job_id,) in workspace.rows("SELECT id FROM job_queue WHERE status IN ('queued', 'running')"):
            with suppress(DaemonNotRunningError):
                call_daemon(workspace.directory / "data" / "ductile.sock", "job.wait", {"job_id": job_id})
        for schedule in SCHEDULES:
            request: JsonObject = {"plugin": "worker", "schedule": schedule, "limit": 200}
            histories[schedule] = workspace.ask("schedule.history", request)
    finally:
        daemon.end()
    assert violations(workspace.store) == []
    assert [fault for client in clients for fault in client.faults] == []
    assert not (workspace.directory / "notes" / "overlap").exists(), "a job ran twice at the same time"
    rows = {row[0]: row[1:] for row in workspace.rows("SELECT id, status, reason FROM job_queue")}
    for client in clients:
        assert [job_id for job_id in client.accepted if job_id not in rows] == []
        unfinished = {job_id for job_id in client.accepted if rows[job_id][0] in {"queued", "running"}}
        assert unfinished == set()
        not_cancelled = {job_id: rows[job_id] for job_id in client.cancelled if rows[job_id][0] != "dead"}
        assert not_cancelled == {}
    for schedule, history in histories.items():
        assert history["account"]["complete"] is not False, (schedule, history["account"])  # type: ignore[call-overload,index]


def run_storm(directory: Path, seed: int, starts: int) -> None:
    rng = Random(seed)
    workspace = a_workspace(directory)
    clients = [Client(workspace=workspace, rng=Random(rng.random())) for _ in range(CLIENTS)]
    for _ in range(starts):
        run_until_killed(workspace, clients, rng)
    check_after_another_start(workspace, clients)


def test_a_short_storm(tmp_path: Path) -> None:
    """Acknowledged submissions end, acknowledged cancels hold, and every occurrence is accounted for."""
    run_storm(tmp_path, seed=0, starts=3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(1, 9))
def test_a_long_storm(tmp_path: Path, seed: int) -> None:
    """The nightly form: two hundred daemons in all."""
    run_storm(tmp_path, seed=seed, starts=25)
