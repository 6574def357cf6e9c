"""Finding the job that is meant: by its id, or by the beginning of one that no other job shares."""

from __future__ import annotations

from ductile.core.jobs import Job
from ductile.core.json_values import JsonObject
from ductile.errors import ConflictError, NotFoundError
from ductile.operations import parameters as read
from ductile.operations.desk import Desk

#: Of the id's digits. Fewer are not worth a search: every job of the year would begin so.
SHORTEST_BEGINNING = 4
_DIGITS = 32
#: Lengths of the groups of digits between which dashes stand.
_GROUPS = (8, 4, 4, 4, 12)
_SHOWN = 10


async def find_job(desk: Desk, job_id: str) -> Job:
    job = await desk.store.job(job_id)
    if job is None:
        raise NotFoundError(f"there is no job {job_id}", hint="See `ductile job list`.")
    return job


async def named_job(desk: Desk, given: JsonObject) -> Job:
    """The job that `job_id` names, in full or by its beginning; also one that only the log still has."""
    named = read.text(given, "job_id").lower()
    beginning = as_beginning(named)
    if beginning is None or await desk.store.job(named) is not None:
        return await find_job(desk, named)
    found = await desk.store.job_ids(beginning, limit=_SHOWN + 1)
    if len(found) > 1:
        many = f"more than {_SHOWN}" if len(found) > _SHOWN else str(len(found))
        raise ConflictError(
            f"{many} jobs begin with {named}",
            hint=f"Which one: {', '.join(found[:_SHOWN])}{' ...' if len(found) > _SHOWN else ''}",
            details={"job_ids": list(found[:_SHOWN])},
        )
    return await find_job(desk, found[0] if found else named)


def as_beginning(text: str) -> str | None:
    """As the beginning of an id is written, with its dashes; None if it cannot be one, or is a whole id."""
    digits = text.replace("-", "")
    if not SHORTEST_BEGINNING <= len(digits) < _DIGITS or not set(digits) <= set("0123456789abcdef"):
        return None
    groups: list[str] = []
    for length in _GROUPS:
        groups.append(digits[:length])
        digits = digits[length:]
        if not digits:
            break
    return "-".join(groups)
