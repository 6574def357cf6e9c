"""Which requests of unknown callers get a log line of their own: a flood of them must not fill the disk."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping

SECONDS = 1.0


class LogSampler:
    """The first request of each kind, or the first few, are logged in full. Those that follow within a second
    are counted, and the counts are reported once a second, until a second has passed without any.

    The number of kinds has to be bounded, and so must not depend on what a caller sends.
    """

    def __init__(
        self,
        report: Callable[[Mapping[str, int], str | None], None],
        *,
        most: int = 1,
        seconds: float = SECONDS,
    ) -> None:
        """`report` gets the number of requests of each kind, and the address of the last of them. `most` is
        how many of a kind are logged in full before the others are counted.
        """
        self._report = report
        self._most = most
        self._seconds = seconds
        self._logged: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._peer: str | None = None
        self._timer: asyncio.TimerHandle | None = None

    def in_full(self, kind: str, peer: str | None) -> bool:
        """Whether to log this request in full; if not, it is counted."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._end_window)
        if self._logged[kind] < self._most:
            self._logged[kind] += 1
            return True
        self._counts[kind] += 1
        self._peer = peer
        return False

    def close(self) -> None:
        """Report the rest."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._report_counts()

    def _end_window(self) -> None:
        self._timer = None
        if self._counts:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._end_window)
        self._report_counts()

    def _report_counts(self) -> None:
        counts, self._counts = self._counts, Counter()
        self._logged = Counter(dict.fromkeys(counts, self._most))
        if counts:
            self._report(counts, self._peer)


def described_counts(counts: Mapping[str, int]) -> str:
    """Such as `12 x 401, 3 x 404`."""
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(counts.items()))
