"""Stored records of a plugin: its state and its facts. Secret-looking values are masked unless revealed."""

from __future__ import annotations

from typing import Annotated, Any

from ductile.config.secrets import redact
from ductile.operations.context import OperationContext
from ductile.operations.plugins.lookup import OnePlugin, find_plugin
from ductile.operations.request import Cursor, PageLimit
from ductile.operations.response import Id, NextCursor, Response, Timestamp, timestamp
from ductile.store.model.records import DEFAULT_PAGE
from ductile.struct import Value, about


class ShowPluginState(OnePlugin):
    reveal: Annotated[bool, about("Show values that look like secrets.")] = False


class StoredPluginState(Response):
    plugin: str
    state: Any
    updated_at: Timestamp | None


class ListPluginFacts(ShowPluginState):
    limit: PageLimit = DEFAULT_PAGE
    cursor: Cursor = None


class PluginFact(Value):
    seq: int
    fact_type: str
    command: str | None
    job_id: Id | None
    created_at: Timestamp
    fact: Any


class PluginFacts(Response):
    plugin: str
    facts: tuple[PluginFact, ...]
    next_cursor: NextCursor


async def plugin_state(context: OperationContext, request: ShowPluginState) -> StoredPluginState:
    """The state of a plugin; that of one that is no longer configured too."""
    stored = await context.store.plugin_state(request.plugin)
    if stored is None:
        find_plugin(context.snapshot(), request.plugin)
        return StoredPluginState(plugin=request.plugin, state={}, updated_at=None)
    return StoredPluginState(
        plugin=request.plugin,
        state=stored.state if request.reveal else redact(stored.state),
        updated_at=timestamp(stored.updated_at),
    )


async def plugin_facts(context: OperationContext, request: ListPluginFacts) -> PluginFacts:
    """The facts of a plugin, newest first; those of one that is no longer configured too."""
    page = await context.store.facts(request.plugin, limit=request.limit, cursor=request.cursor)
    if not page.rows:
        find_plugin(context.snapshot(), request.plugin)
    return PluginFacts(
        plugin=request.plugin,
        facts=tuple(
            PluginFact(
                seq=row.seq,
                fact_type=row.fact_type,
                command=row.command,
                job_id=row.job_id,
                created_at=timestamp(row.created_at),
                fact=row.body if request.reveal else redact(row.body),
            )
            for row in page.rows
        ),
        next_cursor=page.next_cursor,
    )
