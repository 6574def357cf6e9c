"""The HTTP server: listening addresses, and uvicorn's HTTP/1.1 protocol with limits.

When uvicorn parses with httptools, it limits neither the size of a request's head, nor the time in which the
head arrives, nor the number of connections. Its server class is not used: it wakes ten times a second and
takes over signal handling. Private parts of its protocol class are used here and nowhere else, so
pyproject.toml bounds uvicorn to the minor version that is tested.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import formatdate
from enum import StrEnum
from errno import EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from ductile.errors import (
    ConflictError,
    DeniedError,
    DuctileError,
    HeadersTooLargeError,
    TooBusyError,
    UsageError,
)
from ductile.http.application import LogRateLimiter
from ductile.http.body import BODY_RECEIVED
from ductile.http.responses import raw_error, send_error
from ductile.struct import Value
from ductile.telemetry.signals import Signal, SignalBus

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_BACKLOG = 1024
#: Connections accepted in one turn of the loop, per socket. A new connection is read three turns after it is
#: accepted, so fewer than `ListenerLimits.connections` accumulate before their first requests are answered.
_ACCEPTED_PER_TURN = 32
#: Errors for addresses, and families of addresses, that a name resolves to and this machine does not have.
_ADDRESS_MISSING = frozenset((EADDRNOTAVAIL, EAFNOSUPPORT))
#: How long a closing listener waits until the responses that were written are sent.
_FLUSH_SECONDS = 0.5
#: Further refusals of one kind are counted, and reported once in this time.
_REFUSAL_REPORT_SECONDS = 10.0


class ListenerLimits(Value):
    """Limits of one listener.

    Connections beyond `connections` are answered 503 and closed, except at the paths in `probe_paths`.
    Connections beyond twice that number are closed without a response.
    """

    connections: int = 256
    head_bytes: int = 64 * 1024
    head_seconds: float = 10.0
    keep_alive_seconds: float = 30.0
    #: A connection whose peer accepts none of our data for this long is closed (by the kernel, on Linux).
    unread_seconds: float = 20.0
    #: Health probes: requests to these paths are answered even when the listener is full.
    probe_paths: frozenset[str] = frozenset(("/healthz", "/readyz"))


class RefusalReason(StrEnum):
    """Why a listener refused a request or closed a connection without asking the application."""

    MALFORMED = "malformed"
    HEAD_TOO_LARGE = "head_too_large"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    UNREAD = "unread"


class ListenerState(ServerState):
    """State that the connections of one listener share."""

    def __init__(
        self,
        limits: ListenerLimits,
        on_refusal: Callable[[RefusalReason, str | None], None] = lambda *_: None,
    ) -> None:
        """`on_refusal(reason, peer)` is called for each refusal."""
        super().__init__()
        self.limits = limits
        self.on_refusal = on_refusal
        #: Set when the last connection has closed.
        self.all_closed = asyncio.Event()


@lru_cache(maxsize=1)
def _date_header(second: int) -> list[tuple[bytes, bytes]]:
    return [(b"date", formatdate(second, usegmt=True).encode())]


class _ResponseTransport:
    """The transport of one response: holds the head until the body is written, so that both are sent with one
    system call. Each call releases the GIL, which the threads of store and log then hold for a while.
    """

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        self._transport = transport
        self._cycle = cycle
        self._head: bytes | None = None
        self._head_written = False

    def write(self, data: bytes) -> None:
        # Before the response starts, only `100 Continue` is written.
        if not self._cycle.response_started or self._head_written:
            self._transport.write(data)
        elif self._head is None:
            self._head = data
        else:
            self._transport.write(self._head + data)
            self._head_written = True

    def flush(self) -> None:
        """Write a head without a body, such as that of the response to a HEAD request."""
        if self._head is not None and not self._head_written:
            self.write(b"")

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self.flush()
        self._transport.close()


class BoundedProtocol(HttpToolsProtocol):
    """One connection, with limits on its input."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        assert isinstance(server_state, ListenerState)  # noqa: S101 - uvicorn's signature is wider
        self._state = server_state
        self._limits = server_state.limits
        self.timeout_keep_alive = self._limits.keep_alive_seconds  # type: ignore[assignment]  # a float works too
        #: Whether the connection came when the listener was full.
        self._is_over_limit = False
        #: Set once no further input is parsed: the connection closes after the responses that are due.
        self._ignores_input = False
        self._in_head = True
        #: Bytes of the current head, in chunks that lie wholly inside it.
        self._head_bytes = 0
        self._requests_begun = 0
        self._head_timer: asyncio.TimerHandle | None = None
        #: The request that is being answered. With pipelining `self.cycle` is a later one.
        self._current: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        limit = self._limits.connections
        if len(self.connections) > 2 * limit:
            self._report_refusal(RefusalReason.TOO_MANY_CONNECTIONS)
            transport.abort()
            return
        if len(self.connections) > limit:
            self._is_over_limit = True
            self.app = self._service_unavailable
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        if isinstance(exc, TimeoutError):  # TCP_USER_TIMEOUT, see `Listener._bind_one`
            self._report_refusal(RefusalReason.UNREAD)
        super().connection_lost(exc)
        # uvicorn notifies only the newest of several pipelined requests.
        for cycle in self._open_requests():
            cycle.disconnected = True
            cycle.message_event.set()
        self.pipeline.clear()
        if not self.connections:
            self._state.all_closed.set()

    def data_received(self, data: bytes) -> None:
        if self._ignores_input or self.transport.is_closing():
            return
        requests_before, in_head = self._requests_begun, self._in_head
        super().data_received(data)
        # httptools reports complete headers only, so an endless one is counted here. A chunk in which a head
        # begins or ends is not counted: the parser does not report where in the chunk.
        if in_head and self._in_head and requests_before == self._requests_begun:
            self._head_bytes += len(data)
            self._check_head(self._head_bytes)
        if self._current is None or self._current.response_complete:
            # uvicorn stops the keep-alive timer at any byte, even a blank line or the rest of a refused body.
            self._start_head_timer()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._requests_begun += 1
        self._in_head = True
        self._head_bytes = 0
        self._start_head_timer()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._check_head(len(self.url))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_head_timer()
        self._check_head(len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers))
        if not self._ignores_input:
            self.server_state.default_headers = _date_header(int(time.time()))
            super().on_headers_complete()
        self.headers = []  # trailers of a chunked body must not override the headers of the request

    def on_body(self, body: bytes) -> None:
        if not self._ignores_input:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._ignores_input:
            self.scope["extensions"] = {BODY_RECEIVED: {}}
            super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._current is not None:
            self._current.transport.flush()  # type: ignore[attr-defined]  # see `_start_asgi_task`
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self._send_error_and_close(
            UsageError("this is not an HTTP request", hint=msg), RefusalReason.MALFORMED
        )

    def _unsupported_upgrade_warning(self) -> None:
        """Do not warn: a request for another protocol gets a response by HTTP/1.1, as the standard allows."""

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._current = cycle
        cycle.transport = _ResponseTransport(self.transport, cycle)  # type: ignore[assignment]  # what a cycle uses
        if self._is_over_limit:
            cycle.keep_alive = False
        super()._start_asgi_task(cycle, app)

    async def _service_unavailable(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Respond for a connection over the limit: to health probes, and with 503 on all other paths."""
        if scope["type"] == "http" and scope["path"] in self._limits.probe_paths:
            await self.config.loaded_app(scope, receive, send)
            return
        self._report_refusal(RefusalReason.TOO_MANY_CONNECTIONS)
        await send_error(send, TooBusyError("too many connections", hint="Try again in a moment."))

    def _check_head(self, size: int) -> None:
        """Refuse a head that is larger than the limit."""
        limit = self._limits.head_bytes
        if size > limit:
            error = HeadersTooLargeError(f"the request's head is larger than {limit} bytes")
            self._send_error_and_close(error, RefusalReason.HEAD_TOO_LARGE)

    def _send_error_and_close(self, error: DuctileError, reason: RefusalReason) -> None:
        if self._ignores_input or self.transport.is_closing():
            return
        self._report_refusal(reason)
        if self._close_after_pending():
            return
        current = self._current
        if current is None or current.response_complete or not current.response_started:
            self.transport.write(raw_error(error))
        self.transport.close()

    def _report_refusal(self, reason: RefusalReason) -> None:
        self._state.on_refusal(reason, None if self.client is None else self.client[0])

    def _close_after_pending(self) -> bool:
        """Ignore further input. If requests that were received completely wait for their responses, close
        the connection after the last of these and return True.
        """
        self._ignores_input = True
        self._stop_head_timer()
        complete = self._open_requests()
        if complete and complete[-1].more_body:
            partial = complete.pop()
            self.pipeline = deque(entry for entry in self.pipeline if entry[0] is not partial)
        if complete:
            complete[-1].keep_alive = False
        return bool(complete)

    def _open_requests(self) -> list[RequestResponseCycle]:
        """Return the requests without a complete response, oldest first."""
        queued = [cycle for cycle, _ in reversed(self.pipeline)]
        if self._current is not None and not self._current.response_complete:
            queued.insert(0, self._current)
        return queued

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._limits.head_seconds, self._head_timed_out)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_timed_out(self) -> None:
        self._head_timer = None
        if not self._close_after_pending():
            self.transport.abort()


class Listener:
    """Serves an ASGI application at an address such as `localhost:8080` or `[::1]:0`."""

    def __init__(
        self,
        name: str,
        address: str,
        application: ASGI3Application,
        limits: ListenerLimits,
        signals: SignalBus | None = None,
    ) -> None:
        self._name = name
        self._address = address
        self._signals = signals or SignalBus()
        self._log_limiter = LogRateLimiter(self._report_refusals, seconds=_REFUSAL_REPORT_SECONDS)
        self._state = ListenerState(limits, self._on_refusal)
        self._config = Config(
            application,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            interface="asgi3",
        )
        # Log lines of uvicorn could contain request data. Each request is reported by a signal instead.
        for logger in map(logging.getLogger, ("uvicorn.error", "uvicorn.access", "uvicorn.asgi")):
            logger.propagate = False
            logger.setLevel(logging.CRITICAL + 1)
            logger.handlers = []  # with any handler uvicorn formats a line for each request
        self._bound: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []

    async def bind(self) -> None:
        """Bind every address that the name stands for. Connections wait in the backlog until `start`.

        Raises `ConflictError` or `DeniedError` with a hint for the operator.
        """
        host, _, port = self._address.rpartition(":")
        try:
            addresses = await asyncio.get_running_loop().getaddrinfo(
                host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            self._bound = self._bind_all(
                dict.fromkeys((family, address) for family, *_, address in addresses)
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            message = f"the {self._name} cannot listen at {self._address}: {reason}"
            if isinstance(error, PermissionError):
                hint = "Ports below 1024 are for root: choose another one."
                raise DeniedError(message, hint=hint) from error
            hint = f"Choose another address, or end what listens there ({self._name}.listen)."
            if getattr(error, "errno", None) == EADDRINUSE:
                # Not the very next port: by default webhooks listen one above the API.
                other = f"{host}:{(int(port) + 2) % 65536 or 8082}"
                hint = (
                    "Another program, perhaps another Ductile, has this port. Stop it, or choose another: "
                    f"`ductile config set {self._name}.listen {other} --lock`."
                )
            raise ConflictError(message, hint=hint) from error

    async def start(self) -> tuple[str, ...]:
        """Accept connections. Returns the addresses, with the real port where 0 was configured."""
        if not self._bound:
            await self.bind()
        self._config.load()
        loop = asyncio.get_running_loop()
        while self._bound:
            bound = self._bound.pop(0)  # from here on it is closed with its server
            self._servers.append(
                await loop.create_server(
                    lambda: BoundedProtocol(self._config, self._state, {}),
                    sock=bound,
                    backlog=_ACCEPTED_PER_TURN,
                )
            )
            # asyncio uses one number for both; this is the length of the kernel's queue.
            bound.listen(_BACKLOG)
        addresses: list[str] = []
        for server in self._servers:
            for listening in server.sockets:
                host, port = listening.getsockname()[:2]
                addresses.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        return tuple(addresses)

    async def stop(self, grace: float) -> None:
        """Accept nothing more; let requests finish for up to `grace` seconds, then cancel them."""
        for bound in self._bound:
            bound.close()
        self._bound = []
        for server in self._servers:
            server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=grace)
        late = list(self._state.tasks)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        self._state.all_closed.clear()
        if self._state.connections:
            with suppress(TimeoutError):
                async with asyncio.timeout(_FLUSH_SECONDS):
                    await self._state.all_closed.wait()
        for connection in list(self._state.connections):
            connection.transport.abort()
        self._log_limiter.close()

    def _on_refusal(self, reason: RefusalReason, peer: str | None) -> None:
        if self._log_limiter.should_log(reason, peer):
            self._report_refusals({reason: 1}, peer)

    def _report_refusals(self, counts: Mapping[str, int], peer: str | None) -> None:
        summary = ", ".join(f"{count} {str(reason).replace('_', ' ')}" for reason, count in counts.items())
        self._signals.emit(
            Signal.LISTENER_REFUSED,
            f"The {self._name} listener refused callers: {summary}.",
            data={
                "listener": self._name,
                "refused": {str(reason): count for reason, count in counts.items()},
                "peer": peer,
            },
        )

    def _bind_all(self, addresses: dict[tuple[int, tuple[object, ...]], None]) -> list[socket.socket]:
        """Return a listening socket for each address.

        Skips addresses that this machine does not have, such as those of IPv6; raises `OSError` if none is
        left. With port 0, all addresses get the port of the first.
        """
        bound: list[socket.socket] = []
        unavailable: OSError | None = None
        try:
            for family, address in addresses:
                port = bound[0].getsockname()[1] if bound else address[1]
                try:
                    bound.append(self._bind_one(family, (address[0], port, *address[2:])))
                except OSError as error:
                    if error.errno not in _ADDRESS_MISSING:
                        raise
                    unavailable = error
            if unavailable is not None and not bound:
                raise unavailable
        except OSError:
            for listening in bound:
                listening.close()
            raise
        return bound

    def _bind_one(self, family: int, address: tuple[object, ...]) -> socket.socket:
        """Return a socket that listens at an address. Raises `OSError`."""
        # The explicit protocol lets asyncio recognise TCP and set TCP_NODELAY on accepted connections.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; connections inherit it
                milliseconds = int(self._state.limits.unread_seconds * 1000)
                bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
            bound.bind(address)
            bound.setblocking(False)
            bound.listen(_BACKLOG)
        except BaseException:
            bound.close()
            raise
        return bound
