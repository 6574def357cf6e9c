"""Nesting jobs below the jobs that led to them, to a limited depth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ductile.core.jobs.model import Job

#: Each level of jobs is two levels of JSON, and a plugin's result is nested in the last: this leaves room for
#: it in JSON readers that stop at a hundred. A run may be ten thousand steps long.
MAX_DEPTH = 40
FLATTENED = (
    f"Jobs are nested {MAX_DEPTH} levels deep; what those of the last level led to follows each of them in "
    "the same list, and `parent_job_id` tells what came of what."
)

NodeType = TypeVar("NodeType")


def nest_jobs(
    roots: Sequence[Job],
    below: Mapping[str, Sequence[Job]],
    make_node: Callable[[Job, list[NodeType], bool], NodeType],
) -> list[NodeType]:
    """Each job as a node with the nodes of what it led to.

    `make_node` gets the job, the list of its children, which is filled later, and whether it is below the
    last level: such jobs follow in the list of the last level. Not recursive: a run may exhaust the stack.
    """
    nodes: list[NodeType] = []
    waiting = [(job, nodes, 1) for job in reversed(roots)]
    while waiting:
        job, siblings, level = waiting.pop()
        children: list[NodeType] = []
        siblings.append(make_node(job, children, level > MAX_DEPTH))
        inside = siblings if level >= MAX_DEPTH else children
        waiting += [(child, inside, level + 1) for child in reversed(below.get(job.id, ()))]
    return nodes
