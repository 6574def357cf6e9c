"""How many deliveries each receiver gets at once: slow or dead receivers do not delay others."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from ductile.core.webhooks.deliveries import (
    PROMPT,
    ConcurrencyLimit,
    DeliveryAttempt,
    ReceiverHealth,
    SlotAllocator,
    health_after,
)
from ductile.engine.state_webhooks.sender import CONCURRENCY_LIMITS, MAX_IN_FLIGHT, MAX_PER_RECEIVER

names = st.sampled_from([f"https://{number}:443" for number in range(400)])
health = st.dictionaries(names, st.sampled_from(ReceiverHealth), max_size=400)


def filled(due: list[str], known: dict[str, ReceiverHealth], busy: Counter[str]) -> Counter[str]:
    """Everything given out that there is room for, with as much due to each as it can take."""
    slots = SlotAllocator(
        free=MAX_IN_FLIGHT - busy.total(),
        per_receiver=MAX_PER_RECEIVER,
        busy=busy,
        health=known,
        limits=CONCURRENCY_LIMITS,
    )
    under_way = Counter(busy)
    for receiver in slots.idle_first(due):
        count = slots.available(receiver)
        slots.take(receiver, count)
        under_way[receiver] += count
    return under_way


@given(st.lists(names, unique=True, max_size=400), health)
def test_prompt_receivers_always_have_slots(due: list[str], known: dict[str, ReceiverHealth]) -> None:
    """In any order and with any others, some slots are free for prompt receivers."""
    doubtful = [receiver for receiver in due if known.get(receiver) is not ReceiverHealth.PROMPT]
    under_way = filled(doubtful, known, Counter())
    together = Counter[ReceiverHealth]()
    for receiver, count in under_way.items():
        together[known.get(receiver, ReceiverHealth.UNKNOWN)] += count
        assert count <= 1
    assert together[ReceiverHealth.SLOW] <= CONCURRENCY_LIMITS[ReceiverHealth.SLOW].total
    assert together[ReceiverHealth.UNKNOWN] <= CONCURRENCY_LIMITS[ReceiverHealth.UNKNOWN].total
    assert under_way.total() + MAX_IN_FLIGHT // 4 <= MAX_IN_FLIGHT
    others = {**known, "https://good:443": ReceiverHealth.PROMPT}
    assert filled(["https://good:443"], others, under_way)["https://good:443"] == MAX_PER_RECEIVER


@given(st.lists(names, unique=True, max_size=400), st.integers(0, 400))
def test_slow_receivers_leave_slots_for_unknown_ones(due: list[str], slow: int) -> None:
    """With any number of dead receivers, a new receiver gets its delivery at once."""
    known = dict.fromkeys(due[:slow], ReceiverHealth.SLOW)
    under_way = filled(list(known), known, Counter())
    assert filled([*known, "https://new:443"], known, under_way)["https://new:443"] == 1


@given(
    st.lists(names, unique=True),
    health,
    st.dictionaries(names, st.integers(1, MAX_PER_RECEIVER), max_size=60),
)
def test_no_more_than_there_are(
    due: list[str], known: dict[str, ReceiverHealth], busy: dict[str, int]
) -> None:
    under_way = filled(due, known, Counter(busy))
    assert under_way.total() <= max(MAX_IN_FLIGHT, sum(busy.values()))
    assert all(under_way[receiver] <= max(MAX_PER_RECEIVER, busy.get(receiver, 0)) for receiver in due)


@given(st.lists(names, unique=True), st.dictionaries(names, st.integers(1, MAX_PER_RECEIVER)))
def test_a_receiver_with_no_delivery_in_flight_comes_first(due: list[str], busy: dict[str, int]) -> None:
    slots = SlotAllocator(free=1, per_receiver=1, busy=busy, health={}, limits={})
    served = [receiver in busy for receiver in slots.idle_first(due)]
    assert served == sorted(served)
    assert [each for each in slots.idle_first(due) if each not in busy] == [
        each for each in due if each not in busy
    ]


@given(st.none() | st.integers(200, 599), st.timedeltas(timedelta(), timedelta(minutes=1)))
def test_an_answer_in_time_is_prompt(status: int | None, took: timedelta) -> None:
    attempt = DeliveryAttempt(http_status=status, error=None if status else "no answer")
    expected = ReceiverHealth.PROMPT if status is not None and took <= PROMPT else ReceiverHealth.SLOW
    assert health_after(attempt, took) is expected


def test_without_a_share_the_room_of_each_counts() -> None:
    slots = SlotAllocator(
        free=9,
        per_receiver=3,
        busy={"a": 1},
        health={},
        limits={ReceiverHealth.SLOW: ConcurrencyLimit(per_receiver=1, total=1)},
    )
    assert (slots.available("a"), slots.available("b")) == (2, 3)
