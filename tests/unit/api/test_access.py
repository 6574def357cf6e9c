"""Guesses are counted within bounds, and tokens are compared whole (SPEC 8.1)."""

from __future__ import annotations

from ductile.api.access import GUESSES, GUESSING_SECONDS, Guesses, TokenRing
from ductile.config.secrets import digest_of
from ductile.config.snapshot import AccessToken


def test_guesses_are_forgiven_after_a_while() -> None:
    """SPEC 8: 429 says how long; then it begins anew."""
    now = [0.0]
    guesses = Guesses(lambda: now[0])
    assert [guesses.note("a") for _ in range(GUESSES)] == [None] * GUESSES
    now[0] = 20.0
    assert guesses.note("a") == GUESSING_SECONDS - 20.0
    assert guesses.note("b") is None
    now[0] = GUESSING_SECONDS
    assert guesses.note("a") is None


def test_the_memory_for_peers_is_bounded() -> None:
    """SPEC 8: a flood from many addresses costs no memory without end."""
    guesses = Guesses(lambda: 0.0)
    for number in range(10_000):
        guesses.note(str(number))
    assert len(guesses._peers) == 1024


def test_a_token_is_found_by_the_whole_of_it() -> None:
    """SPEC 8.1."""
    ring = TokenRing(
        tuple(
            AccessToken(name=name, digest=digest_of(f"key-{name}".encode()), scopes=("*",)) for name in "abc"
        )
    )
    found = ring.find(b"key-b")
    assert found is not None
    assert found.name == "b"
    for wrong in (b"", b"key-", b"key-bb", b"KEY-B", "key-ü".encode()):
        assert ring.find(wrong) is None
