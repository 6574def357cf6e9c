"""Answering on the socket: check who asks, find the operation, give its answer or its error."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ductile.core.json import JsonObject
from ductile.errors import ConfigError, DeniedError, DuctileError, UsageError
from ductile.telemetry.error_report import describe_error
from ductile.telemetry.signals import Signal, SignalBus

Operation = Callable[[JsonObject], Awaitable[JsonObject]]

_LONGEST_REQUEST = 16 * 1024 * 1024
#: A client that connects and does not ask by then is let go.
ASKING_SECONDS = 30.0
#: Operations that wait for something to happen, and change nothing before it: their caller may go away.
WAITING = frozenset({"job.wait", "log.follow", "ledger.follow", "plugin.drain"})


class ControlServer:
    def __init__(self, path: Path, operations: Mapping[str, Operation], signals: SignalBus) -> None:
        self._path = path
        self._operations = operations
        self._signals = signals
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen. The caller holds the store's lock, so a socket that is in the way is a dead daemon's."""
        self._path.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(
                self._accept, str(self._path), limit=_LONGEST_REQUEST
            )
        finally:
            os.umask(mask)

    async def stop(self) -> None:
        """Answer who is connected, then close."""
        if self._server is None:
            return
        self._server.close()
        if self._open:
            await asyncio.wait(self._open, timeout=5)
        # The disk may be lost: that must not hide what ended the daemon.
        with contextlib.suppress(OSError):
            self._path.unlink()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a connection is served by a task
        self._open.add(task)
        try:
            writer.write(await self._answer(reader, writer) + b"\n")
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass  # the other side has gone; what it asked for is done or was refused
        finally:
            self._open.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        try:
            async with asyncio.timeout(ASKING_SECONDS):
                line = await reader.readuntil(b"\n")
            _check_peer_user(writer)  # not before: closed on what was not read, they would not hear it
            operation, given = _decode(line)
            return msgspec.json.encode({"answer": await self._call(operation, given, reader)})
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            raise
        except asyncio.LimitOverrunError:
            return _error(UsageError("the request is too large"))
        except DuctileError as error:
            return _error(error)
        except Exception as fault:  # noqa: BLE001 - whoever asked is told; what it held is for nobody
            self._signals.emit(Signal.CONTROL_FAULT, data=describe_error(fault))
            return _error(DuctileError(f"an unexpected fault in the daemon ({type(fault).__name__})"))

    async def _call(self, operation: str, given: JsonObject, reader: asyncio.StreamReader) -> JsonObject:
        """Do what is asked. Somebody who waits and goes away is not waited for; what writes is finished."""
        answer = self._handler(operation)(given)
        drains = operation == "system.reload" and given.get("drain") is True
        if operation not in WAITING and not drains:
            return await answer
        work = asyncio.ensure_future(answer)
        gone = asyncio.ensure_future(reader.read(1))  # our clients say nothing more: this is their going
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ConnectionResetError
            return await work
        finally:
            gone.cancel()
            work.cancel()

    def _handler(self, operation: str) -> Operation:
        if operation not in self._operations:
            raise UsageError(f"the daemon has no operation {operation}", hint="Is it an older version?")
        return self._operations[operation]


def _decode(line: bytes) -> tuple[str, JsonObject]:
    try:
        said = msgspec.json.decode(line)
        return str(said["operation"]), dict(said["given"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, RecursionError):
        raise UsageError("the request cannot be read") from None


def _error(error: DuctileError) -> bytes:
    problems = {"problems": error.problems} if isinstance(error, ConfigError) else {}
    told: dict[str, Any] = {
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "details": {**error.details, **problems},
    }
    return msgspec.json.encode({"error": told})


def _check_peer_user(writer: asyncio.StreamWriter) -> None:
    """Only our own user and root: the socket's mode says so already, and the kernel tells who it is."""
    if hasattr(socket, "SO_PEERCRED") and _peer_uid(writer.get_extra_info("socket")) not in (0, os.getuid()):
        raise DeniedError("this daemon belongs to another user")


def _peer_uid(connection: socket.socket) -> int:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _pid, uid, _gid = struct.unpack("3i", raw)
    return int(uid)
