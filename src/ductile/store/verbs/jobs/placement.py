"""Placement: hold the jobs that no live node may run, and release them when one may."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from ductile.core.durations import format_duration
from ductile.core.jobs.model import NoNodeFound
from ductile.core.jobs.placement import JobGroup, NodeOffer, decide_placement
from ductile.core.policy import Policy
from ductile.core.timestamps import format_timestamp, parse_timestamp
from ductile.store.model.jobs import BatchResult, JobStatusChange, JobsWithoutNode, PlacementResult
from ductile.store.notifier import JOBS_READY
from ductile.store.rows import find_jobs, row_reader
from ductile.store.session import Session
from ductile.store.verbs.jobs.cancel import end_all
from ductile.store.verbs.jobs.insert import BATCH_SIZE, release_waiting_jobs, set_hold

_read_held = row_reader(JobsWithoutNode, held_since=parse_timestamp)
read_group = row_reader(JobGroup, held_since=parse_timestamp)


def place_jobs(
    session: Session,
    offers: Sequence[NodeOffer] | None,
    policy: Policy,
    *,
    max_hold: timedelta,
    release_only: bool = False,
    limit: int = BATCH_SIZE,
) -> PlacementResult:
    """Hold the ready jobs that none of these nodes may run, and release the held ones that one may run.

    Changes one batch of jobs. A job that was held for `max_hold` ends. `release_only`: no job is held or
    ended. `offers` is None if there is only one daemon, which runs every job.
    """
    groups = [read_group(row) for row in session.fetch_all("job_groups")]
    placement = decide_placement(groups, offers, now=session.now, max_hold=max_hold)
    held: dict[JobGroup, int] = {}
    released: dict[JobGroup, int] = {}
    ended: list[JobStatusChange] = []
    more = False
    for group in placement.release:
        released[group] = _release(session, group, limit)
        more |= released[group] >= limit
    if not release_only:
        for group in placement.hold:
            held[group] = _hold(session, group, limit)
            more |= held[group] >= limit
        for group in placement.expire:
            batch = _expire(session, group, policy, max_hold=max_hold, limit=limit)
            ended += batch.jobs
            more |= batch.more
    return PlacementResult(held=held, released=released, ended=tuple(ended), more=more)


def jobs_without_node(session: Session) -> tuple[JobsWithoutNode, ...]:
    """Return the held jobs by plugin and node, the largest group first."""
    return tuple(map(_read_held, session.fetch_all("jobs_without_node")))


def _hold(session: Session, group: JobGroup, limit: int) -> int:
    """Hold ready jobs of a group. Jobs that waited for one of them become ready, and are held too."""
    of_group = {"plugin": group.plugin, "node": group.node}
    held = len(session.fetch_all("hold_without_node", **of_group, at=session.timestamp, limit=limit))
    while held < limit and (jobs := find_jobs(session, "ready_without_node", **of_group, limit=1)):
        for job in jobs:
            session.execute("hold_one_without_node", seq=job.seq, at=session.timestamp)
            release_waiting_jobs(session, job, has_successors=False)
        held += len(jobs)
    return held


def _release(session: Session, group: JobGroup, limit: int) -> int:
    """Make held jobs of a group ready, oldest first, or have them wait for the holder of their key."""
    of_group = {"plugin": group.plugin, "node": group.node}
    released = len(session.fetch_all("release_with_node", **of_group, limit=limit))
    if released:
        session.publish(JOBS_READY)
    for job in find_jobs(session, "held_without_node", **of_group, limit=limit - released):
        set_hold(session, job)
        released += 1
    return released


def _expire(
    session: Session, group: JobGroup, policy: Policy, *, max_hold: timedelta, limit: int
) -> BatchResult:
    """End the jobs of a group that were held for too long."""
    rows = session.fetch_all(
        "overdue_without_node",
        plugin=group.plugin,
        node=group.node,
        until=format_timestamp(session.now - max_hold),
        limit=limit,
    )
    span = format_duration(max_hold)
    error = f"no live node may run {group.plugin}, and none has come within {span}"
    if group.node is not None:
        error = f"it belongs to the node {group.node}, which has not come back within {span}"
    outcome = NoNodeFound(error=error)
    return end_all(session, rows, outcome, policy, limit=limit)
