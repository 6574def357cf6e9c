"""Request bodies: read within a limit of size and time, and decoded as JSON."""

from __future__ import annotations

import asyncio
import math
import re
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from ductile.core.durations import format_size
from ductile.errors import DuctileError, TooBusyError, TooLargeError, TooSlowError, UsageError
from ductile.http.responses import JSON_CONTENT_TYPE, encode, error_body, error_headers, send_bytes

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, HTTPScope

BODY_SECONDS = 30.0
#: The ASGI extension with which the server declares that the whole body has arrived.
BODY_RECEIVED = "ductile.body_received"
#: After a refusal the rest of the body is read and dropped for a moment: if the connection were closed while
#: the client still sends, the kernel would reset it and the client would lose the response.
DISCARD_SECONDS = 2.0
DISCARD_BYTES = 16 * 1024 * 1024

_GZIP = b"\x1f\x8b"
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
#: Longest integer that the decoder reads.
_MAX_DIGITS = 4300
#: An escape in a text: a surrogate pair, a lone surrogate, or any other.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}|(?P<lone>u[dD][89a-fA-F][\da-fA-F]{2})|.)",
    re.DOTALL,
)


class ClientDisconnectedError(Exception):
    """The client closed the connection; no response can be sent."""


class BodyBudget:
    """Memory that the unread bodies of unauthenticated requests may hold together."""

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes

    def reserve(self, size: int) -> None:
        """Raise `TooBusyError` if less than `size` is left."""
        if size > self._left:
            raise TooBusyError("too many requests at once", hint="Try again in a moment.")
        self._left -= size

    def release(self, size: int) -> None:
        self._left += size


async def read_body(
    scope: HTTPScope,
    receive: ASGIReceiveCallable,
    *,
    limit: int,
    seconds: float,
    budget: BodyBudget | None = None,
) -> bytes:
    """Return the whole body.

    Raises `TooLargeError` as soon as it is known to exceed `limit` bytes, `TooSlowError` after `seconds`,
    `TooBusyError` when `budget` is used up, and `ClientDisconnectedError`.
    """
    if (content_length(scope) or 0) > limit:
        raise _too_large(limit)
    if BODY_RECEIVED in scope.get("extensions", ()):
        return await _read_parts(receive, limit, budget)  # without a timer: it is the usual case
    try:
        async with asyncio.timeout(seconds):
            return await _read_parts(receive, limit, budget)
    except TimeoutError:
        raise TooSlowError(f"the body did not arrive within {seconds:g} seconds") from None


async def _read_parts(receive: ASGIReceiveCallable, limit: int, budget: BodyBudget | None) -> bytes:
    """Return the whole body. Raises like `read_body`, but has no limit of time."""
    parts: list[bytes] = []
    size = reserved = 0
    try:
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise ClientDisconnectedError
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            if budget is not None:
                budget.reserve(len(part))
                reserved = size
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        if budget is not None:
            budget.release(reserved)


def content_length(scope: HTTPScope) -> int | None:
    """Return the declared length of the body, if there is a valid one."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else None
    return None


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(
        f"the body is larger than {format_size(limit)}",
        hint="Send less, or raise max_body_size.",
        details={"limit_bytes": limit},
    )


async def refuse_body(receive: ASGIReceiveCallable, send: ASGISendCallable, error: DuctileError) -> None:
    """Send the error while the client may still be sending its body, then close the connection."""
    headers = [JSON_CONTENT_TYPE, *error_headers(error), (b"connection", b"close")]
    await send_bytes(send, error.http_status, encode(error_body(error)), headers, keep_open=True)
    discarded = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            while discarded < DISCARD_BYTES:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    break
                discarded += len(message.get("body", b""))
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def decode_object(body: bytes, encoding: bytes | None = None) -> dict[str, object]:
    """Return the body as a JSON object; an empty body is an empty object. Raises `UsageError`.

    `encoding` is the Content-Encoding header, for the hint.
    """
    if not body or body.isspace():
        return {}
    try:
        value = msgspec.json.decode(body)
    except UnicodeDecodeError:
        raise UsageError("the body is not UTF-8 text", hint=_compression_hint(body, encoding)) from None
    except msgspec.DecodeError as error:
        fault = _describe_json_error(str(error), body)
        raise UsageError(f"the body is not JSON: {fault}", hint=_compression_hint(body, encoding)) from None
    except RecursionError:
        raise UsageError("the body nests too deep") from None
    if not isinstance(value, dict):
        raise UsageError("the body has to be a JSON object", hint='such as {"payload": {"name": "Ada"}}')
    return value


def _compression_hint(body: bytes, encoding: bytes | None) -> str | None:
    if body.startswith(_GZIP) or encoding not in (None, b"identity"):
        return "It is compressed: send it as it is, without Content-Encoding."
    return None


def _describe_json_error(message: str, body: bytes) -> str:
    """Return the decoder's message, or a clearer one, with line and column."""
    fault, _, offset = message.partition(" (byte ")
    fault, offset = fault.removeprefix("JSON is malformed: "), offset.rstrip(")")
    position = int(offset) if offset.isdigit() else None
    # The decoder gives no position for these, or reports them as the end of the body.
    if "out of range" in fault:
        fault, position = "a number out of range", _number_out_of_range(body)
    elif "surrogate" in fault or ("truncated" in fault and _lone_surrogate(body) is not None):
        fault, position = "a lone surrogate", _lone_surrogate(body)
    elif "truncated" in fault:
        fault, position = "it ends too early", len(body)
    if position is None:
        return fault
    before = body[:position]
    line, column = before.count(b"\n") + 1, position - (before.rfind(b"\n") + 1) + 1
    return f"{fault} at line {line}, column {column}"


def _number_out_of_range(body: bytes) -> int | None:
    """Return the position of the first number that the decoder cannot read."""
    without_texts = _TEXT.sub(lambda text: b" " * len(text[0]), body)  # digits in texts are not numbers
    for number in _NUMBER.finditer(without_texts):
        digits = number[0].removeprefix(b"-")
        if len(digits) > _MAX_DIGITS if digits.isdigit() else math.isinf(float(digits)):
            return number.start()
    return None


def _lone_surrogate(body: bytes) -> int | None:
    """Return the position of the first escape that is a lone surrogate."""
    return next((escape.start() for escape in _ESCAPE.finditer(body) if escape["lone"]), None)
