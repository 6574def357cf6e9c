"""Everything at once: submissions, cancels, retries, reloads, freezes and kills. Nothing is lost or doubled.

Several clients work on one daemon, each on jobs of its own, while the daemon is frozen for moments, asked to
reload, and killed at random instants; in some lives the files of its store are removed instead. Each client
remembers what was acknowledged; a last life finishes what is left, and every acknowledgement is held against
the store.
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

from builders.invariants import violations
from builders.lives import Life, a_life
from ductile.control.client import call_daemon
from ductile.core.json import JsonObject
from ductile.errors import ConflictError, DaemonNotRunningError, DuctileError

CLIENTS = 3
#: Jobs of one client that are not known to have ended.
PENDING = 4
#: A frozen daemon must not keep a client for ever; a later answer counts as lost.
ANSWER_SECONDS = 30.0

#: Fails its first time for every third job; notes under a lock that it runs, so that two at once are seen.
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
class Ground:
    directory: Path

    @property
    def store(self) -> Path:
        return self.directory / "data" / "state.db"

    def ask(self, operation: str, given: JsonObject) -> JsonObject:
        return call_daemon(self.directory / "data" / "ductile.sock", operation, given, timeout=ANSWER_SECONDS)

    def write_config(self, *, spare: bool) -> None:
        text = CONFIG.format(notes=self.directory / "notes", spare="true" if spare else "false")
        replacement = self.directory / "config.new"
        replacement.write_text(text, encoding="utf-8")
        replacement.replace(self.directory / "config.yaml")

    def rows(self, sql: str) -> list[tuple[str, ...]]:
        connection = apsw.Connection(str(self.store), flags=apsw.SQLITE_OPEN_READONLY)
        found = connection.execute(sql).fetchall()
        connection.close()
        return [tuple(map(str, row)) for row in found]


def a_ground(directory: Path) -> Ground:
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
    ground = Ground(directory=directory)
    ground.write_config(spare=True)
    return ground


@dataclass(slots=True)
class Client:
    """Works on jobs of its own, one request after the other, and remembers what was acknowledged."""

    ground: Ground
    rng: Random
    accepted: list[str] = field(default_factory=list)
    #: Accepted and perhaps not ended yet; bounded, so that schedules find free workers too.
    pending: list[str] = field(default_factory=list)
    #: Cancels that were acknowledged, and after which nothing was asked of the job.
    cancelled: set[str] = field(default_factory=set)
    faults: list[BaseException] = field(default_factory=list)

    def work(self, over: threading.Event) -> None:
        """Until the daemon is gone, or the life is over."""
        actions = (self._submit, self._submit, self._submit_run, self._cancel, self._cancel, self._retry)
        while not over.is_set():
            try:
                self.rng.choice(actions)()
            except ConflictError:
                continue  # it had ended, or had not: which, the store decides
            except DuctileError:
                return  # killed or frozen while we talked to it
            except BaseException as error:  # noqa: BLE001 - the test raises it in its own thread
                self.faults.append(error)
                return

    def _submit(self) -> None:
        payload: JsonObject = {"seconds": self.rng.choice([0, 0.01, 0.1, 1])}
        if (fails := self.rng.choice([None, None, "once", "for good"])) is not None:
            payload["fails"] = fails
        given: JsonObject = {"plugin": "worker", "command": "handle", "payload": payload}
        self._remember(self.ground.ask("plugin.run", given))

    def _submit_run(self) -> None:
        given: JsonObject = {"pipeline": "flow", "payload": {"seconds": 0.01}}
        self._remember(self.ground.ask("pipeline.run", given))

    def _remember(self, answer: JsonObject) -> None:
        job_id = str(answer["job_id"])
        self.accepted.append(job_id)
        self.pending.append(job_id)
        if len(self.pending) > PENDING:
            self.ground.ask("job.wait", {"job_id": self.pending.pop(0)})

    def _cancel(self) -> None:
        if job_id := self._recent():
            self.ground.ask("job.cancel", {"job_id": job_id})
            self.cancelled.add(job_id)

    def _retry(self) -> None:
        if job_id := self._recent():
            self.cancelled.discard(job_id)  # an answer that is lost leaves open whether it runs again
            self.ground.ask("job.retry", {"job_id": job_id})

    def _recent(self) -> str | None:
        return self.rng.choice(self.accepted[-6:]) if self.accepted else None


def freeze(daemon: Life, rng: Random, over: threading.Event) -> None:
    """Stop and continue the daemon's process, as an overloaded machine would."""
    while not over.wait(rng.uniform(0.05, 0.6)):
        with suppress(ProcessLookupError):
            daemon.process.send_signal(signal.SIGSTOP)
            over.wait(rng.uniform(0.05, 1.2))
            daemon.process.send_signal(signal.SIGCONT)


def reload_often(ground: Ground, rng: Random, over: threading.Event) -> None:
    spare = False
    while not over.wait(rng.uniform(0.2, 0.8)):
        ground.write_config(spare=spare)
        spare = not spare
        try:
            ground.ask("system.reload", {})
        except DuctileError:
            continue  # it is busy with another one, or gone


def remove_store(ground: Ground, daemon: Life, rng: Random, over: threading.Event) -> None:
    """Remove files of the store in one go, while the daemon is stopped; it ends by itself after that."""
    over.wait(rng.uniform(0.5, 3))
    daemon.process.send_signal(signal.SIGSTOP)
    for name in rng.sample(["state.db", "state.db-wal", "state.db-shm"], rng.randrange(1, 4)):
        (ground.store.parent / name).unlink()
    daemon.process.send_signal(signal.SIGCONT)


def live_through(ground: Ground, clients: list[Client], rng: Random) -> None:
    """One life, which ends by a kill at an instant that the daemon knows nothing of, or with its store."""
    removes = rng.random() < 0.2
    daemon = a_life(ground.directory, kill_after=None if removes else rng.randrange(20, 700))
    over = threading.Event()
    if daemon.wait_until_ready():
        threads = [threading.Thread(target=client.work, args=(over,)) for client in clients]
        seeds = [Random(rng.random()) for _ in range(2)]
        harm = (
            threading.Thread(target=remove_store, args=(ground, daemon, seeds[0], over))
            if removes
            else threading.Thread(target=freeze, args=(daemon, seeds[0], over))
        )
        threads += [harm, threading.Thread(target=reload_often, args=(ground, seeds[1], over))]
        for thread in threads:
            thread.start()
        daemon.process.wait()
        over.set()
        for thread in threads:
            thread.join()
    daemon.end(by_itself=removes)
    if ground.store.exists():
        assert violations(ground.store) == []


def check_after_one_more_life(ground: Ground, clients: list[Client]) -> None:
    daemon = a_life(ground.directory)
    assert daemon.wait_until_ready()
    histories: dict[str, JsonObject] = {}
    try:
        for (job_id,) in ground.rows("SELECT id FROM job_queue WHERE status IN ('queued', 'running')"):
            with suppress(DaemonNotRunningError):
                call_daemon(ground.directory / "data" / "ductile.sock", "job.wait", {"job_id": job_id})
        for schedule in SCHEDULES:
            given: JsonObject = {"plugin": "worker", "schedule": schedule, "limit": 200}
            histories[schedule] = ground.ask("schedule.history", given)
    finally:
        daemon.end()
    assert violations(ground.store) == []
    assert [fault for client in clients for fault in client.faults] == []
    assert not (ground.directory / "notes" / "overlap").exists(), "a job ran twice at the same time"
    rows = {row[0]: row[1:] for row in ground.rows("SELECT id, status, reason FROM job_queue")}
    for client in clients:
        assert [job_id for job_id in client.accepted if job_id not in rows] == []
        unfinished = {job_id for job_id in client.accepted if rows[job_id][0] in {"queued", "running"}}
        assert unfinished == set()
        not_cancelled = {job_id: rows[job_id] for job_id in client.cancelled if rows[job_id][0] != "dead"}
        assert not_cancelled == {}
    for schedule, history in histories.items():
        assert history["account"]["complete"] is not False, (schedule, history["account"])  # type: ignore[call-overload,index]


def storm(directory: Path, seed: int, lives: int) -> None:
    rng = Random(seed)
    ground = a_ground(directory)
    clients = [Client(ground=ground, rng=Random(rng.random())) for _ in range(CLIENTS)]
    for _ in range(lives):
        live_through(ground, clients, rng)
    check_after_one_more_life(ground, clients)


def test_a_short_storm(tmp_path: Path) -> None:
    """Acknowledged submissions end, acknowledged cancels hold, and every occurrence is accounted for."""
    storm(tmp_path, seed=0, lives=3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(1, 9))
def test_a_long_storm(tmp_path: Path, seed: int) -> None:
    """The nightly form: two hundred lives in all."""
    storm(tmp_path, seed=seed, lives=25)
