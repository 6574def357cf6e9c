"""Admission decides which job may start next."""

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


def start_jobs(
    queue: list[str], running: dict[str, int], limits: Caps, elsewhere: dict[str, int] | None = None
) -> list[int]:
    """Return the positions of the jobs of a queue that start, in order."""
    waiting = dict(enumerate(queue))
    counts = Counter(running) + Counter(elsewhere or {})
    order: list[int] = []
    while True:
        heads: dict[str, int] = {}
        for position, plugin in waiting.items():
            heads.setdefault(plugin, position)
        chosen = choose_next_plugin(heads, counts, limits, busy=sum(running.values()) + len(order))
        if chosen is None:
            return order
        position = heads[chosen]
        del waiting[position]
        counts[chosen] += 1
        order.append(position)


@given(queues, runnings, caps)
def test_never_above_a_cap(queue: list[str], running: dict[str, int], limits: Caps) -> None:
    order = start_jobs(queue, running, limits)
    counts = Counter(running) + Counter(queue[position] for position in order)
    if order:
        assert counts.total() <= limits.workers
    for plugin in {queue[position] for position in order}:
        assert counts[plugin] <= limits.of(plugin)
        assert limits.claimable is None or plugin in limits.claimable


@given(queues, runnings, runnings, caps)
def test_workers_are_of_a_node_and_caps_of_plugins_of_all(
    queue: list[str], running: dict[str, int], elsewhere: dict[str, int], limits: Caps
) -> None:
    order = start_jobs(queue, running, limits, elsewhere)
    started_counts = Counter(queue[position] for position in order)
    if order:
        assert sum(running.values()) + started_counts.total() <= limits.workers
    for plugin in started_counts:
        assert running.get(plugin, 0) + elsewhere.get(plugin, 0) + started_counts[plugin] <= limits.of(plugin)
    if limits.claimable is None and not limits.plugins:
        # Without limits of plugins, jobs on other nodes take no worker of this node.
        assert order == start_jobs(queue, running, limits)


@given(queues, runnings, caps)
def test_no_eligible_plugin_is_passed_over(queue: list[str], running: dict[str, int], limits: Caps) -> None:
    """A job is overtaken only if it is at a limit; jobs remain only if the pool or their plugin is full."""
    order = start_jobs(queue, running, limits)
    assert order == sorted(order)
    counts = Counter(running) + Counter(queue[position] for position in order)
    for position in set(range(len(queue))) - set(order):
        plugin = queue[position]
        assert counts.total() >= limits.workers or counts[plugin] >= limits.of(plugin)


@given(queues, caps)
def test_the_oldest_jobs_of_a_plugin_start_first(queue: list[str], limits: Caps) -> None:
    order = start_jobs(queue, {}, limits)
    for plugin in set(queue):
        positions = [position for position, name in enumerate(queue) if name == plugin]
        started_positions = [position for position in order if queue[position] == plugin]
        assert started_positions == positions[: len(started_positions)]


@given(st.booleans(), st.booleans(), st.booleans())
def test_a_job_is_held_for_a_reason_that_is_there(predecessor: bool, key: bool, suspect: bool) -> None:
    hold = decide_hold(predecessor_live=predecessor, key_taken=key, behind_suspect=suspect)
    reasons = {Hold.PREDECESSOR: predecessor, Hold.KEY: key, Hold.SUSPECT: suspect}
    assert hold is None or reasons[hold]
    assert (hold is None) == (not any(reasons.values()))
