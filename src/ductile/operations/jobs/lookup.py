"""Finding a job by a reference: its id or a part of it, `last`, `last:NAME`, `last:failed`.

Ids begin with the time, so jobs of the same minute share a prefix; suffixes are random.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from ductile.core.jobs.model import Job, JobReason, JobStatus, SubmittedBy
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.suggest import did_you_mean
from ductile.errors import ConflictError, NotFoundError
from ductile.operations.context import OperationContext
from ductile.store.model.records import LARGEST_PAGE, JobFilter, LogFilter, LogRow
from ductile.struct import Value, about

#: Fewer digits are refused: every job of the year has them in common.
MIN_ID_DIGITS = 4
_ID_DIGITS = 32
_MAX_LISTED = 10
#: The most pages of jobs that are searched for the newest one that the daemon did not submit for itself.
_MAX_PAGES = 10
_LAST = "last"
_FAILED = "failed"
#: Reasons of jobs that an operator ended: these are no failures.
_ENDED_BY_OPERATOR = frozenset((JobReason.CANCELLED, JobReason.PURGED))

JobReference: TypeAlias = Annotated[
    str,
    about(
        "The job's id, at least four of its first or last digits, `last`, `last:NAME` (of a plugin or a"
        " pipeline) or `last:failed`."
    ),
]


class OneJob(Value):
    """A request about one job."""

    job_id: JobReference


class LatestJob(Value):
    """The newest job, of one plugin or pipeline if it is named."""

    name: str | None = None


class LatestFailure(Value):
    """The job that failed last."""


class PartOfId(Value):
    """The beginning or the end of an id, with dashes where an id has them."""

    prefix: str
    suffix: str


class WholeId(Value):
    job_id: str


def parse_reference(text: str) -> LatestJob | LatestFailure | PartOfId | WholeId:
    """Parse a reference to a job. A text of no other form counts as a whole id, which perhaps no job has."""
    word, colon, name = text.strip().partition(":")
    if word.lower() == _LAST and (name or not colon):
        return LatestFailure() if name.lower() == _FAILED else LatestJob(name=name or None)
    job_id = text.strip().lower()
    prefix, suffix = id_prefix(job_id), id_suffix(job_id)
    if prefix is None or suffix is None:
        return WholeId(job_id=job_id)
    return PartOfId(prefix=prefix, suffix=suffix)


async def find_job(context: OperationContext, job_id: str) -> Job:
    """Return the job with this id, also if only its log is left. Raises `NotFoundError` if there is none."""
    job = await context.store.get_job(job_id)
    if job is None:
        raise NotFoundError(f"there is no job {job_id}", hint="See `ductile job list`.")
    return job


async def resolve_job(context: OperationContext, text: str) -> Job:
    """Return the job that a reference means.

    Raises `NotFoundError`, or `ConflictError` if it is ambiguous.
    """
    match parse_reference(text):
        case LatestJob(name=name):
            if name is not None:
                return await _latest_of(context, name)
            return await _with_payload(context, await _latest(context, JobFilter()), "there is no job yet")
        case LatestFailure():
            return await _with_payload(context, await _latest_failure(context), "no job has failed")
        case PartOfId() as part:
            return await _find_by_part(context, part, text)
        case WholeId(job_id=job_id):
            try:
                return await find_job(context, job_id)
            except NotFoundError as missing:
                missing.hint = _hint_for_missing(context, text.strip(), missing.hint)
                raise


async def resolve_run(context: OperationContext, text: str) -> Job:
    """Return the job like `resolve_job`, but the name of a pipeline means its latest run."""
    if text in context.snapshot().pipelines:
        latest = await _latest(context, JobFilter(plugin=RUN_PLUGIN, command=text))
        return await _with_payload(context, latest, f"the pipeline {text} has not run yet")
    return await resolve_job(context, text)


async def resolve_filter(context: OperationContext, text: str | None, *, run: bool = False) -> str | None:
    """Return the job id for a filter. An id that no job has is returned as it is: nothing will match it."""
    if text is None or (isinstance(parse_reference(text), WholeId) and not run):
        return text
    try:
        return (await (resolve_run if run else resolve_job)(context, text)).id
    except NotFoundError:
        if isinstance(parse_reference(text), LatestJob | LatestFailure):
            raise
        return text


async def _with_payload(context: OperationContext, job: Job | None, missing: str) -> Job:
    """Read a job of a list again, with its payload. Raises `NotFoundError` if there is none."""
    if job is None:
        raise NotFoundError(missing, hint="See `ductile job list`.")
    return await find_job(context, job.id)


async def _latest(context: OperationContext, job_filter: JobFilter) -> Job | None:
    """Return the newest job, in the queue or else in the log, that the daemon did not submit for itself.

    Without a plugin in the filter, the run of a step is returned instead of the step.
    """
    newest: Job | None = None
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await context.store.list_jobs(job_filter, limit=LARGEST_PAGE, cursor=cursor)
        newest = next((job for job in page.rows if job.submitted_by is not SubmittedBy.CORE), None)
        cursor = page.next_cursor
        if newest is not None or cursor is None:
            break
    logged = await latest_execution(
        context, LogFilter(plugin=job_filter.plugin, command=job_filter.command, exclude_internal=True)
    )
    if logged is not None and (newest is None or logged.created_at > newest.created_at):
        newest = await context.store.get_job(logged.job_id)
    if newest is not None and newest.run_id is not None and job_filter.plugin is None:
        return await context.store.get_job(newest.run_id) or newest
    return newest


async def _latest_of(context: OperationContext, name: str) -> Job:
    """Return the newest job of the plugin, or run of the pipeline, with this name."""
    candidates = [
        job
        for job_filter in (JobFilter(plugin=name), JobFilter(plugin=RUN_PLUGIN, command=name))
        if (job := await _latest(context, job_filter)) is not None
    ]
    if candidates:
        return await find_job(context, max(candidates, key=lambda job: (job.created_at, job.id)).id)
    snapshot = context.snapshot()
    known = {*snapshot.plugins, *snapshot.pipelines}
    if name in known:
        raise NotFoundError(f"{name} has not run yet", hint=f"Run it with `ductile run {name}`.")
    hint = did_you_mean(name, known) or "See `ductile plugins`."
    raise NotFoundError(f"there is no plugin or pipeline {name}", hint=hint)


async def _latest_failure(context: OperationContext) -> Job | None:
    """Return the job that failed last.

    If it is a step, its run: a step of an ended run cannot be retried alone.
    """
    ended = [
        job
        for status in (JobStatus.FAILED, JobStatus.DEAD)
        for job in (await context.store.list_jobs(JobFilter(status=status), limit=LARGEST_PAGE)).rows
        if job.completed_at is not None and job.reason not in _ENDED_BY_OPERATOR
    ]
    latest = max(ended, key=lambda job: (str(job.completed_at), job.id), default=None)
    if latest is not None and latest.run_id is not None:
        return await context.store.get_job(latest.run_id) or latest
    return latest


async def _find_by_part(context: OperationContext, part: PartOfId, text: str) -> Job:
    """Return the job with this part of its id.

    Raises `NotFoundError`, or `ConflictError` if there are several.
    """
    if (exact := await context.store.get_job(text)) is not None:
        return exact
    job_ids = sorted(
        {
            *await context.store.job_ids(part.prefix, limit=_MAX_LISTED + 1),
            *await context.store.job_ids_ending(part.suffix, limit=_MAX_LISTED + 1),
        }
    )
    if not job_ids:
        raise NotFoundError(
            f"there is no job {text}", hint=_hint_for_missing(context, text, "See `ductile job list`.")
        )
    if len(job_ids) == 1:
        return await find_job(context, job_ids[0])
    listed_ids, has_more = job_ids[:_MAX_LISTED], len(job_ids) > _MAX_LISTED
    jobs = [await context.store.get_job(job_id) for job_id in listed_ids]
    listed = [f"{job.id} ({job.plugin} {job.command}, {job.status})" for job in jobs if job is not None]
    raise ConflictError(
        f"{f'more than {_MAX_LISTED}' if has_more else len(job_ids)} jobs begin or end with {text}",
        hint=f"Which one: {', '.join(listed)}{' ...' if has_more else ''}",
        details={"job_ids": [*listed_ids]},
    )


def _hint_for_missing(context: OperationContext, text: str, default: str | None) -> str | None:
    """Return the hint for a job that does not exist: for the name of a plugin or pipeline, its latest job."""
    snapshot = context.snapshot()
    if text in snapshot.plugins or text in snapshot.pipelines:
        hint = f"Its latest job, if it has one, is `{_LAST}:{text}`."
        plugin = snapshot.plugins.get(text)
        if plugin is not None and plugin.schedules:
            hint += f" When it is due: `ductile schedule explain {text}`."
        return hint
    if len(text.replace("-", "")) < MIN_ID_DIGITS:
        return f"Give at least {MIN_ID_DIGITS} digits of its id, or `{_LAST}`. {default}"
    return default


def id_prefix(text: str) -> str | None:
    """Return the text as the prefix of an id, with dashes; None if it cannot be one, or is a whole id."""
    if (digits := _digits_of(text)) is None:
        return None
    return _joined(digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])


def id_suffix(text: str) -> str | None:
    """Return the text as the suffix of an id, like `id_prefix`."""
    if (digits := _digits_of(text)) is None:
        return None
    return _joined(digits[:-24], digits[-24:-20], digits[-20:-16], digits[-16:-12], digits[-12:])


def _digits_of(text: str) -> str | None:
    """Return the digits without dashes; None if the text cannot be a part of an id."""
    digits = text.replace("-", "")
    is_part = MIN_ID_DIGITS <= len(digits) < _ID_DIGITS
    return digits if is_part and set(digits) <= set("0123456789abcdef") else None


def _joined(*groups: str) -> str:
    """Join groups of digits by dashes as in a UUID, without empty groups."""
    return "-".join(group for group in groups if group)


async def latest_execution(context: OperationContext, log_filter: LogFilter) -> LogRow | None:
    """Return the newest execution that matches the filter; None if there is none."""
    rows = (await context.store.list_log(log_filter, limit=1)).rows
    return rows[0] if rows else None
