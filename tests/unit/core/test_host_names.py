"""The host names with which a request reaches this machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.core.host_names import host_of, is_loopback_listener, is_meant_for

LISTEN = "hooks.lan:8080"


@pytest.mark.parametrize(
    "host",
    [
        None,
        "localhost",
        "LOCALHOST:8080",
        "localhost.:80",
        "127.0.0.1",
        "127.3.2.1:9",
        "[::1]",
        "[::1]:8080",
        "[::ffff:127.0.0.1]:8080",
        "hooks.lan",
        "Hooks.LAN:9999",
    ],
)
def test_a_request_for_this_machine_is_accepted(host: str | None) -> None:
    assert is_meant_for(host, None, LISTEN)
    assert is_meant_for(None, None if host is None else f"http://{host}", LISTEN)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "evil.localhost.example:8080",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "[::2]:8080",
        "localhost@evil.example",
        "evil.example@localhost",
        "localhost evil.example",
        "localhost:80:80",
        "localhost/evil",
        "[localhost]",
        "hooks.lan.evil.example",
    ],
)
def test_a_request_for_another_host_is_refused(host: str) -> None:
    assert not is_meant_for(host, None, LISTEN)
    assert not is_meant_for("localhost", f"http://{host}", LISTEN)


@pytest.mark.parametrize("origin", ["null", "", "file://", "chrome-extension://localhost", "localhost"])
def test_an_origin_that_names_no_host(origin: str) -> None:
    assert not is_meant_for("localhost", origin, LISTEN)


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert host_of(text) is None or host_of(text) == (host_of(text) or "").lower()
    is_meant_for(text, text, text)


@pytest.mark.parametrize(
    ("listen", "is_loopback"),
    [
        ("localhost:8080", True),
        ("127.0.0.1:0", True),
        ("[::1]:8080", True),
        ("0.0.0.0:8080", False),
        ("[::]:8080", False),
        ("192.168.1.2:80", False),
        ("hooks.lan:8080", False),
    ],
)
def test_loopback_listeners(listen: str, is_loopback: bool) -> None:
    assert is_loopback_listener(listen) is is_loopback
