"""The MCP server over HTTP. It has no sessions: requests do not depend on earlier ones or on the process."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import mcp_types as types
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError

from ductile.core.json import JsonObject
from ductile.errors import DuctileError
from ductile.mcp.server import CallOperation, make_server
from ductile.mcp.tasks import Context
from ductile.operations.context import OperationContext
from ductile.operations.table import OPERATIONS
from ductile.telemetry.signals import Signal, SignalBus, describe_error

if TYPE_CHECKING:
    from uvicorn._types import HTTPScope

#: Where the operation context is in the ASGI scope of a request.
_CONTEXT = "ductile.context"
#: The value of `tools` in the query that leaves commands and pipelines out of the list of tools.
_ONLY_OPERATIONS = "operations"


class StreamableHttp:
    """Responds to requests of the streamable HTTP transport."""

    def __init__(self, signals: SignalBus) -> None:
        self._signals = signals
        self._server = make_server(self._call_operation_for, _wants_only_operations)
        # Log lines of the SDK could contain request data. Faults are reported by a signal instead.
        logger = logging.getLogger("mcp")
        logger.propagate = False
        logger.setLevel(logging.CRITICAL + 1)

    async def handle(self, scope: HTTPScope, body: bytes, send: Any, context: OperationContext) -> None:
        """Respond to one message, with the rights of the context's source.

        A response that takes long, or reports progress, is a stream of server-sent events.
        """
        # One manager for each request: nothing lives longer, so there is nothing to stop with the listener.
        # The body was read within its limit.
        manager = StreamableHTTPSessionManager(
            self._server, stateless=True, max_request_body_size=len(body) + 1
        )
        async with manager.run():
            # The parser keeps white space at the end of a value, which is no part of it.
            headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
            request_scope = {**scope, "headers": headers, _CONTEXT: context}
            await manager.handle_request(request_scope, _BodyReceiver(body), send)

    def _call_operation_for(self, context: Context) -> CallOperation:
        """Return the function that runs operations with the rights of the caller of a request."""
        assert context.request is not None  # noqa: S101 - every message over HTTP comes with its request
        operation_context: OperationContext = context.request.scope[_CONTEXT]

        async def call_operation(operation: str, values: JsonObject) -> JsonObject:
            try:
                return await OPERATIONS[operation].run_to_json(operation_context, values)
            except DuctileError:
                raise
            except Exception as error:  # noqa: BLE001 - the agent gets an error; its text may hold secrets
                self._signals.emit(Signal.API_FAULT, data={"path": "/mcp", **describe_error(error)})
                raise DuctileError(f"an unexpected error in the daemon ({type(error).__name__})") from None

        return call_operation


def _wants_only_operations(context: Context) -> bool:
    """Return whether the address has `?tools=operations`. Raises `MCPError` for another value."""
    assert context.request is not None  # noqa: S101 - every message over HTTP comes with its request
    tools = context.request.query_params.get("tools")
    if tools not in (None, _ONLY_OPERATIONS):
        raise MCPError(
            code=types.INVALID_PARAMS,
            message=f"`tools` in the address has to be {_ONLY_OPERATIONS}, or left out.",
        )
    return tools is not None


class _BodyReceiver:
    """The ASGI `receive` of a request whose body was read before."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body

    async def __call__(self) -> dict[str, Any]:
        body, self._body = self._body, None
        if body is None:
            await asyncio.Event().wait()  # the request is cancelled when the client disconnects
        return {"type": "http.request", "body": body, "more_body": False}
