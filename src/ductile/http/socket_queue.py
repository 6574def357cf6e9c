"""How much of what was written the other side has not taken yet."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from contextlib import suppress


def unread_bytes(transport: asyncio.Transport) -> int:
    """What waits here, and what our kernel holds, as far as it says.

    The kernel asks for more only when a third of its buffer is empty, and that can be megabytes: to somebody
    who reads steadily and not fast, what waits here stands still for a long time.
    """
    return transport.get_write_buffer_size() + _held_by_kernel(transport)


def _held_by_kernel(transport: asyncio.Transport) -> int:
    connection = transport.get_extra_info("socket")
    if connection is None:
        return 0
    with suppress(OSError):  # it is closed, or the platform does not tell
        told = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
        return int(struct.unpack("i", told)[0])
    return 0
