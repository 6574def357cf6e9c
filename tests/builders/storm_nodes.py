"""Three daemons on one PostgreSQL server, each behind a proxy of its own.

Their plugin keeps a record besides the store: it appends a line when it starts and one when it ends, and it
holds a lock while it runs, which the kernel releases when its process ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2s
from pathlib import Path
from typing import Any, BinaryIO

from builders.cut_connections import CuttingProxy
from builders.daemons import PATIENCE, Workspace, end_plugins_of
from builders.http import api_section, token_for
from builders.plugins import a_manifest, a_plugin
from builders.postgres import OwnServer, own_server
from builders.processes import Process, start_with_output
from builders.receivers import Receiver, a_receiver
from builders.scratch import scratch_root
from builders.terminal import DUCTILE

NAMES = ("north", "east", "west")
COMMANDS = ("handle", "poll", "sweep")
SCHEDULES = ("often", "queued")
#: Steps of the pipelines, with the number of successful executions in a run that succeeds.
PIPELINES: Mapping[str, Mapping[str, int]] = {
    "flow": {"first": 1, "both/quick": 1, "both/slow": 1, "last": 1},
    "fan": {"first": 1, "both/quick": 2, "both/slow": 2, "last": 2},
}
#: The payload says how often the plugin fails, and how many events it emits.
WORKER = """#!{python}
import fcntl, json, os, sys, time
request = json.load(sys.stdin)
payload, config = request.get("payload") or {{}}, request["config"]
job, owner = request["job_id"], os.environ["DUCTILE_DAEMON"]
record = os.open(os.path.join(config["notes"], "executions"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

def note(kind, **more):
    line = {{"kind": kind, "job": job, "owner": owner, "pid": os.getpid(), "at": time.monotonic(), **more}}
    os.write(record, (json.dumps(line) + "\\n").encode())

def hold(name, kind):
    lock = os.open(os.path.join(config["notes"], name), os.O_RDWR | os.O_CREAT, 0o600)
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if holder := os.pread(lock, 200, 0).decode():
                return note(kind, holder=holder)
            time.sleep(0.001)  # the holder has not written its name yet
        else:
            os.ftruncate(lock, 0)
            os.pwrite(lock, owner.encode(), 0)
            return lock

note("start")
own = hold(job, "overlap")
alone = hold("alone", "crowded") if config.get("alone") else None
with open(os.path.join(config["notes"], job + ".runs"), "a+") as runs:
    runs.write("x")
    runs.flush()
    count = runs.seek(0, 2)
time.sleep(payload.get("seconds", 0.01))
fails = {{"once": 1, "twice": 2}}.get(payload.get("fails"), 0)
# The names are removed while this process still holds the locks.
for lock in (own, alone):
    if lock is not None:
        os.ftruncate(lock, 0)
note("end")
if payload.get("fails") == "for good":
    response = {{"status": "error", "error": "never", "retry": False}}
elif count <= fails:
    response = {{"status": "error", "error": "not yet"}}
else:
    event = {{"type": "worked", "payload": {{"seconds": payload.get("seconds", 0.01)}}}}
    response = {{"status": "ok", "result": "done", "events": [event] * payload.get("events", 1)}}
json.dump(response, sys.stdout)
"""
CONFIG = """\
state: {{url: '{url}'}}
service: {{node: {name}, max_workers: 4, log_level: debug, shutdown_grace: 1s, tick_interval: 1s}}
state_webhooks: {{allow: [127.0.0.1], timeout: 5s, backoff_base: 100ms, max_attempts: 100}}
plugins:
  worker:
    config: {{notes: {notes}}}
    retry: {{backoff_base: 20ms, max_attempts: 100}}
    schedules:
      - {{id: often, every: 1s, command: poll, payload: {{seconds: 0.02}}, catch_up: run_once}}
      - {{id: queued, every: 1s, command: sweep, if_running: queue, catch_up: run_all}}
  alone:
    uses: worker
    config: {{notes: {notes}, alone: true}}
    parallelism: 1
    retry: {{backoff_base: 20ms, max_attempts: 100}}
pipelines:
  - name: flow
    steps:
      - {{id: first, uses: worker, with: {{events: 1}}}}
      - id: both
        split:
          - {{id: quick, uses: worker, with: {{fails: once}}}}
          - {{id: slow, uses: worker, with: {{seconds: 0.2}}}}
      - {{id: last, uses: worker}}
  - name: fan
    execution_mode: synchronous
    timeout: 30s
    steps:
      - {{id: first, uses: worker, with: {{events: 2}}}}
      - id: both
        join: always
        split:
          - {{id: quick, uses: worker, with: {{events: 1}}}}
          - {{id: slow, uses: alone, with: {{events: 1, fails: once}}}}
      - {{id: last, uses: worker}}
"""


@dataclass(slots=True)
class DaemonProcess:
    """One process of a daemon."""

    process: Process
    output: BinaryIO
    lines: list[dict[str, Any]] = field(default_factory=list)
    port: int | None = None
    was_ready: bool = False
    #: Whether the test has killed it or asked it to end.
    was_ended: bool = False
    #: Begin and end of each time that it was stopped with SIGSTOP.
    stops: list[tuple[float, float]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def read(self) -> None:
        """Read the log until the daemon has ended. Runs in a thread of its own."""
        for text in self.output:
            with suppress(ValueError), self.changed:  # a killed daemon leaves half a line
                line = json.loads(text)
                self.lines.append(line)
                if line["signal"] == "api.listening":
                    self.port = int(line["address"].rpartition(":")[2])
                self.was_ready = self.was_ready or line["signal"] == "service.ready"
                self.changed.notify_all()
        self.process.wait()
        with self.changed:
            self.port = None
            self.changed.notify_all()

    def wait_for_change(self, seconds: float = 1) -> None:
        """Wait for a new line or the end of the daemon, for so many seconds at most."""
        with self.changed:
            self.changed.wait(timeout=seconds)


class StormNode:
    """A daemon that is started again whenever it has ended, as by a service manager."""

    def __init__(self, workspace: Workspace, proxy: CuttingProxy) -> None:
        self.name = workspace.directory.name
        self.workspace = workspace
        self.proxy = proxy
        self.daemons: list[DaemonProcess] = []
        self._threads: list[threading.Thread] = []
        self._stopped_at: float | None = None

    @property
    def daemon(self) -> DaemonProcess:
        return self.daemons[-1]

    @property
    def port(self) -> int | None:
        return self.daemons[-1].port if self.daemons else None

    def start(self) -> None:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "LANG": "C.UTF-8"}
        command = (DUCTILE, "system", "start", "--config", "demo")
        daemon = DaemonProcess(
            *start_with_output(command, directory=self.workspace.directory, environment=environment)
        )
        self.daemons.append(daemon)
        self._threads.append(threading.Thread(target=daemon.read, daemon=True))
        self._threads[-1].start()

    def end(self, by: int) -> None:
        self.daemon.was_ended = True
        self.daemon.process.send_signal(by)

    def stop(self) -> None:
        self._stopped_at = time.monotonic()
        self.daemon.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._stopped_at is not None
        self.daemon.process.send_signal(signal.SIGCONT)
        self.daemon.stops.append((self._stopped_at, time.monotonic()))

    def restore_network(self) -> None:
        self.proxy.is_down = False
        self.proxy.flows.set()

    def start_again(self) -> None:
        """Kill and start the daemon, as a service manager does if it takes too long to end."""
        self.daemon.process.kill()
        self.start()

    def has_ended(self) -> bool:
        return self.daemon.process.poll() is not None

    def wait_until_ready(self) -> None:
        """Start the daemon until it is ready: the server may be away when it starts."""
        deadline = time.monotonic() + 3 * PATIENCE
        while not (self.daemon.was_ready and self.daemon.port is not None):
            self.daemon.wait_for_change()
            if self.has_ended():
                self.start()
            assert time.monotonic() < deadline, (self.name, self.daemon.lines[-20:])

    def wait_until_ended(self) -> int:
        status = self.daemon.process.wait(3 * PATIENCE)
        self._threads[-1].join(PATIENCE)
        return status

    def close(self) -> None:
        for daemon in self.daemons:
            daemon.process.kill()
            daemon.process.wait()
        end_plugins_of(str(self.home))
        for thread, daemon in zip(self._threads, self.daemons, strict=True):
            thread.join(PATIENCE)
            daemon.output.close()
        self.proxy.close()

    @property
    def home(self) -> Path:
        return self.workspace.directory / "home"


@dataclass(frozen=True)
class StormCluster:
    directory: Path
    server: OwnServer
    nodes: Sequence[StormNode]
    receiver: Receiver

    @property
    def notes(self) -> Path:
        return self.directory / "notes"

    def executions(self) -> list[dict[str, Any]]:
        """Return the lines of the plugins' record."""
        record = self.notes / "executions"
        return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []

    def keep_logs(self) -> None:
        """Write the log of each node to a file, for the analysis of a failure."""
        for node in self.nodes:
            with (self.directory / f"{node.name}.log").open("w") as log:
                for daemon in node.daemons:
                    log.writelines(json.dumps(line) + "\n" for line in list(daemon.lines))

    def daemon_of(self, owner: str) -> DaemonProcess:
        """Return the daemon with this identity."""
        pid = int(owner.rsplit(":", 2)[1])
        return next(
            daemon for node in self.nodes for daemon in reversed(node.daemons) if daemon.process.pid == pid
        )


@contextmanager
def a_storm_cluster(directory: Path) -> Iterator[StormCluster]:
    """Start three nodes, and wait until they are ready."""
    with ExitStack() as stack:
        short = scratch_root() / f"ductile-pg-{blake2s(str(directory).encode(), digest_size=6).hexdigest()}"
        server = stack.enter_context(own_server(short))
        receiver = stack.enter_context(a_receiver())
        (directory / "notes").mkdir()
        nodes = []
        for name in NAMES:
            listener = socket.create_server(("127.0.0.1", 0))
            url = f"postgresql://postgres@127.0.0.1:{listener.getsockname()[1]}/postgres"
            nodes.append(StormNode(_a_workspace(directory, name, url), CuttingProxy(listener, server.socket)))
            stack.callback(nodes[-1].close)
        for node in nodes:
            assert node.workspace.ductile("config", "lock").status == 0
            node.start()
        for node in nodes:
            node.wait_until_ready()
        yield StormCluster(directory=directory, server=server, nodes=nodes, receiver=receiver)


def _a_workspace(directory: Path, name: str, url: str) -> Workspace:
    workspace = Workspace(directory=directory / name)
    manifest = a_manifest("worker").replace("[poll, handle, health]", f"[{', '.join(COMMANDS)}]")
    script = WORKER.format(python=sys.executable)
    a_plugin(workspace.directory / "demo" / "plugins", "worker", manifest=manifest, script=script)
    config = CONFIG.format(url=url, name=name, notes=directory / "notes")
    workspace.config.write_text(api_section(scopes=("*",)) + config)
    return workspace


TOKEN = token_for("*")
