"""Jobs that no live node may run wait for a node; others do not."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from builders.jobs import START
from ductile.core.jobs.placement import JobGroup, NodeOffer, decide_placement
from ductile.core.scripts import EXEC_PLUGIN

LONGEST = timedelta(hours=1)
PLUGINS = st.sampled_from(("fetch", "gpu", EXEC_PLUGIN))
NODES = st.sampled_from(("one", "two"))
OFFERS = st.lists(
    st.builds(NodeOffer, name=NODES, plugins=st.frozensets(st.sampled_from(("fetch", "gpu")))), max_size=3
)
HELD = st.none() | st.integers(0, 120).map(lambda minutes: START - timedelta(minutes=minutes))
GROUPS = st.lists(st.builds(JobGroup, plugin=PLUGINS, node=st.none() | NODES, held_since=HELD), max_size=6)


@given(GROUPS, OFFERS)
def test_each_group_is_held_released_or_ended_by_what_nodes_may_run(
    groups: list[JobGroup], offers: list[NodeOffer]
) -> None:
    placement = decide_placement(groups, offers, now=START, max_hold=LONGEST)
    for group in groups:
        may_run = any(
            group.node in (None, offer.name)
            and (group.plugin == EXEC_PLUGIN or group.plugin in offer.plugins)
            for offer in offers
        )
        is_ready = group.held_since is None
        is_overdue = group.held_since is not None and START - group.held_since >= LONGEST
        assert (group in placement.hold) == (is_ready and not may_run)
        assert (group in placement.release) == (not is_ready and may_run)
        assert (group in placement.expire) == (not is_ready and not may_run and is_overdue)


@given(GROUPS)
def test_the_only_daemon_runs_every_job(groups: list[JobGroup]) -> None:
    placement = decide_placement(groups, None, now=START, max_hold=LONGEST)
    assert placement.hold == placement.expire == ()
    assert set(placement.release) == {group for group in groups if group.held_since is not None}


@given(GROUPS, OFFERS, OFFERS)
def test_a_node_more_never_holds_or_ends_a_job(
    groups: list[JobGroup], offers: list[NodeOffer], added: list[NodeOffer]
) -> None:
    before = decide_placement(groups, offers, now=START, max_hold=LONGEST)
    after = decide_placement(groups, [*offers, *added], now=START, max_hold=LONGEST)
    assert set(after.hold) <= set(before.hold)
    assert set(after.expire) <= set(before.expire)
    assert set(after.release) >= set(before.release)
