"""The request of a plugin, a JSON object on its stdin, and its response, a JSON object on its stdout.

An absent part of a request is left out, so that a plugin can tell it from an empty one. A response is decoded
strictly: whatever a plugin prints, `decode_response` returns a value, and nothing in that value raises later,
where it is stored and passed on.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from json import dumps

import msgspec

from ductile.core.jobs.admission import MAX_KEY_LENGTH
from ductile.core.jobs.model import OutputFormat, PluginEvent, PluginResponse
from ductile.core.json import JsonObject, JsonValue
from ductile.core.timestamps import format_timestamp
from ductile.struct import Value, asdict

PROTOCOL_VERSION = 2
#: The command that answers an event: it never runs without one.
EVENT_COMMAND = "handle"
#: Commands that concern the plugin itself, not an event.
EVENTLESS_COMMANDS = frozenset({"poll", "health", "init"})
#: Deeper nesting is refused: every later step must be able to encode it within its own stack.
MAX_DEPTH = 200
#: The largest cost of one execution. Up to it, sums of costs are exact to a billionth.
MAX_COST = 1_000_000
_MAX_QUOTED = 60


class RequestEvent(Value):
    """The event of a request. `headers` are only set for events from a webhook."""

    type: str
    payload: JsonObject
    source: str
    timestamp: datetime
    event_id: str
    dedupe_key: str | None = None
    headers: dict[str, str] | None = None


class PluginRequest(Value):
    """The request of one execution."""

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
    """Return whether a request for this command contains an event."""
    if command in EVENTLESS_COMMANDS:
        return False
    return command == EVENT_COMMAND or has_payload


def encode_request(request: PluginRequest) -> bytes:
    """Return the request as UTF-8 JSON. Integers of any size stay exact."""
    event = request.event
    body = {"protocol": PROTOCOL_VERSION, **_present_fields(request, "event")}
    body["deadline_at"] = format_timestamp(request.deadline_at)
    if event is not None and carries_event(request.command, has_payload=request.payload is not None):
        body["event"] = _present_fields(event) | {"timestamp": format_timestamp(event.timestamp)}
    return _encode(body)


def encode_payload(payload: JsonObject) -> bytes:
    """Return a payload as one line of UTF-8 JSON, for the stdin of a script."""
    return _encode(payload) + b"\n"


def _encode(body: JsonObject) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        # A variable that is not UTF-8 reaches the configuration as a string with lone surrogates. JSON can
        # write them as escapes, so that the job does not fail.
        return dumps(body, separators=(",", ":")).encode("ascii")


def _present_fields(value: Value, *without: str) -> JsonObject:
    fields = asdict(value).items()
    return {name: content for name, content in fields if content is not None and name not in without}


class PluginLogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


#: Includes the words of other logging libraries. An unknown level counts as info.
_LEVELS = {
    **{level.value: level for level in PluginLogLevel},
    "warning": PluginLogLevel.WARN,
    "fatal": PluginLogLevel.ERROR,
}


class PluginLog(Value):
    """A line for the log, sent by the plugin."""

    level: PluginLogLevel
    message: str


class DecodedResponse(Value):
    """A valid response and its log lines."""

    response: PluginResponse
    logs: tuple[PluginLog, ...] = ()


class ProtocolViolation(Value):
    """The reason why output is not a response. The message names the expected and the actual value."""

    message: str


class _Violation(Exception):  # noqa: N818 - never leaves this module
    """Carries the message of a `ProtocolViolation`."""


def decode_response(stdout: bytes) -> DecodedResponse | ProtocolViolation:
    """Return the response, or the first violation of the protocol. Never raises."""
    if not stdout.strip():
        return ProtocolViolation(message="stdout is empty; expected one JSON object")
    try:
        body = _decode_json(stdout, "one JSON object")
        if not isinstance(body, dict):
            return ProtocolViolation(message=f"stdout holds {_describe(body)}; expected one JSON object")
        return DecodedResponse(response=_response(body), logs=_logs(body))
    except _Violation as violation:
        return ProtocolViolation(message=str(violation))


def stored_result(stdout: str | None, output: OutputFormat = OutputFormat.PROTOCOL) -> JsonValue:
    """Return the result that a stored stdout holds; None if it holds none."""
    if output is not OutputFormat.PROTOCOL:
        result = script_result((stdout or "").encode(errors="replace"), output)
        return None if isinstance(result, ProtocolViolation) else result
    try:
        body: JsonValue = msgspec.json.decode(stdout or "")
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None
    return body.get("result") if isinstance(body, dict) else None


def script_result(stdout: bytes, output: OutputFormat) -> JsonValue | ProtocolViolation:
    """Return the result of a script that succeeded. Never raises.

    The result of a text is stdout without surrounding blanks, and may be empty. That of empty JSON is null.
    """
    if output is OutputFormat.TEXT:
        return storable_text(stdout).strip()
    if not stdout.strip():
        return None
    try:
        return _decode_json(stdout, "one JSON document")
    except _Violation as violation:
        return ProtocolViolation(message=str(violation))


def storable_text(output: bytes) -> str:
    """Return text that every store accepts: invalid UTF-8 and NUL become replacement characters."""
    return output.decode("utf-8", errors="replace").replace("\0", "\ufffd")


def normalise_response(body: JsonObject) -> JsonObject:
    """Return a response in the form that callers get: `events` is always a list of objects with a `payload`.

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


def _decode_json(stdout: bytes, expected: str) -> JsonValue:
    """Return the decoded stdout. Raises _Violation if it is not JSON, or nested too deep."""
    too_deep = f"the JSON on stdout is nested deeper than {MAX_DEPTH} levels"
    try:
        value: JsonValue = msgspec.json.decode(stdout)
    except UnicodeDecodeError as error:
        raise _Violation(f"stdout is not UTF-8: {error.reason}") from None
    except RecursionError:
        raise _Violation(too_deep) from None
    except msgspec.DecodeError as error:
        reason = str(error).removeprefix("JSON is malformed: ")
        beginning = stdout.strip()[:_MAX_QUOTED].decode("utf-8", errors="replace")
        raise _Violation(f"stdout is not {expected}: {reason}; it begins with {beginning!r}") from None
    # Output with fewer brackets cannot be too deep.
    if stdout.count(b"{") + stdout.count(b"[") > MAX_DEPTH and _is_deeper_than(value, MAX_DEPTH):
        raise _Violation(too_deep)
    return value


def _is_deeper_than(value: JsonValue, limit: int) -> bool:
    level: list[dict[str, JsonValue] | list[JsonValue]] = [value] if isinstance(value, dict | list) else []
    for _ in range(limit):
        children = (
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
        )
        level = [child for child in children if isinstance(child, dict | list)]
    return bool(level)


def _response(body: JsonObject) -> PluginResponse:
    """Return the response. Raises _Violation for the first invalid field."""
    status, result, retry = body.get("status"), body.get("result"), body.get("retry")
    if status not in ("ok", "error"):
        raise _expected("`status`", '"ok" or "error"', status)
    ok = status == "ok"
    error = _text(body, "error")
    if ok and (result is None or (isinstance(result, str) and not result.strip())):
        raise _expected("`result`", 'text or any other JSON value with status "ok"', result)
    if not ok and (error is None or not error.strip()):
        raise _expected("`error`", 'a text that says what went wrong with status "error"', error)
    if retry is not None and not isinstance(retry, bool):
        raise _expected("`retry`", "true or false", retry)
    return PluginResponse(
        ok=ok,
        result=result,
        error=None if ok else error,
        retry=retry is not False,
        events=_events(body),
        state_updates=_mapping(body, "state_updates", "`state_updates`"),
        artifacts=_artifacts(body),
        cost=_cost(body),
    )


def _events(body: JsonObject) -> tuple[PluginEvent, ...]:
    events = []
    for path, entry in _objects(body, "events"):
        kind = _text(entry, "type", path)
        if kind is None or not kind.strip():
            raise _expected(f"{path}.type", "a text", kind)
        payload = _mapping(entry, "payload", f"{path}.payload")
        key = _text(entry, "dedupe_key", path)
        if key is not None and len(key) > MAX_KEY_LENGTH:
            raise _Violation(f"{path}.dedupe_key is longer than {MAX_KEY_LENGTH} characters")
        events.append(PluginEvent(type=kind, payload={} if payload is None else payload, dedupe_key=key))
    return tuple(events)


def _logs(body: JsonObject) -> tuple[PluginLog, ...]:
    lines = []
    for path, entry in _objects(body, "logs"):
        level = _text(entry, "level", path)
        message = _text(entry, "message", path)
        if message is None:
            raise _expected(f"{path}.message", "a text", message)
        lines.append(
            PluginLog(level=_LEVELS.get((level or "").lower(), PluginLogLevel.INFO), message=message)
        )
    return tuple(lines)


def _artifacts(body: JsonObject) -> tuple[JsonValue, ...]:
    artifacts = _objects(body, "artifacts")
    for path, entry in artifacts:
        if not _text(entry, "name", path):
            raise _expected(f"{path}.name", "a text", entry.get("name"))
        if (_text(entry, "path", path) is None) == (_text(entry, "url", path) is None):
            raise _Violation(f"{path} needs either `path` or `url`, as a text")
        _text(entry, "media_type", path)
        _text(entry, "sha256", path)
        size = entry.get("size")
        if size is not None and (not isinstance(size, int) or isinstance(size, bool)):
            raise _expected(f"{path}.size", "a whole number", size)
    return tuple(entry for _, entry in artifacts)


def _cost(body: JsonObject) -> float | None:
    cost = body.get("cost")
    if cost is None:
        return None
    if not isinstance(cost, int | float) or isinstance(cost, bool) or not 0 <= cost <= MAX_COST:
        written = msgspec.json.encode(cost).decode()[:_MAX_QUOTED]
        raise _Violation(f"`cost` is {written}; expected a number from 0 to {MAX_COST}")
    return float(cost)


def _objects(body: JsonObject, key: str) -> list[tuple[str, JsonObject]]:
    """Return the objects of a list with their paths. Null counts as empty, since some languages write it."""
    entries = body.get(key)
    if entries is None:
        return []
    if not isinstance(entries, list):
        raise _expected(f"`{key}`", "a list", entries)
    objects = []
    for index, entry in enumerate(entries):
        path = f"`{key}[{index}]`"
        if not isinstance(entry, dict):
            raise _expected(path, "an object", entry)
        objects.append((path, entry))
    return objects


def _mapping(body: JsonObject, key: str, path: str) -> JsonObject | None:
    value = body.get(key)
    if value is not None and not isinstance(value, dict):
        raise _expected(path, "an object", value)
    return value


def _text(body: JsonObject, key: str, path: str = "") -> str | None:
    value = body.get(key)
    if value is not None and not isinstance(value, str):
        raise _expected(f"{path}.{key}" if path else f"`{key}`", "a text", value)
    return value


def _expected(path: str, expected: str, found: JsonValue) -> _Violation:
    """Return the violation of a field with another value than expected."""
    return _Violation(f"{path} is {_describe(found)}; expected {expected}")


def _describe(value: JsonValue) -> str:
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
