"""Which plugins are marked unhealthy: those whose last `init` failed. A label, not a gate."""

from __future__ import annotations

from collections.abc import Sequence

from ductile.core.json import JsonObject, JsonValue
from ductile.engine.config_record import init_of
from ductile.operations.context import OperationContext
from ductile.operations.jobs.documents import instant
from ductile.store.model.jobs import InitKey, InitRecord, InitStatus


async def unhealthy_plugins(context: OperationContext) -> dict[str, InitRecord]:
    """By name, with the init that failed."""
    records = await context.store.inits()
    found = {}
    for name, plugin in context.snapshot().plugins.items():
        init = init_of(plugin, now=context.now(), rng=context.rng)
        mark = None if init is None else decide_failed_init(records, init.key)
        if mark is not None:
            found[name] = mark
    return found


def decide_failed_init(records: Sequence[InitRecord], key: InitKey) -> InitRecord | None:
    """The failed init that a plugin is marked by, as it is installed and configured now.

    Until its own init has come to an end, the verdict on the version before goes on counting: only the next
    good init clears it. A version that was initialised well before is well when it comes back.
    """
    ended = [
        each for each in records if each.key.plugin == key.plugin and each.status is not InitStatus.PENDING
    ]
    own = [each for each in ended if each.key == key]
    last = own[0] if own else max(ended, key=lambda each: each.updated_at, default=None)
    return last if last is not None and last.status is InitStatus.FAILED else None


def shown_failed_init(record: InitRecord | None) -> JsonValue:
    if record is None:
        return None
    return {"job_id": record.job_id, "error": record.error, "at": instant(record.updated_at)}


async def plugin_health(context: OperationContext, _given: JsonObject) -> JsonObject:
    marks = await unhealthy_plugins(context)
    return {"unhealthy": {name: shown_failed_init(record) for name, record in marks.items()}}
