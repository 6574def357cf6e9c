"""uvicorn's HTTP protocol with limits: on headers, on the time they take, and on connections.

uvicorn bounds none of these when it parses with httptools. Its own server object is not used at all: it
polls ten times a second and takes over the signals of the process, and an idle daemon costs nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from ductile.errors import DuctileError, HeadersTooLargeError, TooBusyError, UsageError
from ductile.http.coalesce import CoalescingTransport
from ductile.http.connection_limit import ConnectionLimiter
from ductile.http.rejections import RejectionLog, RejectionReason
from ductile.http.responses import raw_error, send_error
from ductile.http.socket_queue import unread_bytes
from ductile.struct import Value

if TYPE_CHECKING:
    from uvicorn._types import (
        ASGI3Application,
        ASGIReceiveCallable,
        ASGISendCallable,
        ASGISendEvent,
        Scope,
    )
    from uvicorn.config import Config
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


#: A body in chunks of one byte each is six times as long as it is.
_LEAST_DENSE = 8


class ListenerLimits(Value):
    """What one listener takes on. Beyond `connections`, whoever has kept it waiting longest gives way to the
    newcomer. If nobody does, the newcomer is told to come back, and up to as many again are.
    """

    connections: int = 256
    head_bytes: int = 64 * 1024
    head_seconds: float = 10.0
    keep_alive_seconds: float = 30.0
    #: Whoever takes less than this in such a time, of an answer that waits for them, is not reading it.
    unread_seconds: float = 20.0
    least_read_bytes: int = 16 * 1024
    #: Paths that are answered even where the caller gets no place: a monitor has to learn that the daemon is
    #: well when it is busiest.
    probes: frozenset[str] = frozenset(("/healthz", "/readyz"))


class _Date:
    """The Date header, made once a second at most."""

    def __init__(self) -> None:
        self._second = 0
        self._headers: list[tuple[bytes, bytes]] = []

    def header(self) -> list[tuple[bytes, bytes]]:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._headers = [(b"date", formatdate(second, usegmt=True).encode())]
        return self._headers


_DATE = _Date()


class ListenerState(ServerState):
    """What the connections of one listener share."""

    def __init__(self, connections: int, refusals: RejectionLog | None = None) -> None:
        super().__init__()
        self.refusals = refusals or RejectionLog()
        #: Set when the last connection has gone.
        self.emptied = asyncio.Event()
        self.places: ConnectionLimiter[BoundedProtocol] = ConnectionLimiter(connections)


class BoundedProtocol(HttpToolsProtocol):
    """One connection. `limits` is set on a subclass, since uvicorn makes the instances."""

    limits = ListenerLimits()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.timeout_keep_alive = self.limits.keep_alive_seconds  # type: ignore[assignment]  # a float does as well
        self._out: CoalescingTransport | None = None
        self._in_head = True
        self._heard_enough = False
        self._requests_begun = 0
        #: Of the request that is being read: what its head holds, what came of a head that is not complete,
        #: what came since, and how much of that was its body.
        self._head_bytes = self._head_came = self._came = self._body_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        #: When that timer was set.
        self._unread_bytes = 0
        self._answering: RequestResponseCycle | None = None
        assert isinstance(server_state, ListenerState)  # noqa: S101 - uvicorn's signature is wider
        self._shared = server_state
        self.turn = 0
        self._has_place = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._out = self.transport = CoalescingTransport(transport, closed=self._close_in_time)
        self.turn = self._shared.places.next_turn()
        self._has_place = self._shared.places.enter(self)
        if not self._has_place:
            self.app = self._answer_probes_only
        self._arm()

    def keeps_waiting(self) -> bool:
        """Whether the next step is the caller's: to ask, to finish what was refused, to take the answer."""
        cycle = self._answering
        if cycle is None or cycle.response_complete or self.transport.is_closing():
            return True
        return self.flow.write_paused or (cycle.response_started and cycle.more_body)

    def give_way(self) -> None:
        self._count(RejectionReason.GAVE_WAY if self._has_place else RejectionReason.TOO_MANY_CONNECTIONS)
        self.transport.abort()

    async def _answer_probes_only(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """The application of a connection without a place. The connection ends with its first answer."""
        if scope["type"] == "http" and scope["path"] in self.limits.probes:
            await self.config.loaded_app(scope, receive, _closing(send))
            return
        self._count(RejectionReason.TOO_MANY_CONNECTIONS)
        error = TooBusyError("too many connections", hint="Try again in a moment.")
        await send_error(send, error, close=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.places.leave(self)
        self._disarm()
        self._stop_waiting_for_reader()
        super().connection_lost(exc)
        self._tell_gone()
        if not self.connections:
            self._shared.emptied.set()

    def data_received(self, data: bytes) -> None:
        if self._heard_enough or self.transport.is_closing():
            return
        begun, in_head = self._requests_begun, self._in_head
        super().data_received(data)
        if begun == self._requests_begun and in_head == self._in_head:
            # All of it belongs to one part: where in it one part ended and the next began, nobody says.
            self._count_all(len(data))
        if self._answering is None or self._answering.response_complete:
            # uvicorn stops the time for the next request at any byte, be it a blank line or the rest of a
            # body that was refused: whoever sends one and no request would stay for ever.
            self._arm()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._requests_begun += 1
        self._in_head = True
        self._head_bytes = self._head_came = self._came = self._body_bytes = 0
        self._arm()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # behind a body, where nobody may say anew who is calling
        super().on_header(name, value)
        self._count_head(len(name) + len(value) + 4)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._disarm()
        if self._heard_enough:
            return  # it was refused already
        self.server_state.default_headers = _DATE.header()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if not self._heard_enough:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._heard_enough:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._out is not None:
            self._out.flush()
        self.turn = self._shared.places.next_turn()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(UsageError("this is not an HTTP request", hint=msg), RejectionReason.MALFORMED)

    def pause_writing(self) -> None:
        """Somebody who does not read what was sent would hold even a closing connection open for ever."""
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        if not self.transport.is_closing():
            self._stop_waiting_for_reader()
        super().resume_writing()

    def _wait_for_reader(self) -> None:
        if self._unread_timer is None:
            self.turn = self._shared.places.next_turn()
            self._unread_bytes = unread_bytes(self.transport)
            self._unread_timer = self.loop.call_later(self.limits.unread_seconds, self._look_at_reader)

    def _look_at_reader(self) -> None:
        """A large answer on a slow line takes its time; only who takes next to nothing is let go."""
        self._unread_timer = None
        if self._unread_bytes - unread_bytes(self.transport) < self.limits.least_read_bytes:
            self._count(RejectionReason.UNREAD)
            self.transport.abort()
        else:
            self._wait_for_reader()

    def _stop_waiting_for_reader(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _tell_gone(self) -> None:
        """To every request: uvicorn tells the newest only, and an earlier one may be being answered."""
        waiting = [cycle for cycle, _ in self.pipeline]
        for cycle in (*waiting, *([self._answering] if self._answering is not None else [])):
            if not cycle.response_complete:
                cycle.disconnected = True
            cycle.message_event.set()
        self.pipeline.clear()

    def _close_in_time(self) -> None:
        """A closed connection whose rest nobody takes would otherwise stay, however little is left of it."""
        if self.transport.get_write_buffer_size():
            self._wait_for_reader()

    def _unsupported_upgrade_warning(self) -> None:
        """Whoever asks for another protocol is answered in this one, as the standard allows."""

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self.limits.head_bytes:
            self._refuse_head()

    def _count_all(self, size: int) -> None:
        """What came, parsed or not: nobody tells of a header without end, or of what lies around a body."""
        if self._in_head:
            self._head_came += size
            if self._head_came > self.limits.head_bytes:
                self._refuse_head()
        else:
            self._came += size
            if self._came > self.limits.head_bytes + _LEAST_DENSE * self._body_bytes:
                error = UsageError("too much of what was sent is no part of a body")
                self._refuse(error, RejectionReason.MALFORMED)

    def _refuse_head(self) -> None:
        error = HeadersTooLargeError(f"the request's head is larger than {self.limits.head_bytes} bytes")
        self._refuse(error, RejectionReason.HEAD_TOO_LARGE)

    def _refuse(self, error: DuctileError, reason: RejectionReason) -> None:
        if self._heard_enough or self.transport.is_closing():
            return
        self._count(reason)
        if self._end_with_what_was_asked():
            return
        if (
            self._answering is None
            or self._answering.response_complete
            or not self._answering.response_started
        ):
            self.transport.write(raw_error(error))
        self.transport.close()

    def _end_with_what_was_asked(self) -> bool:
        """Hear no more. Whether something that was asked in full is to be answered: that is the last then."""
        self._heard_enough = True
        self._disarm()
        asked = [cycle for cycle, _ in reversed(self.pipeline)]
        if self._answering is not None and not self._answering.response_complete:
            asked.insert(0, self._answering)
        if asked and asked[-1].more_body:
            half = asked.pop()  # and this is what cannot be read
            self.pipeline = deque(entry for entry in self.pipeline if entry[0] is not half)
        if asked:
            asked[-1].keep_alive = False
        return bool(asked)

    def _count(self, reason: RejectionReason) -> None:
        self._shared.refusals.count(reason, None if self.client is None else self.client[0])

    def _arm(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.head_seconds, self._head_came_late)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_came_late(self) -> None:
        self._head_timer = None
        if not self._end_with_what_was_asked():
            self.transport.abort()


def _closing(send: ASGISendCallable) -> ASGISendCallable:
    """The same, with `Connection: close` in the answer."""

    async def send_and_close(message: ASGISendEvent) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"connection", b"close")]
        await send(message)

    return send_and_close
