"""A listening address: bound before the daemon reports that it is ready, closed in stages."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping
from contextlib import suppress
from errno import EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT
from typing import TYPE_CHECKING

from uvicorn.config import Config

from ductile.errors import ConflictError, DeniedError
from ductile.http.application import LogSampler
from ductile.http.protocol import BoundedProtocol, ListenerLimits, ListenerState, RejectionReason
from ductile.telemetry.signals import Signal, SignalBus

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

_BACKLOG = 1024
#: Connections accepted in one turn of the loop, per socket. A new connection is read three turns after it is
#: accepted, so fewer than `ListenerLimits.connections` accumulate before their first requests are answered.
_ACCEPTED_PER_TURN = 32
#: Address families and addresses that a host name resolves to and this machine does not have.
_UNAVAILABLE = frozenset((EADDRNOTAVAIL, EAFNOSUPPORT))
#: Seconds for written responses to leave when the listener closes.
_FLUSH_SECONDS = 0.5
_REJECTION_REPORT_SECONDS = 10.0


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
        self._sampler = LogSampler(self._report_rejections, seconds=_REJECTION_REPORT_SECONDS)
        self._state = ListenerState(limits, self._rejected)
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
        host, _, port = self._listen.rpartition(":")
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            self._bound = self._bind_all(dict.fromkeys((family, address) for family, *_, address in found))
        except (OSError, ValueError) as error:
            raise self._explain(error) from error

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
            bound.listen(
                _BACKLOG
            )  # asyncio uses one number for both; this is the length of the kernel's queue
        return tuple(_shown(bound.getsockname()) for server in self._servers for bound in server.sockets)

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
        self._state.emptied.clear()
        if self._state.connections:
            with suppress(TimeoutError):
                async with asyncio.timeout(_FLUSH_SECONDS):
                    await self._state.emptied.wait()
        for connection in list(self._state.connections):
            connection.transport.abort()
        self._sampler.close()

    def _rejected(self, reason: RejectionReason, peer: str | None) -> None:
        if self._sampler.in_full(reason, peer):
            self._report_rejections({reason: 1}, peer)

    def _report_rejections(self, counts: Mapping[str, int], peer: str | None) -> None:
        words = ", ".join(f"{count} {str(reason).replace('_', ' ')}" for reason, count in counts.items())
        self._signals.emit(
            Signal.LISTENER_REFUSED,
            f"The {self._name} listener refused callers: {words}.",
            data={
                "listener": self._name,
                "refused": {str(reason): count for reason, count in counts.items()},
                "peer": peer,
            },
        )

    def _bind_all(self, addresses: dict[tuple[int, tuple[object, ...]], None]) -> list[socket.socket]:
        """Bind and listen. Skips what this machine does not have, such as IPv6, unless nothing is left. With
        port 0, all addresses get the port of the first.
        """
        bound: list[socket.socket] = []
        unavailable: OSError | None = None
        try:
            for family, address in addresses:
                port = bound[0].getsockname()[1] if bound else address[1]
                try:
                    bound.append(self._bind_one(family, (address[0], port, *address[2:])))
                except OSError as error:
                    if error.errno not in _UNAVAILABLE:
                        raise
                    unavailable = error
            if unavailable is not None and not bound:
                raise unavailable
        except OSError:
            for each in bound:
                each.close()
            raise
        return bound

    def _bind_one(self, family: int, address: tuple[object, ...]) -> socket.socket:
        # The explicit protocol lets asyncio recognise TCP and set TCP_NODELAY on accepted connections.
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; connections inherit it
                milliseconds = int(self._state.limits.unread_seconds * 1000)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
            made.bind(address)
            made.setblocking(False)
            made.listen(_BACKLOG)
        except BaseException:
            made.close()
            raise
        return made

    def _explain(self, error: Exception) -> ConflictError | DeniedError:
        why = getattr(error, "strerror", None) or str(error)
        message = f"the {self._name} cannot listen at {self._listen}: {why}"
        if isinstance(error, PermissionError):
            return DeniedError(message, hint="Ports below 1024 are for root: choose another one.")
        if getattr(error, "errno", None) == EADDRINUSE:
            # Not the very next port: by default webhooks listen one above the API.
            host, _, port = self._listen.rpartition(":")
            other = f"{host}:{(int(port) + 2) % 65536 or 8082}"
            return ConflictError(
                message,
                hint="Another program, perhaps another Ductile, has this port. Stop it, or choose another: "
                f"`ductile config set {self._name}.listen {other} --lock`.",
            )
        return ConflictError(
            message, hint=f"Choose another address, or end what listens there ({self._name}.listen)."
        )


def _shown(address: tuple[object, ...]) -> str:
    host, port = str(address[0]), address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
