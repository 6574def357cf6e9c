"""An address that stays the same while its daemon restarts on another port."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Relay:
    """Forwards connections to the port of `target`; closes them at once while there is none."""

    def __init__(self) -> None:
        self.target: int | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            if self.target is None:
                return
            with socket.create_connection(("127.0.0.1", self.target)) as server:
                back = threading.Thread(target=_copy, args=(server, client), daemon=True)
                back.start()
                _copy(client, server)
                back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for connection in (source, sink):
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def a_relay() -> Iterator[Relay]:
    relay = Relay()
    try:
        yield relay
    finally:
        relay.close()
