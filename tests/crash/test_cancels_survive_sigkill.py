"""An acknowledged cancel ends its job, whatever is killed and whatever is retried in the same moment.

Only a retry that was requested after its end starts a cancelled job again.
"""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import apsw
import pytest

from builders.dying_daemons import DaemonProcess, start_daemon
from builders.invariants import violations
from ductile.control.client import call_daemon
from ductile.core.json import JsonObject
from ductile.errors import ConflictError, DuctileError
from ductile.telemetry.signals import Signal

STEPS = [
    Signal.JOB_ACCEPTED,
    Signal.JOB_CLAIMED,
    Signal.JOB_STARTED,
    Signal.JOB_CANCELLING,
    Signal.JOB_EXITED,
    Signal.JOB_DEAD,
    Signal.JOB_RECOVERED,
]
TIMES = (1, 2, 5)
SLOW = """#!/bin/sh
cat > /dev/null
sleep 0.2
echo '{"status": "ok", "result": "done"}'
"""
CONFIG = """
service: {max_workers: 2, log_level: debug, shutdown_grace: 1s}
plugins:
  slow: {retry: {backoff_base: 20ms, max_attempts: 50}}
pipelines:
  - name: both
    steps: [{id: first, uses: slow}, {id: second, uses: slow}]
"""


@dataclass(slots=True)
class Requests:
    """The requests to the daemons and their answers."""

    directory: Path
    jobs: list[str] = field(default_factory=list)
    acknowledged: set[str] = field(default_factory=set)
    #: Jobs with a retry that was accepted, or whose answer is unknown.
    retried: set[str] = field(default_factory=set)

    @property
    def socket(self) -> Path:
        return self.directory / "data" / "ductile.sock"

    @property
    def store(self) -> Path:
        return self.directory / "data" / "state.db"

    def submit(self, number: int) -> None:
        if number % 3 == 0:
            response = call_daemon(
                self.socket, "pipeline.run", {"pipeline": "both", "payload": {"n": number}}
            )
        else:
            request: JsonObject = {"plugin": "slow", "command": "handle", "payload": {"n": number}}
            response = call_daemon(self.socket, "plugin.run", request)
        self.jobs.append(str(response["job_id"]))

    def cancel(self, job_id: str) -> None:
        call_daemon(self.socket, "job.cancel", {"job_id": job_id})
        self.acknowledged.add(job_id)

    def retry(self, job_id: str) -> None:
        try:
            call_daemon(self.socket, "job.retry", {"job_id": job_id})
        except ConflictError:
            return
        except DuctileError:
            pass  # the daemon died: the retry may be stored or not
        self.retried.add(job_id)


def together(*calls: Callable[[], None]) -> None:
    """Make the calls at the same time. A daemon that dies meanwhile makes them fail."""

    def call(function: Callable[[], None]) -> None:
        try:
            function()
        except DuctileError:
            return

    threads = [threading.Thread(target=call, args=(function,)) for function in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_until_killed(requests: Requests, daemon: DaemonProcess) -> None:
    """Submit, then cancel and retry each job at the same time, until the daemon dies or all was requested."""
    try:
        if daemon.wait_until_ready():
            for number in range(6):
                requests.submit(number)
    except DuctileError:
        pass
    for job_id in requests.jobs[-6:]:
        together(
            partial(requests.retry, job_id),
            partial(requests.cancel, job_id),
            partial(requests.retry, job_id),
        )
    daemon.end()
    assert violations(requests.store) == []


def some_requests(directory: Path) -> Requests:
    plugin = directory / "plugins" / "slow"
    plugin.mkdir(parents=True)
    (plugin / "run").write_text(SLOW, encoding="utf-8")
    (plugin / "run").chmod(stat.S_IRWXU)
    manifest = {
        "manifest_spec": "ductile.plugin",
        "manifest_version": 1,
        "name": "slow",
        "version": "1",
        "protocol": 2,
        "entrypoint": "run",
        "commands": ["handle"],
    }
    (plugin / "manifest.yaml").write_text(json.dumps(manifest), encoding="utf-8")
    (directory / "config.yaml").write_text(CONFIG, encoding="utf-8")
    return Requests(directory=directory)


@pytest.mark.parametrize("step", STEPS)
def test_an_acknowledged_cancel_ends_its_job(tmp_path: Path, step: Signal) -> None:
    requests = some_requests(tmp_path)
    for times in TIMES:
        run_until_killed(requests, start_daemon(tmp_path, step, times))
    check_after_another_start(requests)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("step", STEPS)
def test_hundreds_of_cancels_and_kills(tmp_path: Path, step: Signal) -> None:
    """The nightly form."""
    requests = some_requests(tmp_path)
    for times in range(1, 25):
        run_until_killed(requests, start_daemon(tmp_path, step, times))
    check_after_another_start(requests)


def check_after_another_start(requests: Requests) -> None:
    daemon = start_daemon(requests.directory)
    assert daemon.wait_until_ready()
    for job_id in requests.jobs:
        call_daemon(requests.socket, "job.wait", {"job_id": job_id})
    daemon.end()
    assert violations(requests.store) == []
    connection = apsw.Connection(str(requests.store), flags=apsw.SQLITE_OPEN_READONLY)
    for job_id in requests.acknowledged:
        edges = connection.execute(
            "SELECT to_status, reason FROM job_transitions WHERE job_id = ? ORDER BY seq", (job_id,)
        ).fetchall()
        assert ("dead", "cancelled") in edges, job_id
        if edges[-1] != ("dead", "cancelled"):
            after = edges[edges.index(("dead", "cancelled")) + 1]
            assert (after, job_id in requests.retried) == (("queued", "manual_retry"), True)
    connection.close()
