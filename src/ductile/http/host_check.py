"""Refusing what a browser was led to send us: see `ductile.core.host_names`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ductile.core.host_names import is_loopback_listener, is_meant_for
from ductile.errors import MisdirectedError, UsageError

if TYPE_CHECKING:
    from uvicorn._types import HTTPScope

#: Headers that may come once only.
_ONCE = (b"authorization", b"host", b"origin", b"idempotency-key")


def headers_once(scope: HTTPScope) -> dict[bytes, bytes]:
    """By name. Raises if one comes twice that says who is calling: a proxy that looks at the first would let
    pass what is done by the last.
    """
    pairs = list(scope["headers"])
    headers = dict(pairs)
    if len(headers) != len(pairs):
        names = [name for name, _ in pairs]
        for name in _ONCE:
            if names.count(name) > 1:
                raise UsageError(f"there is more than one {name.decode()} header", hint="Send one.")
    return headers


def is_misdirected(listen: str, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request to a loopback listener names another host, or comes from another host's page.

    Elsewhere a listener has names that it does not know, and shows nothing for being on this machine.
    """
    return is_loopback_listener(listen) and not is_meant_for(
        _text(headers.get(b"host")), _text(headers.get(b"origin")), listen
    )


def misdirected(listen: str, *, token_helps: bool) -> MisdirectedError:
    hint = f"Call it as http://{listen}, and from no page of another host"
    return MisdirectedError(
        "the Host or Origin header names another host than this listener's",
        hint=f"{hint}; or send the header Authorization: Bearer TOKEN." if token_helps else f"{hint}.",
    )


def _text(header: bytes | None) -> str | None:
    return None if header is None else header.decode("latin-1")
