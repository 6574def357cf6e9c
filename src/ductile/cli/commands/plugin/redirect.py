"""Receives the response to an authorisation: from a browser at a port of this machine, or as pasted text."""

from __future__ import annotations

import os
import selectors
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias
from urllib.parse import SplitResult, parse_qsl, urlsplit

from ductile.core.host_names import is_loopback_host
from ductile.errors import ConflictError, TooSlowError, UsageError

#: The parameters of the redirect: `code` and `state`, or `error` and `error_description`.
AuthorizationResponse: TypeAlias = dict[str, str]

PATH = "/callback"
_FIELDS = ("code", "state", "error", "error_description")
_MAX_HEAD = 16 * 1024
_MAX_PASTED = 16 * 1024
#: Seconds within which a connection has to send its request.
_HEAD_SECONDS = 5.0
_PAGE = """\
HTTP/1.1 {status}\r
Content-Type: text/html; charset=utf-8\r
Content-Length: {length}\r
Connection: close\r
Cache-Control: no-store\r
Referrer-Policy: no-referrer\r
\r
{page}"""


def parse_response(text: str, state: str | None) -> AuthorizationResponse:
    """Return the response in the address that the browser was sent to, or in a code alone. `state` is that of
    this authorisation, which a code alone does not have. Raises UsageError for other text.
    """
    text = text.strip()
    if "?" in text or "=" in text:
        query = urlsplit(text).query or text
        response = {name: value for name, value in parse_qsl(query) if name in _FIELDS}
        if "code" in response or "error" in response:
            return response
        raise UsageError(
            "this address has neither `code` nor `error`",
            hint="Copy the whole address that the browser shows after you have agreed.",
        )
    if not text or state is None:
        raise UsageError("expected the whole address that the browser was sent to, with `code` and `state`")
    return {"code": text, "state": state}


def local_address(redirect_uri: str) -> SplitResult | None:
    """Return the parts of a redirect address at which this machine can listen; None for another address."""
    parts = urlsplit(redirect_uri)
    is_local = parts.scheme == "http" and is_loopback_host(parts.hostname or "") and parts.port
    return parts if is_local else None


@contextmanager
def listening_socket(port: int) -> Iterator[socket.socket]:
    """Listen on a port of 127.0.0.1; 0 for a free one. Raises ConflictError if the port is in use."""
    try:
        listener = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise ConflictError(
            f"port {port} of 127.0.0.1 cannot be used: {error.strerror}",
            hint="Is another `ductile plugin authorize` waiting? End it, or name another port with --port.",
        ) from None
    with listener:
        yield listener


def wait_for_response(
    listener: socket.socket | None, path: str, state: str | None, seconds: float, note: Callable[[str], None]
) -> AuthorizationResponse:
    """Wait until the browser is sent to the listener, or its address is pasted on standard input.

    Requests with another path or state are answered and ignored. `note` prints why pasted text is no
    response. Raises TooSlowError after `seconds`.
    """
    from time import monotonic

    deadline = monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        if listener is not None:
            selector.register(listener, selectors.EVENT_READ)
        # Standard input may be closed, or a file, which cannot be waited for.
        with suppress(OSError, ValueError, AttributeError):
            selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        while selector.get_map():
            seconds_left = deadline - monotonic()
            for key, _ in selector.select(max(0.0, seconds_left)):
                if key.fileobj is listener and listener is not None:
                    response = _serve(listener, path, state)
                else:
                    response = _read_pasted(selector, state, note)
                if response is not None:
                    return response
            if seconds_left <= 0:
                raise TooSlowError(
                    "the authorisation was not completed in time", hint="Run the command again."
                )
    raise UsageError(
        "nothing was pasted, and this machine cannot listen at the redirect address",
        hint="Run it again with the address that the browser was sent to: --code 'ADDRESS'",
    )


def _read_pasted(
    selector: selectors.BaseSelector, state: str | None, note: Callable[[str], None]
) -> AuthorizationResponse | None:
    """Return the response in pasted text; None for other text. Standard input is not read after its end."""
    pasted = os.read(sys.stdin.fileno(), _MAX_PASTED).decode("utf-8", "replace")
    if not pasted:  # the end of standard input
        selector.unregister(sys.stdin.fileno())
        return None
    if not pasted.strip():
        return None
    try:
        return parse_response(pasted, state)
    except UsageError as error:
        note(f"{error.message}. {error.hint or ''}".rstrip())
        return None


def _serve(listener: socket.socket, path: str, state: str | None) -> AuthorizationResponse | None:
    """Answer one request, and return the response that it holds; None if it is not the redirect."""
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(_HEAD_SECONDS)
        try:
            head = b""
            while b"\r\n\r\n" not in head and len(head) < _MAX_HEAD and (piece := connection.recv(4096)):
                head += piece
            words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
            is_get = len(words) == 3 and words[0] == "GET"  # noqa: PLR2004 - method, target, version
            parts = urlsplit(words[1] if is_get else "")
            response = {name: value for name, value in parse_qsl(parts.query) if name in _FIELDS}
            if not is_get or parts.path != path or not ("code" in response or "error" in response):
                _answer(connection, "404 Not Found", "Not the page that is waited for.")
                return None
            if state is not None and response.get("state") != state:
                _answer(connection, "400 Bad Request", "This page belongs to another authorisation.")
                return None
            outcome = "Authorised." if "code" in response else "Not authorised."
            _answer(connection, "200 OK", f"{outcome} You can close this page and return to the terminal.")
        except OSError:  # the client has closed the connection
            return None
        else:
            return response


def _answer(connection: socket.socket, status: str, text: str) -> None:
    page = f"<!doctype html><title>Ductile</title><p>{text}</p>\n"
    connection.sendall(_PAGE.format(status=status, length=len(page.encode()), page=page).encode())
