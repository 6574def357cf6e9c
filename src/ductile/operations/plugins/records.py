"""What the store keeps for a plugin: its state and its facts."""

from __future__ import annotations

from ductile.config.secrets import redact
from ductile.core.json import JsonObject
from ductile.operations import parameters as read
from ductile.operations.context import OperationContext
from ductile.operations.jobs.documents import instant
from ductile.operations.plugins.names import unknown_plugin
from ductile.store.model.records import DEFAULT_PAGE, LARGEST_PAGE, FactRow


async def plugin_state(context: OperationContext, given: JsonObject) -> JsonObject:
    """Values under keys that look secret are masked unless `reveal` is set."""
    plugin = read.text(given, "plugin")
    kept = await context.store.plugin_state(plugin)
    if kept is None:
        _refuse_unknown(context, plugin)
        return {"plugin": plugin, "state": {}, "updated_at": None}
    state = kept.state if read.flag(given, "reveal") else redact(kept.state)
    return {"plugin": plugin, "state": state, "updated_at": instant(kept.updated_at)}


async def plugin_facts(context: OperationContext, given: JsonObject) -> JsonObject:
    """Newest first, masked as the state is."""
    plugin = read.text(given, "plugin")
    limit = read.number(given, "limit", DEFAULT_PAGE, most=LARGEST_PAGE)
    page = await context.store.facts(plugin, limit=limit, cursor=read.optional_text(given, "cursor"))
    if not page.rows:
        _refuse_unknown(context, plugin)
    reveal = read.flag(given, "reveal")
    return {
        "plugin": plugin,
        "facts": [_shown(row, reveal=reveal) for row in page.rows],
        "next_cursor": page.next_cursor,
    }


def _shown(row: FactRow, *, reveal: bool) -> JsonObject:
    return {
        "seq": row.seq,
        "fact_type": row.fact_type,
        "command": row.command,
        "job_id": row.job_id,
        "created_at": instant(row.created_at),
        "fact": row.body if reveal else redact(row.body),
    }


def _refuse_unknown(context: OperationContext, plugin: str) -> None:
    """What a plugin left behind is shown after it was taken out; a name that never was one is a mistake."""
    if plugin not in context.snapshot().plugins:
        raise unknown_plugin(context.snapshot(), plugin)
