"""Progress of a command that takes a while, in one line on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable


def progress_line(json: bool) -> Callable[[str, int, int], None]:
    """Return a function that shows a step, the amount that is done and the whole amount.

    Shows nothing unless standard error is a terminal, and nothing beside JSON.
    """
    visible = not json and sys.stderr.isatty()

    def show(step: str, done: int, of: int) -> None:
        if not visible:
            return
        share = 100 if of == 0 else 100 * done // of
        end = "\r\x1b[K" if done >= of else ""
        sys.stderr.write(f"\r\x1b[K{step}: {share}%{end}")
        sys.stderr.flush()

    return show
