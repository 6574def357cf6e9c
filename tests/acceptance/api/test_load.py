"""Each job that was accepted under load is in the store afterwards, and has run."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from builders.daemons import Daemon
from builders.http import Api, an_api, an_api_workspace, token_for

CONNECTIONS = 64
BODY = json.dumps({"payload": {"text": "x" * 100}}).encode()
#: A submission is accepted, or refused for lack of room.
STATUSES = {202, 429, 503}


class Load:
    """The number of responses of each status, and the accepted jobs."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.accepted: set[str] = set()


async def put_under_load(port: int, seconds: float) -> Load:
    """Send requests on many connections, on each the next one as soon as the one before is answered."""
    load, end = Load(), time.monotonic() + seconds
    await asyncio.gather(*(_call_until(end, port, load) for _ in range(CONNECTIONS)))
    return load


async def _call_until(end: float, port: int, load: Load) -> None:
    reader, writer = await asyncio.open_connection("localhost", port)
    head = (
        f"POST /plugin/echo/handle HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token_for('*')}\r\n"
        f"Content-Length: {len(BODY)}\r\n\r\n"
    )
    while time.monotonic() < end:
        writer.write(head.encode() + BODY)
        response = (await reader.readuntil(b"\r\n\r\n")).lower()
        status = int(response.split()[1])
        length = int(response.partition(b"content-length: ")[2].split()[0])
        body = json.loads(await reader.readexactly(length))
        load.statuses[status] += 1
        if status == 202:
            load.accepted.add(body["job_id"])
    writer.close()
    await writer.wait_closed()


def wait_until_ended(daemon: Daemon, jobs: set[str], seconds: float) -> None:
    remaining, lines_read = set(jobs), 0

    def all_ended() -> bool:
        nonlocal lines_read
        remaining.difference_update(
            line["job_id"] for line in daemon.lines[lines_read:] if line["signal"] == "job.succeeded"
        )
        lines_read = len(daemon.lines)
        return not remaining

    daemon.wait_until(all_ended, seconds)
    assert not remaining, f"{len(remaining)} of {len(jobs)} accepted jobs did not succeed"


def succeeded(api: Api) -> set[str]:
    """Return the succeeded jobs that the API lists, page by page."""
    job_ids: set[str] = set()
    cursor = ""
    while True:
        page: dict[str, Any] = api.get(f"/jobs?plugin=echo&status=succeeded&limit=200{cursor}")
        job_ids |= {job["job_id"] for job in page["jobs"]}
        if page["next_cursor"] is None:
            return job_ids
        cursor = f"&cursor={page['next_cursor']}"


def check_accepted_jobs(directory: Path, seconds: float, patience: float) -> None:
    workspace = an_api_workspace(directory)
    workspace.config.write_text(workspace.config.read_text().replace("log_level: debug", "log_level: info"))
    with an_api(workspace) as api:
        load = asyncio.run(put_under_load(api.port, seconds))
        assert set(load.statuses) <= STATUSES
        # The number depends on the machine: on a busy one a connection gets one response in this time.
        assert load.statuses[202] == len(load.accepted) > 0
        wait_until_ended(api.daemon, load.accepted, patience)
        assert load.accepted <= succeeded(api)


def test_every_202_is_in_the_store_and_runs(tmp_path: Path) -> None:
    check_accepted_jobs(tmp_path, seconds=0.7, patience=100)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_202_of_a_minute(tmp_path: Path) -> None:
    """The nightly form lasts a minute."""
    check_accepted_jobs(tmp_path, seconds=60, patience=3000)
