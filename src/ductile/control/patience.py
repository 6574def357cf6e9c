"""Waiting for a daemon's answer, and noticing that its process is stopped: then none comes, however long."""

from __future__ import annotations

import socket
import struct
import time
from pathlib import Path

from ductile.errors import StoreBusyError

#: How long nothing has to happen before the process is looked at, and how often it is seen stopped before
#: it is given up: a debugger stops a process for moments.
_LOOK_SECONDS = 1.0
_LOOKS = 2
_STOPPED = frozenset("Tt")


class FrozenDaemonError(StoreBusyError):
    """The daemon's process is stopped (SIGSTOP), so it answers nobody."""


class Patience:
    """For one connection. `timeout` is how long nothing may happen on it; None for as long as it takes."""

    def __init__(self, connection: socket.socket, timeout: float | None) -> None:
        self._connection = connection
        self._timeout = timeout
        self._seen_stopped = 0
        self._begin()

    def _begin(self) -> None:
        self._deadline = None if self._timeout is None else time.monotonic() + self._timeout

    def send(self, data: bytes) -> None:
        """Send all of it. Raises as `receive` does."""
        while data:
            self._prepare()
            try:
                sent = self._connection.send(data)
            except TimeoutError:
                self._look()
            else:
                data = data[sent:]
                self._begin()

    def receive(self) -> bytes:
        """What comes next; nothing at the end. `TimeoutError` if nothing does in time, `FrozenDaemonError` as
        soon as it is known that nothing will.
        """
        while True:
            self._prepare()
            try:
                part = self._connection.recv(65536)
            except TimeoutError:
                self._look()
            else:
                self._begin()
                return part

    def _prepare(self) -> None:
        left = _LOOK_SECONDS if self._deadline is None else self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(min(_LOOK_SECONDS, left))

    def _look(self) -> None:
        process = _process_at(self._connection)
        self._seen_stopped = self._seen_stopped + 1 if is_stopped(process) else 0
        if self._seen_stopped >= _LOOKS:
            raise FrozenDaemonError(
                f"the daemon (process {process}) is stopped and does not answer",
                hint=f"`kill -CONT {process}` lets it go on; what was asked for may be done then.",
                details={"pid": process},
            )


def is_stopped(process: int) -> bool:
    """Whether a process is stopped, as far as the system tells: Linux does, in `/proc`."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    # After the name, which is in parentheses and may hold anything.
    return status.rpartition(")")[2].split()[0] in _STOPPED


def _process_at(connection: socket.socket) -> int:
    """The process that listens at the other end; 0 if the system does not say."""
    if not hasattr(socket, "SO_PEERCRED"):
        return 0
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process: int = struct.unpack("3i", raw)[0]
    return process
