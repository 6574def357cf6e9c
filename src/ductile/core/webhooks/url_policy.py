"""The URLs and addresses that state webhooks may be sent to (protection against SSRF).

Callers choose the URL, so it must not lead into the daemon's own network. The URL is checked when it is
submitted; the address that its host name resolves to is checked again when the connection is made.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias
from unicodedata import category, normalize
from urllib.parse import SplitResult, urlsplit

Address: TypeAlias = IPv4Address | IPv6Address

MAX_URL_LENGTH = 8192
#: The error of a delivery whose host resolves to an address that only listed hosts may have.
ADDRESS_NOT_ALLOWED = "the host's name leads to an address that must not be called (state_webhooks.allow)"

_PORTS = {"http": 80, "https": 443}
#: The characters of a host name: no space, no controls, and none that libraries interpret differently.
_HOST = re.compile(r"[^\x00-\x20\x7f%\\/?#@\[\]<>^|:\ud800-\udfff]+")
#: Networks in which the last 32 bits are an IPv4 address: translated by a gateway (RFC 6052) or by the host
#: (RFC 2765), and the deprecated form.
_EMBEDDING = (IPv6Network("64:ff9b::/96"), IPv6Network("::ffff:0:0:0/96"), IPv6Network("::/96"))
#: Networks that are not public, which not every version of the standard library knows: local translation
#: prefixes (RFC 8215), site-local, segment routing, documentation; protocol assignments with a cloud's
#: metadata service, 6to4 relays, and the platform address of another cloud.
_NOT_PUBLIC = tuple(
    map(
        ip_network,
        (
            "64:ff9b:1::/48",
            "fec0::/10",
            "5f00::/16",
            "3fff::/20",
            "192.0.0.0/24",
            "192.88.99.0/24",
            "168.63.129.16/32",
        ),
    )
)
#: Characters that IDNA maps to a dot; they also separate the bytes of an address.
_DOTS = str.maketrans("\u3002\uff0e\uff61", "...")
_LOW_32_BITS = 0xFFFF_FFFF
_PARTS_OF_IPV4 = 4
_LARGEST_BYTE = 0xFF
_LONGEST_LABEL, _LONGEST_NAME = 63, 253


def url_fault(url: str, allow: Collection[str]) -> str | None:
    """Return why the URL must not be called, without quoting it; None if it may."""
    parts = split_url(url)
    if isinstance(parts, str):
        return parts
    host = parts.hostname or ""
    listed = is_listed(host, allow)
    if allow and not listed:
        return f"{host} is not among the hosts that may be called (state_webhooks.allow)"
    literal = parse_literal(host)
    if literal is not None and is_forbidden(literal, listed=listed):
        return f"{host} is not a public address, and state_webhooks.allow does not list it"
    return None


def refused_host(receiver: str, last_error: str | None, allow: Collection[str]) -> str | None:
    """Return the host of a receiver that can be called only if it is listed; None if listing does not help.

    `last_error` shows whether the host resolves to an address that only listed hosts may have.
    """
    parts = split_url(receiver)
    host = None if isinstance(parts, str) else parts.hostname
    if host is None or is_listed(host, allow):
        return None
    literal = parse_literal(host)
    if literal is not None and is_forbidden(literal, listed=True):
        return None  # It must not be called even if it is listed.
    return host if url_fault(receiver, allow) is not None or last_error == ADDRESS_NOT_ALLOWED else None


def split_url(url: str) -> SplitResult | str:
    """Return the parts of an http or https URL with a host, or its fault."""
    if len(url) > MAX_URL_LENGTH:
        return f"the URL is longer than {MAX_URL_LENGTH} characters"
    if url != url.strip() or any(character < " " or character == "\x7f" for character in url):
        return "the URL holds blanks or control characters"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "it is not a URL"
    if parts.scheme not in _PORTS:
        return "the URL has to begin with http:// or https://"
    if not parts.hostname or port == 0:
        return "the URL names no host"
    if parse_literal(parts.hostname) is None and not _is_name(parts.netloc.rpartition("@")[2]):
        return "the URL's host is not a name or an address"
    return parts


def _is_name(netloc: str) -> bool:
    """Return whether a host, with or without a port, is a name that every library reads in the same way.

    Libraries normalise letters of other scripts differently: capitals, ligatures, invisible characters. The
    name has to be written in its normal form, so that the listed host is the called host.
    """
    host = netloc.partition(":")[0].removesuffix(".")
    if not _HOST.fullmatch(host) or len(_to_ascii(host)) > _LONGEST_NAME:
        return False
    return all(
        0 < len(_to_ascii(label)) <= _LONGEST_LABEL and (label.isascii() or label == _normalised(label))
        for label in host.translate(_DOTS).split(".")
    )


def _normalised(text: str) -> str:
    """Return text in lower case, without invisible characters, with compatible characters replaced."""
    visible = "".join(character for character in text if category(character) != "Cf")
    return normalize("NFKC", visible.translate(_DOTS)).lower()


def _to_ascii(host: str) -> str:
    """Return a name as it is resolved: `bücher.de` is `xn--bcher-kva.de`."""
    if host.isascii():
        return host
    labels = host.translate(_DOTS).split(".")
    return ".".join(
        label if label.isascii() else f"xn--{label.encode('punycode').decode()}" for label in labels
    )


def is_listed(host: str, allow: Collection[str]) -> bool:
    """Return whether the operator listed this host. All notations of an address are equal."""
    canonical = _canonical(host)
    return any(_canonical(entry) == canonical for entry in allow)


def is_forbidden(address: Address, *, listed: bool = False) -> bool:
    """Return whether an address must not be connected to. A listed host may be private, but not multicast."""
    for unwrapped in unwrap(address):
        if unwrapped.is_multicast or unwrapped.is_unspecified:
            return True
        # `is_global` should suffice; the other checks do not depend on the version of the registries.
        is_public = (
            unwrapped.is_global
            and not unwrapped.is_private
            and not unwrapped.is_loopback
            and not unwrapped.is_link_local
            and not any(
                unwrapped in network for network in _NOT_PUBLIC if network.version == unwrapped.version
            )
        )
        if not (is_public or listed):
            return True
    return False


def unwrap(address: Address) -> tuple[Address, ...]:
    """Return the IPv4 addresses embedded in an IPv6 address, or the address itself."""
    if isinstance(address, IPv4Address):
        return (address,)
    plain = IPv6Address(int(address))  # without a zone, which the networks below do not have
    if plain.ipv4_mapped is not None:
        return (plain.ipv4_mapped,)
    if plain.sixtofour is not None:
        return (plain.sixtofour,)
    if plain.teredo is not None:
        return plain.teredo
    if int(plain) > 1 and any(plain in network for network in _EMBEDDING):
        return (IPv4Address(int(plain) & _LOW_32_BITS),)
    return (plain,)


def parse_literal(host: str) -> Address | None:
    """Return the address that a host denotes; None for a name.

    Includes old notations (`127.1`, `0x7f.0.0.1`) and the digits and dots of other scripts, because resolvers
    accept them.
    """
    plain = host if host.isascii() else _normalised(host)
    with suppress(ValueError):
        return ip_address(plain.strip("[]"))
    # As `inet_aton` does: the last part fills the remaining bytes.
    *leading, last = [_parse_number(part) for part in plain.removesuffix(".").split(".")]
    if len(leading) >= _PARTS_OF_IPV4 or last is None or last >= 256 ** (_PARTS_OF_IPV4 - len(leading)):
        return None
    value = last
    for position, number in enumerate(leading):
        if number is None or number > _LARGEST_BYTE:
            return None
        value |= number << (8 * (3 - position))
    return IPv4Address(value)


def _parse_number(text: str) -> int | None:
    """Parse a number: hexadecimal with 0x, octal with 0, else decimal."""
    lowered = text.lower()
    for pattern, base in ((r"0x0*[0-9a-f]{1,8}", 16), (r"0+[0-7]{0,11}", 8), (r"[1-9][0-9]{0,9}", 10)):
        if re.fullmatch(pattern, lowered, re.ASCII):
            return int(lowered, base)
    return None


def _canonical(host: str) -> str:
    """Return one notation for all notations of an address or a name."""
    literal = parse_literal(host.strip())
    return str(literal) if literal is not None else _to_ascii(_normalised(host.strip()).rstrip("."))


def redact_url(url: str) -> str:
    """Return the URL with scheme and host only: path, query and user can contain secrets."""
    parts = split_url(url)
    if isinstance(parts, str):
        return "…"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}/…"


def receiver_of(url: str) -> str:
    """Return the receiver of a URL: scheme, host and port, by which deliveries are limited."""
    parts = split_url(url)
    if isinstance(parts, str):
        return ""
    port = parts.port or _PORTS[parts.scheme]
    return f"{parts.scheme}://{_canonical(parts.hostname or '')}:{port}"
