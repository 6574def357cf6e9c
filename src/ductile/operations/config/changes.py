"""Changes since an instant: configurations, files that are not sealed, schedules, circuit breakers."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Annotated

from ductile.config.history.restore import read_seals
from ductile.core.jobs.failures import BreakerState
from ductile.errors import ConfigError, DeniedError
from ductile.operations.config.history import HistoryEntry, merge_history
from ductile.operations.config.plan import ChangedFile, changed_file, make_plan
from ductile.operations.context import OperationContext
from ductile.operations.response import Response, Timestamp, timestamp
from ductile.struct import Value, about

_DEFAULT_SPAN = timedelta(hours=24)
#: The most loads that are read.
_MAX_LOADS = 100


class ShowChanges(Value):
    since: Annotated[
        datetime | None, about("What changed since, such as 24h (the default), 2026-02-08 or an instant.")
    ] = None


class PausedSchedule(Value):
    plugin: str
    id: str
    paused_at: Timestamp


class ChangedBreaker(Value):
    plugin: str
    command: str
    state: BreakerState
    opened_at: Timestamp | None


class Changes(Response):
    since: Timestamp
    loaded: Annotated[list[HistoryEntry], about("Configurations that were loaded or sealed, newest first.")]
    unsealed_files: Annotated[
        tuple[ChangedFile, ...], about("Files on disk that are not as sealed, whenever they were changed.")
    ]
    unsealed_plugins: Annotated[tuple[str, ...], about("Plugins whose files are not as sealed.")]
    problem: Annotated[str | None, about("Why the configuration on disk cannot be loaded.")]
    paused: Annotated[list[PausedSchedule], about("Schedules that were paused since, and still are.")]
    breakers: Annotated[list[ChangedBreaker], about("Circuit breakers that are not closed.")]


async def show_changes(context: OperationContext, request: ShowChanges) -> Changes:
    """Return what changed since an instant, and which files on disk are not as sealed."""
    since = request.since or context.now() - _DEFAULT_SPAN
    files: tuple[ChangedFile, ...] = ()
    plugins: tuple[str, ...] = ()
    problem = None
    try:
        difference = await asyncio.to_thread((await make_plan(context, {})).compare)
        files, plugins = tuple(map(changed_file, difference.files)), (*difference.plugins,)
    except ConfigError as error:
        problem = error.message
    directory = context.snapshot().directory
    loads = await context.store.config_history(limit=_MAX_LOADS)
    try:
        seals = await asyncio.to_thread(read_seals, directory)
    except DeniedError:  # as under systemd; the loads are in the store
        seals = ()
    active = context.snapshot().fingerprint
    history = await asyncio.to_thread(merge_history, directory, loads, seals, active=active)
    return Changes(
        since=timestamp(since),
        loaded=[entry for entry in history if entry.at >= timestamp(since)],
        unsealed_files=files,
        unsealed_plugins=plugins,
        problem=problem,
        paused=[
            PausedSchedule(plugin=entry.plugin, id=entry.schedule_id, paused_at=timestamp(entry.paused_at))
            for entry in await context.store.list_schedules()
            if entry.paused_at is not None and entry.paused_at >= since
        ],
        breakers=[
            ChangedBreaker(
                plugin=row.plugin,
                command=row.command,
                state=row.breaker.state,
                opened_at=timestamp(row.breaker.opened_at),
            )
            for row in await context.store.list_breakers()
            if row.breaker.state is not BreakerState.CLOSED
        ],
    )
