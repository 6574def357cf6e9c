"""Synchronous runs, and clients that disconnect before the end."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest

from builders.daemons import Workspace
from builders.http import Api, an_api, an_api_workspace, read_all, token_for

SLOW = "#!/bin/sh\ncat >/dev/null\nexec sleep 300\n"
PIPELINES = """\
pipelines:
  - {name: quick, on: echo.handle, execution_mode: synchronous, steps: [{uses: echo}]}
  - {name: long, execution_mode: synchronous, timeout: 1m, on: never, steps: [{uses: slow}]}
"""


def a_workspace_with_runs(directory: Path) -> Workspace:
    workspace = an_api_workspace(directory, "  slow: {}\n", more=PIPELINES, api="  max_concurrent_sync: 1\n")
    workspace.plugin("slow", SLOW)
    return workspace


def test_a_synchronous_pipeline_is_answered_with_its_result(tmp_path: Path) -> None:
    """The response is 200 when the run ends; with `?async=true`, and from inside a job, 202 at once."""
    with an_api(a_workspace_with_runs(tmp_path)) as api:
        run = api.post("/pipeline/quick", {"payload": {"n": 1}}, status=200)
        assert (run["status"], run["execution_mode"]) == ("succeeded", "synchronous")
        assert run["result"]["result"] == "done"
        assert api.post("/trigger/echo/handle", status=200)["status"] == "succeeded"
        assert api.post("/pipeline/quick?async=true")["status"] == "queued"
        headers = {"X-Ductile-Job": run["job_id"]}
        assert api.post("/pipeline/quick", headers=headers)["execution_mode"] == "async"
        assert api.ask("POST", "/pipeline/nobody").status == 404


def test_a_client_that_hangs_up_gives_its_slot_back(tmp_path: Path) -> None:
    """Without a slot the response is 503; a client that disconnects frees its slot, and its run continues."""
    with an_api(a_workspace_with_runs(tmp_path)) as api:
        head = f"POST /pipeline/long HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token_for('*')}\r\n"
        with api.connect() as connection:
            connection.sendall(f"{head}Content-Length: 0\r\n\r\n".encode())
            started = api.daemon.wait_for("job.started", lambda line: line["plugin"] == "slow")
            response = api.ask("POST", "/pipeline/quick")
            assert (response.status, response.code) == (503, "too_busy")
            assert int(response.headers["retry-after"]) >= 1
        api.daemon.wait_for("api.request", lambda line: line["status"] == 499)
        assert api.post("/pipeline/quick", status=200)["status"] == "succeeded"
        assert api.get(f"/job/{started['job_id']}")["status"] == "running"


def test_an_accepted_job_runs_after_its_client_has_gone(tmp_path: Path) -> None:
    """A run is started also if the client disconnects while the run is stored."""
    with an_api(a_workspace_with_runs(tmp_path)) as api:
        head = f"POST /pipeline/quick HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token_for('*')}\r\n"
        for number in range(1, 6):
            with api.connect() as caller:
                caller.sendall(f"{head}Content-Length: 0\r\n\r\n".encode())
            api.daemon.wait_for("api.request", lambda _, number=number: count_requests(api) == number)  # type: ignore[misc]  # a default is how a loop's value is kept
        for job in api.get("/jobs?plugin=pipeline")["jobs"]:
            assert api.ended(job["job_id"])["status"] == "succeeded"


def count_requests(api: Api) -> int:
    return sum(line.get("path") == "/pipeline/quick" for line in api.daemon.lines)


@pytest.mark.parametrize("body", [b"{}", b'{"dry_run": true}'])
def test_a_body_that_outlasts_the_last_moment_for_work(tmp_path: Path, body: bytes) -> None:
    """A stopping daemon takes no work, also from requests that began before.

    A dry run is answered as the real one would be.
    """
    with an_api(a_workspace_with_runs(tmp_path)) as api:
        api.daemon.wait_until_started(api.post("/plugin/slow/poll")["job_id"])
        with begin_request(api, len(body)) as slow_caller:
            api.daemon.process.send_signal(signal.SIGTERM)
            api.daemon.wait_for("service.stopping")
            slow_caller.sendall(body)
            assert slow_caller.recv(65536).startswith(b"HTTP/1.1 503 ")
        assert api.daemon.end() == 0
        assert not [line for line in api.daemon.whole_log() if line["signal"] == "job.accepted"][1:]


def test_a_request_that_still_waits_at_shutdown_is_answered(tmp_path: Path) -> None:
    """Every error is JSON in the same shape, also at shutdown."""
    with an_api(a_workspace_with_runs(tmp_path)) as api, begin_request(api) as slow_caller:
        api.daemon.process.send_signal(signal.SIGTERM)
        response = read_all(slow_caller)
        assert response.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in response
        assert json.loads(response.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_busy"


def begin_request(api: Api, length: int = 2) -> socket.socket:
    """Return a connection whose head the daemon has read and whose body it waits for."""
    caller = api.connect()
    head = f"POST /plugin/echo/poll HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token_for('*')}\r\n"
    caller.sendall(f"{head}Expect: 100-continue\r\nContent-Length: {length}\r\n\r\n".encode())
    assert caller.recv(65536).startswith(b"HTTP/1.1 100 ")
    return caller
