"""Finding the job that is meant: by its id, or by a beginning or an end of it that no other job shares.

Ids begin with the time, so that jobs of the same minute begin alike; their ends are drawn by chance.
"""

from __future__ import annotations

from collections.abc import Sequence

from ductile.core.jobs.model import Job
from ductile.core.json import JsonObject
from ductile.errors import ConflictError, NotFoundError
from ductile.operations import parameters as read
from ductile.operations.context import OperationContext

#: Of the id's digits. Fewer are not worth a search: every job of the year would begin so.
MIN_ID_DIGITS = 4
_DIGITS = 32
#: Lengths of the groups of digits between which dashes stand.
_GROUPS = (8, 4, 4, 4, 12)
_SHOWN = 10


async def find_job(context: OperationContext, job_id: str) -> Job:
    job = await context.store.job(job_id)
    if job is None:
        raise NotFoundError(f"there is no job {job_id}", hint="See `ductile job list`.")
    return job


async def resolve_job(context: OperationContext, given: JsonObject) -> Job:
    """The job that `job_id` names, in full or in part; also one that only the log still has."""
    named = read.text(given, "job_id").lower()
    beginning, ending = id_prefix(named), id_suffix(named)
    if beginning is None or ending is None or await context.store.job(named) is not None:
        return await _find_whole(context, named)
    found = sorted(
        {
            *await context.store.job_ids(beginning, limit=_SHOWN + 1),
            *await context.store.job_ids_ending(ending, limit=_SHOWN + 1),
        }
    )
    if len(found) > 1:
        many = f"more than {_SHOWN}" if len(found) > _SHOWN else str(len(found))
        raise ConflictError(
            f"{many} jobs begin or end with {named}",
            hint=f"Which one: {', '.join(found[:_SHOWN])}{' ...' if len(found) > _SHOWN else ''}",
            details={"job_ids": list(found[:_SHOWN])},
        )
    return await find_job(context, found[0] if found else named)


async def _find_whole(context: OperationContext, named: str) -> Job:
    try:
        return await find_job(context, named)
    except NotFoundError as missing:
        if len(named.replace("-", "")) < MIN_ID_DIGITS:
            missing.hint = f"Give at least {MIN_ID_DIGITS} digits of its id. {missing.hint}"
        raise


def id_prefix(text: str) -> str | None:
    """As the beginning of an id is written, with its dashes; None if it cannot be one, or is a whole id."""
    digits = _digits_of(text)
    return None if digits is None else _grouped(digits, _GROUPS)


def id_suffix(text: str) -> str | None:
    """The same for the end of an id."""
    digits = _digits_of(text)
    return None if digits is None else _grouped(digits[::-1], _GROUPS[::-1])[::-1]


def _digits_of(text: str) -> str | None:
    digits = text.replace("-", "")
    enough = MIN_ID_DIGITS <= len(digits) < _DIGITS
    return digits if enough and set(digits) <= set("0123456789abcdef") else None


def _grouped(digits: str, lengths: Sequence[int]) -> str:
    groups: list[str] = []
    for length in lengths:
        groups.append(digits[:length])
        digits = digits[length:]
        if not digits:
            break
    return "-".join(groups)
