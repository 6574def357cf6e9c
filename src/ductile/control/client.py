"""Asking the daemon. Blocking and without asyncio: a command has one question and should start quickly."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from ductile import errors
from ductile.control.patience import Patience
from ductile.core.json_values import JsonObject
from ductile.errors import ConfigError, DaemonNotRunningError, DuctileError, Problem, StoreBusyError

_CONNECT_SECONDS = 5.0
START_IT = "Start it with `ductile system start`."


def ask(path: Path, operation: str, given: JsonObject, *, timeout: float | None = None) -> JsonObject:
    """The daemon's answer; `DaemonNotRunningError` if nobody listens, its own error if it refuses."""
    connection = reach(path)
    if connection is None:
        raise not_running()
    return converse(connection, operation, given, timeout=timeout)


def reach(path: Path) -> socket.socket | None:
    """A connection to the daemon; None if nobody listens there."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_CONNECT_SECONDS)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        return None
    return connection


def converse(
    connection: socket.socket, operation: str, given: JsonObject, *, timeout: float | None
) -> JsonObject:
    """One question and its answer. `StoreBusyError` if the daemon takes longer than `timeout` seconds, and
    within a few seconds if its process is stopped.
    """
    with connection:
        patience = Patience(connection, timeout)
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


def not_running(advice: str = START_IT) -> DaemonNotRunningError:
    return DaemonNotRunningError("no daemon is running here", hint=advice)


def _read_line(patience: Patience) -> bytes:
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
