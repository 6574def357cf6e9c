"""The life of the listener for webhooks: bound, answering, closed in good order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.listening.listener import Listener
from ductile.listening.protocol import Limits
from ductile.telemetry.signals import Signal, Signals
from ductile.webhooks.application import HEALTH, WebhookApplication

if TYPE_CHECKING:
    from ductile.operations.desk import Desk

#: What is being answered when the listener closes may take so long to finish.
CLOSING_SECONDS = 5.0
CONNECTIONS = 256


class WebhookServer:
    """Implements `ductile.serving.Server`."""

    def __init__(self, desk: Desk, listen: str, signals: Signals) -> None:
        self._signals = signals
        self._application = WebhookApplication(desk, signals)
        limits = Limits(connections=CONNECTIONS, probes=frozenset((HEALTH,)))
        self._listener = Listener("webhooks", listen, self._application, limits, signals)

    async def bind(self) -> None:
        await self._listener.bind()

    async def start(self) -> None:
        for address in await self._listener.start():
            self._signals.emit(Signal.WEBHOOK_LISTENING, data={"address": address})

    async def stop(self) -> None:
        await self._listener.stop(CLOSING_SECONDS)
        self._application.close()
