"""Guesses are counted within bounds, and tokens are compared whole."""

from __future__ import annotations

from ductile.api.access import FAILED_LOGIN_SECONDS, MAX_FAILED_LOGINS, FailedLoginLimiter, TokenTable
from ductile.config.secrets import digest_of
from ductile.config.snapshot import AccessToken


def test_guesses_are_forgiven_after_a_while() -> None:
    """429 says how long; then it begins anew."""
    now = [0.0]
    guesses = FailedLoginLimiter(lambda: now[0])
    assert [guesses.note("a") for _ in range(MAX_FAILED_LOGINS)] == [None] * MAX_FAILED_LOGINS
    now[0] = 20.0
    assert guesses.note("a") == FAILED_LOGIN_SECONDS - 20.0
    assert guesses.note("b") is None
    now[0] = FAILED_LOGIN_SECONDS
    assert guesses.note("a") is None


def test_the_memory_for_peers_is_bounded() -> None:
    """A flood from many addresses costs no memory without end."""
    guesses = FailedLoginLimiter(lambda: 0.0)
    for number in range(10_000):
        guesses.note(str(number))
    assert len(guesses._peers) == 1024


def test_a_token_is_found_by_the_whole_of_it() -> None:
    ring = TokenTable(
        tuple(
            AccessToken(name=name, digest=digest_of(f"key-{name}".encode()), scopes=("*",)) for name in "abc"
        )
    )
    found = ring.find(b"key-b")
    assert found is not None
    assert found.name == "b"
    for wrong in (b"", b"key-", b"key-bb", b"KEY-B", "key-ü".encode()):
        assert ring.find(wrong) is None
