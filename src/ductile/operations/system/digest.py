"""`system digest`: what happened since an instant, on one screen, with the commands that show more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Annotated, Any

import msgspec

from ductile.core.jobs.failures import BreakerState
from ductile.core.jobs.model import JobReason, JobStatus
from ductile.core.jobs.settlement import LogStatus
from ductile.core.jobs.statistics import EndingGroup, fit_lists, group_endings
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.core.webhooks.url_policy import redact_url
from ductile.engine.maintenance import retention_of
from ductile.operations.context import OperationContext
from ductile.operations.diagnose.remedies import applicable_remedy
from ductile.operations.diagnose.waiting import explain_waiting
from ductile.operations.diagnose.wording import first_line, time_text
from ductile.operations.jobs.queue import MAX_EXECUTIONS
from ductile.operations.response import Id, Response
from ductile.store.model.digest import ConfigLoad, DigestRows, SkippedRuns
from ductile.store.model.maintenance import ConfigOrigin
from ductile.struct import Value, about

_DEFAULT_SPAN = timedelta(hours=24)
#: The most entries of each list whose cause is looked up.
_MAX_ITEMS = 8
#: The most characters of all lists as JSON: with the rest of the response, less than 1,500 tokens of a
#: language model.
_MAX_LIST_CHARACTERS = 3_600
_MAX_TEXT = 120
#: Jobs that an operator ended are counted, but not as failures.
_ENDED_BY_OPERATOR = frozenset({JobReason.CANCELLED, JobReason.PURGED})


class ShowDigest(Value):
    since: Annotated[
        datetime | None, about("What happened since, such as 24h (the default), 2026-02-08 or an instant.")
    ] = None


class RanPlugin(Value):
    plugin: str
    executions: int
    failed: Annotated[int, about("Executions that failed or timed out; some were retried.")]


class FailedGroup(Value):
    """Jobs, or runs of a pipeline, that failed for the same reason."""

    plugin: str
    command: str
    reason: JobReason
    jobs: int
    first: str
    last: str
    example: Annotated[Id, about("The latest: ductile job explain ID.")]
    error: str | None
    fix: str


class SkippedGroup(Value):
    plugin: str
    schedule: str
    reason: str | None
    count: int
    first: str
    last: str


class WaitingGroupReport(Value):
    plugin: str
    jobs: int
    oldest: Id
    why: str


class OpenBreaker(Value):
    plugin: str
    command: str
    state: BreakerState
    since: str
    fix: str


class LostGroup(Value):
    receiver: str
    dropped: int
    gone: int
    example: Id
    error: str | None


class ConfigChange(Value):
    at: str
    origin: ConfigOrigin
    plugins: Annotated[list[str], about("Plugins that are new, gone or changed.")]


class Digest(Response):
    """Lists are cut so that all fits on one screen; `more` counts what was left out of each."""

    since: str
    until: str
    complete: Annotated[bool, about("Whether everything was counted: retention and limits left nothing out.")]
    executions: int
    ran: list[RanPlugin]
    failed_jobs: int
    cancelled_jobs: Annotated[int, about("Jobs that were cancelled or purged.")]
    failed: list[FailedGroup]
    skipped: list[SkippedGroup]
    waiting_jobs: int
    waiting: list[WaitingGroupReport]
    breakers: list[OpenBreaker]
    deliveries: list[LostGroup]
    config: list[ConfigChange]
    starts: Annotated[list[str], about("When the daemon was started.")]
    interrupted: Annotated[int, about("Executions that ended because the daemon died.")]
    more: Annotated[dict[str, int], about("How many entries each list has besides.")]
    next: Annotated[list[str], about("Commands that show more.")]


async def show_digest(context: OperationContext, request: ShowDigest) -> Digest:
    """Return what ran, failed, was skipped, waits, was dropped and was changed since an instant."""
    now = context.now()
    since = request.since or now - _DEFAULT_SPAN
    rows = await context.store.read_digest(since=since, latest=MAX_EXECUTIONS)
    groups = group_endings(ending for ending in rows.endings if ending.reason not in _ENDED_BY_OPERATOR)
    statistics = sorted(rows.executions.plugins, key=lambda row: -row.executions)
    counts = await context.store.queue_counts()
    lists: dict[str, Sequence[Value | str]] = {
        "ran": [
            RanPlugin(plugin=row.plugin, executions=row.executions, failed=row.failures) for row in statistics
        ],
        "failed": [await _failed_group(context, group) for group in groups[:_MAX_ITEMS]],
        "skipped": skipped_groups(rows.skipped),
        "waiting": await _waiting_groups(context, rows),
        "breakers": await _open_breakers(context),
        "deliveries": [
            LostGroup(
                receiver=redact_url(row.receiver),
                dropped=row.dropped,
                gone=row.gone,
                example=row.latest_id,
                error=_short_error(row.last_error),
            )
            for row in rows.lost
        ],
        "config": config_changes(rows.loads, since),
        "starts": [
            time_text(load.loaded_at)
            for load in rows.loads
            if load.origin is ConfigOrigin.START and load.loaded_at >= since
        ],
    }
    totals = {name: len(items) for name, items in lists.items()} | {
        "failed": len(groups),
        "waiting": len(rows.waiting),
    }
    lengths = fit_lists(
        {name: [len(msgspec.json.encode(item)) for item in items] for name, items in lists.items()},
        _MAX_LIST_CHARACTERS,
    )
    visible: dict[str, Any] = {name: list(items[: lengths[name]]) for name, items in lists.items()}
    return Digest(
        since=time_text(since),
        until=time_text(now),
        complete=rows.executions.complete
        and rows.endings_complete
        and since >= now - retention_of(context.snapshot()).job_log,
        executions=sum(row.executions for row in statistics),
        failed_jobs=sum(group.jobs for group in groups),
        cancelled_jobs=sum(ending.reason in _ENDED_BY_OPERATOR for ending in rows.endings),
        waiting_jobs=counts.ready + counts.waiting,
        interrupted=sum(row.by_status.get(LogStatus.ORPHANED, 0) for row in statistics),
        more={name: totals[name] - lengths[name] for name in totals if totals[name] > lengths[name]},
        next=_next_commands(visible),
        **visible,
    )


async def _failed_group(context: OperationContext, group: EndingGroup) -> FailedGroup:
    """Return a group of failures, with the remedy for the latest of its jobs."""
    job = await context.store.get_job(group.latest.job_id)
    fix = f"ductile job explain {group.latest.job_id}"
    if job is not None:
        run = await context.store.get_run(job.id) if job.plugin == RUN_PLUGIN else None
        fix = await applicable_remedy(context, job, group.reason, run)
    return FailedGroup(
        plugin=group.plugin,
        command=group.command,
        reason=group.reason,
        jobs=group.jobs,
        first=time_text(group.first_at),
        last=time_text(group.last_at),
        example=group.latest.job_id,
        error=_short_error(group.latest.error),
        fix=fix,
    )


def skipped_groups(rows: Sequence[SkippedRuns]) -> list[SkippedGroup]:
    """Return skipped runs by schedule and reason, the largest group first."""
    grouped: dict[tuple[str, str, str | None], list[SkippedRuns]] = {}
    for row in rows:
        grouped.setdefault((row.plugin, row.schedule_id, row.reason), []).append(row)
    skipped = [
        SkippedGroup(
            plugin=plugin,
            schedule=schedule,
            reason=reason,
            count=sum(row.count for row in group),
            first=time_text(min(row.first_at for row in group)),
            last=time_text(max(row.last_at for row in group)),
        )
        for (plugin, schedule, reason), group in grouped.items()
    ]
    return sorted(skipped, key=lambda group: (-group.count, group.plugin, group.schedule))


async def _waiting_groups(context: OperationContext, rows: DigestRows) -> list[WaitingGroupReport]:
    """Return queued jobs by plugin, with the reason why the oldest waits."""
    reports = []
    for group in rows.waiting[:_MAX_ITEMS]:
        job = await context.store.get_job(group.oldest_id)
        if job is not None and job.status is JobStatus.QUEUED:
            why = (await explain_waiting(context, job)).why
            reports.append(
                WaitingGroupReport(
                    plugin=group.plugin, jobs=group.jobs, oldest=group.oldest_id, why=_short_error(why) or ""
                )
            )
    return reports


async def _open_breakers(context: OperationContext) -> list[OpenBreaker]:
    return [
        OpenBreaker(
            plugin=row.plugin,
            command=row.command,
            state=row.breaker.state,
            since=time_text(row.breaker.opened_at),
            fix=f"Fix the cause, then: ductile system reset {row.plugin}",
        )
        for row in await context.store.list_breakers()
        if row.breaker.state is not BreakerState.CLOSED
    ]


def config_changes(loads: Sequence[ConfigLoad], since: datetime) -> list[ConfigChange]:
    """Return the loads since an instant that changed the configuration, newest first."""
    changes = []
    for load, before in pairwise(loads):
        if load.loaded_at >= since and load.hash != before.hash:
            new: Mapping[str, object] = load.plugins or {}
            old: Mapping[str, object] = before.plugins or {}
            changed = sorted(name for name in new.keys() | old.keys() if new.get(name) != old.get(name))
            changes.append(
                ConfigChange(at=time_text(load.loaded_at), origin=load.origin, plugins=changed[:_MAX_ITEMS])
            )
    return changes


def _next_commands(lists: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return commands that show more of the first entry of each list."""
    commands = []
    if lists["failed"]:
        commands.append(f"ductile job explain {lists['failed'][0].example}")
    if lists["skipped"]:
        first = lists["skipped"][0]
        commands.append(f"ductile schedule explain {first.plugin} {first.schedule}")
    if lists["waiting"]:
        commands.append(f"ductile job explain {lists['waiting'][0].oldest}")
    if lists["deliveries"]:
        commands.append("ductile webhook resend --status dropped --dry-run")
    return commands


def _short_error(text: str | None) -> str | None:
    """Return the first line of a text, shortened."""
    line = first_line(text)
    return line if line is None or len(line) <= _MAX_TEXT else f"{line[: _MAX_TEXT - 1]}…"
