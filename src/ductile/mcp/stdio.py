"""The MCP server on standard input and output, for one client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import anyio
from mcp.server.stdio import stdio_server

from ductile.core.json import JsonObject
from ductile.mcp.server import CallOperation, make_server

#: Runs an operation like `ductile.mcp.server.CallOperation`, but blocks.
BlockingCall: TypeAlias = Callable[[str, JsonObject], JsonObject]

#: The most calls at the same time; each may wait for a job.
_MAX_CALLS = 64


def serve_stdio(call: BlockingCall, *, only_operations: bool = False) -> None:
    """Serve until the client closes standard input."""
    anyio.run(_serve, call, only_operations)


async def _serve(call: BlockingCall, only_operations: bool) -> None:
    limiter = anyio.CapacityLimiter(_MAX_CALLS)

    async def call_in_thread(operation: str, values: JsonObject) -> JsonObject:
        # If the client cancels a call, the daemon completes it, but its response is not waited for.
        async with limiter:
            return await _call_in_thread(partial(call, operation, values))

    call_operation: CallOperation = call_in_thread
    server = make_server(lambda _context: call_operation, lambda _context: only_operations)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


async def _call_in_thread(call: Callable[[], JsonObject]) -> JsonObject:
    """Run a blocking call in a daemon thread: the process does not wait for it when it ends."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[JsonObject] = loop.create_future()

    def set_future(setter: Callable[[Any], None], value: object) -> None:
        if not future.done():  # it is done if the call was cancelled
            setter(value)

    def run() -> None:
        setter_and_value: tuple[Callable[[Any], None], object]
        try:
            setter_and_value = future.set_result, call()
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            setter_and_value = future.set_exception, error
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(set_future, *setter_and_value)

    threading.Thread(target=run, daemon=True).start()
    return await future
