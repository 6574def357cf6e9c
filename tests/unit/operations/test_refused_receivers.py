"""Findings of the doctor about receivers that the allow list excludes."""

from __future__ import annotations

import pytest

from ductile.core.webhooks.url_policy import ADDRESS_NOT_ALLOWED, refused_host
from ductile.operations.diagnose.doctor import receiver_findings
from ductile.store.model.maintenance import FailingReceiver


@pytest.mark.parametrize(
    ("receiver", "error", "allow", "host"),
    [
        ("http://inside.lan:80", ADDRESS_NOT_ALLOWED, [], "inside.lan"),
        ("http://inside.lan:80", "the receiver answered 500", [], None),
        ("http://10.0.0.1:80", "any", [], "10.0.0.1"),
        ("http://[fd00::1]:80", "any", [], "fd00::1"),
        ("http://8.8.8.8:80", "any", [], None),
        ("http://8.8.8.8:80", "any", ["other.org"], "8.8.8.8"),
        ("http://224.0.0.1:80", "any", [], None),
        ("https://example.org:443", "any", ["other.org"], "example.org"),
        ("https://example.org:443", "any", ["example.org"], None),
        ("http://inside.lan:80", ADDRESS_NOT_ALLOWED, ["inside.lan"], None),
        ("", "any", ["other.org"], None),
    ],
)
def test_which_receivers_are_not_called_by_us(
    receiver: str, error: str, allow: list[str], host: str | None
) -> None:
    assert refused_host(receiver, error, allow) == host


def test_the_remedy_keeps_what_is_listed() -> None:
    receiver = FailingReceiver(receiver="http://b.lan:80", waiting=1, dropped=2, last_error="x")
    (finding,) = receiver_findings((receiver,), ["a.lan"])
    assert "does not list b.lan; 1 wait, 2 were given up" in finding.message
    command = """ductile config set state_webhooks.allow '["a.lan","b.lan"]' && ductile apply"""
    assert command in (finding.fix or "")
