"""Did-you-mean hints for the whole program. It imports little, because the command line starts with it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: How alike two words have to be. At 0.6 `fetch` would suggest `echo`.
MIN_SIMILARITY = 0.7
_MAX_COMPARED = 1000


def closest_match(word: str, known: Iterable[str], *, similarity: float = MIN_SIMILARITY) -> str | None:
    """Return the known word that is most like the given one, None if none is similar enough."""
    from difflib import get_close_matches  # noqa: PLC0415 - 5 ms that only a mistake costs

    # Comparing is slow; by their lengths alone two words are at most this similar.
    size = len(word)
    candidates = (name for name in known if 2 * min(len(name), size) >= similarity * (len(name) + size))
    matches = get_close_matches(word, islice(candidates, _MAX_COMPARED), n=1, cutoff=similarity)
    return matches[0] if matches else None


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """Return `did you mean x?` for the closest known word, None if none is similar enough."""
    closest = closest_match(word, known)
    return None if closest is None else f"did you mean {closest}?"
