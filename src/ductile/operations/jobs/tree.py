"""Jobs below each other, as deep as whoever reads the answer can follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ductile.core.jobs.model import Job
from ductile.core.json import JsonObject, JsonValue

#: Each level of jobs is two of JSON, and what a plugin answered is nested inside of the last: this leaves
#: room for that even in readers that stop at a hundred. A run may be ten thousand steps long.
MAX_DEPTH = 40


def nest_jobs(
    first: Sequence[Job], below: Mapping[str, Sequence[Job]], show: Callable[[Job], JsonObject]
) -> list[JsonValue]:
    """Each job with what it led to as its `children`.

    What the jobs of the last level led to, at whatever depth, follows each of them in the same row; there
    `parent_job_id` tells what came of what. Not by recursion: a run would be too long for it.
    """
    shown: list[JsonValue] = []
    waiting = [(job, shown, 1) for job in reversed(first)]
    while waiting:
        job, row, level = waiting.pop()
        children: list[JsonValue] = []
        told: JsonObject = {**show(job), "children": children}
        if level > MAX_DEPTH:
            told["parent_job_id"] = job.parent_job_id
        row.append(told)
        inside = row if level >= MAX_DEPTH else children
        waiting += [(child, inside, level + 1) for child in reversed(below.get(job.id, ()))]
    return shown
