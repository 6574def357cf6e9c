"""The output for people: aligned columns, and colour if it goes to a terminal.

Names and descriptions come from files of others, so control characters never reach a terminal unescaped.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TextIO

from ductile.cli.console.hints import add_config_option
from ductile.cli.console.table import GAP, Table, fit_table, wrap_hanging
from ductile.core.terminal_text import escape_controls as printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from threading import Event

    from ductile.cli.invocation import Invocation

__all__ = ["Console", "console_for", "indent_continuation", "one_line", "printable", "show_waiting"]

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
_MIN_WIDTH = 40
#: Shorter waits show no line.
_INTERVAL_SECONDS = 1
_CLEAR = "\r\x1b[K"


class Console(NamedTuple):
    """Where text is printed. `width` is None if that is not a terminal: nothing is cut off then.

    Files below `directory`, the working directory, are shown relative to it. Times of `today` (UTC) are shown
    without their date if there is little room. `config` is the value of --config.
    """

    colour: bool = False
    width: int | None = None
    directory: str = ""
    today: str = ""
    config: str | None = None

    def path(self, path: str) -> str:
        inside = self.directory and path.startswith(f"{self.directory}/")
        return printable(path[len(self.directory) + 1 :] if inside else path).replace("\n", "\\n")

    def hint(self, text: str) -> str:
        """A hint whose commands can be copied."""
        return add_config_option(printable(text), self.config)

    def style(self, name: str, text: str) -> str:
        return f"\x1b[{_STYLES[name]}m{text}\x1b[0m" if self.colour and text else text

    def beside(self, left: str, text: str) -> list[str]:
        """A text on a line that begins with `left`; on a terminal its further lines are aligned below it."""
        line = one_line(text)
        return (
            [f"{left}{line}"] if self.width is None else wrap_hanging(left, line, max(self.width, _MIN_WIDTH))
        )

    def table(
        self,
        headers: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        optional: Sequence[str] = (),
        prose: bool = False,
    ) -> str:
        """Columns as wide as their content. On a terminal they are fitted to its width: `optional` columns
        are left out if there is no room, in this order, and a last column of `prose` is wrapped.
        """
        table = Table(headers, [[one_line(cell) for cell in row] for row in rows])
        limit = None if self.width is None else max(self.width, _MIN_WIDTH)
        if limit is not None:
            table = fit_table(table, limit, optional, self.today, prose=prose)
        widths = table.widths
        lines = []
        for cells in (table.headers, *table.rows):
            line = GAP.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
            lines.append(line if limit is None or len(line) <= limit else f"{line[: limit - 1]}…")
        return "\n".join([self.style("bold", lines[0]), *lines[1:]])


def one_line(text: str) -> str:
    """The text on one line, with control characters escaped."""
    return printable(text).replace("\n", " ")


def indent_continuation(text: str, indent: str = "  ") -> str:
    """The text with its further lines indented, so that none of them looks like a line of ours."""
    return printable(text).rstrip("\n").replace("\n", f"\n{indent}")


def console_for(stream: TextIO, environ: Mapping[str, str], config: str | None = None) -> Console:
    directory = os.getcwd()  # noqa: PTH109 - pathlib is slow to import
    if not stream.isatty():
        return Console(directory=directory, config=config)
    from time import gmtime, strftime

    try:
        width = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        width = 80
    colour = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    return Console(colour, width, directory, strftime("%Y-%m-%d", gmtime()), config)


@contextmanager
def show_waiting(call: Invocation, what: str, poll: Callable[[], list[str]] | None = None) -> Iterator[None]:
    """Show on a terminal what the block waits for, and how long, in a line on standard error.

    Lines of `poll` are printed meanwhile and stay, on a terminal or not.
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
    from ductile.cli.console.format import ms

    seconds = 0
    clear = "" if what is None else _CLEAR
    while not over.wait(_INTERVAL_SECONDS):
        seconds += _INTERVAL_SECONDS
        lines = "".join(f"{clear}{line}\n" for line in poll())
        status = "" if what is None else f"{clear}waiting for {what}, {ms(seconds * 1000)}"
        sys.stderr.write(lines + status)
        sys.stderr.flush()
    if seconds:
        sys.stderr.write(clear)
        sys.stderr.flush()
