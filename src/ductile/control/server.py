"""The server of the control socket: checks the client's user, calls the operation, sends the response."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path

import msgspec

from ductile.control.client import peer_credentials
from ductile.core.json import JsonObject
from ductile.errors import ConfigError, DeniedError, DuctileError, UsageError
from ductile.telemetry.signals import Signal, SignalBus, describe_error

Handler = Callable[[JsonObject], Awaitable[JsonObject]]

_MAX_REQUEST_BYTES = 16 * 1024 * 1024
#: A client that sends no complete request within this time is disconnected.
REQUEST_SECONDS = 30.0
_CLOSE_SECONDS = 5.0


def config_path_operation(config_file: Path) -> Handler:
    """Return the operation that returns the path of the daemon's configuration."""
    document: JsonObject = {"config": os.path.realpath(config_file)}

    async def config_path(_fields: JsonObject) -> JsonObject:
        return document

    return config_path


def peer_uid(connection: socket.socket) -> int:
    """Return the user of the client's process; our own where the system does not provide it."""
    credentials = peer_credentials(connection)
    return os.getuid() if credentials is None else credentials[1]


class _DisconnectedError(Exception):
    """The client has disconnected while its operation was waiting."""


class ControlServer:
    """Listens on the socket. One task for each connection reads a request and writes its response."""

    def __init__(
        self,
        path: Path,
        operations: Mapping[str, Handler],
        signals: SignalBus,
        *,
        waiting: Collection[str] = (),
        peer_uid: Callable[[socket.socket], int] = peer_uid,
    ) -> None:
        """`waiting` names the operations that are cancelled when their client disconnects."""
        self._path = path
        self._operations = operations
        self._waiting = waiting
        self._signals = signals
        self._peer_uid = peer_uid
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen. The caller holds the store's lock, so an existing socket file is that of a dead daemon."""
        self._path.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(
                self._serve_connection, str(self._path), limit=_MAX_REQUEST_BYTES
            )
        finally:
            os.umask(mask)

    async def stop(self) -> None:
        """Stop accepting, wait a few seconds for open requests, and remove the socket file."""
        if self._server is None:
            return
        self._server.close()
        if self._connections:
            await asyncio.wait(self._connections, timeout=_CLOSE_SECONDS)
        # If the disk is lost, this error must not replace the one that ended the daemon.
        with contextlib.suppress(OSError):
            self._path.unlink()

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - asyncio runs this callback as a task
        self._connections.add(task)
        try:
            writer.write(await self._respond(reader, writer) + b"\n")
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError, TimeoutError, _DisconnectedError):
            pass  # The client has disconnected.
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """Return the response to a request, which may be an error. Raises if the client has disconnected."""
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                line = await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            return _encode_error(UsageError("the request is too large"))
        try:
            response = await self._call(line, reader, writer.get_extra_info("socket"))
            return msgspec.json.encode({"answer": response})
        except _DisconnectedError:
            raise
        except DuctileError as error:
            return _encode_error(error)
        except Exception as error:  # noqa: BLE001 - a bug must not end the daemon; its text may hold secrets
            self._signals.emit(Signal.CONTROL_FAULT, data=describe_error(error))
            return _encode_error(DuctileError(f"an unexpected error in the daemon ({type(error).__name__})"))

    async def _call(self, line: bytes, reader: asyncio.StreamReader, connection: socket.socket) -> JsonObject:
        """Call the operation that a request names. If it waits, cancel it when its client disconnects.

        Raises `DeniedError` for users other than ours and root. The socket's mode excludes them too; this is
        checked after reading, because closing with unread data would reset the connection and lose the error.
        """
        if self._peer_uid(connection) not in (0, os.getuid()):
            raise DeniedError("this daemon belongs to another user")
        try:
            request = msgspec.json.decode(line)
            operation, fields = str(request["operation"]), dict(request["given"])
        except (msgspec.DecodeError, KeyError, TypeError, ValueError, RecursionError):
            raise UsageError("the request cannot be read") from None
        if operation not in self._operations:
            raise UsageError(f"the daemon has no operation {operation}", hint="Is it an older version?")
        work = self._operations[operation](fields)
        if operation not in self._waiting:
            return await work
        call = asyncio.ensure_future(work)
        # Clients send nothing after their request, so a completed read is a disconnect.
        disconnect = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({call, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise _DisconnectedError
            return await call
        finally:
            disconnect.cancel()
            call.cancel()


def _encode_error(error: DuctileError) -> bytes:
    problems = {"problems": error.problems} if isinstance(error, ConfigError) else {}
    document = {
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "details": {**error.details, **problems},
    }
    return msgspec.json.encode({"error": document})
