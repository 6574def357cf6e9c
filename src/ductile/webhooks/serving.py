"""The life of the listener for webhooks: open while the daemon runs, if there are any endpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ductile.telemetry.signals import Signal, Signals

if TYPE_CHECKING:
    from ductile.operations.desk import Desk

#: What is being answered when the daemon stops may take so long to finish.
CLOSING_SECONDS = 5.0
CONNECTIONS = 256


@asynccontextmanager
async def webhooks_served(desk: Desk, signals: Signals) -> AsyncIterator[None]:
    """Listen meanwhile. Without endpoints no port is opened, and nothing of this is loaded."""
    snapshot = desk.snapshot()
    if not snapshot.webhooks:
        yield
        return
    from ductile.listening.listener import Listener  # noqa: PLC0415 - only a daemon with webhooks pays for it
    from ductile.listening.protocol import Limits  # noqa: PLC0415 - as above
    from ductile.webhooks.application import HEALTH, WebhookApplication  # noqa: PLC0415 - as above

    application = WebhookApplication(desk, signals)
    limits = Limits(connections=CONNECTIONS, probes=frozenset((HEALTH,)))
    listener = Listener("webhooks", snapshot.webhooks_listen, application, limits, signals)
    for address in await listener.start():
        signals.emit(Signal.WEBHOOK_LISTENING, data={"address": address})
    try:
        yield
    finally:
        await listener.stop(CLOSING_SECONDS)
        application.close()
