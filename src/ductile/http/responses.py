"""Answers as ASGI messages: JSON objects, and one shape for every error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from ductile.core.json import JsonObject, JsonValue
from ductile.errors import ConfigError, DuctileError, TooBusyError

if TYPE_CHECKING:
    from uvicorn._types import ASGISendCallable

Header = tuple[bytes, bytes]

JSON = (b"content-type", b"application/json")
#: What whoever was refused for lack of room or strength should wait before trying again.
RETRY_SECONDS = 1
_TOO_MANY, _UNAVAILABLE, _UNAUTHORIZED, _METHOD_NOT_ALLOWED = 429, 503, 401, 405

_encoder = msgspec.json.Encoder()


def encode(body: object) -> bytes:
    """The body as JSON; lone surrogates that came in by an odd door are replaced, never a reason to fail."""
    try:
        return _encoder.encode(body)
    except UnicodeEncodeError:
        from json import dumps  # noqa: PLC0415 - only for text that is not text

        return dumps(msgspec.to_builtins(body), separators=(",", ":"), default=str).encode("ascii", "replace")


def error_body(error: DuctileError) -> JsonObject:
    details: JsonObject = {key: _plain(value) for key, value in error.details.items()}
    if isinstance(error, ConfigError):
        details["problems"] = [_plain(problem) for problem in error.problems]
    told: JsonObject = {
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "details": details,
    }
    return {"error": told, "message": error.message}


def _plain(value: object) -> JsonValue:
    return msgspec.to_builtins(value)  # type: ignore[no-any-return]  # details are JSON by contract


def error_headers(error: DuctileError) -> list[Header]:
    status = error.http_status
    if status in (_TOO_MANY, _UNAVAILABLE):
        wait = error.details.get("retry_after_seconds", RETRY_SECONDS)
        return [(b"retry-after", str(wait).encode())]
    if status == _UNAUTHORIZED:
        return [(b"www-authenticate", b'Bearer realm="ductile"')]
    if status == _METHOD_NOT_ALLOWED:
        return [(b"allow", str(error.details.get("allow", "")).encode())]
    return []


async def send_json(
    send: ASGISendCallable, status: int, body: JsonObject, headers: Iterable[Header] = ()
) -> None:
    await send_bytes(send, status, encode(body), [JSON, *headers])


async def send_bytes(
    send: ASGISendCallable, status: int, content: bytes, headers: list[Header], *, more: bool = False
) -> None:
    """Start and body. With `more`, all of it is out and the exchange is still open."""
    length = (b"content-length", str(len(content)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": content, "more_body": more})


async def send_error(send: ASGISendCallable, error: DuctileError, *, close: bool = False) -> None:
    headers = [*error_headers(error), (b"connection", b"close")] if close else error_headers(error)
    await send_json(send, error.http_status, error_body(error), headers)


def shutdown_error(*, maybe_stored: bool) -> TooBusyError:
    """For whom the daemon cannot wait any longer. `in_doubt` is who may have been on the way to the disk:
    it is written all the same if it can be, and to say no would have it sent and run again.
    """
    if maybe_stored:
        return TooBusyError(
            "the daemon stopped before it knew whether this was on disk: it may be on the queue",
            hint="Look for it when the daemon is back, or send it again with the key that it was sent with.",
        )
    return TooBusyError("the daemon is stopping", hint="Try again when it has been started again.")


def raw_error(error: DuctileError) -> bytes:
    """The same answer as bytes, for what is refused before there is a request to answer."""
    from http import HTTPStatus  # noqa: PLC0415 - only where something is refused

    content = encode(error_body(error))
    status = HTTPStatus(error.http_status)
    lines = [b"HTTP/1.1 %d %s" % (status, status.phrase.encode())]
    lines += [b"%s: %s" % header for header in (JSON, *error_headers(error))]
    lines += [b"content-length: %d" % len(content), b"connection: close", b"", content]
    return b"\r\n".join(lines)
