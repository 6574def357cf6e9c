"""A line that tells a person at a terminal that something is being waited for, and for how long."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

from ductile.cli.screen import printable
from ductile.cli.wording import span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ductile.cli.answers import Call

#: What takes less is over before the line could be read.
_EVERY_SECONDS = 1
_CLEAR = "\r\x1b[K"


@contextmanager
def waiting_for(call: Call, what: str) -> Iterator[None]:
    """On standard error, so that what was asked for stays clean; gone when the waiting is over."""
    if call.json or not sys.stderr.isatty():
        yield
        return
    over = Event()
    teller = Thread(target=_tell, args=(printable(what), over), name="ductile-progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def _tell(what: str, over: Event) -> None:
    seconds = 0
    while not over.wait(_EVERY_SECONDS):
        seconds += _EVERY_SECONDS
        sys.stderr.write(f"{_CLEAR}waiting for {what}, {span(seconds * 1000)}")
        sys.stderr.flush()
    if seconds:
        sys.stderr.write(_CLEAR)
        sys.stderr.flush()
