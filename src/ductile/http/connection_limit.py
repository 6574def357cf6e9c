"""Who is served, who is told to come back, and who gives way when there are too many."""

from __future__ import annotations

from itertools import count
from typing import Generic, Protocol, TypeVar


class LimitedConnection(Protocol):
    #: Whose wait began before whose; given by `Places.next_turn`.
    turn: int

    def keeps_waiting(self) -> bool:
        """Whether the next step is the guest's, and not ours."""
        ...

    def give_way(self) -> None: ...


SomeGuest = TypeVar("SomeGuest", bound=LimitedConnection)


class ConnectionLimiter(Generic[SomeGuest]):
    """So many are served at once. A newcomer gets the place of whoever has kept us waiting longest, since
    silence must not keep others out. If nobody keeps us waiting the newcomer is turned away, as are up to
    as many again.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._turns = count(1)
        self._served: set[SomeGuest] = set()
        self._turned_away: set[SomeGuest] = set()

    def next_turn(self) -> int:
        return next(self._turns)

    def enter(self, guest: SomeGuest) -> bool:
        """Whether it is served."""
        if self._has_room(self._served):
            self._served.add(guest)
            return True
        if self._has_room(self._turned_away):
            self._turned_away.add(guest)
        else:
            guest.give_way()
        return False

    def leave(self, guest: SomeGuest) -> None:
        self._served.discard(guest)
        self._turned_away.discard(guest)

    def _has_room(self, guests: set[SomeGuest]) -> bool:
        if len(guests) < self._places:
            return True
        waiting = [guest for guest in guests if guest.keeps_waiting()]
        if not waiting:
            return False
        longest = min(waiting, key=lambda guest: guest.turn)
        guests.discard(longest)
        longest.give_way()
        return True
