"""A line on a terminal while a command waits: what for, and how long."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ductile.cli.console.console import one_line
from ductile.cli.console.format import format_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from threading import Event

    from ductile.cli.invocation import Invocation

#: Shorter waits show no line.
_INTERVAL_SECONDS = 1
_CLEAR = "\r\x1b[K"


@contextmanager
def show_waiting(call: Invocation, what: str, poll: Callable[[], list[str]] | None = None) -> Iterator[None]:
    """Show the line on standard error until the block ends. Lines of `poll` are printed meanwhile and
    stay, on a terminal or not.
    """
    terminal = sys.stderr.isatty()
    if call.json or not (terminal or poll):
        yield
        return
    from threading import Event, Thread

    over = Event()
    what_line = one_line(what) if terminal else None
    thread = Thread(target=_show, args=(what_line, poll or list, over), name="ductile-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _show(what: str | None, poll: Callable[[], list[str]], over: Event) -> None:
    seconds = 0
    clear = "" if what is None else _CLEAR
    while not over.wait(_INTERVAL_SECONDS):
        seconds += _INTERVAL_SECONDS
        lines = "".join(f"{clear}{line}\n" for line in poll())
        status = "" if what is None else f"{clear}waiting for {what}, {format_ms(seconds * 1000)}"
        sys.stderr.write(lines + status)
        sys.stderr.flush()
    if seconds:
        sys.stderr.write(clear)
        sys.stderr.flush()
