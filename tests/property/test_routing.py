"""Routing: the targets of an event."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ductile.core.events.model import EventRoute, EventRouteTable

words = st.sampled_from(["a", "b", "a.b", "", "A", "a "])
routes = st.lists(
    st.builds(
        EventRoute, source=words, event_type=words, plugin=words, command=st.sampled_from(["handle", "poll"])
    ),
    max_size=12,
)


@given(routes, words, words)
def test_exact_match_on_source_and_type_in_the_order_given(
    listed_routes: list[EventRoute], source: str, event_type: str
) -> None:
    matches = EventRouteTable.of(listed_routes).matching(source, event_type)
    assert list(matches) == [
        route for route in listed_routes if (route.source, route.event_type) == (source, event_type)
    ]


@given(routes)
def test_a_target_names_plugin_and_command(listed_routes: list[EventRoute]) -> None:
    for route in listed_routes:
        assert route.target == f"{route.plugin}.{route.command}"
