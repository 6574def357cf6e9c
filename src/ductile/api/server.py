"""The API's life: its parts put together, listening, and an end in good order."""

from __future__ import annotations

import time

from ductile.api.access import Gatekeeper
from ductile.api.application import Application
from ductile.api.endpoint import Services
from ductile.api.endpoints import ENDPOINTS
from ductile.api.events import EventStreams
from ductile.api.routing import Router
from ductile.listening.listener import Listener
from ductile.listening.protocol import Limits
from ductile.operations.desk import Desk
from ductile.operations.feed import LedgerFeed
from ductile.telemetry.metrics import Metrics
from ductile.telemetry.news import News
from ductile.telemetry.signals import Level, Signal, Signals

#: What is still being answered when the daemon has finished gets this long.
_ANSWERING_SECONDS = 5.0


class ApiServer:
    def __init__(self, desk: Desk, signals: Signals, news: News) -> None:
        self._signals = signals
        self._streams = EventStreams(desk.store, LedgerFeed(desk.store, news))
        metrics = Metrics(time.monotonic)
        metrics.follow(signals)
        services = Services(
            gatekeeper=Gatekeeper(desk.snapshot, time.monotonic, self._tell_stranger),
            streams=self._streams,
            metrics=metrics,
        )
        application = Application(desk, services, Router(ENDPOINTS), signals, time.perf_counter)
        self._listener = Listener("api", desk.snapshot().api.listen, application, Limits(), signals)

    async def start(self) -> None:
        """Listen; raises what the operator is to be told if that is not possible."""
        for address in await self._listener.start():
            self._signals.emit(Signal.API_LISTENING, data={"address": address})

    async def stop(self) -> None:
        self._streams.close()
        await self._listener.stop(_ANSWERING_SECONDS)

    def _tell_stranger(self, peer: str, too_many: bool) -> None:
        """All are counted; a flood of guesses does not fill the log."""
        level = Level.DEBUG if too_many else None
        self._signals.emit(Signal.API_UNAUTHORIZED, data={"peer": peer}, level=level)
