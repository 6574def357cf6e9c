"""Waiting for something to happen: a subscriber for readers who have seen everything there is so far."""

from __future__ import annotations

import asyncio

from ductile.telemetry.signals import SignalEvent


class ChangeNotifier:
    """Subscribe it once. What happens wakes everybody who waits; what it was is read from the store."""

    def __init__(self) -> None:
        self._next = asyncio.Event()
        self._awaited = False

    def __call__(self, _happening: SignalEvent) -> None:
        if self._awaited:
            self._awaited = False
            self._next.set()
            self._next = asyncio.Event()

    def coming(self) -> asyncio.Event:
        """Set by the next happening. Get it before looking at the store, or miss what comes in between."""
        self._awaited = True
        return self._next
