"""Admission: which job may start next."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ductile.core.jobs.admission import Caps, choose_next_plugin, decide_hold
from ductile.core.jobs.model import Hold

names = st.sampled_from("abcd")
queues = st.lists(names, max_size=20)
caps = st.builds(
    Caps,
    workers=st.integers(0, 8),
    plugins=st.dictionaries(names, st.integers(0, 5), max_size=4),
    claimable=st.none() | st.frozensets(names),
)
runnings = st.dictionaries(names, st.integers(0, 3))


def started(
    queue: list[str], running: dict[str, int], limits: Caps, elsewhere: dict[str, int] | None = None
) -> list[int]:
    """Start from a queue of plugin names until none may; returns the started plugins in order.

    `running` are the jobs of this node, `elsewhere` those of others.
    """
    left = dict(enumerate(queue))
    counts = Counter(running) + Counter(elsewhere or {})
    order: list[int] = []
    while True:
        heads: dict[str, int] = {}
        for place, plugin in left.items():
            heads.setdefault(plugin, place)
        chosen = choose_next_plugin(heads, counts, limits, busy=sum(running.values()) + len(order))
        if chosen is None:
            return order
        place = heads[chosen]
        del left[place]
        counts[chosen] += 1
        order.append(place)


@given(queues, runnings, caps)
def test_never_above_a_cap(queue: list[str], running: dict[str, int], limits: Caps) -> None:
    order = started(queue, running, limits)
    counts = Counter(running) + Counter(queue[place] for place in order)
    if order:
        assert counts.total() <= limits.workers
    for plugin in {queue[place] for place in order}:
        assert counts[plugin] <= limits.of(plugin)
        assert limits.claimable is None or plugin in limits.claimable


@given(queues, runnings, runnings, caps)
def test_workers_are_of_a_node_and_caps_of_plugins_of_all(
    queue: list[str], running: dict[str, int], elsewhere: dict[str, int], limits: Caps
) -> None:
    order = started(queue, running, limits, elsewhere)
    new = Counter(queue[place] for place in order)
    if order:
        assert sum(running.values()) + new.total() <= limits.workers
    for plugin in new:
        assert running.get(plugin, 0) + elsewhere.get(plugin, 0) + new[plugin] <= limits.of(plugin)
    if limits.claimable is None and not limits.plugins:
        # Without caps of plugins, what runs elsewhere takes no worker of this node.
        assert order == started(queue, running, limits)


@given(queues, runnings, caps)
def test_no_eligible_plugin_is_passed_over(queue: list[str], running: dict[str, int], limits: Caps) -> None:
    """FIFO: a job that is overtaken was at a cap, and the pool is full or all that is left is capped."""
    order = started(queue, running, limits)
    assert order == sorted(order)
    counts = Counter(running) + Counter(queue[place] for place in order)
    for place in set(range(len(queue))) - set(order):
        plugin = queue[place]
        assert counts.total() >= limits.workers or counts[plugin] >= limits.of(plugin)


@given(queues, caps)
def test_of_one_plugin_the_oldest_go(queue: list[str], limits: Caps) -> None:
    order = started(queue, {}, limits)
    for plugin in set(queue):
        places = [place for place, name in enumerate(queue) if name == plugin]
        taken = [place for place in order if queue[place] == plugin]
        assert taken == places[: len(taken)]


@given(st.booleans(), st.booleans(), st.booleans())
def test_a_job_is_held_for_a_reason_that_is_there(predecessor: bool, key: bool, suspect: bool) -> None:
    hold = decide_hold(predecessor_live=predecessor, key_taken=key, behind_suspect=suspect)
    there = {Hold.PREDECESSOR: predecessor, Hold.KEY: key, Hold.SUSPECT: suspect}
    assert hold is None or there[hold]
    assert (hold is None) == (not any(there.values()))
