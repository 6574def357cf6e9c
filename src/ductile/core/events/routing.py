"""Who gets an event: exact match on source and type, in the order of the configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ductile.struct import Value, field


class EventRoute(Value):
    source: str
    event_type: str
    plugin: str
    command: str = "handle"

    @property
    def target(self) -> str:
        """The route's part in the identity of the jobs it makes."""
        return f"{self.plugin}.{self.command}"


class EventRouteTable(Value, kw_only=False):
    """Routes by (source, event type). Built once at load, so that a lookup costs nothing at settle."""

    _by_event: Mapping[tuple[str, str], tuple[EventRoute, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, routes: Iterable[EventRoute]) -> EventRouteTable:
        by_event: dict[tuple[str, str], list[EventRoute]] = {}
        for route in routes:
            by_event.setdefault((route.source, route.event_type), []).append(route)
        return cls({event: tuple(found) for event, found in by_event.items()})

    def matching(self, source: str, event_type: str) -> tuple[EventRoute, ...]:
        return self._by_event.get((source, event_type), ())
