"""Rows: their conversion to values and back, and pages of them.

The fields of most values have the order of the columns in the queries, or in the fragments that list columns.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

import msgspec

from ductile.core.jobs.failures import Breaker, BreakerState
from ductile.core.jobs.model import (
    Hold,
    Job,
    JobReason,
    JobStatus,
    OutputFormat,
    StateSubscription,
    SubmittedBy,
)
from ductile.core.jobs.settlement import LogStatus
from ductile.core.json import MAX_DEPTH, JsonObject, JsonValue
from ductile.core.schedules.planner import Occurrence, OccurrenceOutcome
from ductile.core.schedules.rule import PlannedOccurrence
from ductile.core.timestamps import format_timestamp, parse_timestamp
from ductile.errors import RefusedError
from ductile.protocol.plugin_messages import stored_result
from ductile.store.model.deliveries import Delivery, DeliveryStatus
from ductile.store.model.jobs import StoredEvent
from ductile.store.model.records import LARGEST_PAGE, MAX_SORTED, LogRow, Page
from ductile.store.model.schedules import ScheduleEntry
from ductile.store.session import Session, SqlValue
from ductile.struct import Value

V = TypeVar("V", bound=Value)

_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]')
_CURSOR_PREFIX = b"c1:"
_SORTED_PREFIX = b"s1:"
_SORTED_CURSOR = re.compile(
    rb"s1:(\d{1,18})/([\dTZ:.-]{27})/(\d{1,15}\.\d{1,15}(?:e[+-]\d{1,2})?)/(\d{1,18})"
)
_MAX_DIGITS = 18  # what fits into a column of 64 bits
#: A number above all sequence numbers: the page before it is the first one.
NEWEST = (1 << 63) - 1

_encoder = msgspec.json.Encoder()
#: Returns the value of JSON text that `to_json` wrote.
from_json: Callable[[str], Any] = msgspec.json.Decoder().decode

# -- columns


def to_json(value: Any) -> str:
    """Return compact JSON text, with integers of any size.

    Raises `RefusedError` for invalid Unicode, and for JSON that is nested too deep to be read again.
    """
    try:
        text = _encoder.encode(value).decode()
    except UnicodeEncodeError:
        raise RefusedError("the JSON holds text that is not valid Unicode") from None
    # Counting brackets is cheap and nearly always enough.
    if text.count("{") + text.count("[") > MAX_DEPTH:
        depth = 0
        for token in _BRACKETS.finditer(text):
            depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token[0], 0)
            if depth > MAX_DEPTH:
                raise RefusedError(f"the JSON is nested more than {MAX_DEPTH} levels deep")
    return text


def storable(text: str | None) -> str | None:
    """Return text that every database takes: lone surrogates become question marks."""
    return text if text is None or text.isascii() else text.encode(errors="replace").decode()


def json_object_or_none(text: str | None) -> JsonObject | None:
    return None if text is None else cast("JsonObject", from_json(text))


def instant_or_none(text: str | None) -> datetime | None:
    return None if text is None else parse_timestamp(text)


def milliseconds(count: float) -> timedelta:
    return timedelta(milliseconds=count)


def timestamp_or_none(instant: datetime | None) -> str | None:
    return None if instant is None else format_timestamp(instant)


def list_or_empty(text: str | None) -> tuple[JsonValue, ...]:
    return () if text is None else tuple(from_json(text))


def parse_states(text: str | None) -> tuple[str, ...] | None:
    """Return the states that a URL is subscribed to, as `format_states` wrote them; None for all."""
    return None if text is None else tuple(text.split(","))


def format_states(chosen: tuple[str, ...] | None) -> str | None:
    return None if chosen is None else ",".join(chosen)


# -- values


def row_reader(kind: type[V], /, **conversions: Callable[[Any], Any]) -> Callable[[Sequence[SqlValue]], V]:
    """Return a function from a row to a value, whose fields have the order of the columns.

    `conversions` apply to the columns that are not stored as they are; NULL becomes None.
    """
    converted = tuple((kind.__struct_fields__.index(name), convert) for name, convert in conversions.items())
    make = cast("Callable[..., V]", kind)

    def read(row: Sequence[SqlValue]) -> V:
        values = list(row)
        for column, convert in converted:
            if values[column] is not None:
                values[column] = convert(values[column])
        return make(*values)

    return read


_read_job = row_reader(
    Job,
    status=JobStatus,
    reason=JobReason,
    hold=Hold,
    submitted_by=SubmittedBy,
    created_at=parse_timestamp,
    started_at=parse_timestamp,
    completed_at=parse_timestamp,
    next_retry_at=parse_timestamp,
    cancel_requested_at=parse_timestamp,
    lease_until=parse_timestamp,
    suspect=bool,
    held_since=parse_timestamp,
)


def read_job(row: tuple[SqlValue, ...], payload: JsonObject | None = None) -> Job:
    *columns, url, model, states, artifacts, rerun_of, token, cost, node, held_since = row
    callback = None if url is None else StateSubscription(url=url, model=model, events=parse_states(states))
    return _read_job(
        (*columns, callback, payload, list_or_empty(artifacts), rerun_of, token, cost, node, held_since)
    )


def find_job(session: Session, job_id: str) -> Job | None:
    """Return a job of the queue, without its payload."""
    row = session.fetch_one("job_by_id", id=job_id)
    return None if row is None else read_job(row)


def find_jobs(session: Session, query: str, **values: SqlValue) -> list[Job]:
    return [read_job(row) for row in session.fetch_all(query, **values)]


def read_log(row: tuple[SqlValue, ...]) -> LogRow:
    """Return an execution; the three columns of its output may be missing."""
    values: dict[str, Any] = dict(zip(LogRow.__struct_fields__, row, strict=False))
    duration_ms = values["duration"]
    # A process whose exit was observed has an exit code or a signal. Otherwise the duration is unknown.
    exit_observed = values["exit_code"] is not None or values["signal"] is not None
    values |= {
        "status": LogStatus(values["status"]),
        "reason": JobReason(values["reason"]),
        "job_status": JobStatus(values["job_status"]),
        "job_reason": JobReason(values["job_reason"]),
        "submitted_by": SubmittedBy(values["submitted_by"]),
        "duration": milliseconds(duration_ms) if exit_observed or duration_ms else None,
        "created_at": parse_timestamp(values["created_at"]),
        "started_at": instant_or_none(values["started_at"]),
        "completed_at": parse_timestamp(values["completed_at"]),
        "artifacts": list_or_empty(values["artifacts"]),
        "output": OutputFormat(values["output"]),
        "stderr_truncated": bool(values["stderr_truncated"]),
        "payload": json_object_or_none(values.get("payload")),
    }
    return LogRow(**values)


def last_result(session: Session, job_id: str) -> JsonValue:
    """Return the result of the latest execution; None if it has none."""
    row = session.fetch_one("last_output", job_id=job_id)
    return None if row is None else stored_result(cast("str | None", row[0]), OutputFormat(row[1]))


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


read_event = row_reader(StoredEvent, payload=from_json, headers=from_json, created_at=parse_timestamp)

read_breaker = row_reader(
    Breaker, state=BreakerState, opened_at=parse_timestamp, last_failure_at=parse_timestamp
)

_read_schedule = row_reader(
    ScheduleEntry,
    next_at=parse_timestamp,
    nominal_at=parse_timestamp,
    last_fired_at=parse_timestamp,
    paused_at=parse_timestamp,
    defined_at=parse_timestamp,
)


def read_schedule(row: tuple[SqlValue, ...]) -> ScheduleEntry:
    *columns, nominal_at, due_at, defined_at = row
    return _read_schedule((*columns, planned_occurrence_or_none(nominal_at, due_at), defined_at))


def planned_occurrence_or_none(nominal_at: str | None, start_at: str | None) -> PlannedOccurrence | None:
    if nominal_at is None or start_at is None:
        return None
    return PlannedOccurrence(nominal_at=parse_timestamp(nominal_at), start_at=parse_timestamp(start_at))


read_occurrence = row_reader(
    Occurrence,
    nominal_at=parse_timestamp,
    outcome=OccurrenceOutcome,
    until_at=parse_timestamp,
    late=milliseconds,
)

read_delivery = row_reader(
    Delivery,
    status=DeliveryStatus,
    next_attempt_at=parse_timestamp,
    created_at=parse_timestamp,
    completed_at=parse_timestamp,
)


# -- pages, newest first. A cursor encodes a sequence number, and is opaque to callers


def encode_cursor(seq: int) -> str:
    return base64.urlsafe_b64encode(_CURSOR_PREFIX + str(seq).encode()).decode().rstrip("=")


def decode_cursor(cursor: str | None) -> int | None:
    """Return the sequence number in a cursor. Raises `RefusedError` for text that is not a cursor."""
    if cursor is None:
        return None
    raw = _decoded(cursor)
    number = raw.removeprefix(_CURSOR_PREFIX)
    if not raw.startswith(_CURSOR_PREFIX) or not number.isdigit() or len(number) > _MAX_DIGITS:
        raise _invalid_cursor()
    return int(number)


def _decoded(cursor: str) -> bytes:
    try:
        return base64.b64decode(cursor.encode() + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return b""


def _invalid_cursor() -> RefusedError:
    return RefusedError(
        "invalid cursor", hint="Pass next_cursor of the previous page, unchanged, with the same order."
    )


def encode_sorted_cursor(newest_seq: int, as_of: str, value: float, seq: int) -> str:
    text = f"{newest_seq}/{as_of}/{value!r}/{seq}".encode()
    return base64.urlsafe_b64encode(_SORTED_PREFIX + text).decode().rstrip("=")


def decode_sorted_cursor(cursor: str) -> tuple[int, str, float, int]:
    """Return the arguments of `encode_sorted_cursor`. Raises `RefusedError` for text that is no cursor."""
    match = _SORTED_CURSOR.fullmatch(_decoded(cursor))
    if match is None:
        raise _invalid_cursor()
    newest_seq, as_of, value, seq = match.groups()
    return int(newest_seq), as_of.decode(), float(value), int(seq)


def read_sorted_page(
    session: Session,
    query: str,
    values: Mapping[str, SqlValue],
    read: Callable[[tuple[SqlValue, ...]], V],
    measure: Callable[[tuple[SqlValue, ...], str], float],
    *,
    limit: int,
    cursor: str | None,
    seq_column: int = 0,
) -> Page[V]:
    """Return one page of a query with the largest rows first, among the newest `MAX_SORTED` that match.

    `measure` returns the size of a row at an instant. The cursor contains the instant and the newest row of
    the first page, so that no row moves to another page when rows are added or grow meanwhile.
    """
    size = max(1, min(limit, LARGEST_PAGE))
    if cursor is None:
        newest_seq, as_of, last = NEWEST - 1, format_timestamp(session.now), None
    else:
        newest_seq, as_of, value, seq = decode_sorted_cursor(cursor)
        last = (-value, -seq)
    rows = session.fetch_all(query, **values, before=newest_seq + 1, limit=MAX_SORTED)
    sorted_rows = sorted((-measure(row, as_of), -row[seq_column], row) for row in rows)
    remaining = [item for item in sorted_rows if last is None or item[:2] > last]
    next_cursor = None
    if len(remaining) > size:
        value, seq, _row = remaining[size - 1]
        newest = max(row[seq_column] for row in rows)
        next_cursor = encode_sorted_cursor(newest, as_of, -value, -seq)
    return Page(rows=tuple(read(row) for *_, row in remaining[:size]), next_cursor=next_cursor)


def read_page(
    session: Session,
    query: str,
    values: Mapping[str, SqlValue],
    read: Callable[[tuple[SqlValue, ...]], V],
    *,
    limit: int,
    cursor: str | None,
    seq_column: int = 0,
) -> Page[V]:
    """Return one page of a query. `seq_column` is the column of the sequence number."""
    size = max(1, min(limit, LARGEST_PAGE))
    before = decode_cursor(cursor)
    # One more row is read than requested: if it exists, there is a next page.
    rows = session.fetch_all(query, **values, before=NEWEST if before is None else before, limit=size + 1)
    next_cursor = encode_cursor(rows[size - 1][seq_column]) if len(rows) > size else None
    return Page(rows=tuple(read(row) for row in rows[:size]), next_cursor=next_cursor)
