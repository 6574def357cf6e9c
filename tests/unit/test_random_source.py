"""Random bytes that are drawn a page at a time are random."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ductile.random_source import BufferedSystemRandom

_WORDS = 5_000


@given(st.lists(st.integers(1, 70_000), min_size=1, max_size=30))
def test_a_draw_has_the_bits_asked_for(sizes: list[int]) -> None:
    """A draw may cross the end of a page, or be larger than a page."""
    rng = BufferedSystemRandom()
    for bits in sizes:
        assert 0 <= rng.getrandbits(bits) < 1 << bits


def test_every_bit_comes_up() -> None:
    """A draw with a wrong shift would have constant bits."""
    rng = BufferedSystemRandom()
    draws = [rng.getrandbits(13) for _ in range(2_000)]
    any_bits, all_bits = 0, (1 << 13) - 1
    for draw in draws:
        any_bits |= draw
        all_bits &= draw
    assert (any_bits, all_bits) == ((1 << 13) - 1, 0)


def test_nothing_is_drawn_twice() -> None:
    """Ids use these bits; a page ends every 512 draws."""
    rng = BufferedSystemRandom()
    assert len({rng.getrandbits(64) for _ in range(_WORDS)}) == _WORDS
