"""The client side of the control socket. Blocking, without asyncio and msgspec: a command must start fast."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from pathlib import Path
from typing import Any

from ductile import errors
from ductile.core.json import JsonObject
from ductile.errors import ConfigError, DaemonNotRunningError, DuctileError, Problem, StoreBusyError

#: The operation that returns the path of the configuration that a daemon was started with.
CONFIG_PATH_OPERATION = "daemon.config"
START_HINT = "Start it with `ductile system start`."
_CONNECT_SECONDS = 5.0
_CONFIG_PATH_SECONDS = 5.0
#: After this long without traffic the state of the daemon's process is read. It counts as suspended
#: if it is at two checks in a row, because a debugger suspends a process for moments.
_STATE_CHECK_SECONDS = 1.0
_STATE_CHECKS = 2
_SUSPENDED_STATES = frozenset("Tt")


class SuspendedDaemonError(StoreBusyError):
    """The daemon's process is suspended (SIGSTOP) and cannot answer."""


def call_daemon(
    path: Path, operation: str, fields: JsonObject, *, timeout: float | None = None
) -> JsonObject:
    """Call an operation and return its result.

    Raises `DaemonNotRunningError` if no daemon listens at `path`, else the errors of `call_on_connection`.
    """
    connection = connect(path)
    if connection is None:
        raise not_running_error()
    return call_on_connection(connection, operation, fields, timeout=timeout)


def connect(path: Path) -> socket.socket | None:
    """Return a connection to the daemon, or None if no daemon listens at `path`."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_CONNECT_SECONDS)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        return None
    return connection


def call_on_connection(
    connection: socket.socket, operation: str, fields: JsonObject, *, timeout: float | None
) -> JsonObject:
    """Send one request, return its result, and close the connection.

    Raises the error that the operation raised in the daemon; `StoreBusyError` if nothing moves for `timeout`
    seconds; `SuspendedDaemonError` within a few seconds if the daemon's process is suspended.
    """
    with connection:
        daemon = DaemonConnection(connection, timeout)
        try:
            daemon.send(json.dumps({"operation": operation, "given": fields}).encode() + b"\n")
            line = daemon.receive_line()
        except TimeoutError:
            raise StoreBusyError(
                f"the daemon did not answer within {timeout:.0f} seconds",
                hint="Try again; its log may say why.",
            ) from None
        except OSError:
            line = b""
    if not line.endswith(b"\n"):
        raise DaemonNotRunningError(
            "the daemon stopped before it answered", hint="Ask again when it is back."
        )
    response: dict[str, Any] = json.loads(line)
    if "error" in response:
        raise decode_error(response["error"])
    result: JsonObject = response["answer"]
    return result


def not_running_error(hint: str = START_HINT) -> DaemonNotRunningError:
    return DaemonNotRunningError("no daemon is running here", hint=hint)


def is_daemon_of(socket_file: Path, config_file: Path) -> bool:
    """Return whether the daemon that listens at the socket was started with this configuration file.

    A copied configuration directory has a copy of the link to the original's daemon, and must not command
    it. Raises `SuspendedDaemonError` for a suspended daemon; any other failure to answer counts as False.
    """
    try:
        result = call_daemon(socket_file, CONFIG_PATH_OPERATION, {}, timeout=_CONFIG_PATH_SECONDS)
    except SuspendedDaemonError:
        raise
    except DuctileError:
        return False
    return result.get("config") == os.path.realpath(config_file)


class DaemonConnection:
    """A connection that detects a suspended daemon.

    `timeout` limits the time without traffic; None: no limit.
    `send` and `receive_line` raise `TimeoutError` after `timeout`, and `SuspendedDaemonError` as soon as the
    daemon's process is known to be suspended.
    """

    def __init__(self, connection: socket.socket, timeout: float | None) -> None:
        self._connection = connection
        self._timeout = timeout
        #: How many checks in a row have found the daemon's process suspended.
        self._suspended_checks = 0
        self._restart_timeout()

    def send(self, data: bytes) -> None:
        while data:
            self._set_socket_timeout()
            try:
                sent = self._connection.send(data)
            except TimeoutError:
                self._check_process()
            else:
                data = data[sent:]
                self._restart_timeout()

    def receive_line(self) -> bytes:
        """Return everything up to a newline, or up to the end of the stream."""
        parts = [b""]
        while not parts[-1].endswith(b"\n"):
            self._set_socket_timeout()
            try:
                part = self._connection.recv(65536)
            except TimeoutError:
                self._check_process()
                continue
            if not part:
                break
            parts.append(part)
            self._restart_timeout()
        return b"".join(parts)

    def _restart_timeout(self) -> None:
        self._deadline = None if self._timeout is None else time.monotonic() + self._timeout

    def _set_socket_timeout(self) -> None:
        remaining = _STATE_CHECK_SECONDS if self._deadline is None else self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        self._connection.settimeout(min(_STATE_CHECK_SECONDS, remaining))

    def _check_process(self) -> None:
        """Raise `SuspendedDaemonError` if a second check in a row finds the daemon's process suspended."""
        pid, _ = peer_credentials(self._connection) or (0, 0)
        self._suspended_checks = self._suspended_checks + 1 if is_suspended(pid) else 0
        if self._suspended_checks >= _STATE_CHECKS:
            raise SuspendedDaemonError(
                f"the daemon (process {pid}) is suspended and does not answer",
                hint=f"`kill -CONT {pid}` resumes it; the request may be carried out then.",
                details={"pid": pid},
            )


def is_suspended(pid: int) -> bool:
    """Return whether a process is suspended, as /proc says; False where there is no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    # The state follows the program's name, which is in parentheses and may contain anything.
    return stat.rpartition(")")[2].split()[0] in _SUSPENDED_STATES


def peer_credentials(connection: socket.socket) -> tuple[int, int] | None:
    """Return pid and user of the process at the other end, or None where the kernel does not provide them."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _gid = struct.unpack("3i", raw)
    return pid, uid


_ERRORS_BY_CODE: dict[str, type[DuctileError]] = {
    error.code: error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, DuctileError)
}


def decode_error(encoded: dict[str, Any]) -> DuctileError:
    """Return the daemon's error as an instance of the same class, so that the exit status is the same."""
    error_class = _ERRORS_BY_CODE.get(encoded["code"], DuctileError)
    message, hint, details = encoded["message"], encoded.get("hint"), dict(encoded.get("details") or {})
    if issubclass(error_class, ConfigError):
        problems = tuple(Problem(**problem) for problem in details.pop("problems", ()))
        return error_class(message=message, hint=hint, details=details, problems=problems)
    return error_class(message=message, hint=hint, details=details)
