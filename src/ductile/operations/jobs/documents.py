"""Stored values as the JSON that every surface shows."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from ductile.core.jobs.breaker import Breaker
from ductile.core.jobs.dedupe import bare_key
from ductile.core.jobs.model import Job
from ductile.core.json import JsonObject, JsonValue
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.timestamps import format_timestamp
from ductile.protocol.response import normalise_response
from ductile.store.model.records import LedgerRow, LogRow, TransitionRow
from ductile.store.model.schedules import Occurrence


def instant(at: datetime | None) -> str | None:
    return None if at is None else format_timestamp(at)


def milliseconds(span: timedelta | None) -> float | None:
    return None if span is None else round(span.total_seconds() * 1000, 3)


def shown_job(job: Job) -> JsonObject:
    """Every field of a job but its payload and result, the id as `job_id`."""
    return {
        "job_id": job.id,
        "plugin": job.plugin,
        "command": job.command,
        "status": job.status,
        "reason": job.reason,
        "hold": job.hold,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "execution": job.execution,
        "submitted_by": job.submitted_by,
        "submitted_detail": job.submitted_detail,
        "dedupe_key": bare_key(job.dedupe_key),
        "created_at": instant(job.created_at),
        "started_at": instant(job.started_at),
        "completed_at": instant(job.completed_at),
        "next_retry_at": instant(job.next_retry_at),
        "last_error": job.last_error,
        "parent_job_id": job.parent_job_id,
        "source_event_id": job.source_event_id,
        "event_context_id": job.event_context_id,
        "run_id": job.run_id,
        "step": job.step_path,
        "hops": job.hops,
        "trace_id": job.trace_id,
        "cancel_requested_at": instant(job.cancel_requested_at),
        "artifacts": list(job.artifacts),
    }


def shown_execution(row: LogRow, *, output: bool = False) -> JsonObject:
    shown: JsonObject = {
        "seq": row.seq,
        "id": row.id,
        "job_id": row.job_id,
        "execution": row.execution,
        "attempt": row.attempt,
        "plugin": row.plugin,
        "command": row.command,
        "status": row.status,
        "reason": row.reason,
        "job_status": row.job_status,
        "exit_code": row.exit_code,
        "signal": row.signal,
        "error": row.error,
        "duration_ms": milliseconds(row.duration),
        "submitted_by": row.submitted_by,
        "submitted_detail": row.submitted_detail,
        "created_at": instant(row.created_at),
        "started_at": instant(row.started_at),
        "completed_at": instant(row.completed_at),
        "parent_job_id": row.parent_job_id,
        "run_id": row.run_id,
        "step": row.step_path,
        "trace_id": row.trace_id,
        "artifacts": list(row.artifacts),
    }
    if output:
        shown |= {"result": result_of(row), "stdout": row.result, "stderr": row.stderr}
    return shown


def result_of(row: LogRow) -> JsonObject | None:
    """The response envelope of an execution, as callers get it; None if what it printed is none."""
    try:
        envelope: JsonValue = msgspec.json.decode(row.result or "")
    except (msgspec.DecodeError, RecursionError):
        return None
    return normalise_response(envelope) if isinstance(envelope, dict) else None


def answer_of(job: Job, row: LogRow) -> JsonObject | None:
    """The answer of a job as callers read it: the envelope and, beside it, what a shell would show of it.

    None for a pipeline run of which nothing ran.
    """
    silent = row.result is None and not row.stderr
    if job.plugin == RUN_PLUGIN and silent and row.exit_code is None and row.signal is None:
        return None
    given = result_of(row) or normalise_response({})
    return {
        **given,
        "stdout": _as_text(given.get("result")),
        "stderr": row.stderr or "",
        "exit_code": row.exit_code,
        "output_files": list(row.artifacts),
    }


def _as_text(result: JsonValue) -> str:
    if result is None:
        return ""
    return result if isinstance(result, str) else msgspec.json.encode(result).decode()


def shown_transition(row: TransitionRow) -> JsonObject:
    return {
        "at": instant(row.at),
        "from": row.transition.from_status,
        "to": row.transition.to_status,
        "reason": row.transition.reason,
        "execution": row.execution,
    }


def shown_breaker(breaker: Breaker) -> JsonObject:
    return {
        "state": breaker.state,
        "failures": breaker.failures,
        "opened_at": instant(breaker.opened_at),
        "last_failure_at": instant(breaker.last_failure_at),
        "last_job_id": breaker.last_job_id,
        "probe_job_id": breaker.probe_job_id,
    }


def shown_occurrence(occurrence: Occurrence) -> JsonObject:
    return {
        "nominal_at": instant(occurrence.nominal_at),
        "until_at": instant(occurrence.until_at),
        "count": occurrence.count,
        "outcome": occurrence.outcome,
        "reason": occurrence.reason,
        "job_id": occurrence.job_id,
        "late_ms": milliseconds(occurrence.late),
    }


def shown_ledger(row: LedgerRow) -> JsonObject:
    return {
        "seq": row.seq,
        "at": instant(row.at),
        "kind": row.kind,
        "job_id": row.job_id,
        "run_id": row.run_id,
        "data": row.data,
    }
