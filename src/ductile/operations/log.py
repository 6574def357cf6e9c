"""What ran, and what happened: the log of executions and the ledger, as pages and as they go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta

from ductile.core.jobs import SubmittedBy
from ductile.core.json_values import JsonObject, JsonValue
from ductile.core.settlement import LogStatus
from ductile.errors import StoreError
from ductile.operations import parameters as read
from ductile.operations.desk import Desk
from ductile.operations.plugin_names import optional_plugin
from ductile.operations.shown import shown_execution, shown_ledger
from ductile.operations.system import engine_of
from ductile.store.values.reading import DEFAULT_PAGE, LARGEST_PAGE, LedgerRow, LogFilter, LogRow

#: Words that other systems use for our states (SPEC 8).
LOG_ALIASES = {
    "completed": LogStatus.SUCCEEDED,
    "ok": LogStatus.SUCCEEDED,
    "error": LogStatus.FAILED,
}
#: How long a follower waits for news before it is answered that there is none.
LONGEST_FOLLOW = timedelta(minutes=5)
#: So far a search catches up with the log itself; the rest is left to the upkeep.
_SWEEPS = 4


async def list_log(desk: Desk, given: JsonObject) -> JsonObject:
    limit = read.number(given, "limit", DEFAULT_PAGE, most=LARGEST_PAGE)
    if given.get("status") == "pending":
        return {"logs": [], "next_cursor": None}  # what has not ended has no row here
    where = await _filter(desk, given)
    if where.query is not None:
        await catch_up(desk)
    page = await desk.store.log(where, limit=limit, cursor=read.optional_text(given, "cursor"))
    shown = await _shown(desk, page.rows, output=read.flag(given, "output"))
    return {"logs": shown, "next_cursor": page.next_cursor}


async def catch_up(desk: Desk) -> None:
    """Indexing lags some seconds behind, and who searches expects what has just ended to be found."""
    with suppress(StoreError):  # then what is indexed is searched
        for _ in range(_SWEEPS):
            if not await desk.store.make_searchable():
                return


async def _shown(desk: Desk, rows: Iterable[LogRow], *, output: bool) -> list[JsonValue]:
    """With what each printed only where it is asked for: that is read one by one."""
    if not output:
        return [shown_execution(row) for row in rows]
    return [
        shown_execution(whole, output=True)
        for row in rows
        for whole in await desk.store.executions(row.job_id)
        if whole.id == row.id
    ]


async def _filter(desk: Desk, given: JsonObject) -> LogFilter:
    return LogFilter(
        job_id=read.optional_text(given, "job_id"),
        plugin=await optional_plugin(desk, given),
        command=read.optional_text(given, "command"),
        status=read.optional_word(given, "status", LogStatus, LOG_ALIASES),
        submitted_by=read.optional_word(given, "submitted_by", SubmittedBy),
        completed_from=read.optional_instant(given, "from"),
        completed_before=read.optional_instant(given, "to"),
        query=read.optional_text(given, "query"),
    )


async def follow_log(desk: Desk, given: JsonObject) -> JsonObject:
    """Executions after a number, oldest first; waits for one if there is none.

    The answer is empty when the time is up or the daemon stops; `stopping` tells which.
    """
    engine = engine_of(desk)
    where = await _filter(desk, given)
    after = read.number(given, "after", 0, least=0, most=1 << 62)
    deadline = asyncio.get_running_loop().time() + patience(given)
    while True:
        coming = asyncio.Event() if desk.news is None else desk.news.coming()
        rows = await _after(desk, where, after)
        stopping = engine.stopping
        left = deadline - asyncio.get_running_loop().time()
        if rows or stopping or left <= 0:
            shown = await _shown(desk, rows, output=read.flag(given, "output"))
            return {"logs": shown, "stopping": stopping}
        await wait_for_news(coming, left)


def patience(given: JsonObject) -> float:
    """For how many seconds a follower waits at most."""
    wanted = read.optional_duration(given, "timeout")
    return LONGEST_FOLLOW.total_seconds() if wanted is None else min(wanted, LONGEST_FOLLOW).total_seconds()


async def wait_for_news(coming: asyncio.Event, seconds: float) -> None:
    """Until something happens, but no longer than this."""
    try:
        async with asyncio.timeout(seconds):
            await coming.wait()
    except TimeoutError:
        return


async def _after(desk: Desk, where: LogFilter, after: int) -> list[LogRow]:
    """Pages run from the newest back, so they are gone through until the number is met."""
    found: list[LogRow] = []
    cursor: str | None = None
    while True:
        page = await desk.store.log(where, limit=LARGEST_PAGE, cursor=cursor)
        found += [row for row in page.rows if row.seq > after]
        cursor = page.next_cursor
        if cursor is None or page.rows[-1].seq <= after:
            return found[::-1]


async def tail_ledger(desk: Desk, given: JsonObject) -> JsonObject:
    """Ledger entries after a number; without one, the latest."""
    lowest, highest = await desk.store.ledger_range()
    limit = read.number(given, "limit", DEFAULT_PAGE, most=1000)
    after = read.number(given, "after", max(0, highest - limit), least=0, most=1 << 62)
    rows = await desk.store.ledger(after=after, limit=limit)
    return {"events": [shown_ledger(row) for row in rows], "lowest": lowest, "highest": highest}


async def follow_ledger(desk: Desk, given: JsonObject) -> JsonObject:
    """Ledger entries after a number, waiting for one if there is none; else as `follow_log`. With `gap` if
    retention has taken some of those that would have come first.
    """
    engine = engine_of(desk)
    after = read.number(given, "after", 0, least=0, most=1 << 62)
    deadline = asyncio.get_running_loop().time() + patience(given)
    while True:
        coming = asyncio.Event() if desk.news is None else desk.news.coming()
        rows = await desk.store.ledger(after=after, limit=LARGEST_PAGE)
        stopping = engine.stopping
        left = deadline - asyncio.get_running_loop().time()
        if rows or stopping or left <= 0:
            shown: list[JsonValue] = [shown_ledger(row) for row in rows]
            return {"events": shown, "gap": await _gap(desk, after, rows), "stopping": stopping}
        await wait_for_news(coming, left)


async def _gap(desk: Desk, after: int, rows: Sequence[LedgerRow]) -> JsonObject | None:
    """Only what is older than all that is held was swept; a number may also never have been given."""
    if not rows or rows[0].seq == after + 1:
        return None
    lowest, _ = await desk.store.ledger_range()
    if lowest <= after + 1:
        return None
    oldest = rows[0].seq
    return {"oldest": oldest, "message": f"events before {oldest} are no longer held"}
