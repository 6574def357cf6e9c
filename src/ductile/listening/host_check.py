"""Refusing what a browser was led to send us: see `ductile.core.host_names`."""

from __future__ import annotations

from collections.abc import Mapping

from ductile.core.host_names import is_loopback_listener, is_meant_for
from ductile.errors import MisdirectedError


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
