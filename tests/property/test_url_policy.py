"""The addresses that may be called on behalf of a caller."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.provisional import urls

from ductile.core.webhooks.url_policy import (
    is_forbidden,
    is_listed,
    parse_literal,
    receiver_of,
    redact_url,
    url_fault,
)

ipv4 = st.integers(0, 2**32 - 1).map(IPv4Address)
ipv6 = st.integers(0, 2**128 - 1).map(IPv6Address)
private_addresses = st.sampled_from(
    [
        "127.0.0.1",
        "10.0.0.5",
        "192.168.1.1",
        "172.16.0.9",
        "169.254.169.254",
        "0.0.0.0",  # noqa: S104 - an address to refuse, not to listen at
        "224.0.0.1",
        "100.64.0.1",
    ]
).map(IPv4Address)
GLOBAL = IPv4Address("93.184.216.34")


def ipv6_forms(inner: IPv4Address) -> list[IPv6Address]:
    """Return the IPv4 address in every form that leads to it over IPv6."""
    low = int(inner)
    forms = [
        IPv6Address((0xFFFF << 32) | low),
        IPv6Address((0xFFFF << 48) | low),
        IPv6Address((0x2002 << 112) | (low << 80) | 1),
        IPv6Address((0x0064_FF9B << 96) | low),
        IPv6Address((0x2001_0000 << 96) | (int(GLOBAL) << 64) | (low ^ 0xFFFF_FFFF)),
    ]
    return forms if low <= 1 else [*forms, IPv6Address(low)]


@given(ipv4 | private_addresses)
def test_a_wrapped_address_is_judged_as_what_it_leads_to(inner: IPv4Address) -> None:
    """Mapped and translated addresses are unwrapped before the check."""
    assert {is_forbidden(form) for form in ipv6_forms(inner)} == {is_forbidden(inner)}


@given(ipv4 | ipv6)
def test_an_address_that_is_not_global_is_forbidden(address: IPv4Address | IPv6Address) -> None:
    """Loopback, private and link-local addresses are refused unless listed."""
    if isinstance(address, IPv4Address) and not address.is_global:
        assert is_forbidden(address)
    if address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified:
        assert is_forbidden(address)


@given(ipv4 | private_addresses)
def test_a_listed_host_may_be_private_but_never_multicast(address: IPv4Address) -> None:
    """Listing a host permits it, and a group of hosts cannot be listed."""
    never = address.is_multicast or address.is_unspecified
    assert is_forbidden(address, listed=True) is never


@given(private_addresses)
def test_a_forbidden_literal_is_refused_in_the_url(address: IPv4Address) -> None:
    """A forbidden literal is refused at the submission, however it is written."""
    number = int(address)
    hosts = [
        str(address),
        str(number),
        hex(number),
        f"0{number:o}",
        *(f"[{form}]" for form in ipv6_forms(address)),
    ]
    for host in hosts:
        assert url_fault(f"https://{host}/hook", ()) is not None, host


@given(ipv4.filter(lambda address: not is_forbidden(address)))
def test_a_public_literal_is_accepted_and_a_list_replaces_that(address: IPv4Address) -> None:
    """An empty list permits any global address; any other list permits only its entries."""
    url = f"http://{address}:8080/x"
    assert url_fault(url, ()) is None
    assert url_fault(url, ("example.org",)) is not None
    assert url_fault(url, ("example.org", str(address))) is None


@given(ipv4 | ipv6)
def test_a_literal_is_read_as_it_was_written(address: IPv4Address | IPv6Address) -> None:
    assert parse_literal(str(address)) == address
    assert is_listed(str(address), (str(address),))


@given(st.text(max_size=80) | urls())
def test_any_text_is_judged_and_never_shown_whole(url: str) -> None:
    """The check never fails; the shown URL has no path, query or user."""
    fault = url_fault(url, ())
    assert fault is None or fault
    redacted = redact_url(url)
    assert redacted == "…" or (redacted.endswith("/…") and "?" not in redacted and "@" not in redacted)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://example.org/", "http"),
        ("example.org/hook", "http"),
        ("javascript:alert(1)", "http"),
        ("http://", "no host"),
        ("http:///path", "no host"),
        ("http://example.org:0/", "no host"),
        ("http://example.org:99999/", "not a URL"),
        ("http://[::1/", "not a URL"),
        (" http://example.org/", "blanks"),
        ("http://example.org/\nHost: x", "blanks"),
        ("http://127.0.0.%31/", "not a name"),
        ("http://exa mple.org/", "not a name"),
        ("http://" + "a" * 9000, "longer"),
        ("http://127.1/", "not a public address"),
        ("http://a..b/", "not a name"),
        ("http://./", "not a name"),
        ("http://.example.org/", "not a name"),
        (f"http://{'a' * 64}.org/", "not a name"),
        (f"http://{'ü' * 60}.de/", "not a name"),
        (f"http://{'a.' * 130}org/", "not a name"),
        ("http://[v1.x]/", "not a name"),
        ("http://exam\u200bple.org/", "not a name"),
        ("http://exam\u00adple.org/", "not a name"),
        ("http://stra\u1e9ee.de/", "not a name"),
        ("http://\ufb01n.de/", "not a name"),
        ("http://a\ud800b.de/", "not a name"),
        (f"http://{'a' * 63}.org/", None),
        ("http://my_host.example.org/", None),
        ("http://b\u00fccher.de/", None),
        ("http://EXAMPLE.org/", None),
        ("http://localhost.", None),
        ("https://user:pass@example.org/hook?token=x", None),
    ],
)
def test_faults_name_what_is_wrong(url: str, words: str | None) -> None:
    """A bad scheme, an unparsable URL and a forbidden literal have different messages."""
    fault = url_fault(url, ())
    assert fault is None if words is None else words in (fault or "")


def test_the_host_alone_is_shown() -> None:
    """URLs may contain secrets."""
    assert (
        redact_url("https://u:canary@hooks.example.org:8443/canary?k=canary")
        == "https://hooks.example.org:8443/…"
    )
    assert redact_url("http://[2606:4700::1]/x") == "http://[2606:4700::1]/…"


def test_names_are_listed_whatever_their_case_and_final_dot() -> None:
    assert is_listed("Hooks.Example.ORG.", ("hooks.example.org",))
    assert is_listed("0x7f.1", ("127.0.0.1",))
    assert not is_listed("evil-example.org", ("example.org",))
    assert not is_listed("sub.example.org", ("example.org",))


def test_a_name_of_another_script_is_listed_in_either_form() -> None:
    """A host is the same in either form; a name that only looks alike is another host."""
    for name in ("b\u00fccher.de", "B\u00dcCHER.de.", "xn--bcher-kva.de"):
        for listed_name in ("b\u00fccher.de", "xn--bcher-kva.de", "B\u00fccher.DE"):
            assert is_listed(name, (listed_name,))
    assert url_fault("http://xn--bcher-kva.de/x", ("b\u00fccher.de",)) is None
    assert receiver_of("http://b\u00fccher.de/x") == receiver_of("http://xn--bcher-kva.de/y")
    assert not is_listed("stra\u00dfe.de", ("strasse.de",))
    assert not is_listed("xn--strae-oqa.de", ("strasse.de",))


def test_a_zone_does_not_hide_a_link_local_address() -> None:
    assert is_forbidden(ip_address("fe80::1%eth0"))
    assert url_fault("http://[fe80::1%25eth0]/", ()) is not None


@pytest.mark.parametrize(
    "address",
    [
        "64:ff9b:1::7f00:1",
        "64:ff9b:1:ffff::a00:1",
        "fec0::1",
        "5f00::1",
        "3fff::1",
        "fe80::1%eth0",
        "192.0.0.192",
        "192.0.0.8",
        "192.88.99.1",
        "168.63.129.16",
        "::ffff:192.0.0.192",
    ],
)
def test_networks_that_are_not_public_whatever_the_library_knows(address: str) -> None:
    """A translation prefix of a gateway leads anywhere, and older networks are private too."""
    assert is_forbidden(ip_address(address))


@pytest.mark.parametrize(
    "host",
    [
        "\uff11\uff12\uff17.0.0.1",
        "127\u30020\u30020\uff611",
        "\u2460\u2461\u2466.1",
        "127.0.0.1\u200b",
        "12\u00ad7.1",
        "127.00000000000000000001",
        "0x0000000007f.1",
        "0000000000177.1",
    ],
)
def test_other_scripts_digits_are_digits(host: str) -> None:
    """A forbidden literal is refused at the submission, however it is written."""
    assert parse_literal(host) == IPv4Address("127.0.0.1")
    assert url_fault(f"http://{host}/", ()) is not None
