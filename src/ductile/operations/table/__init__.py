"""The table of operations: one row for each use case that a surface can call by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from ductile.core.json import JsonObject
from ductile.operations.context import OperationContext
from ductile.operations.operation import Operation
from ductile.operations.table.config import CONFIG
from ductile.operations.table.jobs import FIGURES, JOBS
from ductile.operations.table.plugins import CATALOGUE, PLUGIN_RECORDS
from ductile.operations.table.runs import RUNS
from ductile.operations.table.schedules import SCHEDULES
from ductile.operations.table.system import SYSTEM, TOKENS
from ductile.operations.table.tools import TOOLS
from ductile.operations.table.webhooks import WEBHOOKS

OPERATIONS: Mapping[str, Operation] = {
    operation.name: operation
    for operation in (
        *RUNS,
        *JOBS,
        *CATALOGUE,
        *PLUGIN_RECORDS,
        *SCHEDULES,
        *WEBHOOKS,
        *FIGURES,
        *SYSTEM,
        *CONFIG,
        *TOKENS,
        *TOOLS,
    )
}

#: Names of the operations that are cancelled when their client on the control socket disconnects.
WAITING_OPERATIONS = frozenset(name for name, operation in OPERATIONS.items() if operation.waits)


def bind_operations(context: OperationContext) -> Mapping[str, Callable[[JsonObject], Awaitable[Any]]]:
    """Return the operations by name, each bound to a context: from named values to a response."""
    return {name: partial(operation.run, context) for name, operation in OPERATIONS.items()}
