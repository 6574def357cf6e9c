"""The client sends one state webhook to an allowed address and describes errors."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from builders.jobs import START
from builders.receivers import Reply, a_receiver
from ductile.core.webhooks.deliveries import DeliveryAttempt
from ductile.engine.state_webhooks.client import HttpWebhookClient, WebhookRequest
from ductile.struct import replace

LOOPBACK = ("127.0.0.1",)


class ChangingResolver(AbstractResolver):
    """A resolver that returns the next address each time, and the last one repeatedly."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)
        self.lookups = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        address = self.addresses[min(self.lookups, len(self.addresses) - 1)]
        self.lookups += 1
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)]

    async def close(self) -> None:
        """There is nothing to close."""


@pytest.fixture
async def client() -> AsyncIterator[HttpWebhookClient]:
    webhook_client = HttpWebhookClient()
    yield webhook_client
    await webhook_client.close()


def a_request(url: str, **fields: Any) -> WebhookRequest:
    defaults: dict[str, Any] = {
        "body": b"{}",
        "headers": {"Content-Type": "application/json", "X-Mine": "yes"},
        "timeout": timedelta(seconds=20),
        "allow": LOOPBACK,
    }
    return WebhookRequest(url=url, **(defaults | fields))


async def test_it_arrives_as_it_was_written(client: HttpWebhookClient) -> None:
    with a_receiver() as receiver:
        attempt = await client.post(a_request(receiver.url("/a?b=c"), body=b'{"n": 1}'), START)
        assert attempt == DeliveryAttempt(http_status=204)
        (request,) = receiver.requests
    assert (request.path, request.raw, request.headers["x-mine"]) == ("/a?b=c", b'{"n": 1}', "yes")


@pytest.mark.parametrize("status", [300, 302, 400, 404, 410, 429, 500, 503])
async def test_everything_but_2xx_is_a_failure(client: HttpWebhookClient, status: int) -> None:
    """A status that is not 2xx is retried."""
    with a_receiver(lambda *_: Reply(status=status)) as receiver:
        attempt = await client.post(a_request(receiver.url()), START)
    assert (attempt.delivered, attempt.http_status) == (False, status)


async def test_no_redirect_is_followed(client: HttpWebhookClient) -> None:
    """A redirect could lead to any address."""
    with a_receiver() as other, a_receiver() as receiver:
        receiver.decide = lambda *_: Reply(status=307, headers={"Location": other.url()})
        attempt = await client.post(a_request(receiver.url()), START)
        assert other.requests == []
    assert attempt.http_status == 307


async def test_retry_after_is_read(client: HttpWebhookClient) -> None:
    with a_receiver(lambda *_: Reply(status=429, headers={"Retry-After": "17"})) as receiver:
        attempt = await client.post(a_request(receiver.url()), START)
    assert attempt.retry_after == timedelta(seconds=17)


async def test_a_name_that_resolves_to_loopback_is_refused_when_connecting() -> None:
    """The resolved address is checked at connect time; another DNS answer does not bypass the check."""
    # The first address is public and cannot be reached from this test.
    resolver = ChangingResolver("2606:4700::dead:1", "127.0.0.1")
    client = HttpWebhookClient(resolver)
    with a_receiver() as receiver:
        request = a_request(f"http://rebind.example:{receiver.port}/canary", allow=())
        # The first address need not respond, so the attempt is short.
        attempt = await client.post(replace(request, timeout=timedelta(milliseconds=200)), START)
        while resolver.lookups < 2:  # the library may cache the first address
            await client.close()
            client = HttpWebhookClient(resolver)
            attempt = await client.post(request, START)
        assert receiver.requests == []
    await client.close()
    assert "must not be called" in (attempt.error or "")
    assert "canary" not in (attempt.error or "")


async def test_a_listed_name_may_resolve_to_loopback() -> None:
    """Private addresses are refused unless the host is listed."""
    client = HttpWebhookClient(ChangingResolver("127.0.0.1"))
    with a_receiver() as receiver:
        url = f"http://receiver.lan:{receiver.port}/"
        listed = await client.post(a_request(url, allow=("Receiver.lan.",)), START)
        other = await client.post(a_request(url, allow=("another.lan",)), START)
        assert len(receiver.requests) == 1
    await client.close()
    assert listed.delivered
    assert "not among the hosts" in (other.error or "")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0x7f.1", "127.1"])
async def test_no_notation_of_loopback_is_accepted(client: HttpWebhookClient, host: str) -> None:
    """With an empty list loopback is refused, however the address is written."""
    with a_receiver() as receiver:
        attempt = await client.post(a_request(f"http://{host}:{receiver.port}/", allow=()), START)
        assert receiver.requests == []
    assert attempt.http_status is None
    assert attempt.error


async def test_a_connection_from_before_does_not_get_past_a_changed_list(client: HttpWebhookClient) -> None:
    """A kept connection was opened under the old list; the new list counts."""
    with a_receiver() as receiver:
        assert (await client.post(a_request(receiver.url()), START)).delivered
        assert not (await client.post(a_request(receiver.url(), allow=()), START)).delivered
        assert not (await client.post(a_request(receiver.url(), allow=("other",)), START)).delivered


async def test_a_receiver_that_does_not_answer_times_out(client: HttpWebhookClient) -> None:
    release = threading.Event()
    with a_receiver(lambda *_: Reply(after=release)) as receiver:
        attempt = await client.post(a_request(receiver.url(), timeout=timedelta(milliseconds=300)), START)
        release.set()
    assert attempt.error == "the receiver did not answer within 0.3 s"


async def test_an_unreachable_receiver_is_reported_without_the_url(client: HttpWebhookClient) -> None:
    """URLs may contain secrets."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        attempt = await client.post(a_request(f"http://u:canary@127.0.0.1:{port}/canary?canary"), START)
    assert "cannot be reached" in (attempt.error or "")
    assert "canary" not in repr(attempt)
    assert "canary" not in repr(a_request("http://127.0.0.1/canary"))


async def test_a_proxy_of_the_environment_is_not_used(
    client: HttpWebhookClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy could connect to an address that is not allowed."""
    with a_receiver() as proxy, a_receiver() as receiver:
        monkeypatch.setenv("http_proxy", proxy.url("/"))
        assert (await client.post(a_request(receiver.url()), START)).delivered
        assert proxy.requests == []


async def test_odd_urls_are_faults_and_not_crashes(client: HttpWebhookClient) -> None:
    for url in (
        "http://exa\u2028mple.invalid/",
        "http://xn--/",
        "http://a..b.invalid/",
        "http://\u0130.invalid/",
    ):
        attempt = await client.post(a_request(url, allow=(), timeout=timedelta(seconds=5)), START)
        assert attempt.error, url
