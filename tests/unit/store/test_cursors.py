"""Cursors are opaque, and only cursors of the store are accepted."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.errors import RefusedError
from ductile.store.rows import decode_cursor, encode_cursor


@given(st.integers(0, 10**18 - 1))
def test_an_encoded_cursor_is_decoded(seq: int) -> None:
    cursor = encode_cursor(seq)
    assert decode_cursor(cursor) == seq
    assert cursor.isascii()
    assert set(cursor).isdisjoint("=+/?&# "), "it goes into URLs as it is"


def test_no_cursor_is_the_beginning() -> None:
    assert decode_cursor(None) is None


@given(st.text(max_size=60))
def test_anything_else_is_refused_or_one_of_ours(text: str) -> None:
    """No other error is raised for any text."""
    with contextlib.suppress(RefusedError):
        seq = decode_cursor(text)
        assert seq is not None
        assert decode_cursor(encode_cursor(seq)) == seq


@pytest.mark.parametrize(
    "text", ["", "MTI", "YzE6LTE", "YzE6MTIz\n", "YzE6", "YzE6" + "9" * 60, "\ud800", "é"]
)
def test_near_misses_are_refused(text: str) -> None:
    with pytest.raises(RefusedError) as excinfo:
        decode_cursor(text)
    assert excinfo.value.hint
