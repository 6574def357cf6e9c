"""Finding the job that is meant: by its id, or by the beginning of one that no other job shares."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from ductile.core.jobs import Job
from ductile.core.json_values import JsonObject
from ductile.errors import ConflictError, NotFoundError
from ductile.operations import parameters as read
from ductile.operations.desk import Desk
from ductile.store.values import LARGEST_PAGE, JobFilter

#: Of the id's digits. With fewer, a beginning would stand for hours of jobs.
SHORTEST_BEGINNING = 8
_DIGITS = 32
#: An id begins with the millisecond in which it was made, in so many digits.
_TIME_DIGITS = 12
#: A job is entered a little later than its id is made: it waits for the writer.
_SLACK = timedelta(minutes=1)
_SHOWN = 10


async def find_job(desk: Desk, job_id: str) -> Job:
    job = await desk.store.job(job_id)
    if job is None:
        raise NotFoundError(f"there is no job {job_id}", hint="See `ductile job list`.")
    return job


async def named_job(desk: Desk, given: JsonObject) -> Job:
    """The job that `job_id` names, in full or by its beginning."""
    named = read.text(given, "job_id").lower()
    span = _span_of(named)
    if span is None or await desk.store.job(named) is not None:
        return await find_job(desk, named)
    found = await _beginning_with(desk, named, span)
    if len(found) > 1:
        raise ConflictError(
            f"{len(found)} jobs begin with {named}",
            hint=f"Which one: {', '.join(found[:_SHOWN])}{' ...' if len(found) > _SHOWN else ''}",
            details={"job_ids": list(found)},
        )
    return await find_job(desk, found[0] if found else named)


def _span_of(beginning: str) -> tuple[datetime, datetime] | None:
    """When jobs whose ids begin like this were made; None if it is no beginning of an id."""
    digits = beginning.replace("-", "")
    if not SHORTEST_BEGINNING <= len(digits) < _DIGITS or not set(digits) <= set("0123456789abcdef"):
        return None
    first, last = (int(digits[:_TIME_DIGITS].ljust(_TIME_DIGITS, digit), 16) for digit in "0f")
    try:
        start, end = (datetime.fromtimestamp(each / 1000, UTC) for each in (first, last))
        return start - _SLACK, end + _SLACK
    except (OverflowError, ValueError):
        return None


async def _beginning_with(desk: Desk, beginning: str, span: tuple[datetime, datetime]) -> tuple[str, ...]:
    """An id says when it was made, so only the jobs of that time have to be looked through."""
    where = JobFilter(created_from=span[0], created_before=span[1])
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await desk.store.jobs(where, limit=LARGEST_PAGE, cursor=cursor)
        found += [job.id for job in page.rows if job.id.startswith(beginning)]
        if (cursor := page.next_cursor) is None:
            return tuple(found)
