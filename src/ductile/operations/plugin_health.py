"""Which plugins are marked unhealthy: those whose last `init` failed (SPEC 3.5). A label, not a gate."""

from __future__ import annotations

from collections.abc import Sequence

from ductile.core.json_values import JsonObject, JsonValue
from ductile.engine.inits import init_of
from ductile.operations.desk import Desk
from ductile.operations.shown import instant
from ductile.store.values.settling import InitKey, InitRecord, InitStatus


async def unhealthy_plugins(desk: Desk) -> dict[str, InitRecord]:
    """By name, with the init that failed."""
    records = await desk.store.inits()
    found = {}
    for name, plugin in desk.snapshot().plugins.items():
        init = init_of(plugin, now=desk.now(), dice=desk.dice)
        mark = None if init is None else decide_mark(records, init.key)
        if mark is not None:
            found[name] = mark
    return found


def decide_mark(records: Sequence[InitRecord], key: InitKey) -> InitRecord | None:
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


def shown_mark(record: InitRecord | None) -> JsonValue:
    if record is None:
        return None
    return {"job_id": record.job_id, "error": record.error, "at": instant(record.updated_at)}


async def plugin_health(desk: Desk, _given: JsonObject) -> JsonObject:
    marks = await unhealthy_plugins(desk)
    return {"unhealthy": {name: shown_mark(record) for name, record in marks.items()}}
