"""A daemon whose database goes away: it refuses work, keeps results, and comes back by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from builders.cut_connections import CutAt, CuttingProxy
from builders.daemons import PATIENCE
from builders.http import Api, ApiResponse, an_api, an_api_workspace
from builders.postgres import END_WRITER, start_proxy, store_url

#: Works until the file `go` is beside it.
PATIENT = (
    '#!/bin/sh\ncat >/dev/null\nwhile [ ! -e "$(dirname "$0")/go" ]; do sleep 0.05; done\n'
    'echo \'{"status": "ok", "result": "worked"}\'\n'
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outages")


@pytest.fixture(scope="module")
def proxy(directory: Path) -> Iterator[CuttingProxy]:
    proxy = start_proxy(directory)
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def api(directory: Path, proxy: CuttingProxy) -> Iterator[Api]:
    """Start one daemon for all outages, which is never restarted."""
    workspace = an_api_workspace(directory, "  patient: {}\n  ticker: {uses: echo, schedule: {every: 1s}}\n")
    workspace.plugin("patient", PATIENT)
    url = store_url(directory, proxied=True)
    workspace.config.write_text(f"state: {{url: '{url}'}}\n" + workspace.config.read_text())
    with an_api(workspace) as api:
        yield api
        assert api.workspace.json("system", "selfcheck")["sound"] is True
        assert api.daemon.end() == 0


def submit(api: Api, plugin: str = "echo") -> ApiResponse:
    return api.ask("POST", f"/plugin/{plugin}/poll", {})


def submit_until_accepted(api: Api, body: dict[str, str]) -> str:
    """Submit a job until it is accepted, as a sender of webhooks does, and return its id."""
    deadline = time.monotonic() + PATIENCE
    while (response := api.ask("POST", "/plugin/echo/poll", body)).status == 503:
        assert time.monotonic() < deadline, response
    assert response.status in (200, 202), response
    job_id: str = response.body["job_id"]
    return job_id


def lines_of(api: Api, signal: str) -> list[dict[str, Any]]:
    return [line for line in list(api.daemon.lines) if line["signal"] == signal]


def wait_until_available(api: Api, before: int) -> None:
    api.daemon.wait_until(lambda: len(lines_of(api, "store.available")) > before)
    assert len(lines_of(api, "store.available")) > before, api.daemon.lines[-20:]


def test_an_outage_is_said_plainly_and_ends_by_itself(api: Api, directory: Path, proxy: CuttingProxy) -> None:
    """No result is lost, the log has one line about it, schedules go on, and the daemon stays up."""
    held_id = submit(api, "patient").body["job_id"]
    api.daemon.wait_until_started(held_id)
    proxy.is_down = True
    proxy.cut_all()
    (directory / "demo" / "plugins" / "patient" / "go").touch()
    api.daemon.wait_for("store.busy", lambda line: line.get("job_id") in (None, held_id))

    refused = submit(api)
    assert (refused.status, refused.code) == (503, "store_busy")
    assert int(refused.headers["retry-after"]) > 0
    for path in ("/healthz", "/readyz"):
        response = api.ask("GET", path, token=None)
        assert response.status == 503, response
        assert "PostgreSQL server cannot be reached" in response.body["message"]
    for words in (("status",), ("run", "echo"), ("job", "list")):
        result = api.workspace.ductile(*words)
        assert result.status == 75, result
        assert "the PostgreSQL server cannot be reached" in result.err

    count = len(lines_of(api, "store.available"))
    proxy.is_down = False
    wait_until_available(api, count)
    assert api.ended(submit_until_accepted(api, {}))["status"] == "succeeded"
    assert api.ended(held_id)["status"] == "succeeded"
    assert api.ask("GET", "/healthz", token=None).status == 200
    outage_lines = [line for line in lines_of(api, "store.busy") if line.get("job_id") is None]
    assert len(outage_lines) == 1, outage_lines
    ticks = len([line for line in lines_of(api, "job.succeeded") if line["plugin"] == "ticker"])
    api.daemon.wait_until(
        lambda: len([line for line in lines_of(api, "job.succeeded") if line["plugin"] == "ticker"]) > ticks
    )


@pytest.mark.parametrize("cut_at", CutAt)
def test_a_submission_whose_commit_was_cut_is_accepted_once(
    api: Api, proxy: CuttingProxy, cut_at: CutAt
) -> None:
    proxy.cut_at = cut_at
    job_id = submit_until_accepted(api, {"dedupe_key": cut_at.name})
    assert api.ended(job_id)["status"] == "succeeded"
    assert submit_until_accepted(api, {"dedupe_key": cut_at.name}) == job_id


def test_connections_that_an_operator_ends_lose_and_double_nothing(api: Api, directory: Path) -> None:
    """Each job that the daemon has accepted meanwhile is stored once, and runs."""
    job_ids, ended_connections = [], 0
    for number in range(20):
        if number % 4 == 0:
            with psycopg.connect(store_url(directory), autocommit=True) as connection:
                ended_connections += connection.execute(END_WRITER).rowcount
        response = submit(api)
        assert response.status in (202, 503), response
        if response.status == 202:
            job_ids.append(response.body["job_id"])
    assert job_ids
    assert ended_connections
    for job_id in job_ids:
        assert api.ended(job_id)["status"] == "succeeded"
    with psycopg.connect(store_url(directory)) as connection:
        row = connection.execute(
            "SELECT count(*), count(DISTINCT id) FROM job_queue WHERE id = ANY(%s)", (job_ids,)
        ).fetchone()
    assert row == (len(job_ids), len(job_ids))
