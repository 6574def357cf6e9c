"""uvicorn's HTTP/1.1 protocol with limits: size and time of a request's head, number of connections.

uvicorn bounds none of these when it parses with httptools. Its server class is not used: it wakes ten times
a second and takes over signal handling. Private parts of the base class are used here and nowhere else, so
pyproject.toml bounds uvicorn to the minor version that is tested.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from ductile.errors import DuctileError, HeadersTooLargeError, TooBusyError, UsageError
from ductile.http.responses import raw_error, send_error
from ductile.struct import Value

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope
    from uvicorn.config import Config
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class ListenerLimits(Value):
    """Limits of one listener.

    Connections beyond `connections` are answered 503 and closed, except on the `probes` paths. Connections
    beyond twice that number are closed without a response.
    """

    connections: int = 256
    head_bytes: int = 64 * 1024
    head_seconds: float = 10.0
    keep_alive_seconds: float = 30.0
    #: A connection whose peer accepts none of our data for this long is closed (by the kernel, on Linux).
    unread_seconds: float = 20.0
    #: Health checks are answered even when the listener is full.
    probes: frozenset[str] = frozenset(("/healthz", "/readyz"))


class RejectionReason(StrEnum):
    """Why a listener rejected a request or closed a connection without asking the application."""

    MALFORMED = "malformed"
    HEAD_TOO_LARGE = "head_too_large"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    UNREAD = "unread"


class ListenerState(ServerState):
    """State that the connections of one listener share."""

    def __init__(
        self,
        limits: ListenerLimits,
        on_rejection: Callable[[RejectionReason, str | None], None] = lambda *_: None,
    ) -> None:
        """`on_rejection(reason, peer)` is called for each rejection."""
        super().__init__()
        self.limits = limits
        self.on_rejection = on_rejection
        #: Set when the last connection has closed.
        self.emptied = asyncio.Event()


@lru_cache(maxsize=1)
def _date_header(second: int) -> list[tuple[bytes, bytes]]:
    return [(b"date", formatdate(second, usegmt=True).encode())]


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

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
        self._is_surplus = False
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
            self._reject(RejectionReason.TOO_MANY_CONNECTIONS)
            transport.abort()
            return
        if len(self.connections) > limit:
            self._is_surplus = True
            self.app = self._service_unavailable
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        if isinstance(exc, TimeoutError):  # TCP_USER_TIMEOUT, see `ductile.http.listener`
            self._reject(RejectionReason.UNREAD)
        super().connection_lost(exc)
        # uvicorn notifies only the newest of several pipelined requests.
        for cycle in self._unanswered():
            cycle.disconnected = True
            cycle.message_event.set()
        self.pipeline.clear()
        if not self.connections:
            self._state.emptied.set()

    def data_received(self, data: bytes) -> None:
        if self._ignores_input or self.transport.is_closing():
            return
        begun, in_head = self._requests_begun, self._in_head
        super().data_received(data)
        # httptools reports complete headers only, so an endless one is counted here. A chunk in which a head
        # begins or ends is not counted: the parser does not tell where in the chunk that was.
        if in_head and self._in_head and begun == self._requests_begun:
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
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(UsageError("this is not an HTTP request", hint=msg), RejectionReason.MALFORMED)

    def _unsupported_upgrade_warning(self) -> None:
        """Requests for another protocol are answered by HTTP/1.1, as the standard allows."""

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._current = cycle
        if self._is_surplus:
            cycle.keep_alive = False
        super()._start_asgi_task(cycle, app)

    async def _service_unavailable(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """The application of surplus connections: answers health checks, and 503 on all other paths."""
        if scope["type"] == "http" and scope["path"] in self._limits.probes:
            await self.config.loaded_app(scope, receive, send)
            return
        self._reject(RejectionReason.TOO_MANY_CONNECTIONS)
        await send_error(send, TooBusyError("too many connections", hint="Try again in a moment."))

    def _check_head(self, size: int) -> None:
        limit = self._limits.head_bytes
        if size > limit:
            error = HeadersTooLargeError(f"the request's head is larger than {limit} bytes")
            self._refuse(error, RejectionReason.HEAD_TOO_LARGE)

    def _refuse(self, error: DuctileError, reason: RejectionReason) -> None:
        if self._ignores_input or self.transport.is_closing():
            return
        self._reject(reason)
        if self._drain_and_close():
            return
        current = self._current
        if current is None or current.response_complete or not current.response_started:
            self.transport.write(raw_error(error))
        self.transport.close()

    def _reject(self, reason: RejectionReason) -> None:
        self._state.on_rejection(reason, None if self.client is None else self.client[0])

    def _drain_and_close(self) -> bool:
        """Ignore further input. If requests that were received completely wait for their responses, close
        the connection after the last of these and return True.
        """
        self._ignores_input = True
        self._stop_head_timer()
        complete = self._unanswered()
        if complete and complete[-1].more_body:
            partial = complete.pop()
            self.pipeline = deque(entry for entry in self.pipeline if entry[0] is not partial)
        if complete:
            complete[-1].keep_alive = False
        return bool(complete)

    def _unanswered(self) -> list[RequestResponseCycle]:
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
        if not self._drain_and_close():
            self.transport.abort()
