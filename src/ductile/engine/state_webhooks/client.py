"""Sending one state webhook over HTTP, to nobody who must not be reached.

The HTTP library stops here, and is loaded with the first delivery: most daemons never send one. A fault
is told in our own words, since those of the library may hold the URL.
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
from ductile.struct import Value, hide_in_repr

if TYPE_CHECKING:
    from aiohttp import ClientSession
    from aiohttp.abc import AbstractResolver

#: Lookups of names under way at once. They block a thread each, and must not hold up those of others.
_LOOKUP_THREADS = 64


@hide_in_repr("url", "body")
class WebhookRequest(Value):
    """What is sent, and under which rules. Its URL may hold a secret."""

    url: str
    body: bytes
    headers: Mapping[str, str]
    timeout: timedelta
    #: The hosts that may be called; none means any public address.
    allow: Sequence[str]


class WebhookClient(Protocol):
    async def post(self, letter: WebhookRequest, now: datetime) -> DeliveryAttempt:
        """Send it once. Never raises for what the receiver or the network does."""
        ...

    async def close(self) -> None: ...


class ForbiddenAddressError(OSError):
    """The name led to an address that must not be called."""


class HttpWebhookClient:
    """One pool of connections for listed hosts, which may be private, and one for the open network."""

    def __init__(self, resolver: AbstractResolver | None = None) -> None:
        self._resolver = resolver
        self._sessions: dict[bool, ClientSession] = {}
        self._lookups: ThreadPoolExecutor | None = None

    async def post(self, letter: WebhookRequest, now: datetime) -> DeliveryAttempt:
        # Again, though it was checked when it was submitted: the rules may have changed since.
        if (refusal := url_fault(letter.url, letter.allow)) is not None:
            return DeliveryAttempt(error=refusal)
        session = self._session(listed=bool(letter.allow))
        try:
            return await _post(session, letter, now)
        except Exception as fault:  # noqa: BLE001 - a receiver's address can make a library fail in any way
            return DeliveryAttempt(error=_describe_error(fault, letter.timeout))

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()
        if self._lookups is not None:
            self._lookups.shutdown(wait=False, cancel_futures=True)

    def _session(self, *, listed: bool) -> ClientSession:
        if listed not in self._sessions:
            import aiohttp  # noqa: PLC0415 - a quarter of a second, for those who use it

            self._sessions[listed] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    resolver=self._resolver or self._own_resolver(),
                    socket_factory=partial(_open_socket, listed=listed),
                    limit=0,  # how many are under way is decided by who sends
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,  # a proxy would connect for us, unseen
                auto_decompress=False,
            )
        return self._sessions[listed]

    def _own_resolver(self) -> AbstractResolver:
        """The system's, in threads of its own: a name server that does not answer blocks nobody else."""
        if self._lookups is None:
            self._lookups = ThreadPoolExecutor(_LOOKUP_THREADS, thread_name_prefix="ductile-lookup")
        return _make_resolver(self._lookups)


async def _post(session: ClientSession, letter: WebhookRequest, now: datetime) -> DeliveryAttempt:
    import aiohttp  # noqa: PLC0415 - loaded already, with the session

    async with session.post(
        letter.url,
        data=letter.body,
        headers=dict(letter.headers),
        allow_redirects=False,
        timeout=aiohttp.ClientTimeout(total=letter.timeout.total_seconds()),
    ) as response:
        said = DeliveryAttempt(http_status=response.status)
        if said.delivered:
            return said
        return DeliveryAttempt(
            http_status=response.status,
            error=f"the receiver answered {response.status}",
            retry_after=parse_retry_after(response.headers.get("Retry-After"), now),
        )


def _open_socket(about: tuple[Any, ...], *, listed: bool) -> socket.socket:
    """The last moment before connecting, with the address that is really meant."""
    family, kind, protocol, _, address = about
    if is_forbidden(ip_address(address[0]), listed=listed):
        raise ForbiddenAddressError("the host's name leads to an address that must not be called")
    return socket.socket(family=family, type=kind, proto=protocol)


def _describe_error(fault: Exception, timeout: timedelta) -> str:
    """What went wrong, without the URL."""
    from aiohttp import (  # noqa: PLC0415 - loaded already, with the session
        ClientConnectorCertificateError,
        ClientConnectorDNSError,
        ClientConnectorError,
        ServerDisconnectedError,
    )

    match fault:
        case TimeoutError():
            return f"the receiver did not answer within {timeout.total_seconds():g} s"
        case ClientConnectorCertificateError():
            return "the receiver's certificate is not valid"
        case ClientConnectorDNSError():
            return "the receiver's name cannot be resolved"
        case ClientConnectorError() if "must not be called" in str(fault.os_error):
            return ADDRESS_NOT_ALLOWED
        case ClientConnectorError():
            return f"the receiver cannot be reached: {fault.os_error.strerror or 'no connection'}"
        case ServerDisconnectedError() | ConnectionError():
            return "the receiver closed the connection"
        case _:
            return f"it could not be sent ({type(fault).__name__})"


def _make_resolver(lookups: ThreadPoolExecutor) -> AbstractResolver:
    from aiohttp.abc import AbstractResolver, ResolveResult  # noqa: PLC0415 - as above

    class Resolver(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
        ) -> list[ResolveResult]:
            find = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM)
            found = await asyncio.get_running_loop().run_in_executor(lookups, find)
            return [
                ResolveResult(
                    hostname=host,
                    host=str(address[0]),
                    port=int(address[1]),
                    family=family,
                    proto=protocol,
                    flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
                )
                for family, _, protocol, _, address in found
            ]

        async def close(self) -> None:
            """The threads belong to who made them."""

    return Resolver()
