"""Chance that nobody can foresee, drawn from the system a page at a time."""

from __future__ import annotations

import os
import threading
from random import SystemRandom

_PAGE = 4096


class Dice(SystemRandom):
    """As the system's own, at a tenth of its price: each draw of that is a call into the kernel.

    What is left of a page is not to be drawn by two processes: a child made by `fork` has to have its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self._page = b""
        self._used = 0
        self._lock = threading.Lock()  # two threads must never draw the same

    def getrandbits(self, k: int, /) -> int:
        size = (k + 7) // 8
        return int.from_bytes(self.randbytes(size), "big") >> (size * 8 - k)

    def randbytes(self, n: int) -> bytes:
        with self._lock:
            begin = self._used
            end = self._used = begin + n
            if end > len(self._page):
                self._page, begin, end = os.urandom(max(_PAGE, n)), 0, n
                self._used = n
            return self._page[begin:end]
