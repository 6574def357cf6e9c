"""Control characters of a terminal are escaped, and JSON keeps its meaning."""

from __future__ import annotations

import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from ductile.core.terminal_text import escape_beyond_ascii, escape_controls, escape_in_json

UNSAFE = "\x1b\x07\x7f\x80\x85\x9b\x9f\u061c\u200e\u200f\u202a\u202e\u2028\u2066\u2069"
TEXTS = st.text(st.one_of(st.characters(), st.sampled_from(UNSAFE)))


def is_unsafe(character: str) -> bool:
    bidirectional = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    return (
        unicodedata.category(character) in ("Cc", "Zl", "Zp")
        or unicodedata.bidirectional(character) in bidirectional
        or character in "\u061c\u200e\u200f"
    )


@given(TEXTS)
def test_only_line_breaks_are_left(text: str) -> None:
    assert not any(is_unsafe(character) for character in escape_controls(text).replace("\n", ""))


@given(TEXTS)
def test_text_without_such_characters_is_left_as_it_is(text: str) -> None:
    safe = "".join(character for character in text if not is_unsafe(character))
    assert escape_controls(safe) == escape_beyond_ascii(safe) == escape_in_json(safe) == safe


@given(st.recursive(TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=5))
def test_json_means_the_same_and_is_safe(value: object) -> None:
    escaped = escape_in_json(json.dumps(value, ensure_ascii=False, indent=2))
    assert json.loads(escaped) == value
    assert not any(is_unsafe(character) for character in escaped.replace("\n", ""))


@given(TEXTS)
def test_styles_of_our_own_survive(text: str) -> None:
    escaped = escape_beyond_ascii(f"\x1b[1m{text}\x1b[0m")
    assert escaped.startswith("\x1b[1m")
    assert not any(is_unsafe(character) for character in escaped if not character.isascii())
