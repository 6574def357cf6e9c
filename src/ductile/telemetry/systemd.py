"""Telling systemd how the service does: ready, reloading, stopping, and that it is still alive.

A subscriber of signals. Without `NOTIFY_SOCKET` in the environment it has nobody to tell, and says nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping

from ductile.telemetry.signals import Signal, SignalEvent

_STATES = {
    Signal.SERVICE_READY: "READY=1",
    Signal.SERVICE_STOPPING: "STOPPING=1",
}


#: What it wants to hear of.
SYSTEMD_SIGNALS = (Signal.CONFIG_LOADED, Signal.SERVICE_FAILED, Signal.STORE_FAILED, *_STATES)


class SystemdNotifier:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET")
        self._watchdog = _watchdog_seconds(environ)

    def __call__(self, happening: SignalEvent) -> None:
        match happening.signal:
            case Signal.CONFIG_LOADED if happening.data.get("origin") == "reload":
                # The reload is over when it is told of; systemd wants to have seen it begin.
                now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
                self._tell(f"RELOADING=1\nMONOTONIC_USEC={now}")
                self._tell("READY=1")
            case Signal.SERVICE_FAILED | Signal.STORE_FAILED:
                self._tell(f"STATUS={happening.message.splitlines()[0][:200]}")
            case known if known in _STATES:
                self._tell(_STATES[known])

    async def keep_alive(self) -> None:
        """Tell, twice in each period, that the event loop turns. An event loop that hangs does not."""
        if self._watchdog is None or self._address is None:
            return
        while True:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self._watchdog / 2)

    def _tell(self, state: str) -> None:
        if self._address is None:
            return
        # An address that begins with @ is in the abstract namespace, where the first byte is zero.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
                notify.sendto(state.encode(), address)
        except OSError:
            return  # nobody listens: whether we run does not depend on being watched


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    """The period in which we have to be heard of; None if it is not for this process."""
    period, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not period.isdigit() or (pid and pid != str(os.getpid())):
        return None
    return int(period) / 1_000_000
