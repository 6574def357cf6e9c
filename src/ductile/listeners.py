"""The daemon's HTTP listeners: open those of the active configuration, and replace them with a reload.

The modules of a listener are imported when it is opened: a daemon without the API does not load HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

from ductile.telemetry.signals import Signal, SignalBus

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

    from ductile.config.snapshot import Snapshot
    from ductile.http.authentication import Authenticator
    from ductile.operations.context import OperationContext
    from ductile.telemetry.metrics import Metrics

_API, _WEBHOOKS = "api", "webhooks"


class ListenerServer(Protocol):
    """The HTTP server of one listener."""

    async def bind(self) -> None:
        """Bind the address. Raises DuctileError if that is not possible."""
        ...

    async def start(self) -> None:
        """Accept connections, including those made since `bind`."""
        ...

    def on_switched(self) -> None:
        """Apply a new configuration to open connections: end streams that it no longer admits."""
        ...

    async def stop(self) -> None:
        """Finish the requests under way and release the address, also if it never started."""
        ...


class Listeners:
    """The open listeners; none is open outside `serving`.

    Implements `ductile.engine.deps.NetworkListeners`.
    """

    def __init__(self, signals: SignalBus) -> None:
        self._signals = signals
        #: Set while the daemon serves.
        self._context: OperationContext | None = None
        self._open: dict[str, ListenerServer] = {}
        self._closing: set[asyncio.Task[None]] = set()
        #: Created once: counts continue when the API is closed and opened again.
        self._metrics: Metrics | None = None

    @asynccontextmanager
    async def serving(self, context: OperationContext) -> AsyncIterator[None]:
        """Within the context, keep the listeners of the active configuration open."""
        self._context = context
        try:
            async with self.switched_to(context.snapshot()):
                pass
            yield
        finally:
            self._context = None
            for name in list(self._open):
                self._close(name)
            if self._closing:
                await asyncio.wait(self._closing)

    @asynccontextmanager
    async def switched_to(self, snapshot: Snapshot) -> AsyncIterator[None]:
        """On entry bind the new listeners of a snapshot; on exit start them and close the others.

        Entry raises if an address cannot be bound. An exit by an exception changes nothing: the snapshot was
        not activated.
        """
        if self._context is None:  # The daemon is stopping.
            yield
            return
        new = await self._bind_new(snapshot, self._context)
        try:
            yield
        except BaseException:
            await _stop_all(new)
            raise
        for name, server in new.items():
            self._open[name] = server
            await server.start()
        for name in self._open.keys() - _configured_addresses(snapshot).keys():
            self._close(name)
        for server in self._open.values():
            server.on_switched()

    async def check(self, snapshot: Snapshot) -> None:
        """Raise the error with which `switched_to` would fail."""
        if self._context is not None:
            await _stop_all(await self._bind_new(snapshot, self._context))

    async def _bind_new(self, snapshot: Snapshot, context: OperationContext) -> dict[str, ListenerServer]:
        """Return bound servers for the configured listeners that are not open, by name."""
        new: dict[str, ListenerServer] = {}
        try:
            for name, address in _configured_addresses(snapshot).items():
                if name not in self._open:
                    new[name] = self._create(name, address, context)
                    await new[name].bind()
        except BaseException:
            await _stop_all(new)
            raise
        return new

    def _create(self, name: str, address: str, context: OperationContext) -> ListenerServer:
        if name == _WEBHOOKS:
            from ductile.webhooks.server import WebhookServer  # noqa: PLC0415 - see the module's docstring

            return WebhookServer(context, address, self._signals)
        from ductile.api.server import ApiServer  # noqa: PLC0415 - 150 ms of HTTP and metrics
        from ductile.dashboard import application as dashboard  # noqa: PLC0415
        from ductile.mcp import http as mcp  # noqa: PLC0415
        from ductile.telemetry.metrics import Metrics  # noqa: PLC0415

        if self._metrics is None:
            self._metrics = Metrics(time.monotonic)
            self._metrics.subscribe_to(self._signals)
        signals, clock = self._signals, time.perf_counter
        mounts: dict[bytes, Callable[[Authenticator], ASGI3Application]] = {
            dashboard.SEGMENT: partial(dashboard.DashboardApplication, context, signals=signals, clock=clock),
            mcp.SEGMENT: partial(mcp.McpApplication, context, signals=signals, clock=clock),
        }
        return ApiServer(context, address, self._signals, self._metrics, mounts)

    def _close(self, name: str) -> None:
        """Close a listener in the background: it may be the one that answers the request for the reload."""
        task = asyncio.create_task(self._stop(name, self._open.pop(name)), name=f"closing {name}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _stop(self, name: str, server: ListenerServer) -> None:
        await server.stop()
        self._signals.emit(Signal.LISTENER_CLOSED, data={"listener": name})


def _configured_addresses(snapshot: Snapshot) -> dict[str, str]:
    """Return the addresses of the listeners of a configuration, by name."""
    addresses = {}
    if snapshot.webhooks_enabled:
        addresses[_WEBHOOKS] = snapshot.webhooks_listen
    if snapshot.api.enabled:
        addresses[_API] = snapshot.api.listen
    return addresses


async def _stop_all(servers: dict[str, ListenerServer]) -> None:
    for server in servers.values():
        await server.stop()
