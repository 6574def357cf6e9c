"""Jobs are nested to a limited depth, and no job is lost below it."""

from __future__ import annotations

from typing import Any

import msgspec

from builders.jobs import a_job
from ductile.core.jobs.model import Job
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.operations.jobs.documents import MAX_DEPTH, nest_jobs
from ductile.operations.runs.response import finished_response
from ductile.store.model.records import JobDetails

LONGEST_RUN = 10_000


def a_chain(first: Job, length: int) -> list[Job]:
    """Return `length` jobs, each started by the one before it."""
    jobs = [first]
    for number in range(length):
        jobs.append(a_job(parent_job_id=jobs[-1].id, id=f"{first.id}-{number}"))
    return jobs[1:]


def test_the_longest_run_is_answered_and_can_be_read() -> None:
    """Children are nested up to a depth; deeper jobs follow in a list and name their parent."""
    run = a_job(RUN_PLUGIN, "long")
    members = a_chain(run, LONGEST_RUN)
    response: Any = finished_response(
        JobDetails(job=run, steps=tuple(members), executions={}), duplicate=False
    )
    read: Any = msgspec.json.decode(msgspec.json.encode(response))
    row, ids = read["children"], []
    for _ in range(MAX_DEPTH - 1):
        (child,) = row
        assert "parent_job_id" not in child
        ids.append(child["job_id"])
        row = child["children"]
    last, *deeper = row
    assert "parent_job_id" not in last
    assert all(job["children"] == [] for job in row)
    assert [*ids, *(job["job_id"] for job in row)] == [member.id for member in members]
    assert [job["parent_job_id"] for job in deeper] == [job["job_id"] for job in row[:-1]]
    assert len(read["tree"]) == LONGEST_RUN


def test_in_the_last_level_each_job_is_followed_by_what_it_led_to() -> None:
    """The descendants of two siblings in the last level are not mixed."""
    first = a_job(id="first")
    chain = a_chain(first, MAX_DEPTH - 2)
    left, right = (a_job(id=name, parent_job_id=chain[-1].id) for name in ("left", "right"))
    jobs = [*chain, left, right, a_job(id="l", parent_job_id="left"), a_job(id="r", parent_job_id="right")]
    children_of: dict[str, list[Job]] = {}
    for job in jobs:
        children_of.setdefault(str(job.parent_job_id), []).append(job)

    def node(job: Job, children: list[Any], _flattened: bool) -> Any:
        return {"job_id": job.id, "children": children}

    row: Any = nest_jobs((first,), children_of, node)
    while len(row) == 1:
        row = row[0]["children"]
    assert [job["job_id"] for job in row] == ["left", "l", "right", "r"]
