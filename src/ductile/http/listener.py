"""One listening socket: bound before anybody is told that the daemon is ready, closed in stages."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping
from contextlib import suppress
from errno import EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT
from typing import TYPE_CHECKING

from uvicorn.config import Config

from ductile.core.json import JsonObject
from ductile.errors import ConflictError, DeniedError
from ductile.http.protocol import BoundedProtocol, ListenerLimits, ListenerState
from ductile.http.rejections import RejectionLog, RejectionReason
from ductile.telemetry.signals import Signal, SignalBus

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

_BACKLOG = 1024
#: Connections that are accepted in one turn of the loop, from each socket. It takes three turns until a new
#: connection is read, and by then no more than its place allows may have come after it: else a burst closes
#: connections, probes among them, whose requests have arrived and were never looked at.
_ACCEPTED_AT_ONCE = 32
#: What a name stands for and this machine does not have.
_ABSENT = frozenset((EADDRNOTAVAIL, EAFNOSUPPORT))
_CLOSING_SECONDS = 0.5


class Listener:
    """Serves an ASGI application at an address such as `localhost:8080` or `[::1]:0`."""

    def __init__(
        self,
        name: str,
        listen: str,
        application: ASGI3Application,
        limits: ListenerLimits,
        signals: SignalBus | None = None,
    ) -> None:
        self._name = name
        self._listen = listen
        self._signals = signals or SignalBus()
        self._refusals = RejectionLog(self._tell_refusals)
        self._state = ListenerState(limits.connections, self._refusals)
        self._unread_seconds = limits.unread_seconds
        self._config = Config(
            application,
            http=type("Protocol", (BoundedProtocol,), {"limits": limits}),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            interface="asgi3",
        )
        _silence_uvicorn()
        self._bound: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []

    async def bind(self) -> None:
        """Take the address. Whoever connects from now on is answered when it is started."""
        self._bound = await self._sockets()
        try:
            for bound in self._bound:
                bound.listen(_BACKLOG)
        except OSError as error:
            self._unbind()
            raise self._explain(error) from error

    async def start(self) -> tuple[str, ...]:
        """Listen; the addresses, with the port that was given for port 0."""
        if not self._bound:
            await self.bind()
        self._config.load()
        loop = asyncio.get_running_loop()
        while self._bound:
            bound = self._bound.pop(0)  # closed with its server from here on
            self._servers.append(
                await loop.create_server(self._protocol, sock=bound, backlog=_ACCEPTED_AT_ONCE)
            )
            bound.listen(_BACKLOG)  # asyncio has one number for both; this is the kernel's queue
        return tuple(_shown(bound.getsockname()) for server in self._servers for bound in server.sockets)

    def _unbind(self) -> None:
        for bound in self._bound:
            bound.close()
        self._bound = []

    async def stop(self, grace: float) -> None:
        """Take nobody in any more; let what is being answered finish, up to `grace` seconds."""
        self._unbind()
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
        await self._flush()
        self._refusals.close()

    def _tell_refusals(self, counts: Mapping[RejectionReason, int], peer: str | None) -> None:
        refused: JsonObject = {reason.value: count for reason, count in counts.items()}
        words = ", ".join(f"{count} {reason.value.replace('_', ' ')}" for reason, count in counts.items())
        self._signals.emit(
            Signal.LISTENER_REFUSED,
            f"The {self._name} listener refused callers: {words}.",
            data={"listener": self._name, "refused": refused, "peer": peer},
        )

    async def _flush(self) -> None:
        """What was written is given a moment to leave; whoever does not read it is let go."""
        self._state.emptied.clear()
        if self._state.connections:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSING_SECONDS):
                    await self._state.emptied.wait()
        for connection in list(self._state.connections):
            connection.transport.abort()

    def _protocol(self) -> asyncio.Protocol:
        protocol: asyncio.Protocol = self._config.http_protocol_class(  # type: ignore[call-arg]  # uvicorn's own way
            config=self._config, server_state=self._state, app_state={}
        )
        return protocol

    async def _sockets(self) -> list[socket.socket]:
        """Every address that the name stands for: `localhost` is two on most machines."""
        host, _, port = self._listen.rpartition(":")
        host = host.strip("[]")
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            bound = self._bind(dict.fromkeys((family, address) for family, *_, address in found))
        except (OSError, ValueError) as error:
            raise self._explain(error) from error
        for each in bound:
            _bound_unsent(each, self._unread_seconds)
        return bound

    def _bind(self, places: dict[tuple[int, tuple[object, ...]], None]) -> list[socket.socket]:
        """All that can be had: a machine without IPv6 still knows the name. With port 0, one port for all."""
        bound: list[socket.socket] = []
        failure: OSError | None = None
        for family, address in places:
            port = bound[0].getsockname()[1] if bound else address[1]
            try:
                bound.append(_bound_socket(family, (address[0], port, *address[2:])))
            except OSError as error:
                failure = error
                if error.errno not in _ABSENT:
                    break
        if failure is not None and (not bound or failure.errno not in _ABSENT):
            for each in bound:
                each.close()
            raise failure
        return bound

    def _explain(self, error: Exception) -> ConflictError | DeniedError:
        why = getattr(error, "strerror", None) or str(error)
        message = f"the {self._name} cannot listen at {self._listen}: {why}"
        if isinstance(error, PermissionError):
            return DeniedError(message, hint="Ports below 1024 are for root: choose another one.")
        if getattr(error, "errno", None) == EADDRINUSE:
            return ConflictError(
                message,
                hint="Another program, perhaps another Ductile, has this port. Stop it, or choose another: "
                f"`ductile config set {self._name}.listen {_next_port(self._listen)} --lock`.",
            )
        return ConflictError(
            message, hint=f"Choose another address, or end what listens there ({self._name}.listen)."
        )


def _next_port(listen: str) -> str:
    """Not the very next: by default webhooks listen one above the API."""
    host, _, port = listen.rpartition(":")
    return f"{host}:{(int(port) + 2) % 65536 or 8082}"


def _bound_socket(family: int, address: tuple[object, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made


def _bound_unsent(listening: socket.socket, seconds: float) -> None:
    """Every connection inherits it: the kernel takes megabytes for somebody who reads nothing, or has gone
    without a word, and tells us only when it is full.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


def _shown(address: tuple[object, ...]) -> str:
    host, port = str(address[0]), address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _silence_uvicorn() -> None:
    """Its lines are not ours: they could hold what a caller sent, and every request is told as a signal."""
    for name in ("uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.setLevel(logging.CRITICAL + 1)
        logger.handlers = []  # with any at all, uvicorn works out a line for each request
