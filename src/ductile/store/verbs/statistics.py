"""Counts and summaries: the queue, executions, recent failures, and the rows of a digest."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise

import msgspec

from ductile.core.jobs.model import Hold, JobReason, JobStatus
from ductile.core.jobs.settlement import LogStatus
from ductile.core.jobs.statistics import BadEnding, ExecutionSample, summarise
from ductile.core.jobs.time_series import PluginCount, SpanSample
from ductile.core.timestamps import format_timestamp, parse_timestamp
from ductile.store.model.digest import ConfigLoad, DigestRows, SkippedRuns, WaitingGroup
from ductile.store.model.maintenance import (
    ConfigOrigin,
    FailingReceiver,
    PluginFailures,
    PluginVersion,
    RecentFailures,
)
from ductile.store.model.records import ExecutionStatistics, PluginDepth, QueueCounts
from ductile.store.rows import instant_or_none, milliseconds, row_reader
from ductile.store.session import Session, SqlValue
from ductile.store.verbs.outbox import lost_deliveries

#: The most rows of each kind that a digest reads; it reads the latest ones.
MAX_ENDINGS = 5_000
_MAX_SKIPS = 1_000
_MAX_WAITING = 10_000
_MAX_RECEIVERS = 20
_MAX_LOADS = 100
#: The most plugins or receivers that are listed.
_MAX_LISTED = 50

_read_depth = row_reader(PluginDepth, oldest_ready_at=parse_timestamp)
_read_failures = row_reader(PluginFailures)
_read_receiver = row_reader(FailingReceiver)
_read_ending = row_reader(BadEnding, reason=JobReason, completed_at=parse_timestamp)
_read_skip = row_reader(SkippedRuns, first_at=parse_timestamp, last_at=parse_timestamp)
_read_waiting = row_reader(WaitingGroup, hold=Hold, oldest_at=parse_timestamp)
_read_load = row_reader(
    ConfigLoad,
    origin=ConfigOrigin,
    loaded_at=parse_timestamp,
    plugins=msgspec.json.Decoder(dict[str, PluginVersion]).decode,
)


def queue_counts(session: Session) -> QueueCounts:
    queued, ready, runs, running = session.fetch_one("counts") or (0, 0, 0, 0)
    return QueueCounts(ready=ready, waiting=queued - ready - runs, running=running)


def queue_depths(session: Session) -> tuple[PluginDepth, ...]:
    """Return the queue by plugin, for plugins that have queued or running jobs."""
    return tuple(map(_read_depth, session.fetch_all("depths")))


def count_outstanding(session: Session, plugin: str, command: str) -> int:
    """Return how many jobs of this command are queued or running, whatever submitted them."""
    return int(session.fetch_value("outstanding", plugin=plugin, command=command))


def execution_statistics(
    session: Session, *, since: datetime, latest: int, plugin: str | None = None
) -> ExecutionStatistics:
    """Return how executions went since an instant, by plugin, among the latest `latest` of them."""
    rows = session.fetch_all(
        "execution_samples", since=format_timestamp(since), plugin=plugin, limit=latest + 1
    )
    return ExecutionStatistics(
        plugins=summarise(map(_read_sample, rows[:latest])), complete=len(rows) <= latest
    )


def sample_executions(
    session: Session, edges: Sequence[datetime], *, max_counted: int, max_timed: int
) -> tuple[SpanSample, ...]:
    """Return samples of the newest executions of each span between two edges.

    At most `max_counted` are counted by plugin, and at most `max_timed` are returned with their times. No
    others are read, however many there are.
    """
    samples = []
    for begin, end in pairwise(edges):
        span = {"since": format_timestamp(begin), "until": format_timestamp(end)}
        rows = session.fetch_all("span_counts", **span, limit=max_counted)
        counts = tuple(PluginCount(plugin=row[0], executions=row[1], failures=row[2]) for row in rows)
        total = sum(count.executions for count in counts)
        if total >= max_counted:
            # More executions than were counted: the difference of their numbers is the total.
            first = session.fetch_one("first_execution_since", since=span["since"])
            after = session.fetch_one("first_execution_since", since=span["until"])
            end_seq = session.fetch_value("newest_execution") + 1 if after is None else after[0]
            total = max(total, end_seq - (end_seq if first is None else first[0]))
        times = session.fetch_all("span_samples", **span, limit=max_timed) if total else ()
        samples.append(
            SpanSample(at=begin, counts=counts, total=total, times=tuple(map(_read_sample, times)))
        )
    return tuple(samples)


def _read_sample(row: tuple[SqlValue, ...]) -> ExecutionSample:
    plugin, status, attempt, execution, duration_ms, created_at, started_at, stderr_bytes, observed = row
    wait = None
    if execution == 1 and started_at is not None:
        wait = max(timedelta(0), parse_timestamp(started_at) - parse_timestamp(created_at))
    return ExecutionSample(
        plugin,
        LogStatus(status),
        attempt,
        milliseconds(duration_ms) if observed or duration_ms else None,
        wait,
        stderr_bytes or 0,
    )


def recent_failures(session: Session, *, since: datetime) -> RecentFailures:
    """Return the failed jobs and failing receivers since an instant."""
    where = {"since": format_timestamp(since), "limit": _MAX_LISTED}
    return RecentFailures(
        newest_at=instant_or_none(session.fetch_value("latest_instant")),
        endings=tuple(map(_read_failures, session.fetch_all("failures_by_command", **where))),
        removed=tuple(map(_read_failures, session.fetch_all("removals_by_command", **where))),
        receivers=tuple(map(_read_receiver, session.fetch_all("failing_receivers", **where))),
    )


def read_digest(session: Session, *, since: datetime, latest: int) -> DigestRows:
    """Return the rows of a digest since an instant, with the statistics of the newest `latest` executions.

    Reads a bounded number of rows, whatever the size of the store.
    """
    from_at = format_timestamp(since)
    endings = [
        _read_ending(row)
        for status in (JobStatus.FAILED, JobStatus.DEAD)
        for row in session.fetch_all("bad_endings", status=status, since=from_at, limit=MAX_ENDINGS + 1)
    ]
    endings.sort(key=lambda ending: ending.completed_at, reverse=True)
    waiting = tuple(map(_read_waiting, session.fetch_all("waiting_groups", limit=_MAX_WAITING)))
    loads = list(map(_read_load, session.fetch_all("config_loads", limit=_MAX_LOADS)))
    before = next((number for number, load in enumerate(loads) if load.loaded_at < since), len(loads))
    return DigestRows(
        executions=execution_statistics(session, since=since, latest=latest),
        endings=tuple(endings[:MAX_ENDINGS]),
        endings_complete=len(endings) <= MAX_ENDINGS,
        skipped=tuple(map(_read_skip, session.fetch_all("skipped_since", since=from_at, limit=_MAX_SKIPS))),
        waiting=waiting,
        waiting_complete=sum(group.jobs for group in waiting) < _MAX_WAITING,
        lost=lost_deliveries(session, since=since, limit=_MAX_RECEIVERS),
        loads=tuple(loads[: before + 1]),
    )
