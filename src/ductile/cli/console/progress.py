"""A line that tells a person at a terminal that something is being waited for, and for how long."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

from ductile.cli.console.console import printable
from ductile.cli.console.format import format_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ductile.cli.invocation import Invocation

#: What takes less is over before the line could be read.
_EVERY_SECONDS = 1
_CLEAR = "\r\x1b[K"


@contextmanager
def show_waiting(call: Invocation, what: str, look: Callable[[], list[str]] | None = None) -> Iterator[None]:
    """On standard error, so that what was asked for stays clean; gone when the waiting is over.

    Lines that a `look` finds meanwhile stay, and are told without a terminal too: they are news.
    """
    watched = sys.stderr.isatty()
    if call.json or not (watched or look):
        yield
        return
    over = Event()
    teller = Thread(
        target=_tell,
        args=(printable(what).replace("\n", " ") if watched else None, look or list, over),
        name="ductile-progress",
        daemon=True,
    )
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def _tell(what: str | None, look: Callable[[], list[str]], over: Event) -> None:
    seconds = 0
    clear = "" if what is None else _CLEAR
    while not over.wait(_EVERY_SECONDS):
        seconds += _EVERY_SECONDS
        told = "".join(f"{clear}{line}\n" for line in look())
        line = "" if what is None else f"{clear}waiting for {what}, {format_ms(seconds * 1000)}"
        sys.stderr.write(told + line)
        sys.stderr.flush()
    if seconds:
        sys.stderr.write(clear)
        sys.stderr.flush()
