"""Regular expressions of operators over texts of strangers: compiled once, matched within a time limit.

The one module of the core that uses a third-party library. The standard library's matcher cannot be
stopped, and conditions are judged inside the store's transaction, where one bad pattern would hold up
every job. Apart from that limit, a match depends on nothing but its arguments.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

#: Ordinary patterns take microseconds; what takes this long would take for ever.
MATCH_SECONDS = 0.1


class _Pattern(Protocol):
    """The one method of the library that is used; it ships no types."""

    def fullmatch(self, text: str, /, *, timeout: float) -> object | None: ...


class PatternError(ValueError):
    """The pattern cannot be read, or took too long. The message quotes neither pattern nor text."""


def matches(pattern: str, text: str) -> bool:
    """Whether the pattern matches all of the text, whatever its case."""
    try:
        return _compiled(pattern).fullmatch(text, timeout=MATCH_SECONDS) is not None
    except TimeoutError:
        raise PatternError(f"the regular expression took longer than {MATCH_SECONDS} s") from None


def fault_in_pattern(pattern: str) -> str | None:
    """What is wrong with a pattern, if anything."""
    try:
        _compiled(pattern)
    except PatternError as error:
        return str(error)
    return None


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> _Pattern:
    # Imported late: 30 ms that only a configuration with such a condition has to pay.
    import regex  # type: ignore[import-untyped]  # noqa: PLC0415 - it ships no types; late, see above

    try:
        compiled: _Pattern = regex.compile(pattern, regex.IGNORECASE)
    except regex.error as error:
        raise PatternError(f"{error.msg}, at character {(error.pos or 0) + 1}") from None
    return compiled
