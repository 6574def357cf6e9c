"""Asking the daemon. Blocking and without asyncio: a command has one question and should start quickly."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from ductile import errors
from ductile.core.json_values import JsonObject
from ductile.errors import DaemonNotRunningError, DuctileError

_CONNECT_SECONDS = 5.0


def ask(path: Path, operation: str, given: JsonObject, *, timeout: float | None = None) -> JsonObject:
    """The daemon's answer; `DaemonNotRunningError` if nobody listens, its own error if it refuses."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_CONNECT_SECONDS)
        try:
            connection.connect(str(path))
        except OSError as error:
            raise DaemonNotRunningError(
                "no daemon is running here", hint="Start it with `ductile system start`."
            ) from error
        connection.settimeout(timeout)
        line = _talk(connection, json.dumps({"operation": operation, "given": given}).encode())
    if not line.endswith(b"\n"):
        raise DaemonNotRunningError(
            "the daemon stopped before it answered",
            hint="Look before you ask again: what you asked for may have been done.",
        )
    said: dict[str, Any] = json.loads(line)
    if "error" in said:
        raise _as_error(said["error"])
    answer: JsonObject = said["answer"]
    return answer


def _talk(connection: socket.socket, request: bytes) -> bytes:
    """Send a line and read one; without its end if the connection broke."""
    parts: list[bytes] = []
    try:
        connection.sendall(request + b"\n")
        while not parts or (parts[-1] and not parts[-1].endswith(b"\n")):
            parts.append(connection.recv(65536))
    except (BrokenPipeError, ConnectionResetError):
        return b""
    return b"".join(parts)


_BY_CODE: dict[str, type[DuctileError]] = {
    error.code: error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, DuctileError)
}


def _as_error(said: dict[str, Any]) -> DuctileError:
    """The error the daemon raised, as the same class on this side, so that the exit status is the same."""
    kind = _BY_CODE.get(said["code"], DuctileError)
    return kind(message=said["message"], hint=said.get("hint"), details=said.get("details") or {})
