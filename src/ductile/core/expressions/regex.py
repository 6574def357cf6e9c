"""Regular expressions of operators over texts of strangers: compiled once, matched within a time limit.

The one module of the core that uses a third-party library. The standard library's matcher cannot be
stopped, and conditions are judged inside the store's transaction, where one bad pattern would hold up
every job. Apart from that limit, a match depends on nothing but its arguments.

The limits are computing time. The library counts that of the whole process and not the time of day: on a
machine with more to do than it has processors, a match that is stopped has taken longer by the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

#: Ordinary patterns take microseconds. One match may take this long where there is no budget.
MATCH_SECONDS = 0.1
#: All conditions that are judged in one transaction may take this long together.
BUDGET_SECONDS = 0.05
#: Of each match, this much is not counted: a thousand events with a harmless pattern must not use it up.
FREE_SECONDS = 0.001
#: A condition is given no less than this while there is anything left.
_LEAST_SECONDS = 0.0005


class _Pattern(Protocol):
    """The one method of the library that is used; it ships no types."""

    def fullmatch(self, text: str, /, *, timeout: float) -> object | None: ...


class PatternError(ValueError):
    """The pattern cannot be read, or took too long. The message quotes neither pattern nor text."""


class MatchBudget:
    """The computing time that conditions may take together; made anew for each transaction.

    Each condition may take half of what is left. The one that takes too long fails, and there is enough
    left for those after it. `timer` gives the seconds that the calling thread has computed so far.
    """

    __slots__ = ("_left", "_share", "_timer")

    def __init__(self, timer: Callable[[], float], seconds: float = BUDGET_SECONDS) -> None:
        self._timer = timer
        self._left = seconds
        self._share = 0.0

    def next_condition(self) -> None:
        """A condition is about to be judged."""
        self._share = min(self._left, max(self._left / 2, _LEAST_SECONDS))

    def matches(self, pattern: str, text: str) -> bool:
        """As the function of this name, within the share of the condition that is judged."""
        if self._share <= 0:
            raise _budget_error()
        compiled = _compiled(pattern)  # not counted: the first one loads the library
        began = self._timer()
        try:
            return compiled.fullmatch(text, timeout=self._share + FREE_SECONDS) is not None
        except TimeoutError:
            self._share = 0.0
            raise _budget_error() from None
        finally:
            took = max(0.0, self._timer() - began - FREE_SECONDS)
            self._share -= took
            self._left -= took


def _budget_error() -> PatternError:
    return PatternError(
        f"its regular expressions took too long; all conditions together may take {BUDGET_SECONDS} s"
    )


def matches(pattern: str, text: str) -> bool:
    """Whether the pattern matches all of the text, whatever its case."""
    try:
        return _match(pattern, text, MATCH_SECONDS)
    except TimeoutError:
        raise PatternError(f"the regular expression took longer than {MATCH_SECONDS} s") from None


def _match(pattern: str, text: str, seconds: float) -> bool:
    return _compiled(pattern).fullmatch(text, timeout=seconds) is not None


def pattern_fault(pattern: str) -> str | None:
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
