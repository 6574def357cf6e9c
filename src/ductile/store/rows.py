"""Rows to values and back. Column order is that of the queries' column fragments."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any, cast

import msgspec

from ductile.core.jobs.failures import Breaker, BreakerState
from ductile.core.jobs.model import Callback, Hold, Job, JobReason, JobStatus, SubmittedBy
from ductile.core.jobs.settlement import LogStatus
from ductile.core.json import MAX_DEPTH, JsonObject, JsonValue
from ductile.core.schedules.rule import Slot
from ductile.core.timestamps import format_timestamp, parse_timestamp
from ductile.errors import RefusedError
from ductile.store.model.deliveries import Delivery, DeliveryStatus
from ductile.store.model.jobs import StoredEvent
from ductile.store.model.records import LogRow
from ductile.store.model.schedules import Occurrence, OccurrenceOutcome, ScheduleEntry

_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]')

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


def to_json(value: Any) -> str:
    """Compact JSON text. Integers of any size survive exactly.

    What nests too deep is refused here: it could be written, and then no claim could read it.
    """
    try:
        text = _encoder.encode(value).decode()
    except UnicodeEncodeError:
        raise RefusedError("the JSON holds text that is not valid Unicode") from None
    # Counting brackets is cheap and nearly always settles it.
    if text.count("{") + text.count("[") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise RefusedError(f"the JSON is nested more than {MAX_DEPTH} levels deep")
    return text


def _depth(text: str) -> int:
    deepest = depth = 0
    for token in _BRACKETS.finditer(text):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token[0], 0)
        deepest = max(deepest, depth)
    return deepest


def storable(text: str | None) -> str | None:
    """Text that every database takes: lone surrogates become question marks, the rest stays as it is."""
    return text if text is None or text.isascii() else text.encode(errors="replace").decode()


def from_json(text: str) -> JsonValue:
    return cast("JsonValue", _decoder.decode(text))


def object_or_none(text: str | None) -> JsonObject | None:
    return None if text is None else cast("JsonObject", _decoder.decode(text))


def instant_or_none(text: str | None) -> datetime | None:
    return None if text is None else parse_timestamp(text)


def text_or_none(instant: datetime | None) -> str | None:
    return None if instant is None else format_timestamp(instant)


def list_or_empty(text: str | None) -> tuple[JsonValue, ...]:
    return () if text is None else tuple(_decoder.decode(text))


def read_job(row: tuple[Any, ...], payload: JsonObject | None = None) -> Job:
    (
        job_id, seq, plugin, command, status, reason, hold, attempt, max_attempts, execution, submitted_by,
        submitted_detail, dedupe_key, created_at, started_at, completed_at, next_retry_at, last_error,
        parent_job_id, source_event_id, event_context_id, run_id, step_path, hops, trace_id,
        cancel_requested_at, owner, lease_until, claim_seq, suspect, callback_url, callback_model,
        callback_events, artifacts,
    ) = row  # fmt: skip
    return Job(
        id=job_id,
        seq=seq,
        plugin=plugin,
        command=command,
        status=JobStatus(status),
        reason=JobReason(reason),
        hold=None if hold is None else Hold(hold),
        attempt=attempt,
        max_attempts=max_attempts,
        execution=execution,
        submitted_by=SubmittedBy(submitted_by),
        submitted_detail=submitted_detail,
        dedupe_key=dedupe_key,
        created_at=parse_timestamp(created_at),
        started_at=instant_or_none(started_at),
        completed_at=instant_or_none(completed_at),
        next_retry_at=instant_or_none(next_retry_at),
        last_error=last_error,
        parent_job_id=parent_job_id,
        source_event_id=source_event_id,
        event_context_id=event_context_id,
        run_id=run_id,
        step_path=step_path,
        hops=hops,
        trace_id=trace_id,
        cancel_requested_at=instant_or_none(cancel_requested_at),
        owner=owner,
        lease_until=instant_or_none(lease_until),
        claim_seq=claim_seq,
        suspect=bool(suspect),
        callback=None
        if callback_url is None
        else Callback(url=callback_url, model=callback_model, events=read_choice(callback_events)),
        payload=payload,
        artifacts=list_or_empty(artifacts),
    )


def read_choice(text: str | None) -> tuple[str, ...] | None:
    """The states that a state webhook URL is sent, as `write_choice` wrote them."""
    return None if text is None else tuple(text.split(","))


def write_choice(chosen: tuple[str, ...] | None) -> str | None:
    return None if chosen is None else ",".join(chosen)


LOG_COLUMNS = 29


def _duration(duration_ms: float, *, watched: bool) -> timedelta | None:
    """A process that was watched to its end has a status or a signal. Of the others nobody took the time."""
    return timedelta(milliseconds=duration_ms) if watched or duration_ms else None


def read_log(row: tuple[Any, ...]) -> LogRow:
    """A row of the log; the three columns of output may be missing."""
    (
        seq, row_id, job_id, execution, attempt, max_attempts, plugin, command, status, reason, job_status,
        job_reason, exit_code, signal, error, duration_ms, submitted_by, submitted_detail, dedupe_key,
        created_at, started_at, completed_at, parent_job_id, source_event_id, event_context_id, run_id,
        step_path, trace_id, artifacts,
    ) = row[:LOG_COLUMNS]  # fmt: skip
    result, stderr, payload = row[LOG_COLUMNS:] or (None, None, None)
    return LogRow(
        seq=seq,
        id=row_id,
        job_id=job_id,
        execution=execution,
        attempt=attempt,
        max_attempts=max_attempts,
        plugin=plugin,
        command=command,
        status=LogStatus(status),
        reason=JobReason(reason),
        job_status=JobStatus(job_status),
        job_reason=JobReason(job_reason),
        exit_code=exit_code,
        signal=signal,
        error=error,
        duration=_duration(duration_ms, watched=exit_code is not None or signal is not None),
        submitted_by=SubmittedBy(submitted_by),
        submitted_detail=submitted_detail,
        dedupe_key=dedupe_key,
        created_at=parse_timestamp(created_at),
        started_at=instant_or_none(started_at),
        completed_at=parse_timestamp(completed_at),
        parent_job_id=parent_job_id,
        source_event_id=source_event_id,
        event_context_id=event_context_id,
        run_id=run_id,
        step_path=step_path,
        trace_id=trace_id,
        artifacts=list_or_empty(artifacts),
        result=result,
        stderr=stderr,
        payload=object_or_none(payload),
    )


def job_from_log(row: LogRow, payload: JsonObject | None) -> Job:
    """The job as its last execution tells it, once retention has taken the queue row."""
    return Job(
        id=row.job_id,
        seq=0,
        plugin=row.plugin,
        command=row.command,
        status=row.job_status,
        reason=row.job_reason,
        hold=None,
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        execution=row.execution,
        submitted_by=row.submitted_by,
        submitted_detail=row.submitted_detail,
        dedupe_key=row.dedupe_key,
        created_at=row.created_at,
        started_at=row.started_at,
        completed_at=row.completed_at,
        next_retry_at=None,
        last_error=row.error,
        parent_job_id=row.parent_job_id,
        source_event_id=row.source_event_id,
        event_context_id=row.event_context_id,
        run_id=row.run_id,
        step_path=row.step_path,
        hops=0,
        trace_id=row.trace_id,
        cancel_requested_at=None,
        owner=None,
        lease_until=None,
        claim_seq=0,
        suspect=False,
        callback=None,
        payload=payload,
        artifacts=row.artifacts,
    )


def read_event(row: tuple[Any, ...]) -> StoredEvent:
    event_id, event_type, source, payload, headers, dedupe_key, created_at = row
    return StoredEvent(
        id=event_id,
        type=event_type,
        source=source,
        payload=object_or_none(payload) or {},
        headers=object_or_none(headers),
        dedupe_key=dedupe_key,
        created_at=parse_timestamp(created_at),
    )


def read_breaker(row: tuple[Any, ...]) -> Breaker:
    state, failures, opened_at, last_failure_at, last_job_id, probe_job_id = row
    return Breaker(
        state=BreakerState(state),
        failures=failures,
        opened_at=instant_or_none(opened_at),
        last_failure_at=instant_or_none(last_failure_at),
        last_job_id=last_job_id,
        probe_job_id=probe_job_id,
    )


def read_schedule(row: tuple[Any, ...]) -> ScheduleEntry:
    plugin, schedule_id, fingerprint, *place, defined_at = row
    next_at, nominal_at, last_job_id, last_fired_at, paused_at, deferred_nominal_at, deferred_due_at = place
    return ScheduleEntry(
        plugin=plugin,
        schedule_id=schedule_id,
        fingerprint=fingerprint,
        next_at=instant_or_none(next_at),
        nominal_at=instant_or_none(nominal_at),
        last_job_id=last_job_id,
        last_fired_at=instant_or_none(last_fired_at),
        paused_at=instant_or_none(paused_at),
        deferred=None
        if deferred_nominal_at is None or deferred_due_at is None
        else Slot(nominal_at=parse_timestamp(deferred_nominal_at), start_at=parse_timestamp(deferred_due_at)),
        defined_at=parse_timestamp(defined_at),
    )


def read_occurrence(row: tuple[Any, ...]) -> Occurrence:
    _seq, plugin, schedule_id, nominal_at, until_at, count, outcome, reason, job_id, late_ms = row
    return Occurrence(
        plugin=plugin,
        schedule_id=schedule_id,
        nominal_at=parse_timestamp(nominal_at),
        until_at=parse_timestamp(until_at),
        count=count,
        outcome=OccurrenceOutcome(outcome),
        reason=reason,
        job_id=job_id,
        late=None if late_ms is None else timedelta(milliseconds=late_ms),
    )


def read_delivery(row: tuple[Any, ...]) -> Delivery:
    (
        seq, delivery_id, job_id, sequence, state, url, receiver, body, status, attempts, next_attempt_at,
        last_status, last_error, created_at, completed_at,
    ) = row  # fmt: skip
    return Delivery(
        seq=seq,
        id=delivery_id,
        job_id=job_id,
        sequence=sequence,
        state=state,
        url=url,
        receiver=receiver,
        body=body,
        status=DeliveryStatus(status),
        attempts=attempts,
        next_attempt_at=instant_or_none(next_attempt_at),
        last_status=last_status,
        last_error=last_error,
        created_at=parse_timestamp(created_at),
        completed_at=instant_or_none(completed_at),
    )
