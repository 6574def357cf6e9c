"""Retention in small batches, the full-text index, recorded configurations, ended sessions, invariants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from ductile.core.jobs.model import EDGES, JobStatus, LedgerKind
from ductile.core.json import JsonObject
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.runs.state import MAX_RUN_JOBS
from ductile.core.timestamps import format_timestamp, parse_timestamp
from ductile.store.model.jobs import InitResult, NewInit
from ductile.store.model.maintenance import (
    NO_CAUSE,
    ConfigOrigin,
    ConfigRecord,
    Invariant,
    LoadCause,
    PluginVersion,
    PruneResult,
    Retention,
)
from ductile.store.notifier import SessionEnded
from ductile.store.rows import from_json, row_reader, to_json
from ductile.store.session import Session, SqlValue
from ductile.store.verbs.jobs.insert import BATCH_SIZE, NO_LIMIT
from ductile.store.verbs.ledger import append_ledger
from ductile.store.verbs.plugins import begin_init
from ductile.struct import to_builtins

_read_config = row_reader(
    ConfigRecord,
    origin=ConfigOrigin,
    content=from_json,
    loaded_at=parse_timestamp,
    plugins=msgspec.json.Decoder(dict[str, PluginVersion]).decode,
)

#: The status of the jobs of each kind that `prune` removes.
_STATUSES = {
    "succeeded_jobs": JobStatus.SUCCEEDED,
    "failed_jobs": JobStatus.FAILED,
    "dead_jobs": JobStatus.DEAD,
}
#: The queries that delete the rows of a run beside its jobs.
_DELETES_OF_RUN = ("delete_run", "delete_run_scopes", "delete_run_members", "delete_run_token_results")
#: The part of an execution's text that is indexed.
SEARCHABLE_CHARACTERS = 64 * 1024
#: The key in the store's metadata of the last execution that is indexed.
SEARCHABLE_UNTIL = "searchable_until"
#: The key of the row that tests whether the disk has room.
PROBE_ROW = "filling"
_PROBE_BYTES = 1024 * 1024
#: Rows of each kind that one request removes. More would delay claims by more than a few milliseconds.
PRUNE_BATCH = 50


def prune(session: Session, retention: Retention, *, limit: int = PRUNE_BATCH) -> PruneResult:
    """Remove rows that have been kept long enough; one batch of each kind."""
    rows: dict[str, int] = {}
    for kind, values in _prunable_kinds(session, retention).items():
        if kind in _STATUSES:
            rows[kind] = _prune_jobs(session, limit=limit, **values)
        elif kind == "job_log":
            logged = session.fetch_all("prunable_log", limit=limit, **values)
            for seq, job_id in logged:
                session.execute("delete_log_text", seq=seq)
                session.execute("delete_log", seq=seq)
                session.execute("delete_transitions", job_id=job_id)
            rows[kind] = len(logged)
        else:
            rows[kind] = len(session.fetch_all(f"prune_{kind}", limit=limit, **values))
    return PruneResult(
        rows={kind: count for kind, count in rows.items() if count},
        more=any(count >= limit for count in rows.values()),
    )


def count_prunable(session: Session, retention: Retention) -> Mapping[str, int]:
    """Return how many rows of each kind `prune` would remove.

    Rows that become prunable by it are not counted.
    """
    rows = {
        kind: session.fetch_value(f"count_{'jobs' if kind in _STATUSES else kind}", limit=NO_LIMIT, **values)
        for kind, values in _prunable_kinds(session, retention).items()
    }
    return {kind: count for kind, count in rows.items() if count}


def _prunable_kinds(session: Session, retention: Retention) -> dict[str, dict[str, SqlValue]]:
    """Return the kinds of rows in the order of their removal, with the values of their queries."""
    ages = {
        "succeeded_jobs": retention.succeeded_jobs,
        # Failed and dead jobs are kept as long as the log, so they can be retried.
        "failed_jobs": retention.job_log,
        "dead_jobs": retention.job_log,
        "job_log": retention.job_log,
        "events": retention.job_log,
        "contexts": retention.job_log,
        "versions": retention.job_log,
        "configs": retention.job_log,
        "breaker_transitions": retention.breaker_transitions,
        "occurrences": retention.occurrences,
        "deliveries": retention.deliveries,
        "facts": retention.facts,
        "ledger": retention.ledger,
    }
    kinds: dict[str, dict[str, SqlValue]] = {
        kind: {"before": format_timestamp(session.now - age)} for kind, age in ages.items() if age is not None
    }
    for kind, status in _STATUSES.items():
        kinds[kind]["status"] = status
    kinds["ledger"]["rows"] = retention.ledger_rows
    return kinds


def _prune_jobs(session: Session, *, limit: int, **values: SqlValue) -> int:
    """Remove ended jobs without live descendants, at most `limit`; a run after its steps."""
    removed = 0
    for seq, job_id, plugin, payload in session.fetch_all("prunable_jobs", limit=limit, **values):
        if plugin == RUN_PLUGIN:
            allowed = limit - removed
            steps = session.fetch_all("steps_to_prune", run_id=job_id, limit=allowed)
            for step in steps:
                _remove_job(session, *step)
            removed += len(steps)
            if len(steps) < allowed:
                for query in _DELETES_OF_RUN:
                    session.execute(query, run_id=job_id)
        if removed >= limit:
            break  # the next batch continues with this job
        _remove_job(session, seq, job_id, payload)
        removed += 1
    return removed


def _remove_job(session: Session, seq: SqlValue, job_id: SqlValue, payload: SqlValue) -> None:
    """Remove the job's row. Its payload moves to the log."""
    if payload is not None:
        session.execute("keep_payload", job_id=job_id, payload=payload)
    session.execute("delete_job", seq=seq)
    session.execute("delete_subscriptions", job_id=job_id)
    session.execute("delete_transitions", job_id=job_id)


def index_log(session: Session, *, limit: int = BATCH_SIZE) -> int:
    """Index one batch of executions for the full-text search. Returns the number of executions."""
    last_indexed = session.fetch_value("get_meta", key=SEARCHABLE_UNTIL)
    rows = session.fetch_all("unindexed_log", after=int(last_indexed or 0), limit=limit)
    for seq, *texts in rows:
        body = "\n".join(text for text in texts if text)[:SEARCHABLE_CHARACTERS]
        session.execute("index_text", seq=seq, body=body)
    if rows:
        session.execute("put_meta", key=SEARCHABLE_UNTIL, value=str(rows[-1][0]))
    return len(rows)


def write_probe_row(session: Session) -> None:
    """Write as much as a large submission does, to find out whether the disk has room."""
    session.execute("put_meta", key=PROBE_ROW, value="0" * _PROBE_BYTES)


def delete_probe_row(session: Session) -> None:
    session.execute("delete_meta", key=PROBE_ROW)


def empty_search_index(session: Session) -> None:
    """Empty the full-text index; `index_log` fills it again."""
    session.execute("empty_search_index")
    session.execute("put_meta", key=SEARCHABLE_UNTIL, value="0")


def end_session(session: Session, session_id: str, expires_at: datetime) -> None:
    """Record that a session of the dashboard has ended, until its cookie expires."""
    session.execute("delete_expired_sessions", now=format_timestamp(session.now))
    session.execute("insert_ended_session", id=session_id, expires_at=format_timestamp(expires_at))
    session.publish(SessionEnded(session_id=session_id))


def ended_sessions(session: Session) -> frozenset[str]:
    """Return the sessions that have ended and whose cookies have not expired."""
    return frozenset(row[0] for row in session.fetch_all("ended_sessions", now=format_timestamp(session.now)))


def record_config(
    session: Session,
    config_hash: str,
    origin: ConfigOrigin,
    content: JsonObject,
    inits: Sequence[NewInit] = (),
    plugins: Mapping[str, PluginVersion] | None = None,
    cause: LoadCause = NO_CAUSE,
) -> tuple[InitResult, ...]:
    """Record a configuration and begin its inits, all or none. Returns the results of the inits.

    A configuration of `ductile run` is recorded only if it differs from the last one.
    """
    if origin is not ConfigOrigin.RUN or session.fetch_one("newest_config") != (config_hash,):
        session.execute(
            "insert_config",
            hash=config_hash,
            origin=origin,
            content=to_json(content),
            plugins=None if plugins is None else to_json(plugins),
            at=session.timestamp,
            command=cause.command,
            author=cause.author,
            files=cause.files,
        )
        given = {name: value for name, value in to_builtins(cause).items() if value is not None}
        append_ledger(session, LedgerKind.CONFIG_LOADED, {"hash": config_hash, "origin": origin, **given})
    return tuple(begin_init(session, init.key, init.job) for init in inits)


def find_violations(session: Session, invariant: Invariant, *, limit: int) -> tuple[str, ...]:
    """Return the ids of rows that break an invariant; none in an intact store."""
    if invariant is Invariant.EDGES_ARE_KNOWN:
        edges = session.fetch_all("check_edges_are_known")
        return tuple(
            f"{job_id}: {before} to {after}"
            for before, after, job_id in edges
            if (before, after) not in EDGES
        )[:limit]
    rows = session.fetch_all(f"check_{invariant}", limit=limit, most=MAX_RUN_JOBS)
    return tuple(str(row[0]) for row in rows)


def config_history(session: Session, *, limit: int) -> tuple[ConfigRecord, ...]:
    """Return the recorded configurations, newest first."""
    return tuple(map(_read_config, session.fetch_all("config_history", limit=limit)))
