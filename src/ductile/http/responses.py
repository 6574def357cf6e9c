"""Responses: JSON objects, other formats, streams, and one format for every error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from ductile.core.json import JsonObject, JsonValue
from ductile.errors import ConfigError, DuctileError, TooBusyError
from ductile.struct import Value

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable

Header = tuple[bytes, bytes]

JSON_CONTENT_TYPE = (b"content-type", b"application/json")
#: Sent as Retry-After with 429 and 503, unless the error says otherwise.
RETRY_SECONDS = 1
_TOO_MANY, _UNAVAILABLE, _UNAUTHORIZED, _METHOD_NOT_ALLOWED = 429, 503, 401, 405
_NO_SNIFFING = (b"x-content-type-options", b"nosniff")
_NO_STORE = (b"cache-control", b"no-store")

_encoder = msgspec.json.Encoder()


class JsonResponse(Value):
    """A JSON object, encoded."""

    content: bytes
    status: int = 200
    headers: tuple[Header, ...] = ()


class RawResponse(Value):
    """A response in another format than JSON objects."""

    content: bytes
    media_type: str
    status: int = 200
    headers: tuple[Header, ...] = ()
    #: Whether `headers` tell caches how long to keep the response; otherwise no cache may keep it.
    is_cacheable: bool = False


class Stream(Value):
    """A response that is sent as it is produced. It ends when the client disconnects."""

    run: Callable[[ASGISendCallable], Awaitable[None]]
    #: Called when the stream has ended, also if it never began.
    close: Callable[[], None] = lambda: None


HttpResponse: TypeAlias = JsonResponse | RawResponse | Stream


def encode(body: object) -> bytes:
    """Return the body as JSON. Lone surrogates, which UTF-8 does not have, are replaced."""
    try:
        return _encoder.encode(body)
    except UnicodeEncodeError:
        from json import dumps  # noqa: PLC0415 - rarely needed

        return dumps(msgspec.to_builtins(body), separators=(",", ":"), default=str).encode("ascii", "replace")


def error_body(error: DuctileError) -> JsonObject:
    """Return the body of every error response: `{"error": {code, message, hint, details}, "message": …}`."""
    details: JsonObject = {key: _plain(value) for key, value in error.details.items()}
    if isinstance(error, ConfigError):
        details["problems"] = [_plain(problem) for problem in error.problems]
    fields: JsonObject = {
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "details": details,
    }
    return {"error": fields, "message": error.message}


def _plain(value: object) -> JsonValue:
    return msgspec.to_builtins(value)  # type: ignore[no-any-return]  # details are JSON by contract


def error_headers(error: DuctileError) -> list[Header]:
    """Return the headers that the status of the error requires, such as Retry-After."""
    status = error.http_status
    if status in (_TOO_MANY, _UNAVAILABLE):
        wait = error.details.get("retry_after_seconds", RETRY_SECONDS)
        return [(b"retry-after", str(wait).encode())]
    if status == _UNAUTHORIZED:
        return [(b"www-authenticate", b'Bearer realm="ductile"')]
    if status == _METHOD_NOT_ALLOWED:
        return [(b"allow", str(error.details.get("allow", "")).encode())]
    return []


def shutdown_error(*, maybe_stored: bool) -> TooBusyError:
    """Return the error for a request that is cut off at shutdown.

    With `maybe_stored` the write may have been committed, and a plain refusal would make the client send the
    request again.
    """
    if maybe_stored:
        return TooBusyError(
            "the daemon stopped before it knew whether this was on disk: it may be on the queue",
            hint="Look for it when the daemon is back, or send it again with the key that it was sent with.",
        )
    return TooBusyError("the daemon is stopping", hint="Try again when it has been started again.")


def raw_error(error: DuctileError) -> bytes:
    """Return the whole error response as bytes, for input that is refused before there is a request."""
    from http import HTTPStatus  # noqa: PLC0415 - rarely needed

    content = encode(error_body(error))
    status = HTTPStatus(error.http_status)
    lines = [b"HTTP/1.1 %d %s" % (status, status.phrase.encode())]
    lines += [b"%s: %s" % header for header in (JSON_CONTENT_TYPE, *error_headers(error))]
    lines += [b"content-length: %d" % len(content), b"connection: close", b"", content]
    return b"\r\n".join(lines)


async def send_response(send: ASGISendCallable, receive: ASGIReceiveCallable, response: HttpResponse) -> None:
    """Send the response. A stream is stopped when the client disconnects."""
    match response:
        case JsonResponse():
            await send_bytes(send, response.status, response.content, [JSON_CONTENT_TYPE, *response.headers])
        case RawResponse():
            headers = [(b"content-type", response.media_type.encode()), _NO_SNIFFING]
            if not response.is_cacheable:
                headers.append(_NO_STORE)
            await send_bytes(send, response.status, response.content, [*headers, *response.headers])
        case Stream():
            await _send_stream(send, receive, response)


async def _send_stream(send: ASGISendCallable, receive: ASGIReceiveCallable, stream: Stream) -> None:
    """Run a stream until it ends or the client disconnects, and close it."""

    async def wait_for_disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    streaming = asyncio.ensure_future(stream.run(send))
    disconnect = asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait({streaming, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if streaming.done():
            await streaming
    finally:
        disconnect.cancel()
        streaming.cancel()
        try:
            await asyncio.gather(streaming, return_exceptions=True)
        finally:
            stream.close()


async def send_json(
    send: ASGISendCallable, status: int, body: JsonObject, headers: Iterable[Header] = ()
) -> None:
    await send_bytes(send, status, encode(body), [JSON_CONTENT_TYPE, *headers])


async def send_bytes(
    send: ASGISendCallable, status: int, content: bytes, headers: list[Header], *, keep_open: bool = False
) -> None:
    """Send head and body. With `keep_open` the response is not ended, although all of its content is sent."""
    length = (b"content-length", str(len(content)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": content, "more_body": keep_open})


async def send_error(send: ASGISendCallable, error: DuctileError, *, close: bool = False) -> None:
    headers = [*error_headers(error), (b"connection", b"close")] if close else error_headers(error)
    await send_json(send, error.http_status, error_body(error), headers)
