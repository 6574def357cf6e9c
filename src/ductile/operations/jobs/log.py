"""What ran, and what happened: the log of executions and the ledger, as pages and as they go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta

from ductile.core.jobs.model import SubmittedBy
from ductile.core.jobs.settlement import LogStatus
from ductile.core.json import JsonObject, JsonValue
from ductile.errors import StoreError
from ductile.operations import parameters as read
from ductile.operations.context import OperationContext
from ductile.operations.jobs.documents import shown_execution, shown_ledger
from ductile.operations.plugins.names import known_plugin_filter
from ductile.store.model.records import DEFAULT_PAGE, LARGEST_PAGE, LedgerRow, LogFilter, LogRow

#: Words that other systems use for our states.
LOG_ALIASES = {
    "completed": LogStatus.SUCCEEDED,
    "ok": LogStatus.SUCCEEDED,
    "error": LogStatus.FAILED,
}
#: How long a follower waits for news before it is answered that there is none.
MAX_FOLLOW = timedelta(minutes=5)
#: So far a search catches up with the log itself; the rest is left to the upkeep.
_SWEEPS = 4


async def list_log(context: OperationContext, given: JsonObject) -> JsonObject:
    limit = read.number(given, "limit", DEFAULT_PAGE, most=LARGEST_PAGE)
    if given.get("status") == "pending":
        return {"logs": [], "next_cursor": None}  # what has not ended has no row here
    where = await _filter(context, given)
    if where.query is not None:
        await index_pending_logs(context)
    page = await context.store.log(where, limit=limit, cursor=read.optional_text(given, "cursor"))
    shown = await _shown(context, page.rows, output=read.flag(given, "output"))
    return {"logs": shown, "next_cursor": page.next_cursor}


async def index_pending_logs(context: OperationContext) -> None:
    """Indexing lags some seconds behind, and who searches expects what has just ended to be found."""
    with suppress(StoreError):  # then what is indexed is searched
        for _ in range(_SWEEPS):
            if not await context.store.index_log():
                return


async def _shown(context: OperationContext, rows: Iterable[LogRow], *, output: bool) -> list[JsonValue]:
    """With what each printed only where it is asked for: that is read one by one."""
    if not output:
        return [shown_execution(row) for row in rows]
    return [
        shown_execution(whole, output=True)
        for row in rows
        for whole in await context.store.executions(row.job_id)
        if whole.id == row.id
    ]


async def _filter(context: OperationContext, given: JsonObject) -> LogFilter:
    return LogFilter(
        job_id=read.optional_text(given, "job_id"),
        plugin=await known_plugin_filter(context, given),
        command=read.optional_text(given, "command"),
        status=read.optional_word(given, "status", LogStatus, LOG_ALIASES),
        submitted_by=read.optional_word(given, "submitted_by", SubmittedBy),
        completed_from=read.optional_instant(given, "from"),
        completed_before=read.optional_instant(given, "to"),
        query=read.optional_text(given, "query"),
    )


async def follow_log(context: OperationContext, given: JsonObject) -> JsonObject:
    """Executions after a number, oldest first; waits for one if there is none.

    The answer is empty when the time is up or the daemon stops; `stopping` tells which.
    """
    engine = context.require_engine()
    where = await _filter(context, given)
    after = read.number(given, "after", 0, least=0, most=1 << 62)
    deadline = asyncio.get_running_loop().time() + follow_seconds(given)
    with engine.ledger_changes() as changed:
        while True:
            changed.clear()
            rows = await _after(context, where, after)
            stopping = engine.stopping
            left = deadline - asyncio.get_running_loop().time()
            if rows or stopping or left <= 0:
                shown = await _shown(context, rows, output=read.flag(given, "output"))
                return {"logs": shown, "stopping": stopping}
            await wait_for_change(changed, left)


def follow_seconds(given: JsonObject) -> float:
    """For how many seconds a follower waits at most."""
    wanted = read.optional_duration(given, "timeout")
    return MAX_FOLLOW.total_seconds() if wanted is None else min(wanted, MAX_FOLLOW).total_seconds()


async def wait_for_change(changed: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, at most this long."""
    try:
        async with asyncio.timeout(seconds):
            await changed.wait()
    except TimeoutError:
        return


async def _after(context: OperationContext, where: LogFilter, after: int) -> list[LogRow]:
    """Pages run from the newest back, so they are gone through until the number is met."""
    found: list[LogRow] = []
    cursor: str | None = None
    while True:
        page = await context.store.log(where, limit=LARGEST_PAGE, cursor=cursor)
        found += [row for row in page.rows if row.seq > after]
        cursor = page.next_cursor
        if cursor is None or page.rows[-1].seq <= after:
            return found[::-1]


async def tail_ledger(context: OperationContext, given: JsonObject) -> JsonObject:
    """Ledger entries after a number; without one, the latest."""
    lowest, highest = await context.store.ledger_range()
    limit = read.number(given, "limit", DEFAULT_PAGE, most=1000)
    after = read.number(given, "after", max(0, highest - limit), least=0, most=1 << 62)
    rows = await context.store.ledger(after=after, limit=limit)
    return {"events": [shown_ledger(row) for row in rows], "lowest": lowest, "highest": highest}


async def follow_ledger(context: OperationContext, given: JsonObject) -> JsonObject:
    """Ledger entries after a number, waiting for one if there is none; else as `follow_log`. With `gap` if
    retention has taken some of those that would have come first.
    """
    engine = context.require_engine()
    after = read.number(given, "after", 0, least=0, most=1 << 62)
    deadline = asyncio.get_running_loop().time() + follow_seconds(given)
    with engine.ledger_changes() as changed:
        while True:
            changed.clear()
            rows = await context.store.ledger(after=after, limit=LARGEST_PAGE)
            stopping = engine.stopping
            left = deadline - asyncio.get_running_loop().time()
            if rows or stopping or left <= 0:
                shown: list[JsonValue] = [shown_ledger(row) for row in rows]
                return {"events": shown, "gap": await _gap(context, after, rows), "stopping": stopping}
            await wait_for_change(changed, left)


async def _gap(context: OperationContext, after: int, rows: Sequence[LedgerRow]) -> JsonObject | None:
    """Only what is older than all that is held was swept; a number may also never have been given."""
    if not rows or rows[0].seq == after + 1:
        return None
    lowest, _ = await context.store.ledger_range()
    if lowest <= after + 1:
        return None
    oldest = rows[0].seq
    return {"oldest": oldest, "message": f"events before {oldest} are no longer held"}
