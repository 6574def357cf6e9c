"""The log of executions and the ledger: pages of them, and waiting for more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import datetime, timedelta
from typing import Annotated, TypeAlias

from msgspec import Meta

from ductile.core.jobs.model import JobReason, SubmittedBy
from ductile.core.jobs.settlement import LogStatus
from ductile.core.json import JsonValue
from ductile.engine.live_output import NOTHING_READ
from ductile.errors import StoreError
from ductile.operations.context import OperationContext
from ductile.operations.jobs.documents import (
    Execution,
    LedgerEvent,
    LiveOutputText,
    ledger_event,
    listed_execution,
    live_output_text,
    logged_execution,
)
from ductile.operations.jobs.lookup import resolve_filter
from ductile.operations.plugins.lookup import refuse_unknown_plugin
from ductile.operations.request import Cursor, PageLimit, decode_enum
from ductile.operations.response import NextCursor, Response, ResponseType
from ductile.store.model.records import DEFAULT_PAGE, LARGEST_PAGE, LogFilter, LogRow, LogSort
from ductile.struct import Value, about, field

#: Words of other systems for the same states, accepted by filters.
LOG_ALIASES = {"completed": LogStatus.SUCCEEDED, "ok": LogStatus.SUCCEEDED, "error": LogStatus.FAILED}
#: A job status that the filter accepts. It matches nothing: an execution is logged when it ends.
_PENDING = "pending"
#: The longest time that one request waits.
MAX_FOLLOW = timedelta(minutes=5)
#: The most batches of executions that a search indexes first; maintenance indexes the rest.
_INDEXED_BATCHES = 4


def _decode_status(name: str, value: JsonValue) -> str:
    return _PENDING if value == _PENDING else decode_enum(LogStatus, LOG_ALIASES, name, value)


class LogFilters(Value):
    """Filters of executions, and whether the response has their output."""

    job_id: Annotated[str | None, about("Only executions of this job.")] = None
    plugin: Annotated[str | None, about("Only executions of this plugin.")] = None
    command: Annotated[str | None, about("Only executions of this command.")] = None
    submitted_by: Annotated[SubmittedBy | None, about("Only jobs of this source.")] = None
    since: Annotated[
        datetime | None, about("Ended at or after this time, such as 2026-02-08T10:00:00Z, 2026-02-08 or 1h.")
    ] = None
    until: Annotated[datetime | None, about("Ended before this time.")] = None
    completed_from: Annotated[datetime | None, about("The same as `since`.")] = field(
        name="from", default=None
    )
    completed_before: Annotated[datetime | None, about("The same as `until`.")] = field(
        name="to", default=None
    )
    reason: Annotated[JobReason | None, about("Only executions that ended for this reason.")] = None
    query: Annotated[
        str | None, about("Only those whose result, error or stderr has all of these words.")
    ] = None
    status: Annotated[
        str | None,
        Meta(
            description="Only executions with this outcome.",
            extra={"decode": _decode_status},
            extra_json_schema={"enum": [*map(str, LogStatus), *LOG_ALIASES, _PENDING]},
        ),
    ] = None
    output: Annotated[bool, about("With what each execution printed.")] = False


class ListLog(LogFilters):
    sort: Annotated[
        LogSort,
        about(
            "Latest first; or the longest, or those with the most stderr, among the newest 10,000 that match."
        ),
    ] = LogSort.COMPLETED
    limit: PageLimit = DEFAULT_PAGE
    cursor: Cursor = None


class ExecutionPage(Response):
    logs: list[Execution]
    next_cursor: NextCursor


async def list_log(context: OperationContext, request: ListLog) -> ExecutionPage:
    """Return a page of executions. Raises `NotFoundError` for a plugin that is unknown and has no jobs."""
    if request.status == _PENDING:
        return ExecutionPage(logs=[], next_cursor=None)
    log_filter = await _log_filter(context, request)
    if log_filter.query is not None:
        await index_pending_logs(context)
    page = await context.store.list_log(
        log_filter, limit=request.limit, cursor=request.cursor, sort=request.sort
    )
    logs = await _executions(context, page.rows, output=request.output)
    return ExecutionPage(logs=logs, next_cursor=page.next_cursor)


async def index_pending_logs(context: OperationContext) -> None:
    """Index the latest executions before a search: indexing lags some seconds behind."""
    with suppress(StoreError):  # the search then covers the executions that are indexed
        for _ in range(_INDEXED_BATCHES):
            if not await context.store.index_log():
                return


async def _executions(context: OperationContext, rows: Iterable[LogRow], *, output: bool) -> list[Execution]:
    """Return rows of the log as executions; with `output`, with everything that they printed."""
    if not output:
        return [listed_execution(row) for row in rows]
    # Rows of a page have no output, which may be large: it is read for each execution.
    return [
        logged_execution(execution)
        for row in rows
        for execution in await context.store.list_executions(row.job_id)
        if execution.id == row.id
    ]


async def _log_filter(context: OperationContext, request: LogFilters) -> LogFilter:
    """Return the filter for the store.

    Raises `NotFoundError` for a plugin that is unknown and has no jobs.
    """
    await refuse_unknown_plugin(context, request.plugin)
    return LogFilter(
        job_id=await resolve_filter(context, request.job_id),
        plugin=request.plugin,
        command=request.command,
        status=None if request.status is None else LogStatus(request.status),
        reason=request.reason,
        submitted_by=request.submitted_by,
        completed_from=request.since or request.completed_from,
        completed_before=request.until or request.completed_before,
        query=request.query,
    )


# ------------------------------------------------------------------------------------------ following


FollowTimeout: TypeAlias = Annotated[
    timedelta | None, about("How long to wait for more, such as 1m; at most 5m.")
]


async def follow(
    context: OperationContext,
    timeout: timedelta | None,  # noqa: ASYNC109 - a field of the request
    read_new: Callable[[bool, bool], Awaitable[ResponseType | None]],
    other_changes: Callable[[asyncio.Event], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> ResponseType:
    """Call `read_new` at once and after each change of the ledger. Return the first response that it returns.

    `read_new` returns None if there is nothing new. Its arguments are `must_respond` (the time is up or
    the daemon stops) and `stopping` (the daemon stops). `other_changes` is called with an
    event, which it sets when something else than the ledger changes, until its context is left.

    Raises `DaemonNotRunningError` without a daemon.
    """
    engine = context.require_engine()
    clock = asyncio.get_running_loop().time
    deadline = clock() + min(MAX_FOLLOW if timeout is None else timeout, MAX_FOLLOW).total_seconds()
    with engine.waiters.ledger_changes() as changed, other_changes(changed):
        while True:
            changed.clear()  # before the store is read, so that no change is missed
            stopping = engine.stopping
            response = await read_new(stopping or clock() >= deadline, stopping)
            if response is not None:
                return response
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await changed.wait()


class FollowLog(LogFilters):
    timeout: FollowTimeout = None
    after: Annotated[int, about("Executions after this `seq`.")] = 0
    live: Annotated[bool, about("Also what running executions print.")] = False
    position: Annotated[int | None, about("Output after this position.")] = None


class NewExecutions(Response):
    logs: list[Execution]
    live_output: list[LiveOutputText]
    position: int
    stopping: Annotated[bool, about("Whether the daemon stops.")]


async def follow_log(context: OperationContext, request: FollowLog) -> NewExecutions:
    """Return executions after a number, oldest first. Waits until there is one, or the time is up."""
    log_filter = await _log_filter(context, request)
    live = context.require_engine().live_output

    async def read_new(must_respond: bool, stopping: bool) -> NewExecutions | None:
        # Read before the output, which is complete when the end of its execution is stored.
        rows = await _executions_after(context, log_filter, request.after)
        read = live.read(None, request.position) if request.live else NOTHING_READ
        output = [
            live_output_text(piece)
            for piece in read.pieces
            if request.plugin in (None, piece.plugin)
            and request.command in (None, piece.command)
            and (not context.sees_only_own or await context.store.get_job(piece.job_id) is not None)
        ]
        if not (rows or output or must_respond):
            return None
        logs = await _executions(context, rows, output=request.output)
        return NewExecutions(logs=logs, live_output=output, position=read.position, stopping=stopping)

    def output_changes(changed: asyncio.Event) -> AbstractContextManager[None]:
        return live.following(None, changed) if request.live else nullcontext()

    return await follow(context, request.timeout, read_new, output_changes)


async def _executions_after(context: OperationContext, log_filter: LogFilter, after: int) -> list[LogRow]:
    """Return executions after a number, oldest first.

    Pages begin with the newest, so all of them are read.
    """
    rows: list[LogRow] = []
    cursor: str | None = None
    while True:
        page = await context.store.list_log(log_filter, limit=LARGEST_PAGE, cursor=cursor)
        rows += [row for row in page.rows if row.seq > after]
        cursor = page.next_cursor
        if cursor is None or page.rows[-1].seq <= after:
            return rows[::-1]


class TailLedger(Value):
    limit: Annotated[int, Meta(ge=1, le=1000, description="Entries to return.")] = DEFAULT_PAGE
    after: Annotated[int | None, about("Entries after this `seq`; the latest without it.")] = None


class LedgerPage(Response):
    events: list[LedgerEvent]
    lowest: int
    highest: int


async def tail_ledger(context: OperationContext, request: TailLedger) -> LedgerPage:
    """Return ledger entries after a number; without one, the latest."""
    lowest, highest = await context.store.ledger_range()
    rows = await context.store.list_ledger(after=request.after, limit=request.limit)
    return LedgerPage(events=[ledger_event(row) for row in rows], lowest=lowest, highest=highest)


class FollowLedger(Value):
    timeout: FollowTimeout = None
    after: Annotated[int, about("Entries after this `seq`.")] = 0


class LedgerGap(Value):
    """Retention has removed entries that would have come first."""

    oldest: int
    message: str


class NewLedgerEvents(Response):
    events: list[LedgerEvent]
    gap: LedgerGap | None
    stopping: Annotated[bool, about("Whether the daemon stops.")]


async def follow_ledger(context: OperationContext, request: FollowLedger) -> NewLedgerEvents:
    """Return ledger entries after a number, oldest first. Waits until there is one, or the time is up."""

    async def read_new(must_respond: bool, stopping: bool) -> NewLedgerEvents | None:
        rows = await context.store.list_ledger(after=request.after, limit=LARGEST_PAGE)
        if not rows and not must_respond:
            return None
        gap, next_seq = None, request.after + 1
        if rows and rows[0].seq > next_seq:
            lowest, _ = await context.store.ledger_range()
            if lowest > next_seq:  # else nothing was removed: the number was never assigned
                oldest = rows[0].seq
                gap = LedgerGap(oldest=oldest, message=f"events before {oldest} are no longer held")
        return NewLedgerEvents(events=[ledger_event(row) for row in rows], gap=gap, stopping=stopping)

    return await follow(context, request.timeout, read_new)
