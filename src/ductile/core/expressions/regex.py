"""Regular expressions with a time limit: patterns of operators matched against untrusted texts.

The only module of the core that uses a third-party library. The standard library cannot stop a match, and
conditions are evaluated inside a transaction of the store, where one bad pattern would delay every job.

The limits are CPU time of the whole process, as the library counts it. On a busy machine a match that is
stopped has taken longer by the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

#: The limit of one match without a budget. Ordinary patterns take microseconds.
MATCH_SECONDS = 0.1
#: The limit of all conditions in one transaction together.
BUDGET_SECONDS = 0.05
#: The part of each match that is not counted, so that a thousand harmless matches do not use up the budget.
FREE_SECONDS = 0.001
#: The least CPU time that a condition may take while the budget has any left.
_MIN_SHARE_SECONDS = 0.0005


class _Pattern(Protocol):
    """The used part of the library, which has no type hints."""

    def fullmatch(self, text: str, /, *, timeout: float) -> object | None: ...


class PatternError(ValueError):
    """The pattern is invalid, or took too long. The message quotes neither pattern nor text."""


class MatchBudget:
    """The CPU time that the conditions of one transaction may take together.

    Each condition may take half of what is left, so that enough remains for those after one that takes too
    long. `timer` returns the CPU seconds of the calling thread.
    """

    __slots__ = ("_left", "_share", "_timer")

    def __init__(self, timer: Callable[[], float], seconds: float = BUDGET_SECONDS) -> None:
        self._timer = timer
        self._left = seconds
        self._share = 0.0

    def next_condition(self) -> None:
        """Begin the next condition: it may take half of the time that is left."""
        self._share = min(self._left, max(self._left / 2, _MIN_SHARE_SECONDS))

    def matches(self, pattern: str, text: str) -> bool:
        """Match within the share of the current condition. Raises PatternError if it is exceeded."""
        if self._share <= 0:
            raise _budget_error()
        compiled = _compiled(pattern)  # not counted: the first call loads the library
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
    """Return whether the pattern matches the whole text, without regard to case. Raises PatternError."""
    try:
        return _compiled(pattern).fullmatch(text, timeout=MATCH_SECONDS) is not None
    except TimeoutError:
        raise PatternError(f"the regular expression took longer than {MATCH_SECONDS} s") from None


def pattern_fault(pattern: str) -> str | None:
    """Return the fault of a pattern; None if it is valid."""
    try:
        _compiled(pattern)
    except PatternError as error:
        return str(error)
    return None


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> _Pattern:
    # Imported late: it takes 30 ms, and few configurations have such a condition.
    import regex  # type: ignore[import-untyped]  # noqa: PLC0415 - see above

    try:
        compiled: _Pattern = regex.compile(pattern, regex.IGNORECASE)
    except regex.error as error:
        raise PatternError(f"{error.msg}, at character {(error.pos or 0) + 1}") from None
    return compiled
