"""The write-ahead log as a file, kept a little longer than what is in it.

A commit that makes the file longer has to wait for the filesystem's own journal besides our pages: half as
long again, on ext4, as one that writes over what is there. So zeros are put behind the end, many pages at a
time. SQLite never takes them for frames, whose salts and checksums they do not have. A daemon that has been
running for a while gets this from SQLite, which begins the same file anew after each checkpoint.
"""

from __future__ import annotations

import os
from contextlib import suppress

_HEADER = 32
_FRAME_HEADER = 24
#: Bytes. What most transactions write, and how much is added when less than that is left.
_ENOUGH = 64 * 1024
_MORE = 512 * 1024


class WalRoom:
    def __init__(self, path: str, page_size: int) -> None:
        self._path = path
        self._frame = _FRAME_HEADER + page_size
        self._length = 0

    def preallocate(self, pages: int) -> None:
        """See to it that there is room after so many pages.

        Only for who is in a write transaction: nobody else can make the file longer then.
        """
        wanted = _HEADER + pages * self._frame + _ENOUGH
        if wanted <= self._length:
            return
        # Without room it is only slower: if the disk is full, SQLite finds that out, and says so.
        with suppress(OSError):
            self._length = self._lengthen(wanted + _MORE)

    def _lengthen(self, wanted: int) -> int:
        descriptor = os.open(self._path, os.O_WRONLY)
        try:
            length = os.fstat(descriptor).st_size
            if length < wanted:
                length += os.pwrite(descriptor, bytes(wanted - length), length)
            return length
        finally:
            os.close(descriptor)

    def forget(self) -> None:
        """The file may have become shorter."""
        self._length = 0
