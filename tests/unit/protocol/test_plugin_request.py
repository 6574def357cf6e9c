"""The bytes that a plugin gets on stdin."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from ductile.core.json import JsonValue
from ductile.protocol.plugin_messages import PluginRequest, RequestEvent, carries_event, encode_request
from ductile.struct import replace

NOON = datetime(2026, 2, 8, 12, 0, tzinfo=UTC)
EVENT = RequestEvent(type="file.changed", payload={"n": 1}, source="watch", timestamp=NOON, event_id="e1")


def a_request(command: str = "poll", **changes: object) -> PluginRequest:
    request = PluginRequest(
        job_id="j1",
        command=command,
        instance="mail",
        config={"host": "example.org"},
        state={},
        context={"ductile_plugin": "mail"},
        deadline_at=NOON,
        event=EVENT,
    )
    return replace(request, **changes)


def encode_and_decode(request: PluginRequest) -> dict[str, JsonValue]:
    body: dict[str, JsonValue] = json.loads(encode_request(request))
    return body


def test_the_fields_of_every_request() -> None:
    """A poll has no other fields; an absent field is left out, never null."""
    assert encode_and_decode(a_request()) == {
        "protocol": 2,
        "job_id": "j1",
        "command": "poll",
        "instance": "mail",
        "config": {"host": "example.org"},
        "state": {},
        "context": {"ductile_plugin": "mail"},
        "deadline_at": "2026-02-08T12:00:00.000000Z",
    }


def test_a_payload_is_passed_when_there_is_one() -> None:
    """An empty payload is a payload."""
    assert encode_and_decode(a_request(payload={}))["payload"] == {}


def test_the_event_of_a_request() -> None:
    """Key and headers are present only if the event has them."""
    plain = {
        "type": "file.changed",
        "payload": {"n": 1},
        "source": "watch",
        "timestamp": "2026-02-08T12:00:00.000000Z",
        "event_id": "e1",
    }
    assert encode_and_decode(a_request("handle"))["event"] == plain
    full = replace(EVENT, dedupe_key="k", headers={"x-id": "7"})
    expected = {**plain, "dedupe_key": "k", "headers": {"x-id": "7"}}
    assert encode_and_decode(a_request("handle", event=full))["event"] == expected


@pytest.mark.parametrize("payload", [None, {"a": 1}])
@pytest.mark.parametrize("command", ["poll", "health", "init"])
def test_poll_health_and_init_never_get_an_event(command: str, payload: JsonValue) -> None:
    assert "event" not in encode_and_decode(a_request(command, payload=payload))


def test_a_custom_command_gets_the_event_with_its_payload() -> None:
    """The event is sent only if the command was given a payload."""
    assert "event" in encode_and_decode(a_request("sync", payload={}))
    assert "event" not in encode_and_decode(a_request("sync"))
    assert carries_event("sync", has_payload=True)
    assert not carries_event("sync", has_payload=False)


def test_handle_without_an_event_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="needs an event"):
        a_request("handle", event=None)


def test_integers_stay_exact() -> None:
    """The integers are beyond 2^53 and beyond 64 bits."""
    state: dict[str, JsonValue] = {"a": 2**53 + 1, "b": -(2**64) - 1, "c": 10**40}
    assert encode_and_decode(a_request(state=state))["state"] == state


def test_text_that_is_not_unicode_does_not_stop_a_job() -> None:
    """An environment variable may contain any bytes."""
    assert encode_and_decode(a_request(config={"k": "\udcff ü"}))["config"] == {"k": "\udcff ü"}
