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
    """One daemon for all outages: it is never restarted."""
    at = an_api_workspace(directory, "  patient: {}\n  ticker: {uses: echo, schedule: {every: 1s}}\n")
    at.plugin("patient", PATIENT)
    url = store_url(directory, proxied=True)
    at.config.write_text(f"state: {{url: '{url}'}}\n" + at.config.read_text())
    with an_api(at) as api:
        yield api
        assert api.workspace.json("system", "selfcheck")["sound"] is True
        assert api.daemon.end() == 0


def submit(api: Api, plugin: str = "echo") -> ApiResponse:
    return api.ask("POST", f"/plugin/{plugin}/poll", {})


def accepted(api: Api, body: dict[str, str]) -> str:
    """Submit until it is accepted, as a sender of webhooks does, and return the job."""
    deadline = time.monotonic() + PATIENCE
    while (said := api.ask("POST", "/plugin/echo/poll", body)).status == 503:
        assert time.monotonic() < deadline, said
    assert said.status in (200, 202), said
    job_id: str = said.body["job_id"]
    return job_id


def lines(api: Api, signal: str) -> list[dict[str, Any]]:
    return [line for line in list(api.daemon.lines) if line["signal"] == signal]


def wait_until_back(api: Api, before: int) -> None:
    api.daemon.wait_until(lambda: len(lines(api, "store.available")) > before)
    assert len(lines(api, "store.available")) > before, api.daemon.lines[-20:]


def test_an_outage_is_said_plainly_and_ends_by_itself(api: Api, directory: Path, proxy: CuttingProxy) -> None:
    """No result is lost, the log says it once, schedules go on, and the daemon is the same process."""
    held = submit(api, "patient").body["job_id"]
    api.daemon.wait_until_started(held)
    proxy.is_down = True
    proxy.cut_all()
    (directory / "demo" / "plugins" / "patient" / "go").touch()
    api.daemon.wait_for("store.busy", lambda line: line.get("job_id") in (None, held))

    refused = submit(api)
    assert (refused.status, refused.code) == (503, "store_busy")
    assert int(refused.headers["retry-after"]) > 0
    for path in ("/healthz", "/readyz"):
        said = api.ask("GET", path, token=None)
        assert said.status == 503, said
        assert "PostgreSQL server cannot be reached" in said.body["message"]
    for words in (("status",), ("run", "echo"), ("job", "list")):
        ran = api.workspace.ductile(*words)
        assert ran.status == 75, ran
        assert "the PostgreSQL server cannot be reached" in ran.err

    count = len(lines(api, "store.available"))
    proxy.is_down = False
    wait_until_back(api, count)
    assert api.ended(accepted(api, {}))["status"] == "succeeded"
    assert api.ended(held)["status"] == "succeeded"
    assert api.ask("GET", "/healthz", token=None).status == 200
    about_store = [line for line in lines(api, "store.busy") if line.get("job_id") is None]
    assert len(about_store) == 1, about_store
    ticks = len([line for line in lines(api, "job.succeeded") if line["plugin"] == "ticker"])
    api.daemon.wait_until(
        lambda: len([line for line in lines(api, "job.succeeded") if line["plugin"] == "ticker"]) > ticks
    )


@pytest.mark.parametrize("cut_at", CutAt)
def test_a_submission_whose_commit_was_cut_is_accepted_once(
    api: Api, proxy: CuttingProxy, cut_at: CutAt
) -> None:
    proxy.cut_at = cut_at
    job_id = accepted(api, {"dedupe_key": cut_at.name})
    assert api.ended(job_id)["status"] == "succeeded"
    assert accepted(api, {"dedupe_key": cut_at.name}) == job_id


def test_connections_that_an_operator_ends_lose_and_double_nothing(api: Api, directory: Path) -> None:
    """Whatever the daemon has accepted meanwhile is there once, and runs."""
    job_ids, ended = [], 0
    for number in range(20):
        if number % 4 == 0:
            with psycopg.connect(store_url(directory), autocommit=True) as connection:
                ended += connection.execute(END_WRITER).rowcount
        said = submit(api)
        assert said.status in (202, 503), said
        if said.status == 202:
            job_ids.append(said.body["job_id"])
    assert job_ids
    assert ended
    for job_id in job_ids:
        assert api.ended(job_id)["status"] == "succeeded"
    with psycopg.connect(store_url(directory)) as connection:
        row = connection.execute(
            "SELECT count(*), count(DISTINCT id) FROM job_queue WHERE id = ANY(%s)", (job_ids,)
        ).fetchone()
    assert row == (len(job_ids), len(job_ids))
