"""Finding a job by its id, or by a prefix or a suffix of it that no other job shares; the latest execution.

Ids begin with the time, so jobs of the same minute share a prefix; suffixes are random.
"""

from __future__ import annotations

from typing import Annotated

from ductile.core.jobs.model import Job
from ductile.errors import ConflictError, NotFoundError
from ductile.operations.context import OperationContext
from ductile.store.model.records import LogFilter, LogRow
from ductile.struct import Value, about

#: Fewer digits are refused: every job of the year has them in common.
MIN_ID_DIGITS = 4
_DIGITS = 32
_SHOWN = 10


class OneJob(Value):
    """A request about one job."""

    job_id: Annotated[str, about("The job's id, or at least four of its first or last digits.")]


async def find_job(context: OperationContext, job_id: str) -> Job:
    """The job with this id, also if only its log is left. Raises `NotFoundError`."""
    job = await context.store.get_job(job_id)
    if job is None:
        raise NotFoundError(f"there is no job {job_id}", hint="See `ductile job list`.")
    return job


async def resolve_job(context: OperationContext, job_id: str) -> Job:
    """The job with this id, or the only one whose id begins or ends so.

    Raises `NotFoundError`, or `ConflictError` if there are several.
    """
    named = job_id.lower()
    prefix, suffix = id_prefix(named), id_suffix(named)
    if prefix is None or suffix is None or await context.store.get_job(named) is not None:
        try:
            return await find_job(context, named)
        except NotFoundError as missing:
            if len(named.replace("-", "")) < MIN_ID_DIGITS:
                missing.hint = f"Give at least {MIN_ID_DIGITS} digits of its id. {missing.hint}"
            raise
    found = sorted(
        {
            *await context.store.job_ids(prefix, limit=_SHOWN + 1),
            *await context.store.job_ids_ending(suffix, limit=_SHOWN + 1),
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


def id_prefix(text: str) -> str | None:
    """The text as the prefix of an id, with dashes; None if it cannot be one, or is a whole id."""
    if (digits := _digits_of(text)) is None:
        return None
    return _joined(digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])


def id_suffix(text: str) -> str | None:
    """The same for a suffix."""
    if (digits := _digits_of(text)) is None:
        return None
    return _joined(digits[:-24], digits[-24:-20], digits[-20:-16], digits[-16:-12], digits[-12:])


def _digits_of(text: str) -> str | None:
    digits = text.replace("-", "")
    enough = MIN_ID_DIGITS <= len(digits) < _DIGITS
    return digits if enough and set(digits) <= set("0123456789abcdef") else None


def _joined(*groups: str) -> str:
    return "-".join(group for group in groups if group)


async def latest_execution(context: OperationContext, where: LogFilter) -> LogRow | None:
    rows = (await context.store.list_log(where, limit=1)).rows
    return rows[0] if rows else None
