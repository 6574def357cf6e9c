"""How many deliveries may be under way, and to whom: one that is slow or dead delays no other.

What one receiver takes from the others is time: each attempt holds one of a limited number of places until
it is answered or given up. So a receiver has several places only while it answers promptly. One that nobody
knows yet, or that kept us waiting, has a single one, and all of these together have a part of the places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from enum import StrEnum

from ductile.core.webhooks.deliveries import DeliveryAttempt
from ductile.struct import Value

#: An answer within this time holds nobody up for long.
PROMPT = timedelta(seconds=5)


class ReceiverHealth(StrEnum):
    """How a receiver took the last thing that was sent to it."""

    PROMPT = "prompt"
    UNKNOWN = "unknown"
    SLOW = "slow"  # late, or not at all


class ConcurrencyLimit(Value):
    """Places for the receivers of one manner: for each, and for all of them together."""

    each: int
    all: int


def health_after(attempt: DeliveryAttempt, took: timedelta) -> ReceiverHealth:
    """Any answer will do, a refusal too: whoever gives it in time holds no place."""
    return (
        ReceiverHealth.PROMPT if attempt.http_status is not None and took <= PROMPT else ReceiverHealth.SLOW
    )


class SlotAllocator:
    """What is left of the places while they are given out."""

    def __init__(
        self,
        *,
        left: int,
        each: int,
        busy: Mapping[str, int],
        manners: Mapping[str, ReceiverHealth],
        shares: Mapping[ReceiverHealth, ConcurrencyLimit],
    ) -> None:
        self.left = left
        self._each = each
        self._busy = Counter(busy)
        self._manners = manners
        self._shares = shares
        self._together = Counter[ReceiverHealth]()
        for receiver, count in busy.items():
            self._together[self._manner(receiver)] += count

    def in_turn(self, receivers: Iterable[str]) -> list[str]:
        """Those to whom nothing is under way before the others, who are being served already."""
        return sorted(receivers, key=lambda receiver: self._busy[receiver] > 0)

    def of(self, receiver: str) -> int:
        """How many more may be sent to it now."""
        share = self._shares.get(manner := self._manner(receiver))
        if share is None:
            return max(0, min(self.left, self._each - self._busy[receiver]))
        return max(0, min(self.left, share.each - self._busy[receiver], share.all - self._together[manner]))

    def give(self, receiver: str, count: int) -> None:
        self.left -= count
        self._busy[receiver] += count
        self._together[self._manner(receiver)] += count

    def _manner(self, receiver: str) -> ReceiverHealth:
        return self._manners.get(receiver, ReceiverHealth.UNKNOWN)
