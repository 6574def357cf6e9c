"""Whom a listener refused, or let go, by itself: no application tells of them.

The first is told at once, and what follows together: a flood that reaches the limits must not fill the log.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum

TELLING_SECONDS = 10.0


class RejectionReason(StrEnum):
    MALFORMED = "malformed"
    HEAD_TOO_LARGE = "head_too_large"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    GAVE_WAY = "gave_way"
    UNREAD = "unread"


class RejectionLog:
    def __init__(
        self,
        tell: Callable[[Mapping[RejectionReason, int], str | None], None] = lambda *_: None,
        seconds: float = TELLING_SECONDS,
    ) -> None:
        """`tell` gets how many there were for each reason, and where the last of them came from."""
        self._tell = tell
        self._seconds = seconds
        self._counts: Counter[RejectionReason] = Counter()
        self._peer: str | None = None
        self._timer: asyncio.TimerHandle | None = None

    def count(self, reason: RejectionReason, peer: str | None) -> None:
        self._counts[reason] += 1
        self._peer = peer
        if self._timer is None:
            self._tell_and_wait()

    def close(self) -> None:
        """Tell what is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._tell_counts()

    def _tell_and_wait(self) -> None:
        self._timer = None
        if self._counts:  # else it is quiet again, and nothing needs to wake us
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._tell_and_wait)
            self._tell_counts()

    def _tell_counts(self) -> None:
        counts, self._counts = self._counts, Counter()
        if counts:
            self._tell(counts, self._peer)
