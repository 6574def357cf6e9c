"""Record failures in the transaction that settles the job, and the results of failure notices."""

from __future__ import annotations

from datetime import timedelta

from ductile.core.jobs.failure_notices import (
    MAX_ERROR_LENGTH,
    MAX_EXAMPLES,
    NOTICE_DETAIL,
    NoticeWindow,
    ReportedFailure,
    notice_due_at,
)
from ductile.core.jobs.model import EARLY_END_REASONS, Job, JobStatus
from ductile.core.jobs.settlement import Settlement
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.timestamps import parse_timestamp
from ductile.store.model.notices import decode_failures, encode_failures
from ductile.store.notifier import FailureRecorded
from ductile.store.rows import storable
from ductile.store.session import Session


def record_failure(session: Session, job: Job, settlement: Settlement) -> None:
    """Record the end of a job for the next notice, unless the job follows from a notice itself."""
    if job.parent_job_id is not None and session.fetch_one(
        "has_notice_above", id=job.parent_job_id, detail=NOTICE_DETAIL
    ):
        return
    key = {"plugin": job.plugin, "command": job.command, "reason": settlement.reason}
    group = session.fetch_one("failure_group", **key)
    count, first_at, examples = group or (0, session.timestamp, "[]")
    if count < MAX_EXAMPLES:
        error = settlement.last_error
        if error is not None and len(error) > MAX_ERROR_LENGTH:
            # The beginning and the end are kept: the output of a program ends with the reason of its failure.
            half = MAX_ERROR_LENGTH // 2
            error = f"{error[:half]}\n…\n{error[-half:]}"
        failure = ReportedFailure(
            job_id=job.id,
            plugin=job.plugin,
            command=job.command,
            pipeline=job.command if job.plugin == RUN_PLUGIN else None,
            status=settlement.status,
            reason=settlement.reason,
            error=storable(error),
            attempts=settlement.attempt,
            ended_at=parse_timestamp(session.timestamp),
        )
        examples = encode_failures((*decode_failures(examples), failure))
    session.execute("put_failure_group", **key, at=session.timestamp, examples=examples)
    due_at = notice_due_at(read_window(session), parse_timestamp(first_at), session.now)
    session.publish(FailureRecorded(due_at=due_at))


def read_window(session: Session) -> NoticeWindow | None:
    """Return the window that the latest notice began; None if there was none."""
    row = session.fetch_one("failure_notice")
    if row is None:
        return None
    return NoticeWindow(begins_at=parse_timestamp(row[0]), length=timedelta(seconds=row[1]))


def report_notice(session: Session, job: Job, settlement: Settlement) -> None:
    """Count notices that failed in a row. Ignores a notice that was cancelled: its receiver did not fail."""
    if settlement.status is JobStatus.SUCCEEDED:
        session.execute("notice_succeeded")
    elif settlement.reason not in EARLY_END_REASONS:
        session.execute("notice_failed", job_id=job.id, error=storable(settlement.last_error))
