"""The number of concurrent deliveries of a receiver: slow or dead receivers do not delay others."""

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


def allocate(due: list[str], health_of: dict[str, ReceiverHealth], busy: Counter[str]) -> Counter[str]:
    """Return the deliveries in flight after all free slots are given out, with enough due for every
    receiver.
    """
    slots = SlotAllocator(
        free=MAX_IN_FLIGHT - busy.total(),
        per_receiver=MAX_PER_RECEIVER,
        busy=busy,
        health=health_of,
        limits=CONCURRENCY_LIMITS,
    )
    under_way = Counter(busy)
    for receiver in slots.idle_first(due):
        count = slots.available(receiver)
        slots.take(receiver, count)
        under_way[receiver] += count
    return under_way


@given(st.lists(names, unique=True, max_size=400), health)
def test_prompt_receivers_always_have_slots(due: list[str], health_of: dict[str, ReceiverHealth]) -> None:
    """Slots remain free for prompt receivers, in any order and with any others."""
    doubtful = [receiver for receiver in due if health_of.get(receiver) is not ReceiverHealth.PROMPT]
    under_way = allocate(doubtful, health_of, Counter())
    totals = Counter[ReceiverHealth]()
    for receiver, count in under_way.items():
        totals[health_of.get(receiver, ReceiverHealth.UNKNOWN)] += count
        assert count <= 1
    assert totals[ReceiverHealth.SLOW] <= CONCURRENCY_LIMITS[ReceiverHealth.SLOW].total
    assert totals[ReceiverHealth.UNKNOWN] <= CONCURRENCY_LIMITS[ReceiverHealth.UNKNOWN].total
    assert under_way.total() + MAX_IN_FLIGHT // 4 <= MAX_IN_FLIGHT
    others = {**health_of, "https://good:443": ReceiverHealth.PROMPT}
    assert allocate(["https://good:443"], others, under_way)["https://good:443"] == MAX_PER_RECEIVER


@given(st.lists(names, unique=True, max_size=400), st.integers(0, 400))
def test_slow_receivers_leave_slots_for_unknown_ones(due: list[str], slow: int) -> None:
    """With any number of dead receivers, a new receiver gets its delivery at once."""
    health_of = dict.fromkeys(due[:slow], ReceiverHealth.SLOW)
    under_way = allocate(list(health_of), health_of, Counter())
    assert allocate([*health_of, "https://new:443"], health_of, under_way)["https://new:443"] == 1


@given(
    st.lists(names, unique=True),
    health,
    st.dictionaries(names, st.integers(1, MAX_PER_RECEIVER), max_size=60),
)
def test_no_more_than_there_are(
    due: list[str], health_of: dict[str, ReceiverHealth], busy: dict[str, int]
) -> None:
    under_way = allocate(due, health_of, Counter(busy))
    assert under_way.total() <= max(MAX_IN_FLIGHT, sum(busy.values()))
    assert all(under_way[receiver] <= max(MAX_PER_RECEIVER, busy.get(receiver, 0)) for receiver in due)


@given(st.lists(names, unique=True), st.dictionaries(names, st.integers(1, MAX_PER_RECEIVER)))
def test_a_receiver_with_no_delivery_in_flight_comes_first(due: list[str], busy: dict[str, int]) -> None:
    slots = SlotAllocator(free=1, per_receiver=1, busy=busy, health={}, limits={})
    busy_flags = [receiver in busy for receiver in slots.idle_first(due)]
    assert busy_flags == sorted(busy_flags)
    assert [receiver for receiver in slots.idle_first(due) if receiver not in busy] == [
        receiver for receiver in due if receiver not in busy
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
