"""Check whether the `Host` and `Origin` of a request name this machine (protection against DNS rebinding).

A web page can let its own name resolve to 127.0.0.1, and then read responses of a loopback listener in a
browser on this machine. The browser still sends the name in `Host`, and the page in `Origin`.
"""

from __future__ import annotations

import re
from ipaddress import ip_address

_AUTHORITY = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+)(?::[0-9]{0,5})?")
_ORIGIN = re.compile(r"https?://(?P<authority>[^/]+)", re.IGNORECASE)


def host_of(authority: str) -> str | None:
    """Return the host of `host:port` in lower case, without brackets and final dot; None if invalid."""
    match = _AUTHORITY.fullmatch(authority.strip())
    return None if match is None else match["host"].strip("[]").removesuffix(".").lower()


def is_loopback_host(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback address. Other names are not resolved."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def is_loopback_listener(listen: str) -> bool:
    """Return whether a listen address, such as `localhost:8080`, is a loopback address."""
    return is_loopback_host(host_of(listen) or "")


def is_meant_for(host: str | None, origin: str | None, *listen_addresses: str) -> bool:
    """Return whether the headers `Host` and `Origin` name loopback or one of these listen addresses.

    An absent header is accepted, because browsers always send them.
    """
    if host is not None and not _is_own_address(host, listen_addresses):
        return False
    if origin is None:
        return True
    page = _ORIGIN.fullmatch(origin.strip())
    return page is not None and _is_own_address(page["authority"], listen_addresses)


def _is_own_address(authority: str, listen_addresses: tuple[str, ...]) -> bool:
    host = host_of(authority)
    return host is not None and (
        is_loopback_host(host) or host in {host_of(listen) for listen in listen_addresses}
    )
