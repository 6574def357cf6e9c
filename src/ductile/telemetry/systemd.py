"""Notifies systemd of the start, reloads, the stop and failures, and its watchdog.

A subscriber of signals. Does nothing without `NOTIFY_SOCKET` in the environment.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping

from ductile.telemetry.signals import Signal, SignalEvent

_STATES = {Signal.SERVICE_READY: "READY=1", Signal.SERVICE_STOPPING: "STOPPING=1"}
#: The signals that a notifier subscribes to.
SYSTEMD_SIGNALS = (Signal.CONFIG_LOADED, Signal.SERVICE_FAILED, Signal.STORE_FAILED, *_STATES)


class SystemdNotifier:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET")
        period, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
        #: The watchdog's period in seconds; None if it is not set for this process.
        self._watchdog: float | None = None
        if period.isdigit() and pid in ("", str(os.getpid())):
            self._watchdog = int(period) / 1_000_000

    def __call__(self, event: SignalEvent) -> None:
        match event.signal:
            case Signal.CONFIG_LOADED if event.data.get("origin") == "reload":
                # The signal is emitted when the reload is over; systemd expects a beginning as well.
                now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
                self._notify(f"RELOADING=1\nMONOTONIC_USEC={now}")
                self._notify("READY=1")
            case Signal.SERVICE_FAILED | Signal.STORE_FAILED:
                self._notify(f"STATUS={event.message.splitlines()[0][:200]}")
            case signal if signal in _STATES:
                self._notify(_STATES[signal])

    async def keep_alive(self) -> None:
        """Notify the watchdog twice in each period. An event loop that hangs does not notify it."""
        if self._watchdog is None or self._address is None:
            return
        while True:
            self._notify("WATCHDOG=1")
            await asyncio.sleep(self._watchdog / 2)

    def _notify(self, state: str) -> None:
        if self._address is None:
            return
        # A leading @ means the zero byte of the abstract namespace.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
                notify.sendto(state.encode(), address)
        except OSError:
            return  # systemd does not listen; the daemon runs without it.
