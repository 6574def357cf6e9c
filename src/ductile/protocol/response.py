"""What a plugin answers on stdout: one JSON object, decoded strictly.

Whatever the bytes are, `decode_response` returns a value: a plugin may print anything, and nothing
it prints may raise here or later, where the answer is stored and passed on.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from ductile.core.jobs.dedupe import LONGEST_KEY
from ductile.core.jobs.outcomes import PluginEvent, PluginResponse
from ductile.core.json import JsonObject, JsonValue
from ductile.struct import Value

#: Deeper nesting is refused: every later step, with its own use of the stack, must be able to encode it.
MAX_DEPTH = 200


class PluginLogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


#: Words for the same levels in other logging libraries. A level nobody knows counts as info.
_LEVELS = {
    **{level.value: level for level in PluginLogLevel},
    "warning": PluginLogLevel.WARN,
    "fatal": PluginLogLevel.ERROR,
}


class PluginLog(Value):
    """A line that the plugin wants in the log."""

    level: PluginLogLevel
    message: str


class DecodedResponse(Value):
    """A valid response, and the log lines that came with it."""

    response: PluginResponse
    logs: tuple[PluginLog, ...] = ()


class ProtocolViolation(Value):
    """Why the output is not a response: what was expected and what was found."""

    message: str


class _Fault(Exception):  # noqa: N818 - it never leaves this module
    """Carries the message of a `ProtocolViolation` to where it is made."""


def decode_response(stdout: bytes) -> DecodedResponse | ProtocolViolation:
    """Read a response, or say what is wrong with it. Never raises."""
    try:
        return _answer(_object(stdout))
    except _Fault as fault:
        return ProtocolViolation(message=str(fault))


def result_in(stdout: str | None) -> JsonValue:
    """The `result` of an answer that was accepted once; None for whatever is no such answer."""
    try:
        body: JsonValue = msgspec.json.decode(stdout or "")
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None
    return body.get("result") if isinstance(body, dict) else None


def normalise_response(body: JsonObject) -> JsonObject:
    """Return a response as callers get it: `events` is always a list of objects with a `payload`.

    `logs` and `artifacts` that are null become empty lists, and `state_updates` an empty object.
    """
    events = body.get("events")
    listed: list[JsonValue] = [
        {**event, "payload": {}} if isinstance(event, dict) and event.get("payload") is None else event
        for event in (events if isinstance(events, list) else ())
    ]
    empty: JsonObject = {"logs": [], "artifacts": [], "state_updates": {}}
    nulls = {name: value for name, value in empty.items() if name in body and body[name] is None}
    return {**body, **nulls, "events": listed}


def _object(stdout: bytes) -> JsonObject:
    if not stdout.strip():
        raise _Fault("stdout is empty; expected one JSON object")
    try:
        value: JsonValue = msgspec.json.decode(stdout)
    except UnicodeDecodeError as error:
        raise _Fault(f"stdout is not UTF-8: {error.reason}") from None
    except RecursionError:
        raise _Fault(f"the JSON on stdout is nested deeper than {MAX_DEPTH} levels") from None
    except msgspec.DecodeError as error:
        raise _Fault(f"stdout is not one JSON object: {_malformed(error, stdout)}") from None
    if not isinstance(value, dict):
        raise _Fault(f"stdout holds {_kind(value)}; expected one JSON object")
    if _deeper_than(value, MAX_DEPTH, opening=stdout.count(b"{") + stdout.count(b"[")):
        raise _Fault(f"the JSON on stdout is nested deeper than {MAX_DEPTH} levels")
    return value


def _malformed(error: msgspec.DecodeError, stdout: bytes) -> str:
    shown = stdout.strip()[:60].decode("utf-8", errors="replace")
    reason = str(error).removeprefix("JSON is malformed: ")
    return f"{reason}; it begins with {shown!r}"


def _deeper_than(value: JsonValue, limit: int, *, opening: int) -> bool:
    """Whether containers are nested beyond the limit; `opening` is how many could be, at most."""
    if opening <= limit:
        return False
    level: list[JsonValue] = [value]
    for _ in range(limit):
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else _items(container))
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _items(container: JsonValue) -> list[JsonValue]:
    return container if isinstance(container, list) else []


def _answer(body: JsonObject) -> DecodedResponse:
    response = _failure(body) if _ok_or_error(body) == "error" else _success(body)
    return DecodedResponse(response=response, logs=_logs(body))


def _ok_or_error(body: JsonObject) -> str:
    status = body.get("status")
    if status not in ("ok", "error") or not isinstance(status, str):
        raise _expected("`status`", '"ok" or "error"', status)
    return status


def _success(body: JsonObject) -> PluginResponse:
    _text(body, "error")
    result = body.get("result")
    if result is None or (isinstance(result, str) and not result.strip()):
        raise _expected("`result`", 'text or any other JSON value with status "ok"', result)
    return _response(body, ok=True, result=result, error=None)


def _failure(body: JsonObject) -> PluginResponse:
    error = _text(body, "error")
    if error is None or not error.strip():
        raise _expected("`error`", 'a text that says what went wrong with status "error"', error)
    return _response(body, ok=False, result=body.get("result"), error=error)


def _response(body: JsonObject, *, ok: bool, result: JsonValue, error: str | None) -> PluginResponse:
    return PluginResponse(
        ok=ok,
        result=result,
        error=error,
        retry=_retry(body),
        events=_events(body),
        state_updates=_mapping(body, "state_updates", "`state_updates`"),
        artifacts=_artifacts(body),
    )


def _retry(body: JsonObject) -> bool:
    retry = body.get("retry")
    if retry is None:
        return True
    if not isinstance(retry, bool):
        raise _expected("`retry`", "true or false", retry)
    return retry


def _events(body: JsonObject) -> tuple[PluginEvent, ...]:
    events = []
    for index, entry in enumerate(_objects(body, "events")):
        place = f"`events[{index}]`"
        kind = _text(entry, "type", place)
        if kind is None or not kind.strip():
            raise _expected(f"{place}.type", "a text", kind)
        payload = _mapping(entry, "payload", f"{place}.payload")
        key = _text(entry, "dedupe_key", place)
        if key is not None and len(key) > LONGEST_KEY:
            raise _Fault(f"{place}.dedupe_key is longer than {LONGEST_KEY} characters")
        events.append(PluginEvent(type=kind, payload={} if payload is None else payload, dedupe_key=key))
    return tuple(events)


def _logs(body: JsonObject) -> tuple[PluginLog, ...]:
    lines = []
    for index, entry in enumerate(_objects(body, "logs")):
        place = f"`logs[{index}]`"
        level = _text(entry, "level", place)
        message = _text(entry, "message", place)
        if message is None:
            raise _expected(f"{place}.message", "a text", message)
        lines.append(
            PluginLog(level=_LEVELS.get((level or "").lower(), PluginLogLevel.INFO), message=message)
        )
    return tuple(lines)


def _artifacts(body: JsonObject) -> tuple[JsonValue, ...]:
    entries = _objects(body, "artifacts")
    for index, entry in enumerate(entries):
        place = f"`artifacts[{index}]`"
        if not _text(entry, "name", place):
            raise _expected(f"{place}.name", "a text", entry.get("name"))
        if (_text(entry, "path", place) is None) == (_text(entry, "url", place) is None):
            raise _Fault(f"{place} needs either `path` or `url`, as a text")
        _text(entry, "media_type", place)
        _text(entry, "sha256", place)
        size = entry.get("size")
        if size is not None and (not isinstance(size, int) or isinstance(size, bool)):
            raise _expected(f"{place}.size", "a whole number", size)
    return tuple(entries)


def _objects(body: JsonObject, key: str) -> list[JsonObject]:
    """A list of objects. Languages whose empty list is written as null need not mind."""
    entries = body.get(key)
    if entries is None:
        return []
    if not isinstance(entries, list):
        raise _expected(f"`{key}`", "a list", entries)
    objects = []
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise _expected(f"`{key}[{index}]`", "an object", entry)
        objects.append(entry)
    return objects


def _mapping(body: JsonObject, key: str, place: str) -> JsonObject | None:
    value = body.get(key)
    if value is not None and not isinstance(value, dict):
        raise _expected(place, "an object", value)
    return value


def _text(body: JsonObject, key: str, place: str = "") -> str | None:
    value = body.get(key)
    if value is not None and not isinstance(value, str):
        raise _expected(f"{place}.{key}" if place else f"`{key}`", "a text", value)
    return value


def _expected(place: str, expected: str, found: JsonValue) -> _Fault:
    return _Fault(f"{place} is {_kind(found)}; expected {expected}")


def _kind(value: JsonValue) -> str:
    match value:
        case None:
            return "missing or null"
        case bool():
            return "true" if value else "false"
        case str():
            return "blank" if not value.strip() else f"the text {value[:40]!r}"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case dict():
            return "an object"
