"""Find texts by words, among a few thousand texts in memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")

_WORD = re.compile(r"[^\W_]+")
#: A longer word of the query also finds a text with its beginning: `images` finds `image`.
_SHORTEST_STEM = 4
_EQUAL, _SIMILAR = 2, 1
#: A word in the first field of a document, its name, counts this many times as much.
_NAME_WEIGHT = 3


def rank_by_words(query: str, documents: Iterable[tuple[T, Sequence[str]]]) -> list[T]:
    """Return the values of the documents in which a word of the query occurs, the best first.

    A document is a value with its texts, of which the first is its name. Those that contain more words of
    the query come first, then those with closer matches; equal ones stay in their order.
    """
    query_words = tuple(dict.fromkeys(_words(query)))
    matches = []
    for value, texts in documents:
        weighted_words = [
            (word, 1 if index else _NAME_WEIGHT) for index, text in enumerate(texts) for word in _words(text)
        ]
        # For each word of the query, how well the best word of the document matches it.
        scores = [
            max((_similarity(query_word, word) * weight for word, weight in weighted_words), default=0)
            for query_word in query_words
        ]
        if any(scores):
            matches.append((value, scores))
    matches.sort(key=lambda match: (-sum(map(bool, match[1])), -sum(match[1])))
    return [value for value, _ in matches]


def _similarity(query_word: str, word: str) -> int:
    """Return how well a word of a document matches one of the query; 0 if it does not."""
    if query_word == word:
        return _EQUAL
    is_stem = len(word) >= _SHORTEST_STEM and query_word.startswith(word)
    return _SIMILAR if is_stem or word.startswith(query_word) else 0


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
