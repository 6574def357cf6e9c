"""The base of the HTTP applications: one request from its first byte to its response or error."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar, cast

import msgspec

from ductile.errors import DuctileError, TooLargeError, TooSlowError, UsageError
from ductile.http.body import ClientDisconnectedError, content_length, refuse_body
from ductile.http.responses import HttpResponse, Stream, send_error, send_response, shutdown_error
from ductile.telemetry.signals import Signal, SignalBus, SignalLevel

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope

#: The status that is logged for a client that disconnected before its response; it is never sent.
CLIENT_CLOSED_REQUEST = 499
#: A body up to this size is not read when the request is refused: the socket buffers hold it.
_SMALL_BODY = 64 * 1024
#: Headers that may occur only once.
_SINGLE_HEADERS = (b"authorization", b"host", b"origin", b"idempotency-key")

_WINDOW_SECONDS = 1.0

Result = TypeVar("Result")


class LogRateLimiter:
    """Keeps a flood of requests from filling the log. The first `max_logged` of each kind are logged in full;
    further ones are counted and reported once in `seconds`. After a period without further ones, the next
    `max_logged` are logged in full again.

    The number of kinds must be bounded, so it must not depend on what a client sends.
    """

    def __init__(
        self,
        report: Callable[[Mapping[str, int], str | None], None],
        *,
        max_logged: int = 1,
        seconds: float = _WINDOW_SECONDS,
    ) -> None:
        """`report(counts, peer)` gets the counts by kind, and the address of the last client."""
        self._report = report
        self._max_logged = max_logged
        self._seconds = seconds
        self._logged: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._peer: str | None = None
        self._timer: asyncio.TimerHandle | None = None

    def should_log(self, kind: str, peer: str | None) -> bool:
        """Return whether to log this request in full; if not, count it."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._end_window)
        if self._logged[kind] < self._max_logged:
            self._logged[kind] += 1
            return True
        self._counts[kind] += 1
        self._peer = peer
        return False

    def close(self) -> None:
        """Report what is counted so far."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._report_counts()

    def _end_window(self) -> None:
        self._timer = None
        if self._counts:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._end_window)
        self._report_counts()

    def _report_counts(self) -> None:
        counts, self._counts = self._counts, Counter()
        self._logged = Counter(dict.fromkeys(counts, self._max_logged))
        if counts:
            self._report(counts, self._peer)


def describe_counts(counts: Mapping[str, int]) -> str:
    """Return text such as `12 x 401, 3 x 404`."""
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(counts.items()))


class Exchange(msgspec.Struct):
    """One request and what is known about it so far."""

    scope: HTTPScope
    receive: ASGIReceiveCallable
    send: ASGISendCallable
    body_read: bool = False
    response_started: bool = False
    status: int = 200
    #: When the head of the request was received, by the clock of the application.
    received_at: float = 0.0
    #: The name of the caller's access token.
    token_name: str | None = None

    @property
    def peer(self) -> str | None:
        """The address of the client."""
        client = self.scope["client"]
        return None if client is None else client[0]


SomeExchange = TypeVar("SomeExchange", bound=Exchange)


class HttpApplication(ABC, Generic[SomeExchange]):
    """An ASGI application that sends every error in our format."""

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        exchange = self.new_exchange(cast("HTTPScope", scope), receive, send)
        try:
            try:
                response = await self.respond(exchange)
            except ClientDisconnectedError:
                raise
            except DuctileError as error:
                self.on_client_error(exchange, error)
                await _refuse(exchange, error)
            except Exception as error:  # noqa: BLE001 - the client gets 500; the error is reported without its text
                await _refuse(exchange, self.on_error(exchange, error))
            else:
                exchange.response_started = True  # an error from here on cannot be sent
                if not isinstance(response, Stream):
                    exchange.status = response.status
                await send_response(send, receive, response)
        except ClientDisconnectedError:
            exchange.status = CLIENT_CLOSED_REQUEST
        except asyncio.CancelledError:
            # The listener is closing and its grace period is over.
            if not exchange.response_started:
                stopping = shutdown_error(maybe_stored=self.maybe_stored(exchange))
                exchange.status = stopping.http_status
                self.on_client_error(exchange, stopping)
                await send_error(send, stopping, close=True)
            raise
        finally:
            self.on_end(exchange)

    @abstractmethod
    def new_exchange(
        self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> SomeExchange: ...

    @abstractmethod
    async def respond(self, exchange: SomeExchange) -> HttpResponse:
        """Return the response. Raises `DuctileError` for a refusal."""

    @abstractmethod
    def maybe_stored(self, exchange: SomeExchange) -> bool:
        """Return whether a request that is cut off now may already be on its way to the disk."""

    @abstractmethod
    def on_error(self, exchange: SomeExchange, error: Exception) -> DuctileError:
        """Report an unexpected exception (500). Returns the error to send."""

    def on_client_error(self, exchange: SomeExchange, error: DuctileError) -> None:
        """Called before an expected error is sent, such as a 4xx or 503."""

    def on_end(self, exchange: SomeExchange) -> None:
        """Called when the exchange is over: after a response, an error, a disconnect or a cancellation."""


def report_request(
    signals: SignalBus,
    exchange: Exchange,
    *,
    path: str,
    endpoint: str | None,
    seconds: float,
    level: SignalLevel | None = None,
) -> None:
    """Log and count a request. `endpoint` is None for a path or method that does not exist."""
    method, status = exchange.scope["method"], exchange.status
    signals.emit(
        Signal.API_REQUEST,
        f"{method} {path} {status}",
        data={
            "method": method,
            "path": path,
            "endpoint": endpoint,
            "status": status,
            "duration_ms": int(seconds * 1_000_000) / 1000,  # `round` takes ten times as long
            "token": exchange.token_name,
            "peer": exchange.peer,
        },
        level=level,
    )


class MountedApplications:
    """An ASGI application that passes requests on by the first segment of their path."""

    def __init__(self, default: ASGI3Application, mounts: Mapping[bytes, ASGI3Application]) -> None:
        self._default = default
        self._mounts = mounts

    def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> Awaitable[None]:
        first_segment = cast("HTTPScope", scope)["raw_path"].split(b"/", 2)[1:2]
        application = self._mounts.get(first_segment[0], self._default) if first_segment else self._default
        return application(scope, receive, send)


async def _refuse(exchange: Exchange, error: DuctileError) -> None:
    """Send an error as the response."""
    exchange.status, exchange.response_started = error.http_status, True
    # The client may still be sending a body that is too large for the socket buffers.
    may_be_sending = isinstance(error, TooLargeError | TooSlowError)
    if not may_be_sending and not exchange.body_read and exchange.scope["method"] not in ("GET", "HEAD"):
        is_chunked = any(name == b"transfer-encoding" for name, _ in exchange.scope["headers"])
        may_be_sending = is_chunked or (content_length(exchange.scope) or 0) > _SMALL_BODY
    if may_be_sending:
        await refuse_body(exchange.receive, exchange.send, error)
    else:
        await send_error(exchange.send, error)


def headers_by_name(scope: HTTPScope) -> dict[bytes, bytes]:
    """Return the headers by name.

    Raises `UsageError` if a header that identifies the caller occurs twice: a proxy may check the first one,
    and we would use the last one.
    """
    pairs = list(scope["headers"])
    headers = dict(pairs)
    if len(headers) != len(pairs):
        names = [name for name, _ in pairs]
        for name in _SINGLE_HEADERS:
            if names.count(name) > 1:
                raise UsageError(f"there is more than one {name.decode()} header", hint="Send one.")
    return headers


async def run_unless_disconnected(receive: ASGIReceiveCallable, work: Awaitable[Result]) -> Result:
    """Return the result of `work`. Raises `ClientDisconnectedError`, and cancels the work, if the client
    disconnects first.
    """

    async def wait_for_disconnect() -> None:
        # A request whose body was not read has a message for it first.
        while (await receive())["type"] != "http.disconnect":
            pass

    task = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnectedError
        return await task
    finally:
        disconnect.cancel()
        task.cancel()
