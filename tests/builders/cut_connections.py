"""A proxy before a PostgreSQL server that can cut connections, also in the middle of a commit."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from enum import Enum
from pathlib import Path


class CutAt(Enum):
    """The point at which the next connection that sends COMMIT is cut."""

    BEFORE_COMMIT = "the server does not receive it"
    AFTER_COMMIT = "the server commits, and its answer is lost"


def listen_in(directory: Path) -> socket.socket:
    """Return a listening socket in this directory, under the name that a server would use."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(directory / ".s.PGSQL.5432"))
    listener.listen()
    return listener


class CuttingProxy:
    """Forwards connections of a listening socket to the server, which may be away."""

    def __init__(self, listener: socket.socket, server_socket: Path) -> None:
        self._server_socket = str(server_socket)
        self._listener = listener
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.cut_at: CutAt | None = None
        #: Whether new connections are refused.
        self.is_down = False
        self.cuts = 0
        #: Cleared while nothing is forwarded: the server accepts connections and does not answer.
        self.flows = threading.Event()
        self.flows.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_all(self) -> None:
        """Cut every connection that is open."""
        for pair in self._pairs:
            _close(*pair)
        self._pairs.clear()

    def close(self) -> None:
        self.flows.set()
        _close(self._listener)
        self.cut_all()

    def _refuses(self) -> bool:
        return self.is_down

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._refuses():
                    client.close()
                    continue
                server = socket.socket(socket.AF_UNIX)
                try:
                    server.connect(self._server_socket)
                except OSError:  # it is being restarted
                    _close(client, server)
                    continue
                self._pairs.append((client, server))
                if self._refuses():  # it was cut meanwhile, and this connection was not
                    self.cut_all()
                threading.Thread(target=self._to_server, args=(client, server), daemon=True).start()
                threading.Thread(target=self._to_client, args=(client, server), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                self.flows.wait()
                if b"COMMIT\x00" in data and self.cut_at is not None:
                    cut_at, self.cut_at = self.cut_at, None
                    self.cuts += 1
                    if cut_at is CutAt.AFTER_COMMIT:
                        client.shutdown(socket.SHUT_RDWR)
                        server.sendall(data)
                        # The server commits before it reads the end; the other thread closes the sockets.
                        server.shutdown(socket.SHUT_WR)
                        return
                    break
                server.sendall(data)
        _close(client, server)

    def _to_client(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                self.flows.wait()
                client.sendall(data)
        _close(client, server)


def _close(*sockets: socket.socket) -> None:
    for connection in sockets:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
