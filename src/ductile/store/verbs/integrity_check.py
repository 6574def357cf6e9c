"""Looking at the store itself: rows that break an invariant, and what has gone wrong of late.

One invariant is one short read, since a long one keeps the write-ahead log from being emptied.
"""

from __future__ import annotations

from datetime import datetime

from ductile.core.jobs.model import EDGES
from ductile.core.runs.state import MAX_RUN_JOBS
from ductile.core.timestamps import format_timestamp, parse_timestamp
from ductile.store.invariants import Invariant
from ductile.store.model.maintenance import FailingReceiver, FailureGroup, RecentFailures
from ductile.store.session import Session

#: So many plugins or receivers are named; more would be one trouble with another name.
_NAMED = 50


def violations(session: Session, invariant: Invariant, *, limit: int) -> tuple[str, ...]:
    if invariant is Invariant.EDGES_ARE_KNOWN:
        return _unknown_edges(session)[:limit]
    rows = session.all(f"check_{invariant}", limit=limit, most=MAX_RUN_JOBS)
    return tuple(str(row[0]) for row in rows)


def _unknown_edges(session: Session) -> tuple[str, ...]:
    return tuple(
        f"{job_id}: {source} to {target}"
        for source, target, job_id in session.all("check_edges_are_known")
        if (source, target) not in EDGES
    )


def recent_failures(session: Session, *, since: datetime) -> RecentFailures:
    begin = format_timestamp(since)
    newest = session.one("latest_instant")
    return RecentFailures(
        newest_at=None if newest is None else parse_timestamp(newest[0]),
        endings=_endings(session, "check_bad_endings", begin),
        removed=_endings(session, "check_removed_endings", begin),
        receivers=tuple(
            FailingReceiver(receiver=receiver, waiting=waiting, dropped=dropped, last_error=error)
            for receiver, waiting, dropped, error in session.all("check_receivers", since=begin, limit=_NAMED)
        ),
    )


def _endings(session: Session, query: str, since: str) -> tuple[FailureGroup, ...]:
    return tuple(
        FailureGroup(plugin=plugin, command=command, jobs=jobs, latest_job_id=latest)
        for plugin, command, jobs, latest in session.all(query, since=since, limit=_NAMED)
    )
