"""A transport that sends the head of an answer together with its body.

uvicorn writes them apart, which is two system calls. Each lets go of the interpreter's lock, and getting it
back from the threads that write the store and the log costs more than the call itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_HEAD = b"HTTP/1.1 "
_INTERIM = b"HTTP/1.1 1"


class CoalescingTransport(asyncio.Transport):
    """Passes everything on. A head is held until what follows it is written, or until `flush`."""

    def __init__(self, inner: asyncio.Transport, *, closed: Callable[[], None] = lambda: None) -> None:
        """`closed` is told that the connection closes as soon as what was written has left."""
        super().__init__()
        self._inner = inner
        self._closed = closed
        self._held = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._held:
            self._inner.write(self._held + bytes(data))
            self._held = b""
        elif data[:9] == _HEAD and data[:10] != _INTERIM and data[-4:] == b"\r\n\r\n":
            self._held = bytes(data)
        else:
            self._inner.write(data)

    def flush(self) -> None:
        """For an answer that is only a head."""
        if self._held:
            self._inner.write(self._held)
            self._held = b""

    def close(self) -> None:
        self.flush()
        self._inner.close()
        self._closed()

    def abort(self) -> None:
        self._held = b""
        self._inner.abort()

    def is_closing(self) -> bool:
        return self._inner.is_closing()

    def get_write_buffer_size(self) -> int:
        return self._inner.get_write_buffer_size()

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._inner.get_extra_info(name, default)
