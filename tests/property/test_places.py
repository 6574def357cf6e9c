"""Who gives way at a listener that is full: connections and bodies."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from ductile.http.body_quota import BodyQuota
from ductile.http.connection_limit import ConnectionLimiter

MOST = 3
BYTES = 10


@dataclass(eq=False, slots=True)
class AGuest:
    turn: int = 0
    busy: bool = False
    let_go: bool = False

    def keeps_waiting(self) -> bool:
        return not self.busy

    def give_way(self) -> None:
        self.let_go = True


@dataclass(slots=True)
class House:
    """The places, and beside them all that has happened."""

    places: ConnectionLimiter[AGuest] = field(default_factory=lambda: ConnectionLimiter(MOST))
    served: list[AGuest] = field(default_factory=list)
    turned_away: list[AGuest] = field(default_factory=list)

    def here(self) -> list[AGuest]:
        return [guest for guest in (*self.served, *self.turned_away) if not guest.let_go]

    def come(self) -> None:
        before = [guest for guest in self.served if not guest.let_go]
        waiting = [guest for guest in before if guest.keeps_waiting()]
        guest = AGuest(turn=self.places.next_turn())
        is_served = self.places.enter(guest)
        (self.served if is_served else self.turned_away).append(guest)
        assert is_served == (len(before) < MOST or bool(waiting))
        gone = [each for each in before if each.let_go]
        if len(before) == MOST and waiting:
            assert gone == [min(waiting, key=lambda each: each.turn)]
        else:
            assert gone == []


@given(st.lists(st.tuples(st.sampled_from(["come", "ask", "answered", "leave"]), st.integers(0, 20))))
def test_whoever_kept_us_waiting_longest_gives_way(steps: list[tuple[str, int]]) -> None:
    """A newcomer is turned away only if everybody inside is being answered; nobody who is ever gives way."""
    house = House()
    for step, which in steps:
        here = house.here()
        if step == "come":
            busy = [guest for guest in here if guest.busy]
            house.come()
            assert not any(guest.let_go for guest in busy)
        elif here:
            guest = here[which % len(here)]
            if step == "leave":
                guest.let_go = True
                house.places.leave(guest)
            else:
                guest.busy = step == "ask"
                guest.turn = house.places.next_turn()
        for guests in (house.served, house.turned_away):
            assert sum(not guest.let_go for guest in guests) <= MOST


@given(
    st.lists(
        st.tuples(st.sampled_from(["begin", "grow", "end"]), st.integers(0, 20), st.integers(0, 2 * BYTES))
    )
)
def test_the_oldest_body_gives_way(steps: list[tuple[str, int, int]]) -> None:
    """Never more than so many, nor more bytes unless of one alone; the others keep their places."""
    readers: BodyQuota[int] = BodyQuota(MOST, BYTES)
    held: dict[int, int] = {}
    for number, (step, which, size) in enumerate(steps):
        before = list(held)
        if step == "begin":
            gone = readers.begin(number)
            held[number] = 0
            assert list(gone) == before[: max(0, len(before) + 1 - MOST)]
        elif held:
            one = before[which % len(before)]
            if step == "end":
                readers.end(one)
                del held[one]
                continue
            held[one] += size
            gone = readers.grow(one, held[one])
            able = [each for each in before if held[each] and each != one]
            assert list(gone) == able[: len(gone)]
            kept = sum(size for each, size in held.items() if each not in gone)
            assert kept <= BYTES or len(gone) == len(able)
            assert not gone or kept + held[gone[-1]] > BYTES
        else:
            continue
        for each in gone:
            del held[each]
        assert len(held) <= MOST
        assert all(each in readers for each in held)
        assert not any(each in readers for each in gone)


@given(st.lists(st.integers(0, BYTES), max_size=5), st.booleans())
def test_who_has_gone_weighs_nothing(before: list[int], dismissed: bool) -> None:
    """Whether it was read to its end or gave way: those who come after are not measured with it."""
    readers: BodyQuota[int] = BodyQuota(MOST, BYTES)
    for reader, size in enumerate(before):
        readers.begin(reader)
        readers.grow(reader, size)
        if not dismissed:
            readers.end(reader)
    for reader in range(100, 100 + MOST):  # so many that all the others have given way
        readers.begin(reader)
    assert readers.grow(100, 1) == ()
    assert readers.grow(101, BYTES - 1) == ()
    assert readers.grow(102, 1) == (100,)
