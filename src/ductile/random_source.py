"""Chance that nobody can foresee, drawn from the system a page at a time."""

from __future__ import annotations

import os
from io import BytesIO
from random import SystemRandom

_PAGE = 4096


class BufferedSystemRandom(SystemRandom):
    """As the system's own, at a tenth of its price: each draw of that is a call into the kernel.

    What is left of a page is not to be drawn by two processes: a child made by `fork` has to have its own.
    Two threads never draw the same: under the interpreter's lock reading is one step, and each that finds a
    page used up takes another.
    """

    def __init__(self) -> None:
        super().__init__()
        self._draw = BytesIO().read

    def getrandbits(self, k: int, /) -> int:
        size = (k + 7) // 8
        return int.from_bytes(self.randbytes(size), "big") >> (size * 8 - k)

    def randbytes(self, n: int) -> bytes:
        drawn = self._draw(n)
        if len(drawn) < n:
            page = BytesIO(os.urandom(max(_PAGE, n)))
            drawn = page.read(n)
            self._draw = page.read
        return drawn
