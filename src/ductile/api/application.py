"""One request from its first byte to its line in the log: found, admitted, read, answered.

Raw ASGI, without a framework in between: the table of endpoints is all there is to route, and the way of an
accepted job is the hottest of the daemon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, cast

import msgspec

from ductile.api.endpoint import ApiReply, ApiRequest, ApiServices, Document, MatchedRoute, Reply, Stream
from ductile.api.parameters import read_parameters
from ductile.api.router import Router, shown_path
from ductile.errors import (
    DuctileError,
    TooLargeError,
    TooSlowError,
)
from ductile.http.body import BODY_SECONDS, ClientDisconnectedError, content_length, read_body, refuse_body
from ductile.http.host_check import headers_once
from ductile.http.log_sampling import LogSampler
from ductile.http.responses import JSON, encode, send_bytes, send_error, shutdown_error
from ductile.operations.response import Response
from ductile.telemetry.signals import Signal, SignalBus, SignalLevel, describe_error

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope

    from ductile.core.json import JsonObject
    from ductile.operations.context import OperationContext

#: What is noted for a caller who went away before there was an answer; nobody ever sees it sent.
CLIENT_CLOSED = 499
_REFUSED = 400
_NO_SNIFFING = (b"x-content-type-options", b"nosniff")
_NOT_KEPT = (b"cache-control", b"no-store")
_SMALL_BODY = 64 * 1024
_DRY = "This was a dry run: nothing was changed."


class ApiExchange(msgspec.Struct):
    """What is known about a request so far; filled as it goes, so that a refusal can be told as well."""

    scope: HTTPScope
    receive: ASGIReceiveCallable
    send: ASGISendCallable
    peer: str | None
    route: MatchedRoute | None = None
    token: str | None = None
    body_read: bool = False
    #: Whether an answer was begun.
    answered: bool = False
    status: int = 200


class Application:
    def __init__(
        self,
        context: OperationContext,
        services: ApiServices,
        router: Router,
        signals: SignalBus,
        clock: Callable[[], float],
        *,
        sampler: LogSampler | None = None,
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        """`sampler` decides which requests without a token are logged in full; all are, if there is none."""
        self._desk = context
        self._services = services
        self._router = router
        self._authenticator = services.authenticator
        self._signals = signals
        self._clock = clock
        self._sampler = sampler
        self._body_seconds = body_seconds

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        began = self._clock()
        asked = cast("HTTPScope", scope)
        client = asked["client"]
        exchange = ApiExchange(asked, receive, send, None if client is None else client[0])
        try:
            try:
                answer = await self._answer(exchange)
            except ClientDisconnectedError:
                raise
            except Exception as error:  # noqa: BLE001 - whoever asked is told; what it held is for nobody
                await self._refuse(exchange, self._told_to_caller(exchange, error))
            else:  # what goes wrong from here on is not refused: an answer has begun
                exchange.answered = True
                if isinstance(answer, Reply):
                    exchange.status, content = _render(exchange, answer)
                    await send_bytes(send, exchange.status, content, [JSON, *answer.headers])
                else:
                    await _send_at_length(exchange, answer)
        except ClientDisconnectedError:
            exchange.status = CLIENT_CLOSED
        except asyncio.CancelledError:
            # The listener closes and waits for nobody any longer. Even that is told in our own shape.
            await self._refuse_at_the_end(exchange)
            raise
        finally:
            self._log(exchange, self._clock() - began)

    async def _refuse_at_the_end(self, exchange: ApiExchange) -> None:
        if not exchange.answered:
            route = exchange.route
            error = shutdown_error(
                maybe_stored=exchange.body_read and route is not None and route.endpoint.http.submits
            )
            exchange.status = error.http_status
            await send_error(exchange.send, error, close=True)

    async def _answer(self, exchange: ApiExchange) -> ApiReply:
        scope = exchange.scope
        route = exchange.route = self._router.find(scope["method"], scope["raw_path"])
        endpoint = route.endpoint
        headers = headers_once(scope)
        began_with = self._desk.snapshot()
        self._admit(exchange, route, headers)
        if endpoint.http.submits:
            self._desk.refuse_when_stopping()
        body = None
        if endpoint.http.method == "POST":
            body = await read_body(
                scope, exchange.receive, limit=began_with.api.max_body_size, seconds=self._body_seconds
            )
            exchange.body_read = True
            # A slow body may have outlasted the daemon's last moment for work, or the caller's token.
            if endpoint.http.submits:
                self._desk.refuse_when_stopping()
            if self._desk.snapshot() is not began_with:
                self._admit(exchange, route, headers)
        asked = ApiRequest(
            context=self._desk,
            services=self._services,
            values=read_parameters(route, scope["query_string"], headers, body),
            headers=headers,
            route=route,
            token=exchange.token,
            peer=exchange.peer,
        )
        if endpoint.http.waits:
            return await _unless_hung_up(exchange.receive, endpoint.handler(asked))
        return await endpoint.handler(asked)

    def _admit(self, exchange: ApiExchange, route: MatchedRoute, headers: Mapping[bytes, bytes]) -> None:
        token = self._authenticator.identify(route.endpoint.access, headers, exchange.peer)
        exchange.token = None if token is None else token.name
        self._authenticator.authorize(token, route.endpoint.access, route.values)

    async def _refuse(self, exchange: ApiExchange, error: DuctileError) -> None:
        exchange.status, exchange.answered = error.http_status, True
        if isinstance(error, TooLargeError | TooSlowError) or _has_much_to_say(exchange):
            await refuse_body(exchange.receive, exchange.send, error)
        else:
            await send_error(exchange.send, error)

    def _told_to_caller(self, exchange: ApiExchange, error: Exception) -> DuctileError:
        if isinstance(error, DuctileError):
            return error
        self._signals.emit(Signal.API_FAULT, data={"path": _path_of(exchange), **describe_error(error)})
        return DuctileError(f"an unexpected fault in the daemon ({type(error).__name__})")

    def _log(self, exchange: ApiExchange, seconds: float) -> None:
        route, method = exchange.route, exchange.scope["method"]
        endpoint = None if route is None else route.endpoint
        path = _path_of(exchange)
        data: JsonObject = {
            "method": method,
            "path": path,
            "endpoint": None if endpoint is None else endpoint.http.path,
            "status": exchange.status,
            "duration_ms": int(seconds * 1_000_000) / 1000,  # `round` takes ten times as long
            "token": exchange.token,
            "peer": exchange.peer,
        }
        level = SignalLevel.DEBUG if self._is_quiet(exchange) else None
        self._signals.emit(Signal.API_REQUEST, f"{method} {path} {exchange.status}", data=data, level=level)

    def _is_quiet(self, exchange: ApiExchange) -> bool:
        """Whether the line is for debugging only: probes that went well, and a flood of unknown callers."""
        route = exchange.route
        if route is not None and route.endpoint.http.probe and exchange.status < _REFUSED:
            return True
        if exchange.token is not None or self._sampler is None:
            return False
        return not self._sampler.in_full(str(exchange.status), exchange.peer)


def _path_of(exchange: ApiExchange) -> str:
    route = exchange.route
    return shown_path(exchange.scope["raw_path"]) if route is None else route.shown


def _has_much_to_say(exchange: ApiExchange) -> bool:
    """Whether a refused caller may still be sending a body of a size that matters."""
    if exchange.body_read or exchange.scope["method"] in ("GET", "HEAD"):
        return False
    declared = content_length(exchange.scope)
    chunked = any(name == b"transfer-encoding" for name, _ in exchange.scope["headers"])
    return chunked or (declared is not None and declared > _SMALL_BODY)


async def _unless_hung_up(receive: ASGIReceiveCallable, work: Awaitable[ApiReply]) -> ApiReply:
    """Do the work, unless the caller goes away meanwhile: nobody is waited for on their behalf then."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(receive())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnectedError
        return await task
    finally:
        gone.cancel()
        task.cancel()


def _render(exchange: ApiExchange, reply: Reply) -> tuple[int, bytes]:
    """The status and the body of a reply, with a `message` for people if it has none of its own."""
    assert exchange.route is not None  # noqa: S101 - a handler has replied
    endpoint, body = exchange.route.endpoint, reply.body
    message, status = None, reply.status
    if isinstance(body, Response):
        message, status, known = body.http_message, status or body.http_status, body.__struct_fields__
    else:
        message, known = _DRY if "dry_run" in body else None, (*body,)
    content = encode(body)
    if "message" not in known:
        text = encode(message or endpoint.http.message or f"{endpoint.summary}.")
        content = b'%b%b"message":%b}' % (content[:-1], b"," if len(content) > len(b"{}") else b"", text)
    return status or endpoint.http.statuses[0], content


async def _send_at_length(exchange: ApiExchange, answer: Document | Stream) -> None:
    match answer:
        case Document(content=content, media_type=media_type, status=status):
            exchange.status = status
            headers = [(b"content-type", media_type.encode()), _NO_SNIFFING, _NOT_KEPT, *answer.headers]
            await send_bytes(exchange.send, status, content, headers)
        case Stream():
            await _stream(exchange, answer)


async def _stream(exchange: ApiExchange, stream: Stream) -> None:
    """Until it is over, or the caller has gone: then nothing more is made for them."""
    streaming = asyncio.ensure_future(stream.run(exchange.send))
    gone = asyncio.ensure_future(_gone(exchange.receive))
    try:
        await asyncio.wait({streaming, gone}, return_when=asyncio.FIRST_COMPLETED)
        if streaming.done():
            await streaming
    finally:
        gone.cancel()
        streaming.cancel()
        try:
            await asyncio.gather(streaming, return_exceptions=True)
        finally:
            stream.close()


async def _gone(receive: ASGIReceiveCallable) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
