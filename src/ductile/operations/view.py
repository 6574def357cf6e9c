"""The configuration in force, as it may be shown: everything written and every default, secrets masked."""

from __future__ import annotations

from ductile.config.model import Config
from ductile.config.shape import SectionOf
from ductile.core.json_values import JsonObject
from ductile.operations.desk import Desk
from ductile.operations.effective import fill_in_defaults
from ductile.value import to_builtins


async def view_configuration(desk: Desk, _given: JsonObject) -> JsonObject:
    snapshot = desk.snapshot()
    return {
        "config": fill_in_defaults(snapshot.shown, SectionOf(section=Config)),
        "fingerprint": snapshot.fingerprint,
        "warnings": [to_builtins(problem) for problem in snapshot.warnings],
    }
