"""Random bytes that are drawn a page at a time are still random."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ductile.random_source import BufferedSystemRandom

_WORDS = 5_000


@given(st.lists(st.integers(1, 70_000), min_size=1, max_size=30))
def test_a_draw_has_the_bits_asked_for(sizes: list[int]) -> None:
    """Also across the end of a page, and of more than one."""
    rng = BufferedSystemRandom()
    for bits in sizes:
        assert 0 <= rng.getrandbits(bits) < 1 << bits


def test_every_bit_comes_up() -> None:
    """A draw shifted wrongly would have bits that are always the same."""
    rng = BufferedSystemRandom()
    draws = [rng.getrandbits(13) for _ in range(2_000)]
    some, every = 0, (1 << 13) - 1
    for draw in draws:
        some |= draw
        every &= draw
    assert (some, every) == ((1 << 13) - 1, 0)


def test_nothing_is_drawn_twice() -> None:
    """Ids are made of it; a page ends every 512 of these."""
    rng = BufferedSystemRandom()
    assert len({rng.getrandbits(64) for _ in range(_WORDS)}) == _WORDS
