"""A proxy before a PostgreSQL server that can cut connections, also in the middle of a commit."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from enum import Enum
from pathlib import Path


class CutAt(Enum):
    """Where the next connection is cut that sends COMMIT."""

    BEFORE_COMMIT = "the server does not receive it"
    AFTER_COMMIT = "the server commits, and its answer is lost"


class CuttingProxy:
    """Listens on a socket of its own in `directory`, as a server would, and forwards to the real one."""

    def __init__(self, directory: Path, server_socket: Path) -> None:
        self._server_socket = str(server_socket)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / ".s.PGSQL.5432"))
        self._listener.listen()
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
        self._listener.close()
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
                server.connect(self._server_socket)
                self._pairs.append((client, server))
                if self._refuses():  # since a moment ago, and this connection was not cut
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
                        server.recv(65536)  # the server has committed
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
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
