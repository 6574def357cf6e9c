"""Reading jobs, runs and executions.

These verbs run on a snapshot and never wait for the writer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ductile.core.events.model import NewContext
from ductile.core.jobs.model import Job, JobReason, JobStatus
from ductile.core.jobs.settlement import LogStatus
from ductile.core.json import JsonObject
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.timestamps import parse_timestamp
from ductile.store.model.jobs import StoredEvent
from ductile.store.model.maintenance import PluginWork
from ductile.store.model.records import (
    JobDetails,
    JobFilter,
    JobSort,
    LogFilter,
    LogRow,
    LogSort,
    Page,
    RunRecord,
    ShortPayload,
)
from ductile.store.rows import (
    NEWEST,
    find_job,
    find_jobs,
    from_json,
    job_from_log,
    json_object_or_none,
    read_event,
    read_job,
    read_log,
    read_page,
    read_sorted_page,
    row_reader,
    timestamp_or_none,
    to_json,
)
from ductile.store.session import Session, SqlValue
from ductile.store.verbs.ledger import read_ledger
from ductile.store.verbs.runs import graph_of
from ductile.struct import asdict, replace

#: The maximum number of jobs of a run that are read, and of ledger entries about it.
_LARGEST_RUN = 10_000
#: Words that this many executions contain are searched in each job of a list. Rarer words are looked up in
#: the full-text index, which returns the jobs.
_COMMON = 2_000
#: The only status of jobs with these reasons.
_STATUS_OF_REASON = {JobReason.SUBMITTED: JobStatus.QUEUED, JobReason.CLAIMED: JobStatus.RUNNING}
#: Reasons of most rows, which the index of reasons leaves out.
_ORDINARY = frozenset({*_STATUS_OF_REASON, JobReason.COMPLETED})
_STATUS, _STARTED, _COMPLETED = map(Job.__struct_fields__.index, ("status", "started_at", "completed_at"))
_DURATION, _STDERR_BYTES = map(LogRow.__struct_fields__.index, ("duration", "stderr_bytes"))

_read_context = row_reader(NewContext, baggage=from_json)


def get_job(session: Session, job_id: str) -> Job | None:
    """Return the job with its payload; from the log if retention has removed its row."""
    row = session.fetch_one("job_with_payload", id=job_id)
    if row is not None:
        job = read_job(row[:-1])
        return replace(job, payload=_payload(session, row[-1], job.source_event_id))
    logged = session.fetch_one("last_execution", job_id=job_id)
    if logged is None:
        return None
    last = read_log(logged)
    payload = last.payload if last.payload is not None else _payload(session, None, last.source_event_id)
    cost = session.fetch_value("cost_of_logged_job", job_id=job_id)
    return replace(job_from_log(last, payload), cost=cost)


def latest_with_key(session: Session, plugin: str, command: str, dedupe_key: str) -> Job | None:
    """Return the newest queued or ended job with this key, with its payload."""
    job_id = session.fetch_value("latest_with_key", dedupe_key=dedupe_key, plugin=plugin, command=command)
    return None if job_id is None else get_job(session, job_id)


def blocking_job(session: Session, job_id: str) -> Job | None:
    """Return the job that a held one waits for: its key's holder, its predecessor, or another suspect."""
    blocking_id = session.fetch_value("blocking_job", id=job_id)
    return None if blocking_id is None else get_job(session, blocking_id)


def _payload(session: Session, own: str | None, event_id: str | None) -> JsonObject | None:
    """Return the job's own payload or, if it has none, the payload of the event that started it."""
    if own is None and event_id is not None:
        own = session.fetch_value("payload_of_event", id=event_id)
    return json_object_or_none(own)


def list_jobs(
    session: Session,
    where: JobFilter,
    *,
    limit: int,
    cursor: str | None = None,
    sort: JobSort = JobSort.CREATED,
) -> Page[Job]:
    """Return jobs, newest first or in another order, without payloads."""
    suffix, values = _job_query(session, where)
    query = "job_of_id" if suffix == "of_id" else f"jobs_{suffix}"
    if sort is JobSort.CREATED:
        return read_page(session, query, values, read_job, limit=limit, cursor=cursor, seq_column=1)
    return read_sorted_page(
        session, query, values, read_job, _running_time, limit=limit, cursor=cursor, seq_column=1
    )


def count_jobs(session: Session, where: JobFilter, *, limit: int) -> int:
    """Return how many jobs match, counted up to `limit`."""
    suffix, values = _job_query(session, where)
    return int(session.fetch_value(f"total_{suffix}", **values, before=NEWEST, limit=limit))


def _job_query(session: Session, where: JobFilter) -> tuple[str, dict[str, SqlValue]]:
    """Return the end of the name of the query for a filter, which decides the index, and its values."""
    words = _as_words(where.query)
    is_common = (
        words is not None
        and session.fetch_value("executions_with_words", words=words, limit=_COMMON) >= _COMMON
    )
    values: dict[str, SqlValue] = asdict(where) | {
        "words": words,
        "common_words": words if is_common else None,
        "created_from": timestamp_or_none(where.created_from),
        "created_before": timestamp_or_none(where.created_before),
    }
    # A job whose last transition is its submission is queued; one whose last transition is its claim runs.
    status = where.status or (None if where.reason is None else _STATUS_OF_REASON.get(where.reason))
    reason = where.reason if where.reason not in _ORDINARY else None
    by_selectivity = {
        "with_words": None if is_common else words,
        "of_id": where.job_id,
        "of_run": where.run_id,
        "of_parent": where.parent_job_id,
        "of_token": where.token,
        "of_reason": reason,
        "of_status": None if status is JobStatus.SUCCEEDED else status,
        "of_plugin": where.plugin,
    }
    return _most_selective(by_selectivity) or "newest", values | {"status": status}


def _running_time(row: tuple[SqlValue, ...], as_of: str) -> float:
    """Return the seconds from the last start of a job to its end, or to an instant if it still runs."""
    started, completed = row[_STARTED], row[_COMPLETED] or (as_of if row[_STATUS] == "running" else None)
    if started is None or completed is None:
        return 0.0
    return max(0.0, (parse_timestamp(completed) - parse_timestamp(started)).total_seconds())


def short_payloads(
    session: Session, job_ids: Sequence[str], *, max_length: int
) -> Mapping[str, ShortPayload]:
    """Return the payloads of jobs; for a payload of more than `max_length` characters, only its length."""
    payloads = {}
    for job_id in job_ids:
        payload, length = session.fetch_one("short_payload", id=job_id, max_length=max_length) or (None, None)
        if length is not None:
            payloads[job_id] = ShortPayload(payload=json_object_or_none(payload), length=length)
    return payloads


def list_log(
    session: Session,
    where: LogFilter,
    *,
    limit: int,
    cursor: str | None = None,
    sort: LogSort = LogSort.COMPLETED,
) -> Page[LogRow]:
    """Return executions of all jobs, newest first or in another order, without their output."""
    words = _as_words(where.query)
    values: dict[str, SqlValue] = asdict(where) | {
        "words": words,
        "completed_from": timestamp_or_none(where.completed_from),
        "completed_before": timestamp_or_none(where.completed_before),
        "exclude_internal": int(where.exclude_internal),
    }
    by_selectivity = {
        "log_with_words": words,
        "log_of_job": where.job_id,
        "log_of_token": where.token,
        "log_of_status": None if where.status is LogStatus.SUCCEEDED else where.status,
        "log_of_plugin": where.plugin,
    }
    query = _most_selective(by_selectivity) or "log_newest"
    if sort is LogSort.COMPLETED:
        return read_page(session, query, values, read_log, limit=limit, cursor=cursor)
    column = _DURATION if sort is LogSort.DURATION else _STDERR_BYTES
    return read_sorted_page(
        session, query, values, read_log, lambda row, _: float(row[column]), limit=limit, cursor=cursor
    )


def _most_selective(filters: Mapping[str, str | None]) -> str | None:
    """Return the query of the first filter that has a value; None if none has.

    The query decides the index that is used. The other filters are checked on the rows.
    """
    return next((query for query, value in filters.items() if value is not None), None)


def _as_words(query: str | None) -> str | None:
    """Return the words of a search, all of which must occur; None if there are none."""
    return " ".join((query or "").replace("\0", " ").split()) or None


def job_ids_ending(session: Session, ending: str, *, limit: int, token: str | None = None) -> tuple[str, ...]:
    """Return the ids that end with `ending`, also those in the log. Slower than `job_ids`: no index helps.

    With `token`, only the ids of jobs that it started, and of jobs that follow from them.
    """
    if token is None:
        rows = session.fetch_all("job_ids_ending", ending=ending, limit=limit)
    else:
        rows = session.fetch_all("job_ids_ending_of_token", ending=ending, limit=limit, token=token)
    return tuple(job_id for (job_id,) in rows)


def job_ids(session: Session, beginning: str, *, limit: int, token: str | None = None) -> tuple[str, ...]:
    """Return the ids that begin with `beginning`, in order, also those in the log.

    `token` has the same meaning as for `job_ids_ending`.
    """
    if token is not None:
        rows = session.fetch_all("job_ids_beginning_of_token", beginning=beginning, limit=limit, token=token)
        return tuple(job_id for (job_id,) in rows)
    # Ids consist of lower-case letters, digits and dashes, which all sort before a tilde.
    rows = session.fetch_all("job_ids_between", low=beginning, high=f"{beginning}~", limit=limit)
    return tuple(job_id for (job_id,) in rows)


def job_tree(session: Session, job_id: str, *, limit: int) -> tuple[Job, ...]:
    """Return the job and its descendants, oldest first; at most `limit`, and none without its parent."""
    # The query goes level by level and the sort is stable, so parents come before their children.
    ids = [row[0] for row in session.fetch_all("job_tree", id=job_id, limit=limit)]
    members = [job for member_id in ids if (job := get_job(session, member_id)) is not None]
    return tuple(sorted(members, key=lambda member: member.created_at))


def list_executions(session: Session, job_id: str) -> tuple[LogRow, ...]:
    """Return every execution of a job with its output, oldest first."""
    return tuple(map(read_log, session.fetch_all("executions_of_job", job_id=job_id)))


def get_event(session: Session, event_id: str) -> StoredEvent | None:
    row = session.fetch_one("event_by_id", id=event_id)
    return None if row is None else read_event(row)


def get_event_context(session: Session, context_id: str) -> NewContext | None:
    row = session.fetch_one("context_by_id", id=context_id)
    return None if row is None else _read_context(row)


def job_details(session: Session, job_id: str) -> JobDetails | None:
    """Return a job, or a run and its steps, with their latest executions; without its payload."""
    job = find_job(session, job_id) or get_job(session, job_id)
    return None if job is None else _details_of(session, job)


def get_run(session: Session, run_id: str) -> RunRecord | None:
    """Return a pipeline run with its steps and their results; None if the job is not a run."""
    run = get_job(session, run_id)
    if run is None or run.plugin != RUN_PLUGIN:
        return None
    details = _details_of(session, run)
    fingerprint = session.fetch_value("run_fingerprint", run_id=run_id)
    entries = session.fetch_all("ledger_of_job", job_id=run_id, limit=_LARGEST_RUN)
    return RunRecord(
        job=run,
        steps=details.steps,
        executions=details.executions,
        ledger_entries=tuple(map(read_ledger, entries)),
        graph=None if fingerprint is None else graph_of(session, fingerprint),
    )


def _details_of(session: Session, job: Job) -> JobDetails:
    last = session.fetch_one("last_execution", job_id=job.id)
    executions = {} if last is None else {job.id: read_log(last)}
    if job.plugin != RUN_PLUGIN:
        return JobDetails(job=job, steps=(), executions=executions)
    members = find_jobs(session, "members_of_run", run_id=job.id, limit=_LARGEST_RUN)
    steps = {step.id: step for step in members}
    for row in session.fetch_all("log_of_run", run_id=job.id, limit=_LARGEST_RUN):
        logged = read_log(row)
        executions[logged.job_id] = logged
        steps.setdefault(logged.job_id, job_from_log(logged, None))
    in_order = tuple(sorted(steps.values(), key=lambda step: step.created_at))
    return JobDetails(job=job, steps=in_order, executions=executions)


def pending_work(session: Session, plugins: Sequence[str]) -> tuple[PluginWork, ...]:
    """Return queued, running and future work of these plugins, for those that have any."""
    jobs: dict[tuple[str, str], int] = {
        (plugin, status): count
        for plugin, status, count in session.fetch_all("live_jobs_of_plugins", plugins=to_json(list(plugins)))
    }
    runs = dict.fromkeys(plugins, 0)
    for fingerprint, count in session.fetch_all("live_runs_by_graph"):
        for plugin in graph_of(session, fingerprint).plugins & runs.keys():
            runs[plugin] += count
    work_by_plugin = (
        PluginWork(
            plugin=plugin,
            queued=jobs.get((plugin, JobStatus.QUEUED), 0),
            running=jobs.get((plugin, JobStatus.RUNNING), 0),
            runs=runs[plugin],
        )
        for plugin in plugins
    )
    return tuple(work for work in work_by_plugin if work.queued or work.running or work.runs)
