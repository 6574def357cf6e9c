"""Receives what a browser brings back from an authorisation: on a port of this machine, or pasted."""

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

#: `code` and `state`, or `error` and `error_description`.
Returned: TypeAlias = dict[str, str]

PATH = "/callback"
_FIELDS = ("code", "state", "error", "error_description")
_MAX_HEAD = 16 * 1024
_MAX_PASTED = 16 * 1024
#: Seconds that a connection has to send its request.
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


def read_returned(text: str, state: str | None) -> Returned:
    """The fields of an address that the browser was sent to, or of a bare code with the `state` of this
    authorisation. UsageError if it is neither.
    """
    text = text.strip()
    if "?" in text or "=" in text:
        query = urlsplit(text).query or text
        returned = {name: value for name, value in parse_qsl(query) if name in _FIELDS}
        if "code" in returned or "error" in returned:
            return returned
        raise UsageError(
            "this address has neither `code` nor `error`",
            hint="Copy the whole address that the browser shows after you have agreed.",
        )
    if not text or state is None:
        raise UsageError("expected the whole address that the browser was sent to, with `code` and `state`")
    return {"code": text, "state": state}


def listens_at(redirect_uri: str) -> SplitResult | None:
    """The parts of an address at which this machine can listen; None for another."""
    parts = urlsplit(redirect_uri)
    is_local = parts.scheme == "http" and is_loopback_host(parts.hostname or "") and parts.port
    return parts if is_local else None


@contextmanager
def bound(port: int) -> Iterator[socket.socket]:
    """A listening socket on a port of 127.0.0.1; 0 for a free one. ConflictError if it is in use."""
    try:
        listener = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise ConflictError(
            f"port {port} of 127.0.0.1 cannot be used: {error.strerror}",
            hint="Is another `ductile plugin authorize` waiting? End it, or name another port with --port.",
        ) from None
    with listener:
        yield listener


def wait_for_return(
    listener: socket.socket | None, path: str, state: str | None, seconds: float, note: Callable[[str], None]
) -> Returned:
    """Wait until the browser comes to the listener, or its address is pasted on standard input.

    Requests with another path or state are answered and passed over. TooSlowError after `seconds`.
    """
    from time import monotonic

    deadline = monotonic() + seconds
    with selectors.DefaultSelector() as ready:
        if listener is not None:
            ready.register(listener, selectors.EVENT_READ)
        # Standard input may be closed, or a file, which cannot be waited for.
        with suppress(OSError, ValueError, AttributeError):
            ready.register(sys.stdin.fileno(), selectors.EVENT_READ)
        while ready.get_map():
            left = deadline - monotonic()
            for key, _ in ready.select(max(0.0, left)):
                if key.fileobj is listener and listener is not None:
                    returned = _serve(listener, path, state)
                else:
                    returned = _read_pasted(ready, state, note)
                if returned is not None:
                    return returned
            if left <= 0:
                raise TooSlowError(
                    "the authorisation was not completed in time", hint="Run the command again."
                )
    raise UsageError(
        "nothing was pasted, and this machine cannot listen at the redirect address",
        hint="Run it again with the address that the browser was sent to: --code 'ADDRESS'",
    )


def _read_pasted(
    ready: selectors.BaseSelector, state: str | None, note: Callable[[str], None]
) -> Returned | None:
    pasted = os.read(sys.stdin.fileno(), _MAX_PASTED).decode("utf-8", "replace")
    if not pasted:  # its end
        ready.unregister(sys.stdin.fileno())
        return None
    if not pasted.strip():
        return None
    try:
        return read_returned(pasted, state)
    except UsageError as error:
        note(f"{error.message}. {error.hint or ''}".rstrip())
        return None


def _serve(listener: socket.socket, path: str, state: str | None) -> Returned | None:
    """Answer one request. Returns its fields if it is the redirect that is waited for."""
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(_HEAD_SECONDS)
        try:
            target = _read_target(connection)
            parts = urlsplit(target or "")
            returned = {name: value for name, value in parse_qsl(parts.query) if name in _FIELDS}
            if target is None or parts.path != path or not ("code" in returned or "error" in returned):
                _answer(connection, "404 Not Found", "Not the page that is waited for.")
                return None
            if state is not None and returned.get("state") != state:
                _answer(connection, "400 Bad Request", "This page belongs to another authorisation.")
                return None
            words = "Authorised." if "code" in returned else "Not authorised."
            _answer(connection, "200 OK", f"{words} You can close this page and return to the terminal.")
        except OSError:  # The client has gone.
            return None
        else:
            return returned


def _read_target(connection: socket.socket) -> str | None:
    """The target of a GET request; None for anything else."""
    head = b""
    while b"\r\n\r\n" not in head and len(head) < _MAX_HEAD:
        piece = connection.recv(4096)
        if not piece:
            break
        head += piece
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    return words[1] if len(words) == 3 and words[0] == "GET" else None  # noqa: PLR2004 - method, target, version


def _answer(connection: socket.socket, status: str, words: str) -> None:
    page = f"<!doctype html><title>Ductile</title><p>{words}</p>\n"
    connection.sendall(_PAGE.format(status=status, length=len(page.encode()), page=page).encode())
