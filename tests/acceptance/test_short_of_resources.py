"""A lack of resources of the daemon costs a job no attempt."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from builders.daemons import Daemon, a_daemon, a_workspace

ONCE = "  once:\n    retry: {max_attempts: 1}\n"
ANSWER = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok", "result": "done"}\'\n'
#: Enough descriptors to serve a caller, and too few for the three pipes of a process.
FREE = 5


@contextmanager
def limit_descriptors(daemon: Daemon) -> Iterator[None]:
    pid = daemon.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    open_numbers = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    # The limit is on the numbers of descriptors, some of which are in use.
    limit, free_count = 0, 0
    while free_count < FREE:
        free_count += limit not in open_numbers
        limit += 1
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_a_job_waits_until_there_are_descriptors_again(tmp_path: Path) -> None:
    """The job is put back several times, and succeeds in its only attempt."""
    workspace = a_workspace(tmp_path, ONCE)
    workspace.plugin("once", ANSWER)
    with a_daemon(workspace) as daemon:
        workspace.json(
            "job", "show", workspace.json("run", "echo")["job_id"]
        )  # the daemon has opened all of its files
        with limit_descriptors(daemon):
            job_id = workspace.json("run", "once", "--no-wait")["job_id"]
            postponed = daemon.wait_for("job.postponed", lambda line: line["execution"] == 2)
            assert postponed["job_id"] == job_id
            assert postponed["reason"] == "no_resources"
            assert "Too many open files" in postponed["error"]
        job = workspace.json("job", "wait", job_id)
        assert (job["status"], job["attempt"]) == ("succeeded", 1)
        first, *_ = job["executions"]
        assert (first["status"], first["reason"]) == ("interrupted", "no_resources")
