"""Bodies of callers whom nobody knows yet: how many are read at once, how much of them is held in memory.

Decides, and does nothing: who has to go is told to whoever asks.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Reader = TypeVar("Reader", bound=Hashable)


class BodyQuota(Generic[Reader]):
    """With one too many, or too much of them, whoever began first gives way.

    An honest body is there within a moment, so it is hardly ever the oldest; to refuse the newcomer would let
    those who send nothing keep everybody else out.
    """

    def __init__(self, places: int, most_bytes: int) -> None:
        self._places = places
        self._most_bytes = most_bytes
        #: Bytes that are held for each, in the order in which they began.
        self._held: dict[Reader, int] = {}
        self._bytes = 0

    def __contains__(self, reader: object) -> bool:
        return reader in self._held

    def begin(self, reader: Reader) -> tuple[Reader, ...]:
        """Who has to go for this one."""
        gone: list[Reader] = []
        while len(self._held) >= self._places:
            gone.append(next(iter(self._held)))
            self.end(gone[-1])
        self._held[reader] = 0
        return tuple(gone)

    def grow(self, reader: Reader, size: int) -> tuple[Reader, ...]:
        """Who has to go, now that so much of this one is held. One that is alone may stay."""
        before = self._held.get(reader)
        if before is None:
            return ()
        self._held[reader] = size
        self._bytes += size - before
        gone: list[Reader] = []
        while self._bytes > self._most_bytes:
            # Who holds nothing yet makes no room by going.
            oldest = next((each for each, held in self._held.items() if held and each != reader), None)
            if oldest is None:
                break
            gone.append(oldest)
            self.end(oldest)
        return tuple(gone)

    def end(self, reader: Reader) -> None:
        self._bytes -= self._held.pop(reader, 0)
