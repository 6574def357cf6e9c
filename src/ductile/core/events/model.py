"""Events, and the chain of contexts that carries baggage from job to job."""

from __future__ import annotations

from collections.abc import Mapping

from ductile.core.json import JsonObject
from ductile.struct import Value


class NewEvent(Value):
    """An event to store, once for all the jobs that it starts."""

    id: str
    type: str
    source: str
    payload: JsonObject
    #: Only events of webhooks have headers.
    headers: Mapping[str, str] | None = None
    dedupe_key: str | None = None


def visible_event(event: NewEvent) -> JsonObject:
    """Return the event as conditions see it under `event`."""
    visible: JsonObject = {"type": event.type, "source": event.source, "event_id": event.id}
    if event.headers is not None:
        visible["headers"] = dict(event.headers)
    return visible


class OutgoingEvent(Value):
    """An event with its index among the events of its producer."""

    event: NewEvent
    index: int = 0


class NewContext(Value):
    """One link in the chain of contexts; `baggage` is everything claimed up to here."""

    id: str
    baggage: JsonObject
    parent_id: str | None = None
    run_id: str | None = None
    pipeline: str | None = None
    step_path: str | None = None
    hops: int = 0
