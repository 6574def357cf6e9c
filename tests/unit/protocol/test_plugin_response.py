"""Valid responses of a plugin, and the violations in invalid ones."""

from __future__ import annotations

import json

import pytest

from ductile.core.jobs.model import PluginEvent, PluginResponse
from ductile.core.json import JsonValue
from ductile.protocol.plugin_messages import (
    MAX_DEPTH,
    DecodedResponse,
    PluginLog,
    PluginLogLevel,
    ProtocolViolation,
    decode_response,
)


def decode(**fields: JsonValue) -> DecodedResponse | ProtocolViolation:
    return decode_response(json.dumps(fields).encode())


def ok(**fields: JsonValue) -> PluginResponse:
    decoded = decode(status="ok", **{"result": "x", **fields})
    assert isinstance(decoded, DecodedResponse), decoded
    return decoded.response


def violation_message(**fields: JsonValue) -> str:
    decoded = decode(**fields)
    assert isinstance(decoded, ProtocolViolation), decoded
    return decoded.message


@pytest.mark.parametrize("result", ["text", 0, False, 1.5, [], {}, {"a": None}, [None], 2**80])
def test_any_value_is_a_result_but_null_and_blank(result: JsonValue) -> None:
    """Zero, false and empty collections are results."""
    assert ok(result=result) == PluginResponse(ok=True, result=result)


@pytest.mark.parametrize("result", [None, "", " \n\t"])
def test_ok_needs_a_result(result: JsonValue) -> None:
    """`result` is required with ok."""
    assert "`result`" in violation_message(status="ok", result=result)
    assert "`result`" in violation_message(status="ok")


@pytest.mark.parametrize("error", [None, "", "  ", 5, ["x"]])
def test_error_needs_a_text(error: JsonValue) -> None:
    """`error` is required with error."""
    assert "`error`" in violation_message(status="error", error=error)


def test_an_error_is_retried_by_default() -> None:
    permanent = decode(status="error", error="no", retry=False)
    temporary = decode(status="error", error="no", events=[{"type": "t", "payload": {}}])
    assert isinstance(permanent, DecodedResponse)
    assert isinstance(temporary, DecodedResponse)
    assert not permanent.response.retry
    assert temporary.response == PluginResponse(
        ok=False, error="no", events=(PluginEvent(type="t", payload={}),)
    )


def test_every_field_of_a_response() -> None:
    """Unknown fields are ignored."""
    decoded = decode(
        status="ok",
        result={"n": 1},
        events=[{"type": "a", "payload": {"x": 1}, "dedupe_key": "k"}, {"type": "b"}],
        state_updates={"last": 5},
        logs=[{"level": "debug", "message": "d"}, {"level": "WARNING", "message": "w"}, {"message": "m"}],
        artifacts=[{"name": "f", "path": "/f", "size": 3, "extra": 1}, {"name": "g", "url": "u:"}],
        cost=2,
        unknown={"deep": []},
    )
    assert decoded == DecodedResponse(
        response=PluginResponse(
            ok=True,
            result={"n": 1},
            events=(
                PluginEvent(type="a", payload={"x": 1}, dedupe_key="k"),
                PluginEvent(type="b", payload={}),
            ),
            state_updates={"last": 5},
            artifacts=(
                {"name": "f", "path": "/f", "size": 3, "extra": 1},
                {"name": "g", "url": "u:"},
            ),
            cost=2.0,
        ),
        logs=(
            PluginLog(level=PluginLogLevel.DEBUG, message="d"),
            PluginLog(level=PluginLogLevel.WARN, message="w"),
            PluginLog(level=PluginLogLevel.INFO, message="m"),
        ),
    )


def test_null_is_the_same_as_absent() -> None:
    """Some languages write an empty list or an unset field as null."""
    absent: dict[str, JsonValue] = dict.fromkeys(
        ("error", "retry", "events", "state_updates", "logs", "artifacts", "cost")
    )
    assert ok(**absent) == PluginResponse(ok=True, result="x")


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"status": "fine"}, "`status`"),
        ({"status": None}, "`status`"),
        ({"status": True}, "`status`"),
        ({"error": 1}, "`error`"),
        ({"retry": "no"}, "`retry`"),
        ({"retry": 0}, "`retry`"),
        ({"events": {}}, "`events`"),
        ({"events": ["x"]}, "`events[0]`"),
        ({"events": [{"type": "t"}, {"type": ""}]}, "`events[1]`.type"),
        ({"events": [{"payload": {}}]}, "`events[0]`.type"),
        ({"events": [{"type": "t", "payload": [1]}]}, "`events[0]`.payload"),
        ({"events": [{"type": "t", "dedupe_key": 5}]}, "`events[0]`.dedupe_key"),
        ({"events": [{"type": "t", "dedupe_key": "k" * 1025}]}, "longer than 1024 characters"),
        ({"state_updates": [1]}, "`state_updates`"),
        ({"logs": "x"}, "`logs`"),
        ({"logs": [{"level": "info"}]}, "`logs[0]`.message"),
        ({"logs": [{"level": 3, "message": "m"}]}, "`logs[0]`.level"),
        ({"cost": "1"}, "`cost`"),
        ({"cost": True}, "`cost`"),
        ({"cost": -0.01}, "`cost` is -0.01; expected a number from 0 to 1000000"),
        ({"cost": 1e7}, "`cost`"),
        ({"artifacts": [{"path": "/f"}]}, "`artifacts[0]`.name"),
        ({"artifacts": [{"name": "f"}]}, "`artifacts[0]`"),
        ({"artifacts": [{"name": "f", "path": "/f", "url": "u:"}]}, "`artifacts[0]`"),
        ({"artifacts": [{"name": "f", "path": "/f", "size": True}]}, "`artifacts[0]`.size"),
        ({"artifacts": [{"name": "f", "path": "/f", "sha256": 1}]}, "`artifacts[0]`.sha256"),
    ],
)
def test_a_wrong_type_is_reported_with_its_path(fields: dict[str, JsonValue], path: str) -> None:
    assert path in violation_message(**{"status": "ok", "result": "x", **fields})


@pytest.mark.parametrize(
    ("stdout", "words"),
    [
        (b"", "empty"),
        (b" \r\n\t", "empty"),
        (b"hello", "it begins with 'hello'"),
        (b"[]", "a list"),
        (b'"text"', "the text"),
        (b"null", "null"),
        (b"12", "a number"),
        (b'{"status": "ok", "result": 1} {}', "trailing"),
        (b'{"status": "ok", "result": 1}\nbye', "trailing"),
        (b'{"status": "ok", "result": NaN}', "not one JSON object"),
        (b'{"status": "ok", "result": -Infinity}', "not one JSON object"),
        (b'{"status": "ok", "result": 1e999}', "out of range"),
        (b'{"status": "ok", "result": ' + b"9" * 5000 + b"}", "out of range"),
        (b'{"status": "ok", "result": "\xff"}', "not UTF-8"),
        (b'{"status": "ok", "result": "\xed\xa0\x80"}', "not UTF-8"),
        (b'{"status": "ok", "result": "\\ud800 and more text"}', "surrogate"),
        (b'{"status": "ok", "result": "x"', "not one JSON object"),
        (b"{'status': 'ok'}", "not one JSON object"),
        (b'\xef\xbb\xbf{"status": "ok", "result": 1}', "not one JSON object"),
        (b"\0" * 10, "not one JSON object"),
    ],
)
def test_output_that_is_not_one_json_object(stdout: bytes, words: str) -> None:
    """The message names the mistake."""
    violation = decode_response(stdout)
    assert isinstance(violation, ProtocolViolation)
    assert words in violation.message


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
@pytest.mark.parametrize("levels", [MAX_DEPTH, 1_000, 5_000, 500_000])
def test_deep_nesting_is_refused(opening: bytes, levels: int) -> None:
    """A plugin must not crash the daemon, neither during decoding nor in the store."""
    closing = b"]" if opening == b"[" else b"}"
    stdout = b'{"status": "ok", "result": ' + opening * levels + b"1" + closing * levels + b"}"
    violation = decode_response(stdout)
    assert isinstance(violation, ProtocolViolation)
    assert "nested deeper" in violation.message


def test_nesting_up_to_the_limit_is_accepted() -> None:
    """Only depth is limited, not width."""
    levels = MAX_DEPTH - 1
    deep = b'{"status": "ok", "result": ' + b"[" * levels + b"]" * levels + b"}"
    assert isinstance(decode_response(deep), DecodedResponse)
    assert ok(result=[[] for _ in range(MAX_DEPTH * 5)]).ok
