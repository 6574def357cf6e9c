"""Conversion of rows to values and back. The order of columns is that of the fragments in the queries."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any, cast

import msgspec

from ductile.core.jobs.failures import Breaker, BreakerState
from ductile.core.jobs.model import Callback, Hold, Job, JobReason, JobStatus, SubmittedBy
from ductile.core.jobs.settlement import LogStatus
from ductile.core.json import MAX_DEPTH, JsonObject, JsonValue
from ductile.core.schedules.rule import PlannedOccurrence
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
    """Return compact JSON text, with integers of any size.

    Raises `RefusedError` for invalid Unicode, and for JSON that is nested too deep to be read again.
    """
    try:
        text = _encoder.encode(value).decode()
    except UnicodeEncodeError:
        raise RefusedError("the JSON holds text that is not valid Unicode") from None
    # Counting brackets is cheap and nearly always enough.
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
    """Return text that every database takes: lone surrogates become question marks."""
    return text if text is None or text.isascii() else text.encode(errors="replace").decode()


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
        else Callback(url=callback_url, model=callback_model, events=parse_states(callback_events)),
        payload=payload,
        artifacts=list_or_empty(artifacts),
    )


def parse_states(text: str | None) -> tuple[str, ...] | None:
    """Return the states that a URL is subscribed to, as `format_states` wrote them; None for all."""
    return None if text is None else tuple(text.split(","))


def format_states(chosen: tuple[str, ...] | None) -> str | None:
    return None if chosen is None else ",".join(chosen)


#: The columns of the log in the order of the fragment `log_columns`, and those of the output, which lists
#: omit.
_LOG_COLUMNS = (
    "seq", "id", "job_id", "execution", "attempt", "max_attempts", "plugin", "command", "status", "reason",
    "job_status", "job_reason", "exit_code", "signal", "error", "duration_ms", "submitted_by",
    "submitted_detail", "dedupe_key", "created_at", "started_at", "completed_at", "parent_job_id",
    "source_event_id", "event_context_id", "run_id", "step_path", "trace_id", "artifacts",
    "result", "stderr", "payload",
)  # fmt: skip


def read_log(row: tuple[Any, ...]) -> LogRow:
    """Return an execution; the three columns of its output may be missing."""
    values: dict[str, Any] = dict(zip(_LOG_COLUMNS, row, strict=False))
    took = values.pop("duration_ms")
    # A process whose exit was observed has an exit code or a signal. Otherwise the duration is unknown.
    exit_observed = values["exit_code"] is not None or values["signal"] is not None
    values |= {
        "status": LogStatus(values["status"]),
        "reason": JobReason(values["reason"]),
        "job_status": JobStatus(values["job_status"]),
        "job_reason": JobReason(values["job_reason"]),
        "submitted_by": SubmittedBy(values["submitted_by"]),
        "duration": timedelta(milliseconds=took) if exit_observed or took else None,
        "created_at": parse_timestamp(values["created_at"]),
        "started_at": instant_or_none(values["started_at"]),
        "completed_at": parse_timestamp(values["completed_at"]),
        "artifacts": list_or_empty(values["artifacts"]),
        "payload": object_or_none(values.get("payload")),
    }
    return LogRow(**values)


_IN_JOB_AND_LOG = tuple(name for name in Job.__struct_fields__ if name in LogRow.__struct_fields__)


def job_from_log(row: LogRow, payload: JsonObject | None) -> Job:
    """Return the job as its last execution left it, once retention has removed its row in the queue."""
    values: dict[str, Any] = {name: getattr(row, name) for name in _IN_JOB_AND_LOG}
    values |= {
        "id": row.job_id,
        "seq": 0,
        "status": row.job_status,
        "reason": row.job_reason,
        "last_error": row.error,
        "payload": payload,
        "hops": 0,
        "claim_seq": 0,
        "suspect": False,
    }
    values |= dict.fromkeys(
        ("hold", "next_retry_at", "cancel_requested_at", "owner", "lease_until", "callback")
    )
    return Job(**values)


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
        else PlannedOccurrence(
            nominal_at=parse_timestamp(deferred_nominal_at), start_at=parse_timestamp(deferred_due_at)
        ),
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
    values: dict[str, Any] = dict(zip(Delivery.__struct_fields__, row, strict=True))
    values |= {
        "status": DeliveryStatus(values["status"]),
        "next_attempt_at": instant_or_none(values["next_attempt_at"]),
        "created_at": parse_timestamp(values["created_at"]),
        "completed_at": instant_or_none(values["completed_at"]),
    }
    return Delivery(**values)
