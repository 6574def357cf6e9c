"""A connection pooler in front of a PostgreSQL server, like PgBouncer."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_HEADER = struct.Struct("!cI")
_LENGTH = struct.Struct("!I")
_READY, _IDLE = b"Z", b"I"
_TERMINATE = b"X"


class Pooler:
    """Listens in `directory` under the name of a server's socket.

    In transaction mode each transaction gets the connection that was freed last. In session mode a client
    keeps its first connection.
    """

    def __init__(self, directory: Path, server_socket: Path, *, session_mode: bool) -> None:
        self._server_socket = str(server_socket)
        self._session_mode = session_mode
        self._free: list[socket.socket] = []
        self._sockets: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / ".s.PGSQL.5432"))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        for connection in self._sockets:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Serve one client. Its key for cancel requests is made up."""
        server: socket.socket | None = None
        with suppress(OSError, EOFError):
            (length,) = _LENGTH.unpack(_read(client, 4))
            startup = _LENGTH.pack(length) + _read(client, length - 4)
            server = self._a_server(startup)
            greeting = b"R" + struct.pack("!II", 8, 0) + b"K" + struct.pack("!III", 12, 1, 1)
            version = b"server_version\x0018.0\x00"
            greeting += b"S" + _LENGTH.pack(4 + len(version)) + version
            encoding = b"client_encoding\x00UTF8\x00"
            greeting += b"S" + _LENGTH.pack(4 + len(encoding)) + encoding
            client.sendall(greeting + _READY + _LENGTH.pack(5) + _IDLE)
            while True:
                if not self._session_mode and server is not None:
                    self._free.append(server)
                    server = None
                message = _read_message(client)
                if message[:1] == _TERMINATE:
                    break
                server = server or self._a_server(startup)
                self._forward(client, server, message)
        # A transaction that the client has left open must not reach another client.
        for connection in (client, server):
            if connection is not None:
                connection.close()

    def _forward(self, client: socket.socket, server: socket.socket, message: bytes) -> None:
        """Forward messages of both sides until the server is ready and in no transaction."""
        while True:
            server.sendall(message)
            if message[:1] in (b"Q", b"S"):
                for response in _messages(server):
                    client.sendall(response)
                    if response[:1] == _READY:
                        break
                if response[5:6] == _IDLE:
                    return
            message = _read_message(client)

    def _a_server(self, startup: bytes) -> socket.socket:
        with suppress(IndexError):
            return self._free.pop()
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._server_socket)
        self._sockets.append(server)
        server.sendall(startup)
        for message in _messages(server):
            if message[:1] == _READY:
                break
        return server


def _messages(source: socket.socket) -> Iterator[bytes]:
    while True:
        yield _read_message(source)


def _read_message(source: socket.socket) -> bytes:
    header = _read(source, _HEADER.size)
    return header + _read(source, _HEADER.unpack(header)[1] - 4)


def _read(source: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        if not (part := source.recv(count - len(data))):
            raise EOFError
        data += part
    return bytes(data)
