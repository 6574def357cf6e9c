"""Failed logins are counted in bounded memory, and tokens are compared whole."""

from __future__ import annotations

from ductile.config.secrets import digest_of
from ductile.config.snapshot import AccessToken
from ductile.http.authentication import (
    MAX_UNKNOWN_TOKENS,
    UNKNOWN_TOKEN_SECONDS,
    TokenTable,
    UnknownTokenLimiter,
)


def test_failed_logins_are_forgotten_after_a_while() -> None:
    """The limiter returns the remaining seconds, and starts again after them."""
    now = [0.0]
    limiter = UnknownTokenLimiter(lambda: now[0])
    assert [limiter.record("a") for _ in range(MAX_UNKNOWN_TOKENS)] == [None] * MAX_UNKNOWN_TOKENS
    now[0] = 20.0
    assert limiter.record("a") == UNKNOWN_TOKEN_SECONDS - 20.0
    assert limiter.record("b") is None
    now[0] = UNKNOWN_TOKEN_SECONDS
    assert limiter.record("a") is None


def test_the_memory_for_peers_is_bounded() -> None:
    """Failures from many addresses use a bounded amount of memory."""
    limiter = UnknownTokenLimiter(lambda: 0.0)
    for number in range(10_000):
        limiter.record(str(number))
    assert len(limiter.peers) == 1024


def test_a_token_is_found_by_the_whole_of_it() -> None:
    table = TokenTable(
        tuple(
            AccessToken(name=name, digest=digest_of(f"key-{name}".encode()), scopes=("*",)) for name in "abc"
        )
    )
    token = table.find(b"key-b")
    assert token is not None
    assert token.name == "b"
    for wrong in (b"", b"key-", b"key-bb", b"KEY-B", "key-ü".encode()):
        assert table.find(wrong) is None
