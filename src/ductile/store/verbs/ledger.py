"""History: the ledger, the transitions of jobs, and the occurrences of schedules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from msgspec import UNSET, UnsetType

from ductile.core.jobs.model import Job, JobReason, JobStatus, LedgerEntry, LedgerKind, NewJob, Transition
from ductile.core.json import JsonObject, JsonValue
from ductile.core.schedules.planner import Occurrence, OccurrenceOutcome
from ductile.core.timestamps import format_timestamp, parse_timestamp
from ductile.store.model.records import LedgerRow, TransitionRow
from ductile.store.notifier import LEDGER_APPENDED
from ductile.store.rows import from_json, row_reader, to_json
from ductile.store.session import Session


def next_ledger_seq(session: Session) -> int:
    return session.next_seq("highest_in_ledger")


def write_transition(
    session: Session, transition: Transition, job: NewJob | Job, *, execution: int, seq: int | None = None
) -> None:
    """Append a transition to the ledger and, with the same number, to the job's own history."""
    seq = next_ledger_seq(session) if seq is None else seq
    data = _transition_data(job.plugin, job.command, transition, execution)
    _insert_entry(session, seq, LedgerKind.JOB_TRANSITION, job.id, job.run_id, data, job.token)
    session.insert_buffered(
        "insert_transition",
        {
            "job_id": job.id,
            "seq": seq,
            "execution": execution,
            "from_status": transition.from_status,
            "to_status": transition.to_status,
            "reason": transition.reason,
            "at": session.timestamp,
        },
    )


@lru_cache(maxsize=1024)
def _transition_data(plugin: str, command: str, transition: Transition, execution: int) -> str:
    """Return the ledger's data for a transition. Most jobs of a plugin share it, so it is cached."""
    return to_json(
        {
            "plugin": plugin,
            "command": command,
            "from": transition.from_status,
            "to": transition.to_status,
            "reason": transition.reason,
            "execution": execution,
        }
    )


def append_ledger(
    session: Session,
    kind: LedgerKind,
    data: Mapping[str, JsonValue] | None = None,
    *,
    job_id: str | None = None,
    run_id: str | None = None,
    token: str | UnsetType | None = UNSET,
) -> None:
    """Append an entry. `token` is that of its job, which is read if the caller does not know it."""
    if token is UNSET:
        token = None if job_id is None else session.fetch_value("token_of_job", id=job_id)
    seq = next_ledger_seq(session)
    _insert_entry(session, seq, kind, job_id, run_id, to_json(dict(data or {})), token or None)


def write_ledger(
    session: Session, entries: Iterable[LedgerEntry], *, token: str | UnsetType | None = UNSET
) -> None:
    """Append entries. `token` is that of their jobs, as for `append_ledger`."""
    for entry in entries:
        append_ledger(session, entry.kind, entry.data, job_id=entry.job_id, run_id=entry.run_id, token=token)


def _insert_entry(
    session: Session,
    seq: int,
    kind: LedgerKind,
    job_id: str | None,
    run_id: str | None,
    data: str,
    token: str | None,
) -> None:
    row = {
        "seq": seq,
        "at": session.timestamp,
        "kind": kind,
        "job_id": job_id,
        "run_id": run_id,
        "data": data,
        "token": token,
    }
    session.insert_buffered("insert_ledger", row)
    session.publish(LEDGER_APPENDED)


# -- occurrences of schedules


def has_occurrence(session: Session, occurrence: Occurrence) -> bool:
    nominal_at = format_timestamp(occurrence.nominal_at)
    key = {"plugin": occurrence.plugin, "schedule_id": occurrence.schedule_id}
    return session.fetch_one("occurrence_exists", **key, nominal_at=nominal_at) is not None


def write_occurrence(session: Session, occurrence: Occurrence) -> None:
    """Record an occurrence. A skip for the same reason as the last occurrence extends its row."""
    nominal_at = format_timestamp(occurrence.nominal_at)
    until_at = nominal_at if occurrence.until_at is None else format_timestamp(occurrence.until_at)
    skipped = occurrence.outcome is OccurrenceOutcome.SKIPPED
    key: JsonObject = {"plugin": occurrence.plugin, "schedule_id": occurrence.schedule_id}
    row: JsonObject = key | {
        "nominal_at": nominal_at,
        "until_at": until_at,
        "count": occurrence.count,
        "reason": occurrence.reason,
        "late_ms": None if occurrence.late is None else round(occurrence.late.total_seconds() * 1000),
    }
    last = session.fetch_one("last_occurrence", **key) if skipped else None
    # The last row may lie later: the clock may have been set back.
    if (
        last is not None
        and last[1:3] == (OccurrenceOutcome.SKIPPED, occurrence.reason)
        and last[3] < nominal_at
    ):
        session.execute("extend_skip", seq=last[0], until_at=until_at, count=occurrence.count)
    else:
        outcome = {"outcome": occurrence.outcome, "job_id": occurrence.job_id, "at": session.timestamp}
        session.execute("insert_occurrence", **row, **outcome)
    kind = LedgerKind.SCHEDULE_SKIPPED if skipped else LedgerKind.SCHEDULE_FIRED
    append_ledger(session, kind, row, job_id=occurrence.job_id)


# -- reading

_read_transition = row_reader(Transition, from_status=JobStatus, to_status=JobStatus, reason=JobReason)
read_ledger = row_reader(LedgerRow, at=parse_timestamp, kind=LedgerKind, data=from_json)


def list_transitions(session: Session, job_id: str) -> tuple[TransitionRow, ...]:
    """Return the transitions of a job, oldest first."""
    return tuple(
        TransitionRow(
            seq=seq,
            execution=execution,
            transition=_read_transition(transition),
            at=parse_timestamp(at),
        )
        for seq, execution, *transition, at in session.fetch_all("transitions_of_job", job_id=job_id)
    )


def list_ledger(
    session: Session, *, after: int | None, limit: int, token: str | None = None
) -> tuple[LedgerRow, ...]:
    """Return entries with a larger number than `after`, or the newest ones without it, in order.

    With `token`, only entries about jobs that it started, and about jobs that follow from them.
    """
    of_token = {} if token is None else {"token": token}
    if after is not None:
        query = "ledger_after" if token is None else "ledger_of_token_after"
        return tuple(map(read_ledger, session.fetch_all(query, after=after, limit=limit, **of_token)))
    query = "newest_ledger" if token is None else "newest_ledger_of_token"
    return tuple(map(read_ledger, session.fetch_all(query, limit=limit, **of_token)))[::-1]


def list_job_ledger(session: Session, job_id: str, *, limit: int) -> tuple[LedgerRow, ...]:
    """Return the entries about a job other than its transitions, in order."""
    return tuple(map(read_ledger, session.fetch_all("ledger_of_job", job_id=job_id, limit=limit)))


def ledger_range(session: Session) -> tuple[int, int]:
    """Return the lowest and the highest number held; (0, 0) if the ledger is empty."""
    lowest, highest = session.fetch_one("ledger_range") or (0, 0)
    return int(lowest), int(highest)
