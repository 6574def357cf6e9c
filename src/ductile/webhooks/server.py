"""The life of the listener for webhooks: bound, answering, closed in good order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.http.listener import Listener
from ductile.http.protocol import ListenerLimits
from ductile.telemetry.signals import Signal, SignalBus
from ductile.webhooks.application import HEALTH, WebhookApplication

if TYPE_CHECKING:
    from ductile.operations.context import OperationContext

#: What is being answered when the listener closes may take so long to finish.
CLOSING_SECONDS = 5.0
CONNECTIONS = 256


class WebhookServer:
    """Implements `ductile.listeners.Server`."""

    def __init__(self, context: OperationContext, listen: str, signals: SignalBus) -> None:
        self._signals = signals
        self._application = WebhookApplication(context, signals)
        limits = ListenerLimits(connections=CONNECTIONS, probes=frozenset((HEALTH,)))
        self._listener = Listener("webhooks", listen, self._application, limits, signals)

    async def bind(self) -> None:
        await self._listener.bind()

    async def start(self) -> None:
        for address in await self._listener.start():
            self._signals.emit(Signal.WEBHOOK_LISTENING, data={"address": address})

    async def stop(self) -> None:
        await self._listener.stop(CLOSING_SECONDS)
        self._application.close()
