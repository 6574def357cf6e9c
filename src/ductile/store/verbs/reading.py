"""The reading verbs. They run on a reader's snapshot and never wait for the writer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from ductile.core.events.model import NewContext
from ductile.core.jobs.model import Job, JobReason, JobStatus, LedgerKind, Transition
from ductile.core.jobs.settlement import LogStatus
from ductile.core.json import JsonObject
from ductile.core.timestamps import format_timestamp, parse_timestamp
from ductile.store.cursors import decode_cursor, encode_cursor
from ductile.store.model.deliveries import Delivery, DeliveryStatus
from ductile.store.model.jobs import StoredEvent
from ductile.store.model.maintenance import ConfigOrigin, ConfigRecord, versions_from_json
from ductile.store.model.records import (
    LARGEST_PAGE,
    BreakerRow,
    BreakerTransitionRow,
    ExecutionStats,
    FactRow,
    JobFilter,
    LedgerRow,
    LogFilter,
    LogRow,
    Page,
    PluginDepth,
    PluginState,
    QueueCounts,
    TransitionRow,
)
from ductile.store.model.schedules import Occurrence, ScheduleEntry
from ductile.store.rows import (
    job_from_log,
    object_or_none,
    read_breaker,
    read_delivery,
    read_event,
    read_job,
    read_log,
    read_occurrence,
    read_schedule,
    text_or_none,
)
from ductile.store.session import Cell, Session

Row = TypeVar("Row")

_NEWEST = (1 << 63) - 1


def job(session: Session, job_id: str) -> Job | None:
    row = session.one("job_by_id", id=job_id)
    if row is not None:
        found = read_job(row[:-1])
        return read_job(row[:-1], _payload(session, row[-1], found.source_event_id))
    logged = session.one("last_execution", job_id=job_id)
    if logged is None:
        return None
    last = read_log(logged)
    payload = last.payload if last.payload is not None else _payload(session, None, last.source_event_id)
    return job_from_log(last, payload)


def latest_with_key(session: Session, plugin: str, command: str, dedupe_key: str) -> Job | None:
    row = session.one("latest_with_key", dedupe_key=dedupe_key, plugin=plugin, command=command)
    return None if row is None else job(session, row[0])


def blocking_job(session: Session, job_id: str) -> Job | None:
    row = session.one("blocking_job", id=job_id)
    return None if row is None or row[0] is None else job(session, str(row[0]))


def _payload(session: Session, own: str | None, event_id: str | None) -> JsonObject | None:
    """A job's own payload, else that of the event that started it."""
    if own is not None or event_id is None:
        return object_or_none(own)
    row = session.one("payload_of_event", id=event_id)
    return None if row is None else object_or_none(row[0])


def jobs(session: Session, where: JobFilter, *, limit: int, cursor: str | None = None) -> Page[Job]:
    values: dict[str, Cell] = {
        "id": where.job_id,
        "run_id": where.run_id,
        "parent_job_id": where.parent_job_id,
        "plugin": where.plugin,
        "status": where.status,
        "command": where.command,
        "submitted_by": where.submitted_by,
        "created_from": text_or_none(where.created_from),
        "created_before": text_or_none(where.created_before),
    }
    words = _as_words(where.query)
    # Each list is driven by the index of its most selective filter; the others are checked on the rows.
    if words is not None:
        query = "jobs_with_words"
        values["words"] = words
    elif where.job_id is not None:
        query = "job_of_id"
    elif where.run_id is not None:
        query = "jobs_of_run"
    elif where.parent_job_id is not None:
        query = "jobs_of_parent"
    elif where.status is not None and where.status is not JobStatus.SUCCEEDED:
        query = "jobs_of_status"
    elif where.plugin is not None:
        query = "jobs_of_plugin"
    else:
        query = "jobs_newest"
    return _page(session, query, values, read_job, seq_at=1, limit=limit, cursor=cursor)


def log(session: Session, where: LogFilter, *, limit: int, cursor: str | None = None) -> Page[LogRow]:
    words = _as_words(where.query)
    values: dict[str, Cell] = {
        "job_id": where.job_id,
        "plugin": where.plugin,
        "words": words,
        "status": where.status,
        "command": where.command,
        "submitted_by": where.submitted_by,
        "completed_from": text_or_none(where.completed_from),
        "completed_before": text_or_none(where.completed_before),
        "runs_only": int(where.runs_only),
    }
    if words is not None:
        query = "log_with_words"
    elif where.job_id is not None:
        query = "log_of_job"
    elif where.status is not None and where.status is not LogStatus.SUCCEEDED:
        query = "log_of_status"
    elif where.plugin is not None:
        query = "log_of_plugin"
    else:
        query = "log_newest"
    return _page(session, query, values, read_log, seq_at=0, limit=limit, cursor=cursor)


def _as_words(query: str | None) -> str | None:
    """Return the words of a search, which must all occur, with one space between them; None if there are
    none.
    """
    return " ".join((query or "").replace("\0", " ").split()) or None


def _page(
    session: Session,
    query: str,
    values: dict[str, Cell],
    read: Callable[[tuple[Cell, ...]], Row],
    *,
    seq_at: int,
    limit: int,
    cursor: str | None,
) -> Page[Row]:
    """Newest first. One row more than asked for tells whether there is a next page."""
    size = max(1, min(limit, LARGEST_PAGE))
    before = decode_cursor(cursor)
    rows = session.all(query, **values, before=_NEWEST if before is None else before, limit=size + 1)
    shown = rows[:size]
    following = encode_cursor(shown[-1][seq_at]) if len(rows) > size else None
    return Page(rows=tuple(read(row) for row in shown), next_cursor=following)


def job_ids_ending(session: Session, ending: str, *, limit: int) -> tuple[str, ...]:
    return tuple(str(row[0]) for row in session.all("job_ids_ending", ending=ending, limit=limit))


def job_ids(session: Session, beginning: str, *, limit: int) -> tuple[str, ...]:
    # Ids are lower-case digits and dashes, so everything that begins so comes before this.
    rows = session.all("job_ids_between", low=beginning, high=f"{beginning}~", limit=limit)
    return tuple(row[0] for row in rows)


def tree(session: Session, job_id: str, *, limit: int) -> tuple[Job, ...]:
    # Level by level, so that at one instant parents still come before their children.
    ids = [row[0] for row in session.all("job_tree", id=job_id, limit=limit)]
    members = [member for member in (job(session, one) for one in ids) if member is not None]
    return tuple(sorted(members, key=lambda member: member.created_at))


def transitions(session: Session, job_id: str) -> tuple[TransitionRow, ...]:
    return tuple(
        TransitionRow(
            seq=seq,
            execution=execution,
            transition=Transition(
                from_status=None if source is None else JobStatus(source),
                to_status=JobStatus(target),
                reason=JobReason(reason),
            ),
            at=parse_timestamp(at),
        )
        for seq, execution, source, target, reason, at in session.all("transitions_of_job", job_id=job_id)
    )


def executions(session: Session, job_id: str) -> tuple[LogRow, ...]:
    return tuple(read_log(row) for row in session.all("executions_of_job", job_id=job_id))


def event(session: Session, event_id: str) -> StoredEvent | None:
    row = session.one("event_by_id", id=event_id)
    return None if row is None else read_event(row)


def context(session: Session, context_id: str) -> NewContext | None:
    row = session.one("context_by_id", id=context_id)
    if row is None:
        return None
    found_id, baggage, parent_id, run_id, pipeline, step_path, hops = row
    return NewContext(
        id=found_id,
        baggage=object_or_none(baggage) or {},
        parent_id=parent_id,
        run_id=run_id,
        pipeline=pipeline,
        step_path=step_path,
        hops=hops,
    )


def counts(session: Session) -> QueueCounts:
    queued, ready, runs, running = session.one("counts") or (0, 0, 0, 0)
    return QueueCounts(ready=ready, waiting=queued - ready - runs, running=running)


def queue_depths(session: Session) -> tuple[PluginDepth, ...]:
    return tuple(
        PluginDepth(
            plugin=plugin,
            ready=ready,
            waiting=waiting,
            running=running,
            oldest_ready_at=None if oldest is None else parse_timestamp(oldest),
        )
        for plugin, ready, waiting, running, oldest in session.all("depths")
    )


def execution_stats(session: Session, *, since: datetime, latest: int) -> tuple[ExecutionStats, ...]:
    rows = session.all("tallies", since=format_timestamp(since), latest=latest)
    return tuple(
        ExecutionStats(
            plugin=plugin,
            status=LogStatus(status),
            executions=executions,
            mean=timedelta(milliseconds=mean or 0),
            longest=timedelta(milliseconds=longest or 0),
        )
        for plugin, status, executions, mean, longest in rows
    )


def outstanding(session: Session, plugin: str, command: str) -> int:
    row = session.one("outstanding", plugin=plugin, command=command)
    return 0 if row is None else int(row[0])


def plugin_state(session: Session, plugin: str) -> PluginState | None:
    row = session.one("plugin_state", plugin=plugin)
    if row is None:
        return None
    return PluginState(plugin=plugin, state=object_or_none(row[0]) or {}, updated_at=parse_timestamp(row[2]))


def facts(session: Session, plugin: str, *, limit: int, cursor: str | None = None) -> Page[FactRow]:
    return _page(
        session, "facts_of_plugin", {"plugin": plugin}, _read_fact, seq_at=0, limit=limit, cursor=cursor
    )


def _read_fact(row: tuple[Cell, ...]) -> FactRow:
    seq, plugin, fact_type, job_id, command, body, created_at = row
    return FactRow(
        seq=seq,
        plugin=plugin,
        fact_type=fact_type,
        job_id=job_id,
        command=command,
        body=object_or_none(body) or {},
        created_at=parse_timestamp(created_at),
    )


def breakers(session: Session) -> tuple[BreakerRow, ...]:
    return tuple(
        BreakerRow(
            plugin=row[0], command=row[1], breaker=read_breaker(row[2:8]), updated_at=parse_timestamp(row[8])
        )
        for row in session.all("all_breakers")
    )


def breaker_history(session: Session, plugin: str, *, limit: int) -> tuple[BreakerTransitionRow, ...]:
    return tuple(
        BreakerTransitionRow(
            seq=row[0],
            plugin=row[1],
            command=row[2],
            from_state=row[3],
            to_state=row[4],
            failures=row[5],
            reason=row[6],
            job_id=row[7],
            created_at=parse_timestamp(row[8]),
        )
        for row in session.all("breaker_history", plugin=plugin, limit=limit)
    )


def schedules(session: Session) -> tuple[ScheduleEntry, ...]:
    return tuple(read_schedule(row) for row in session.all("all_schedules"))


def occurrences(
    session: Session, plugin: str, schedule_id: str, *, limit: int, cursor: str | None = None
) -> Page[Occurrence]:
    where = {"plugin": plugin, "schedule_id": schedule_id}
    return _page(
        session,
        "occurrences_of_schedule",
        where,
        read_occurrence,
        seq_at=0,
        limit=limit,
        cursor=cursor,
    )


def delivery(session: Session, delivery_id: str) -> Delivery | None:
    row = session.one("delivery_by_id", id=delivery_id)
    return None if row is None else read_delivery(row)


def deliveries(
    session: Session,
    *,
    job_id: str | None = None,
    status: DeliveryStatus | None = None,
    limit: int,
    cursor: str | None = None,
) -> Page[Delivery]:
    where = {"job_id": job_id, "status": status}
    return _page(session, "deliveries", where, read_delivery, seq_at=0, limit=limit, cursor=cursor)


def ledger(session: Session, *, after: int, limit: int) -> tuple[LedgerRow, ...]:
    return tuple(read_ledger(row) for row in session.all("ledger_after", after=after, limit=limit))


def read_ledger(row: tuple[Cell, ...]) -> LedgerRow:
    seq, at, kind, job_id, run_id, data = row
    return LedgerRow(
        seq=seq,
        at=parse_timestamp(at),
        kind=LedgerKind(kind),
        job_id=job_id,
        run_id=run_id,
        data=object_or_none(data) or {},
    )


def ledger_range(session: Session) -> tuple[int, int]:
    lowest, highest = session.one("ledger_range") or (0, 0)
    return int(lowest), int(highest)


def config_history(session: Session, *, limit: int) -> tuple[ConfigRecord, ...]:
    rows: Sequence[tuple[Cell, ...]] = session.all("config_history", limit=limit)
    return tuple(
        ConfigRecord(
            seq=row[0],
            hash=row[1],
            origin=ConfigOrigin(row[2]),
            content=object_or_none(row[3]) or {},
            loaded_at=parse_timestamp(row[4]),
            plugins=versions_from_json(object_or_none(row[5])),
        )
        for row in rows
    )
