"""Reading a request's body: never more than the limit, whatever its headers say, and not for ever."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from ductile.core.durations import format_size
from ductile.errors import DuctileError, TooLargeError, TooSlowError, UsageError
from ductile.http.body_quota import BodyQuota
from ductile.http.responses import JSON, encode, error_body, error_headers, send_bytes

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, HTTPScope

BODY_SECONDS = 30.0
#: After a refusal the rest is swallowed for a moment: a connection that is closed on a sender who still
#: sends is reset, and the answer lost with it.
SWALLOWED_SECONDS = 2.0
SWALLOWED_BYTES = 16 * 1024 * 1024

_GZIP = b"\x1f\x8b"
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
#: Of a whole number that is read.
_MOST_DIGITS = 4300
#: An escape in a text: a pair that makes one character, half of one, or any other.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}|(?P<half>u[dD][89a-fA-F][\da-fA-F]{2})|.)",
    re.DOTALL,
)


class ClientDisconnectedError(Exception):
    """The caller has gone; there is nobody to answer."""


class BodyEvictedError(Exception):
    """The body was being waited for, and its place was needed for somebody quicker."""


#: Strangers are told apart by the time that each of them has: it can be ended.
UnauthenticatedBodies: TypeAlias = BodyQuota[asyncio.Timeout]


async def read_body(scope: HTTPScope, receive: ASGIReceiveCallable, *, limit: int, seconds: float) -> bytes:
    """All of it, or an error as soon as it is known to be too much."""
    _refuse_declared(scope, limit)
    try:
        async with asyncio.timeout(seconds):
            return await _collect(receive, limit)
    except TimeoutError:
        raise _too_slow(seconds) from None


async def read_unauthenticated_body(
    scope: HTTPScope,
    receive: ASGIReceiveCallable,
    strangers: UnauthenticatedBodies,
    *,
    limit: int,
    seconds: float,
) -> bytes:
    """As `read_body`, for somebody who may have to give way to others like them."""
    _refuse_declared(scope, limit)
    patience = asyncio.timeout(seconds)
    try:
        async with patience:
            _dismiss(strangers.begin(patience))
            return await _collect(receive, limit, lambda size: _dismiss(strangers.grow(patience, size)))
    except TimeoutError:
        if patience not in strangers:
            raise BodyEvictedError from None
        raise _too_slow(seconds) from None
    finally:
        strangers.end(patience)


def _dismiss(gone: tuple[asyncio.Timeout, ...]) -> None:
    for patience in gone:
        if not patience.expired():  # else its time is over, and it is about to hear of it
            patience.reschedule(asyncio.get_running_loop().time())


def _refuse_declared(scope: HTTPScope, limit: int) -> None:
    if (declared := content_length(scope)) is not None and declared > limit:
        raise too_large(limit)


def _too_slow(seconds: float) -> TooSlowError:
    return TooSlowError(f"the body did not arrive within {seconds:g} seconds")


async def _collect(
    receive: ASGIReceiveCallable, limit: int, grew: Callable[[int], None] = lambda _: None
) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnectedError
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise too_large(limit)
        parts.append(part)
        grew(size)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def content_length(scope: HTTPScope) -> int | None:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else None
    return None


def too_large(limit: int) -> TooLargeError:
    return TooLargeError(
        f"the body is larger than {format_size(limit)}",
        hint="Send less, or raise max_body_size.",
        details={"limit_bytes": limit},
    )


async def refuse_body(receive: ASGIReceiveCallable, send: ASGISendCallable, error: DuctileError) -> None:
    """Answer while the caller may still be sending, then close."""
    headers = [JSON, *error_headers(error), (b"connection", b"close")]
    await send_bytes(send, error.http_status, encode(error_body(error)), headers, more=True)
    with suppress(TimeoutError):
        async with asyncio.timeout(SWALLOWED_SECONDS):
            await _swallow(receive)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _swallow(receive: ASGIReceiveCallable) -> None:
    size = 0
    while size < SWALLOWED_BYTES:
        message = await receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            return
        size += len(message.get("body", b""))


def decode_object(body: bytes, encoding: bytes | None = None) -> dict[str, object]:
    """The body as a JSON object; nothing at all is an empty one. `encoding` is how it says it was packed."""
    if not body or body.isspace():
        return {}
    try:
        value = msgspec.json.decode(body)
    except UnicodeDecodeError:
        raise UsageError("the body is not UTF-8 text", hint=_packed(body, encoding)) from None
    except msgspec.DecodeError as error:
        where = _where(str(error), body)
        raise UsageError(f"the body is not JSON: {where}", hint=_packed(body, encoding)) from None
    except RecursionError:
        raise UsageError("the body nests too deep") from None
    if not isinstance(value, dict):
        raise UsageError("the body has to be a JSON object", hint='such as {"payload": {"name": "Ada"}}')
    return value


def _packed(body: bytes, encoding: bytes | None) -> str | None:
    if body.startswith(_GZIP) or encoding not in (None, b"identity"):
        return "It is compressed: send it as it is, without Content-Encoding."
    return None


def _where(complaint: str, body: bytes) -> str:
    """The decoder's words, or better ones, with the place as line and column."""
    words, _, offset = complaint.partition(" (byte ")
    words, offset = words.removeprefix("JSON is malformed: "), offset.rstrip(")")
    at = int(offset) if offset.isdigit() else None
    # Of these the decoder gives no place, or takes them for the end of the body.
    if "out of range" in words:
        words, at = "a number out of range", _number_out_of_range(body)
    elif "surrogate" in words or ("truncated" in words and _half_pair(body) is not None):
        words, at = "half a surrogate pair", _half_pair(body)
    elif "truncated" in words:
        words, at = "it ends too early", len(body)
    if at is None:
        return words
    before = body[:at]
    line, column = before.count(b"\n") + 1, at - (before.rfind(b"\n") + 1) + 1
    return f"{words} at line {line}, column {column}"


def _number_out_of_range(body: bytes) -> int | None:
    outside = _TEXT.sub(lambda text: b" " * len(text[0]), body)  # digits in texts are no numbers
    for number in _NUMBER.finditer(outside):
        digits = number[0].removeprefix(b"-")
        if len(digits) > _MOST_DIGITS if digits.isdigit() else math.isinf(float(digits)):
            return number.start()
    return None


def _half_pair(body: bytes) -> int | None:
    return next((escape.start() for escape in _ESCAPE.finditer(body) if escape["half"]), None)
