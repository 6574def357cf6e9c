"""The configuration in force, as it may be shown: everything written and every default, secrets masked."""

from __future__ import annotations

from ductile.config.effective import fill_in_defaults
from ductile.config.schema.fields import SectionOf
from ductile.config.schema.model import Config
from ductile.core.json import JsonObject
from ductile.operations.context import OperationContext
from ductile.struct import to_builtins


async def view_configuration(context: OperationContext, _given: JsonObject) -> JsonObject:
    snapshot = context.snapshot()
    return {
        "config": fill_in_defaults(snapshot.redacted, SectionOf(section=Config)),
        "fingerprint": snapshot.fingerprint,
        "warnings": [to_builtins(problem) for problem in snapshot.warnings],
    }
