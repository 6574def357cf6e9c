"""A daemon on real servers that are restarted, full or failing over, while jobs are submitted."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from builders.daemons import PATIENCE, a_workspace
from builders.http import Api, ApiResponse, an_api, an_api_workspace
from builders.postgres_pair import RealServer, ServerPair, server_pair
from builders.scratch import scratch_root

#: Works until the file `go` is beside it.
PATIENT = (
    '#!/bin/sh\ncat >/dev/null\nwhile [ ! -e "$(dirname "$0")/go" ]; do sleep 0.05; done\n'
    'echo \'{"status": "ok", "result": "worked"}\'\n'
)
_MORE_JOBS = 5
_FULL = "too many connections for role"


@pytest.fixture(scope="module")
def pair(worker_id: str) -> Iterator[ServerPair]:
    with server_pair(scratch_root() / f"ductile-pair-{worker_id}-{os.getpid()}") as pair:
        yield pair


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, pair: ServerPair) -> Iterator[Api]:
    """Start one daemon for all faults, which is never restarted."""
    workspace = an_api_workspace(tmp_path_factory.mktemp("restarts"), "  patient: {timeout: 10m}\n")
    workspace.plugin("patient", PATIENT)
    workspace.config.write_text(f"state: {{url: '{pair.url}'}}\n" + workspace.config.read_text())
    with an_api(workspace) as api:
        yield api
        assert api.workspace.json("system", "selfcheck")["sound"] is True
        assert api.daemon.end() == 0


class Sender(threading.Thread):
    """A thread that submits jobs, each until it is accepted, as a sender of webhooks does."""

    _counter = count()

    def __init__(self, api: Api) -> None:
        super().__init__(daemon=True)
        self._api = api
        self.accepted: list[str] = []
        self.statuses: Counter[int] = Counter()
        self._stopped = False
        self._changed = threading.Condition()

    def run(self) -> None:
        while not self._stopped:
            body = {"dedupe_key": f"sender-{next(self._counter)}", "dedupe_ttl": "1h"}
            while not self._stopped:
                response = self._api.ask("POST", "/plugin/echo/poll", body)
                with self._changed:
                    self.statuses[response.status] += 1
                    if response.status != 503:
                        self.accepted.append(response.body["job_id"])
                        self._changed.notify_all()
                        break
                    self._changed.notify_all()

    def wait_for_more(self) -> None:
        """Wait until some more jobs were accepted."""
        with self._changed:
            target = len(self.accepted) + _MORE_JOBS
            assert self._changed.wait_for(lambda: len(self.accepted) >= target, PATIENCE * 2), self.statuses

    def stop(self) -> None:
        self._stopped = True
        self.join(PATIENCE)


@contextmanager
def under_load(api: Api, server: RealServer, surviving: RealServer | None = None) -> Iterator[Sender]:
    """Submit jobs while one job runs all the time; assert that each has succeeded, and is stored once.

    `surviving` is the server that has them afterwards.
    """
    held_id = api.ask("POST", "/plugin/patient/poll", {}).body["job_id"]
    api.daemon.wait_until_started(held_id)
    sender = Sender(api)
    sender.start()
    try:
        sender.wait_for_more()
        yield sender
        sender.wait_for_more()
    finally:
        sender.stop()
    go = api.workspace.config.parent / "plugins" / "patient" / "go"
    go.touch()
    assert set(sender.statuses) <= {200, 202, 503}, sender.statuses
    for job_id in (held_id, *sender.accepted):
        assert api.ended(job_id)["status"] == "succeeded"
    go.unlink()
    rows = (surviving or server).execute_in_store(
        "SELECT id, dedupe_key FROM job_queue WHERE plugin = 'echo'"
    )
    assert {job_id for job_id, _ in rows} >= set(sender.accepted)
    keys = [key for _, key in rows if key is not None]
    assert len(set(keys)) == len(keys), "no submission has two jobs"


def submit(api: Api) -> ApiResponse:
    return api.ask("POST", "/plugin/echo/poll", {})


@contextmanager
def outage(api: Api) -> Iterator[None]:
    """Wait until the daemon has noticed the outage that the block causes.

    Before that, a submission can wait behind one whose commit was cut off, and whose result only the server
    knows. Afterwards all submissions are refused.
    """
    known_lines = len(api.daemon.lines)
    yield
    api.daemon.wait_until(
        lambda: any(line["signal"] == "store.busy" for line in api.daemon.lines[known_lines:])
    )
    assert submit(api).status == 503


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_of_the_server_loses_and_doubles_nothing(api: Api, pair: ServerPair, mode: str) -> None:
    """The server stops in order, or by a crash from which it recovers."""
    with under_load(api, pair.primary):
        pair.primary.stop(mode)
        pair.primary.start()


def test_a_server_without_room_for_connections_is_an_outage(api: Api, pair: ServerPair) -> None:
    with under_load(api, pair.primary):
        with outage(api):
            pair.primary.execute("ALTER ROLE ductile CONNECTION LIMIT 0")
            pair.primary.end_connections()
        pair.primary.execute("ALTER ROLE ductile CONNECTION LIMIT -1")


def test_a_start_without_room_for_connections_says_so(pair: ServerPair, tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    workspace.config.write_text(f"state: {{url: '{pair.url}'}}\n" + workspace.config.read_text())
    pair.primary.execute("CREATE ROLE crowd LOGIN CONNECTION LIMIT 0")
    workspace.config.write_text(workspace.config.read_text().replace("//ductile@", "//crowd@"))
    for command in (("system", "start"), ("job", "list")):
        result = workspace.ductile(*command)
        assert result.status == 75, result
        assert _FULL in result.err
    assert _FULL in workspace.ductile("doctor").out


def test_a_server_that_became_read_only_is_an_outage(api: Api, pair: ServerPair) -> None:
    """A former primary is read-only, and so is a managed server whose disk is full."""
    with under_load(api, pair.primary):
        with outage(api):
            pair.primary.execute("ALTER DATABASE ductile SET default_transaction_read_only = on")
            pair.primary.end_connections()
        pair.primary.execute("ALTER DATABASE ductile SET default_transaction_read_only = off")
        pair.primary.end_connections()


def test_the_daemon_follows_a_failover(api: Api, pair: ServerPair) -> None:
    """This test is the last one, because the old primary is gone then. The URL names both servers."""
    with under_load(api, pair.primary, pair.standby):
        pair.fail_over()
