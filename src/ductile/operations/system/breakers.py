"""Circuit breakers of a plugin: show them, and close them by hand."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, UnsetType

from ductile.core.jobs.failures import BreakerState
from ductile.operations.context import OperationContext
from ductile.operations.plugins.lookup import OnePlugin, find_plugin, known_command
from ductile.operations.request import DryRun
from ductile.operations.response import Id, Response, Timestamp, WasDryRun, from_record, timestamp
from ductile.struct import Value, about, field

_HISTORY_ROWS = 50


class BreakerStatus(Value):
    state: BreakerState
    failures: int
    opened_at: Timestamp | None
    last_failure_at: Timestamp | None
    last_job_id: Id | None
    probe_job_id: Annotated[Id | None, about("The one job that runs while it is half open.")]


class BreakerChange(Value):
    at: Timestamp
    command: str
    from_state: str | None = field(name="from")
    to_state: str = field(name="to")
    reason: str
    failures: int
    job_id: Id | None


class PluginBreakers(Response):
    plugin: str
    breakers: Annotated[dict[str, BreakerStatus], about("By command.")]
    history: Annotated[tuple[BreakerChange, ...], about("Newest first.")]


class ResetBreakers(OnePlugin):
    command: Annotated[str | None, about("Only the breaker of this command.")] = None
    dry_run: DryRun = False


class BreakersReset(Response):
    plugin: str
    reset: Annotated[int, about("How many were not closed.")]
    would_reset: Annotated[
        tuple[str, ...] | UnsetType, about("The commands whose breakers are not closed.")
    ] = UNSET
    dry_run: WasDryRun = UNSET


async def show_breakers(context: OperationContext, request: OnePlugin) -> PluginBreakers:
    """Return the circuit breakers of a plugin, and their latest changes."""
    plugin = find_plugin(context.snapshot(), request.plugin).name
    history = await context.store.breaker_history(plugin, limit=_HISTORY_ROWS)
    return PluginBreakers(
        plugin=plugin,
        breakers={
            row.command: from_record(BreakerStatus, row.breaker)
            for row in await context.store.list_breakers()
            if row.plugin == plugin
        },
        history=tuple(from_record(BreakerChange, row, at=timestamp(row.created_at)) for row in history),
    )


async def reset_breakers(context: OperationContext, request: ResetBreakers) -> BreakersReset:
    """Close the open and half-open breakers of a plugin, or of one of its commands."""
    plugin, command = find_plugin(context.snapshot(), request.plugin), request.command
    rows = [row for row in await context.store.list_breakers() if row.plugin == plugin.name]
    if command is not None and command not in {row.command for row in rows}:
        known_command(plugin, command)  # A command that was removed may still have a breaker.
    if request.dry_run:
        not_closed = [row.command for row in rows if row.breaker.state is not BreakerState.CLOSED]
        would_reset = tuple(name for name in not_closed if command in (None, name))
        return BreakersReset(plugin=plugin.name, reset=0, would_reset=would_reset, dry_run=True)
    reset = await context.store.reset_breaker(plugin.name, command)
    return BreakersReset(plugin=plugin.name, reset=reset)
