"""The daemon's listeners: which there are follows from the configuration in force, so a reload switches them.

What a listener needs is loaded when one is opened: a daemon without the API does not pay for HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from ductile.telemetry.signals import Signal, SignalBus

if TYPE_CHECKING:
    from ductile.config.snapshot import Snapshot
    from ductile.operations.context import OperationContext
    from ductile.telemetry.metrics import Metrics

_API, _WEBHOOKS = "api", "webhooks"


class ListenerServer(Protocol):
    """One listener and what answers there."""

    async def bind(self) -> None:
        """Take the address; raises what the operator is to be told if that is not possible."""
        ...

    async def start(self) -> None:
        """Answer those who have connected since, and all who come."""
        ...

    async def stop(self) -> None:
        """Give the address back, after what is being answered; also if it never started."""
        ...


class Listeners:
    """Implements `ductile.engine.reload.plan.Listening`."""

    def __init__(self, signals: SignalBus) -> None:
        self._signals = signals
        self._desk: OperationContext | None = None
        self._running: dict[str, ListenerServer] = {}
        self._closing: set[asyncio.Task[None]] = set()
        #: One for the life of the daemon: figures go on where the API is closed and opened again.
        self._metrics: Metrics | None = None

    @asynccontextmanager
    async def serving(self, context: OperationContext) -> AsyncIterator[None]:
        """Listen meanwhile, as the configuration in force says."""
        self._desk = context
        try:
            async with self.switched_to(context.snapshot()):
                pass
            yield
        finally:
            self._desk = None
            for name in list(self._running):
                self._close(name)
            if self._closing:
                await asyncio.wait(self._closing)

    @asynccontextmanager
    async def switched_to(self, snapshot: Snapshot) -> AsyncIterator[None]:
        """Meanwhile the snapshot is put in force. The addresses of new listeners are taken before that, which
        raises if one cannot be had; they answer after it, and those that are not wanted any more are closed.
        If it is not put in force, nothing has changed.
        """
        if self._desk is None:  # the daemon stops
            yield
            return
        missing = await self._bound(snapshot, self._desk)
        try:
            yield
        except BaseException:
            await _stop(missing)
            raise
        for name, server in missing.items():
            self._running[name] = server
            await server.start()
        for name in self._running.keys() - _wanted(snapshot).keys():
            self._close(name)

    async def check(self, snapshot: Snapshot) -> None:
        """Raise what `switched_to` would raise."""
        if self._desk is not None:
            await _stop(await self._bound(snapshot, self._desk))

    async def _bound(self, snapshot: Snapshot, context: OperationContext) -> dict[str, ListenerServer]:
        missing: dict[str, ListenerServer] = {}
        try:
            for name, listen in _wanted(snapshot).items():
                if name not in self._running:
                    missing[name] = self._server(name, listen, context)
                    await missing[name].bind()
        except BaseException:
            await _stop(missing)
            raise
        return missing

    def _server(self, name: str, listen: str, context: OperationContext) -> ListenerServer:
        if name == _WEBHOOKS:
            from ductile.webhooks.server import WebhookServer  # noqa: PLC0415 - see the module's docstring

            return WebhookServer(context, listen, self._signals)
        from ductile.api.server import ApiServer  # noqa: PLC0415 - 150 ms of HTTP and metrics
        from ductile.telemetry.metrics import Metrics  # noqa: PLC0415

        if self._metrics is None:
            self._metrics = Metrics(time.monotonic)
            self._metrics.follow(self._signals)
        return ApiServer(context, listen, self._signals, self._metrics)

    def _close(self, name: str) -> None:
        """In the background: who asked for the reload may be answered by this very listener."""
        task = asyncio.create_task(self._stop(name, self._running.pop(name)), name=f"closing {name}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _stop(self, name: str, server: ListenerServer) -> None:
        await server.stop()
        self._signals.emit(Signal.LISTENER_CLOSED, data={"listener": name})


def _wanted(snapshot: Snapshot) -> dict[str, str]:
    """The listeners of a configuration, with their addresses."""
    wanted = {}
    if snapshot.webhooks_enabled:
        wanted[_WEBHOOKS] = snapshot.webhooks_listen
    if snapshot.api.enabled:
        wanted[_API] = snapshot.api.listen
    return wanted


async def _stop(servers: dict[str, ListenerServer]) -> None:
    for server in servers.values():
        await server.stop()
