"""What a plugin is given on stdin: one JSON object. This module owns its bytes.

An absent part is left out, so that a plugin can tell it from one that is empty.
"""

from __future__ import annotations

from datetime import datetime
from json import dumps

import msgspec

from ductile.core.json import JsonObject
from ductile.core.timestamps import format_timestamp
from ductile.struct import Value

PROTOCOL_VERSION = 2
#: The command that answers an event: it never runs without one.
EVENT_COMMAND = "handle"
#: Commands that are about the plugin and not about something that happened.
EVENTLESS_COMMANDS = frozenset({"poll", "health", "init"})


class RequestEvent(Value):
    """What happened, as the plugin is told it."""

    type: str
    payload: JsonObject
    source: str
    timestamp: datetime
    event_id: str
    dedupe_key: str | None = None
    #: Only for events that came in through a webhook.
    headers: dict[str, str] | None = None


class PluginRequest(Value):
    """Everything a plugin is told about its job."""

    job_id: str
    command: str
    instance: str
    config: JsonObject
    state: JsonObject
    context: JsonObject
    deadline_at: datetime
    payload: JsonObject | None = None
    event: RequestEvent | None = None

    def __post_init__(self) -> None:
        if self.command == EVENT_COMMAND and self.event is None:
            raise ValueError(f"a request to {EVENT_COMMAND} needs an event")


def carries_event(command: str, *, has_payload: bool) -> bool:
    """Whether a request for this command tells of an event."""
    if command in EVENTLESS_COMMANDS:
        return False
    return command == EVENT_COMMAND or has_payload


def encode_request(request: PluginRequest) -> bytes:
    """The request as UTF-8 JSON. Integers of any size stay exact."""
    body = _body(request)
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        # A variable that is not UTF-8 reaches the configuration as a string with lone surrogates.
        # JSON can write those as escapes, and a job should not fail over it.
        return dumps(body, separators=(",", ":")).encode("ascii")


def _body(request: PluginRequest) -> JsonObject:
    body: JsonObject = {
        "protocol": PROTOCOL_VERSION,
        "job_id": request.job_id,
        "command": request.command,
        "instance": request.instance,
        "config": request.config,
        "state": request.state,
        "context": request.context,
        "deadline_at": format_timestamp(request.deadline_at),
    }
    if request.payload is not None:
        body["payload"] = request.payload
    has_payload = request.payload is not None
    if request.event is not None and carries_event(request.command, has_payload=has_payload):
        body["event"] = _event(request.event)
    return body


def _event(event: RequestEvent) -> JsonObject:
    body: JsonObject = {
        "type": event.type,
        "payload": event.payload,
        "source": event.source,
        "timestamp": format_timestamp(event.timestamp),
        "event_id": event.event_id,
    }
    if event.dedupe_key is not None:
        body["dedupe_key"] = event.dedupe_key
    if event.headers is not None:
        body["headers"] = dict(event.headers)
    return body
