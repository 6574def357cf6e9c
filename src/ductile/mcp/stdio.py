"""The MCP server on standard input and output: one client, until it closes its end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import anyio
import anyio.to_thread
from mcp.server.stdio import stdio_server

from ductile.core.json import JsonObject
from ductile.mcp.server import CallOperation, make_server

#: As `ductile.mcp.server.CallOperation`, but blocking.
CallBlocking: TypeAlias = Callable[[str, JsonObject], JsonObject]

#: Calls at the same time; each may wait for a job.
_MAX_CALLS = 64


def serve_stdio(call: CallBlocking, *, only_operations: bool = False) -> None:
    """Serve until the client closes standard input."""
    anyio.run(_serve, call, only_operations)


async def _serve(call: CallBlocking, only_operations: bool) -> None:
    limiter = anyio.CapacityLimiter(_MAX_CALLS)

    async def call_in_thread(operation: str, values: JsonObject) -> JsonObject:
        # A call whose client has gone is not waited for: the daemon completes what it was asked.
        return await anyio.to_thread.run_sync(
            partial(call, operation, values), abandon_on_cancel=True, limiter=limiter
        )

    found: CallOperation = call_in_thread
    server = make_server(lambda _context: found, lambda _context: only_operations)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())
