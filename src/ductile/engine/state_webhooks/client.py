"""The HTTP client of the webhook sender. It connects only to addresses that the URL policy allows.

aiohttp is used nowhere else and is imported with the first delivery: most daemons never send one. Errors get
texts of this module, because those of aiohttp may contain the URL, which may contain a secret.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Protocol

from ductile.core.webhooks.deliveries import DeliveryAttempt, parse_retry_after
from ductile.core.webhooks.url_policy import ADDRESS_NOT_ALLOWED, is_forbidden, url_fault
from ductile.struct import Value, hide_in_repr, replace

if TYPE_CHECKING:
    from aiohttp import ClientSession
    from aiohttp.abc import AbstractResolver


#: The most concurrent name lookups. Each blocks a thread, so one slow name server must not block all of them.
_LOOKUP_THREADS = 64


@hide_in_repr("url", "body")
class WebhookRequest(Value):
    url: str
    body: bytes
    headers: Mapping[str, str]
    timeout: timedelta
    #: Hosts that may be called, private ones too; empty: every public address.
    allow: Sequence[str]


class WebhookClient(Protocol):
    async def post(self, request: WebhookRequest, now: datetime) -> DeliveryAttempt:
        """Send the request once. Faults of the receiver and the network are returned, not raised."""
        ...

    async def close(self) -> None: ...


class ForbiddenAddressError(OSError):
    """The host's name resolved to an address that the URL policy forbids."""


class HttpWebhookClient:
    """Implements `WebhookClient`, with one connection pool for listed hosts and one for public addresses."""

    def __init__(self, resolver: AbstractResolver | None = None) -> None:
        self._resolver = resolver
        self._sessions: dict[bool, ClientSession] = {}
        self._lookups: ThreadPoolExecutor | None = None

    async def post(self, request: WebhookRequest, now: datetime) -> DeliveryAttempt:
        # Checked at submission too, but the policy may have changed since.
        if (fault := url_fault(request.url, request.allow)) is not None:
            return DeliveryAttempt(error=fault)
        import aiohttp  # noqa: PLC0415 - 250 ms, paid by the first delivery

        session = self._session(listed=bool(request.allow))
        try:
            async with session.post(
                request.url,
                data=request.body,
                headers=dict(request.headers),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=request.timeout.total_seconds()),
            ) as response:
                attempt = DeliveryAttempt(http_status=response.status)
                if attempt.delivered:
                    return attempt
                return replace(
                    attempt,
                    error=f"the receiver answered {response.status}",
                    retry_after=parse_retry_after(response.headers.get("Retry-After"), now),
                )
        except Exception as error:  # noqa: BLE001 - an odd URL can make the library raise anything
            return DeliveryAttempt(error=_describe_client_error(error, request.timeout))

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()
        if self._lookups is not None:
            self._lookups.shutdown(wait=False, cancel_futures=True)

    def _session(self, *, listed: bool) -> ClientSession:
        """Return the session for listed hosts or for public addresses. The first delivery creates it."""
        if listed not in self._sessions:
            import aiohttp  # noqa: PLC0415 - imported already, by `post`

            if self._resolver is None:
                # The resolver has threads of its own: a silent name server must not block other work.
                self._lookups = ThreadPoolExecutor(_LOOKUP_THREADS, thread_name_prefix="ductile-lookup")
                self._resolver = _make_resolver(self._lookups)
            self._sessions[listed] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    resolver=self._resolver,
                    socket_factory=partial(_open_socket, listed=listed),
                    limit=0,  # The sender limits concurrency.
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,  # A proxy would connect to unchecked addresses.
                auto_decompress=False,
            )
        return self._sessions[listed]


def _open_socket(address_info: tuple[Any, ...], *, listed: bool) -> socket.socket:
    """Check the resolved address right before connecting, so that a second lookup cannot change it."""
    family, kind, protocol, _, address = address_info
    if is_forbidden(ip_address(address[0]), listed=listed):
        raise ForbiddenAddressError("the host's name leads to an address that must not be called")
    return socket.socket(family=family, type=kind, proto=protocol)


def _describe_client_error(error: Exception, timeout: timedelta) -> str:
    """Describe an error without the URL."""
    from aiohttp import (  # noqa: PLC0415 - imported already, with the session
        ClientConnectorCertificateError,
        ClientConnectorDNSError,
        ClientConnectorError,
        ServerDisconnectedError,
    )

    match error:
        case TimeoutError():
            return f"the receiver did not answer within {timeout.total_seconds():g} s"
        case ClientConnectorCertificateError():
            return "the receiver's certificate is not valid"
        case ClientConnectorDNSError():
            return "the receiver's name cannot be resolved"
        case ClientConnectorError() if "must not be called" in str(error.os_error):
            return ADDRESS_NOT_ALLOWED
        case ClientConnectorError():
            return f"the receiver cannot be reached: {error.os_error.strerror or 'no connection'}"
        case ServerDisconnectedError() | ConnectionError():
            return "the receiver closed the connection"
        case _:
            return f"the request could not be sent ({type(error).__name__})"


def _make_resolver(lookups: ThreadPoolExecutor) -> AbstractResolver:
    """Return a resolver that looks names up in these threads. Its class needs aiohttp, so it is made here."""
    from aiohttp.abc import AbstractResolver, ResolveResult  # noqa: PLC0415 - as above

    class Resolver(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
        ) -> list[ResolveResult]:
            look_up = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM)
            addresses = await asyncio.get_running_loop().run_in_executor(lookups, look_up)
            return [
                ResolveResult(
                    hostname=host,
                    host=str(address[0]),
                    port=int(address[1]),
                    family=family,
                    proto=protocol,
                    flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
                )
                for family, _, protocol, _, address in addresses
            ]

        async def close(self) -> None:
            """Nothing to close: the threads belong to the client."""

    return Resolver()
