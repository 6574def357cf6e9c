"""Asking the daemon. Blocking and without asyncio: a command has one question and should start quickly."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ductile import errors
from ductile.core.json import JsonObject
from ductile.errors import ConfigError, DaemonNotRunningError, DuctileError, Problem, StoreBusyError

_CONNECT_SECONDS = 5.0
START_HINT = "Start it with `ductile system start`."


def call_daemon(path: Path, operation: str, given: JsonObject, *, timeout: float | None = None) -> JsonObject:
    """The daemon's answer; `DaemonNotRunningError` if nobody listens, its own error if it refuses."""
    connection = connect(path)
    if connection is None:
        raise not_running_error()
    return exchange(connection, operation, given, timeout=timeout)


def connect(path: Path) -> socket.socket | None:
    """A connection to the daemon; None if nobody listens there."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_CONNECT_SECONDS)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        return None
    return connection


def exchange(
    connection: socket.socket, operation: str, given: JsonObject, *, timeout: float | None
) -> JsonObject:
    """One question and its answer. `StoreBusyError` if the daemon takes longer than `timeout` seconds, and
    within a few seconds if its process is stopped.
    """
    with connection:
        patience = DaemonConnection(connection, timeout)
        try:
            patience.send(json.dumps({"operation": operation, "given": given}).encode() + b"\n")
            line = _read_line(patience)
        except TimeoutError:
            raise StoreBusyError(
                f"the daemon did not answer within {timeout:.0f} seconds",
                hint="Try again; its log may tell what keeps it.",
            ) from None
        except OSError:
            line = b""
    if not line.endswith(b"\n"):
        raise DaemonNotRunningError(
            "the daemon stopped before it answered", hint="Ask again when it is back."
        )
    said: dict[str, Any] = json.loads(line)
    if "error" in said:
        raise _as_error(said["error"])
    answer: JsonObject = said["answer"]
    return answer


def not_running_error(advice: str = START_HINT) -> DaemonNotRunningError:
    return DaemonNotRunningError("no daemon is running here", hint=advice)


def _read_line(patience: DaemonConnection) -> bytes:
    parts = []
    while True:
        part = patience.receive()
        parts.append(part)
        if not part or part.endswith(b"\n"):
            return b"".join(parts)


_BY_CODE: dict[str, type[DuctileError]] = {
    error.code: error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, DuctileError)
}


def _as_error(said: dict[str, Any]) -> DuctileError:
    """The error the daemon raised, as the same class on this side, so that the exit status is the same."""
    kind = _BY_CODE.get(said["code"], DuctileError)
    message, hint, details = said["message"], said.get("hint"), dict(said.get("details") or {})
    if issubclass(kind, ConfigError):
        problems = tuple(Problem(**problem) for problem in details.pop("problems", ()))
        return kind(message=message, hint=hint, details=details, problems=problems)
    return kind(message=message, hint=hint, details=details)


#: How long nothing has to happen before the process is looked at, and how often it is seen stopped before
#: it is given up: a debugger stops a process for moments.
_LOOK_SECONDS = 1.0
_LOOKS = 2
_STOPPED = frozenset("Tt")


class FrozenDaemonError(StoreBusyError):
    """The daemon's process is stopped (SIGSTOP), so it answers nobody."""


class DaemonConnection:
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
        process = _peer_pid(self._connection)
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


def _peer_pid(connection: socket.socket) -> int:
    """The process that listens at the other end; 0 if the system does not say."""
    if not hasattr(socket, "SO_PEERCRED"):
        return 0
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process: int = struct.unpack("3i", raw)[0]
    return process


CONFIG_PATH_OPERATION = "daemon.config"
_SECONDS = 5.0


def config_path_operation(config_file: Path) -> Callable[[JsonObject], Awaitable[JsonObject]]:
    """The operation by which a daemon names its configuration."""
    named: JsonObject = {"config": os.path.realpath(config_file)}

    async def whose(_given: JsonObject) -> JsonObject:
        return named

    return whose


def is_daemon_of(socket: Path, config_file: Path) -> bool:
    """Whether the daemon that listens there was started with this file; one that cannot tell was not.
    Raises `FrozenDaemonError` of one that is stopped, which may have been.
    """
    try:
        said = call_daemon(socket, CONFIG_PATH_OPERATION, {}, timeout=_SECONDS)
    except FrozenDaemonError:
        raise
    except DuctileError:
        return False
    return said.get("config") == os.path.realpath(config_file)
