"""The ASGI application at `/mcp` of the API's listener, with its tokens and limits.

The SDK is loaded by the first request with a valid token: a daemon without agents does not pay for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from ductile.core.jobs.model import SubmittedBy
from ductile.errors import DuctileError, MethodNotAllowedError, NotFoundError
from ductile.http.application import Exchange, HttpApplication, headers_by_name, report_request
from ductile.http.authentication import Authenticator
from ductile.http.body import BODY_SECONDS, read_body
from ductile.http.responses import HttpResponse, Stream, send_error, shutdown_error
from ductile.http.sessions import refuse_foreign_page
from ductile.operations.context import Source
from ductile.operations.operation import ANY_TOKEN
from ductile.struct import replace
from ductile.telemetry.signals import Signal, SignalBus, SignalLevel, describe_error

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, HTTPScope

    from ductile.config.snapshot import AccessToken
    from ductile.mcp.streamable import StreamableHttp
    from ductile.operations.context import OperationContext

#: The first segment of the path of the MCP server.
SEGMENT = b"mcp"
_PATH = "/mcp"
_PATHS = (b"/mcp", b"/mcp/")
_METHOD = "POST"


class McpApplication(HttpApplication[Exchange]):
    def __init__(
        self,
        context: OperationContext,
        authenticator: Authenticator,
        signals: SignalBus,
        clock: Callable[[], float],
    ) -> None:
        self._context = context
        self._authenticator = authenticator
        self._signals = signals
        self._clock = clock
        self._loading = asyncio.Lock()
        self._server: StreamableHttp | None = None

    def new_exchange(
        self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> Exchange:
        return Exchange(scope, receive, send, received_at=self._clock())

    async def respond(self, exchange: Exchange) -> HttpResponse:
        """Respond to one message of a client. Raises `NotFoundError` if the SDK is not installed."""
        scope = exchange.scope
        if scope["raw_path"] not in _PATHS:
            raise NotFoundError("there is nothing at this path", hint=f"The MCP server is at {_PATH}.")
        headers = headers_by_name(scope)
        self._identify(exchange, headers)
        if scope["method"] != _METHOD:  # the other methods are for sessions, and there are none
            raise MethodNotAllowedError(
                f"{scope['method']} is not for this path", hint="It takes POST.", details={"allow": _METHOD}
            )
        limit = self._context.snapshot().api.max_body_size
        body = await read_body(scope, exchange.receive, limit=limit, seconds=BODY_SECONDS)
        exchange.body_read = True
        server = self._server or await self._load()
        # While a slow body arrived, a reload may have removed the token.
        token = self._identify(exchange, headers)
        source = Source(
            submitted_by=SubmittedBy.MCP,
            detail=token.name,
            scopes=token.scopes,
            signed_in_by_link=token is self._authenticator.sessions.local_token,
        )
        context = replace(self._context, source=source)
        return Stream(run=partial(self._stream, exchange, server, context, body))

    def _identify(self, exchange: Exchange, headers: Mapping[bytes, bytes]) -> AccessToken:
        """Return the caller's token, and note its name for the log."""
        refuse_foreign_page(self._context.snapshot().api.listen, headers)
        method = exchange.scope["method"]
        token = self._authenticator.identify(ANY_TOKEN, headers, exchange.peer, method)
        assert token is not None  # noqa: S101 - `ANY_TOKEN` needs one
        exchange.token_name = token.name
        return token

    async def _stream(
        self,
        exchange: Exchange,
        server: StreamableHttp,
        context: OperationContext,
        body: bytes,
        send: ASGISendCallable,
    ) -> None:
        """Let the SDK respond. If it fails before the response has begun, send an error."""
        has_begun = False

        async def send_and_track(message: ASGISendEvent) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun, exchange.status = True, message["status"]
            await send(message)

        async def send_error_unless_begun(error: DuctileError) -> None:
            if not has_begun:
                exchange.status = error.http_status
                await send_error(send, error, close=True)

        try:
            await server.handle(exchange.scope, body, send_and_track, context)
        except asyncio.CancelledError:
            # The client has disconnected, or the listener is closing and its grace period is over.
            await send_error_unless_begun(shutdown_error(maybe_stored=True))
            raise
        except Exception as error:  # noqa: BLE001 - the client gets 500; the error is reported without its text
            await send_error_unless_begun(self.on_error(exchange, error))

    async def _load(self) -> StreamableHttp:
        """Load the SDK and return the server. Raises `NotFoundError` if the SDK is not installed."""
        async with self._loading:
            if self._server is None:
                try:
                    # In a thread, because it takes a second in which the daemon has other work.
                    module = await asyncio.to_thread(import_module, "ductile.mcp.streamable")
                except ModuleNotFoundError as error:
                    raise NotFoundError(
                        f"the MCP server needs {error.name}, which is not installed",
                        hint="On the daemon's machine: pip install 'ductile-runtime[mcp]', then restart it.",
                    ) from None
                self._server = module.StreamableHttp(self._signals)
        assert self._server is not None  # noqa: S101 - made just above
        return self._server

    def maybe_stored(self, exchange: Exchange) -> bool:  # noqa: ARG002 - only asked before the body is read
        return False

    def on_error(self, exchange: Exchange, error: Exception) -> DuctileError:  # noqa: ARG002 - there is one path
        self._signals.emit(Signal.API_FAULT, data={"path": _PATH, **describe_error(error)})
        return DuctileError(f"an unexpected error in the daemon ({type(error).__name__})")

    def on_end(self, exchange: Exchange) -> None:
        """Log requests with a token. Those without one are logged at debug level: a flood of them must not
        fill the log, and wrong tokens are reported by the authenticator.
        """
        report_request(
            self._signals,
            exchange,
            path=_PATH,
            endpoint=_PATH if exchange.scope["method"] == _METHOD else None,
            seconds=self._clock() - exchange.received_at,
            level=SignalLevel.DEBUG if exchange.token_name is None else None,
        )
