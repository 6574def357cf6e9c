"""Whether a request was meant for this machine, by the host that it names.

A web page can have its own name resolve to 127.0.0.1 and then read, as its own, what a browser on this
machine gets from a loopback listener (DNS rebinding). The browser still says which name it called: in `Host`,
and in `Origin` which page is asking.
"""

from __future__ import annotations

import re
from ipaddress import ip_address

_AUTHORITY = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+)(?::[0-9]{0,5})?")
_ORIGIN = re.compile(r"https?://(?P<authority>[^/]+)", re.IGNORECASE)


def host_of(authority: str) -> str | None:
    """The host of `host:port` in lower case, without brackets and final dot; None if it is not one."""
    found = _AUTHORITY.fullmatch(authority.strip())
    return None if found is None else found["host"].strip("[]").removesuffix(".").lower()


def is_loopback_host(host: str) -> bool:
    """Whether a host is `localhost` or a loopback address. Other names are not resolved."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def is_loopback_listener(listen: str) -> bool:
    """Whether an address to listen at, such as `localhost:8080`, is a loopback address."""
    return is_loopback_host(host_of(listen) or "")


def is_meant_for(host: str | None, origin: str | None, *listens: str) -> bool:
    """Whether the headers `Host` and `Origin` name this machine: as loopback, or as one of these listeners is
    configured. A header that is absent says nothing against it: browsers send them.
    """
    if host is not None and not _is_ours(host, listens):
        return False
    if origin is None:
        return True
    page = _ORIGIN.fullmatch(origin.strip())
    return page is not None and _is_ours(page["authority"], listens)


def _is_ours(authority: str, listens: tuple[str, ...]) -> bool:
    host = host_of(authority)
    return host is not None and (is_loopback_host(host) or host in {host_of(listen) for listen in listens})
