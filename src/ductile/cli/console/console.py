"""The output for people: aligned columns, and colour if it goes to a terminal.

Names and descriptions come from files of others, so control characters never reach a terminal unescaped.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TextIO

from ductile.cli.command_table import first_words
from ductile.cli.console.table import GAP, Table, fit_table, wrap_hanging
from ductile.cli.spec import CONFIG, URL
from ductile.core.terminal_text import escape_controls

if TYPE_CHECKING:
    from datetime import datetime, tzinfo

    from ductile.cli.invocation import Invocation

__all__ = [
    "Console",
    "WaitingLine",
    "console_for",
    "escape_controls",
    "indent_continuation",
    "one_line",
    "progress_line",
    "show_waiting",
]

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
#: The colours of words for a status.
STATUS_STYLES = {
    "succeeded": "green",
    "failed": "red",
    "dead": "red",
    "timed_out": "red",
    "refused": "red",
    "unhealthy": "red",
    "open": "red",
    "running": "yellow",
    "half_open": "yellow",
    "paused": "yellow",
    "draining": "yellow",
    "disabled": "dim",
}
#: The columns in which these words have their colour.
_STATUS_HEADERS = ("STATUS", "STATE", "OUTCOME", "LAST RUN", "NEXT RUN", "NEXT", "HEALTH", "BREAKER")
_MIN_WIDTH = 40
#: Seconds between two updates of the waiting line. A shorter wait shows no line.
_INTERVAL_SECONDS = 1
#: Moves to the start of the line and clears it.
_CLEAR = "\r\x1b[K"


class Console(NamedTuple):
    """The stream that text is printed to. `width` is None if it is no terminal: nothing is cut off then.

    Files below `directory`, the working directory, are shown relative to it. Times of `today` are shown
    without their date if there is little room. `daemon_options` (--config, --url and
    the like, as typed) are added to commands in hints.

    Times are shown in `zone` (UTC without one), and relative to `now` if it is known; if `verbose`, exactly
    and in UTC, and ids as a whole.
    """

    colour: bool = False
    width: int | None = None
    directory: str = ""
    today: str = ""
    daemon_options: str | None = None
    verbose: bool = False
    now: datetime | None = None
    zone: tzinfo | None = None

    def path(self, path: str) -> str:
        inside = self.directory and path.startswith(f"{self.directory}/")
        return escape_controls(path[len(self.directory) + 1 :] if inside else path).replace("\n", "\\n")

    def hint(self, text: str) -> str:
        """Return a hint whose commands can be copied."""
        return add_daemon_options(escape_controls(text), self.daemon_options)

    def style(self, name: str, text: str) -> str:
        return f"\x1b[{_STYLES[name]}m{text}\x1b[0m" if self.colour and text else text

    def wrap_beside(self, left: str, text: str, *, indent: int = 0) -> list[str]:
        """Return lines with the text beside `left`. On a terminal it is wrapped; further lines begin below
        the first word, or `indent` columns further.

        No line break falls into a command, so that it can be copied.
        """
        import re

        line = one_line(text)
        if self.width is None or len(left) + len(line) <= self.width:
            return [f"{left}{line}"]
        # A command in backticks, in brackets or at the end of the text counts as one word.
        command = rf"ductile (?:{'|'.join(first_words())})\b"
        words = re.findall(rf"[^\s`]*`[^`]+`\S*|\({command}[^()`]*\)\S*|{command}[^`]*$|\S+", line)
        return wrap_hanging(left, words, max(self.width, _MIN_WIDTH), indent=indent)

    def table(
        self,
        headers: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        optional: Sequence[str] = (),
        wrap_last: bool = False,
    ) -> str:
        """Return a table with columns as wide as their content. Words for a status have their colour.

        On a terminal the table is fitted to its width: a last column without any value is left out, then
        `optional` columns, in this order, if there is no room. With `wrap_last` the last column is wrapped.
        """
        table = Table(headers, [[one_line(cell) for cell in row] for row in rows])
        limit = None if self.width is None else max(self.width, _MIN_WIDTH)
        if limit is not None:
            if not any(row[-1] for row in table.rows):
                table = table.without_column(table.headers[-1])
            table = fit_table(table, limit, optional, self.today, wrap_last=wrap_last)
        widths = table.widths
        lines = []
        for cells in (table.headers, *table.rows):
            line = GAP.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
            if limit is not None and len(line) > limit:
                lines.append(f"{line[: limit - 1]}…")
                continue
            styled = []
            for header, cell, width in zip(table.headers, cells, widths, strict=True):
                words = cell.split() if header in _STATUS_HEADERS else ()
                style = next((STATUS_STYLES[word] for word in words if word in STATUS_STYLES), None)
                styled.append((self.style(style, cell) if style else cell) + " " * (width - len(cell)))
            lines.append(GAP.join(styled).rstrip())
        lines[0] = self.style("bold", lines[0])
        return "\n".join(lines)


def one_line(text: str) -> str:
    """Return the text on one line, with control characters escaped."""
    return escape_controls(text).replace("\n", " ")


def indent_continuation(text: str, indent: str = "  ") -> str:
    """Return the text with its further lines indented, so that none looks like a line of our own."""
    return escape_controls(text).rstrip("\n").replace("\n", f"\n{indent}")


def add_daemon_options(text: str, daemon_options: str | None) -> str:
    """Return the text with these options in its commands, so that they can be copied. A text that has
    --config or --url already is not changed.

    Hints come from every layer, and only the command line knows how the daemon was named.
    """
    if daemon_options is None or any(f"{option.flags[0]} " in text for option in (CONFIG, URL)):
        return text
    import re

    words = "|".join(word for word in first_words() if word not in ("init", "version"))

    def append(match: re.Match[str]) -> str:
        return match[0] if "--help" in match[1] else f"`ductile {match[1]} {daemon_options}`"

    # The options follow a command in backticks or at the end of the text. Elsewhere the end of a command is
    # not known, so they follow the word `ductile`.
    text = re.sub(rf"`ductile ((?:{words})\b[^`]*)`", append, text)
    last = re.search(rf"(?<![`\w/-])ductile (?:{words})(?:\b[^`,;()]*[^`,;().])?$", text)
    begin, end = (text, "") if last is None else (text[: last.start()], f"{last[0]} {daemon_options}")
    return (
        re.sub(rf"(?<![`\w/-])ductile (?=(?:{words})\b)", lambda _: f"ductile {daemon_options} ", begin) + end
    )


def console_for(
    stream: TextIO, environ: Mapping[str, str], daemon_options: str | None = None, *, verbose: bool = False
) -> Console:
    from datetime import UTC, datetime
    from zoneinfo import ZoneInfo

    from ductile.config.timezones import system_timezone

    now, zone = datetime.now(UTC), ZoneInfo(system_timezone(environ))
    directory = os.getcwd()  # noqa: PTH109 - pathlib is slow to import
    plain = Console(directory=directory, daemon_options=daemon_options, verbose=verbose, now=now, zone=zone)
    if not stream.isatty():
        return plain

    try:
        width = os.get_terminal_size(stream.fileno()).columns or 80  # 0 if the terminal does not know it
    except OSError:
        width = 80
    colour = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    return plain._replace(colour=colour, width=width, today=f"{now.astimezone(zone):%Y-%m-%d}")


class WaitingLine:
    """The line on standard error that shows what the command waits for. Other text is printed above it."""

    def __init__(self, title: str | None) -> None:
        """`title` names what the command waits for; None shows no line."""
        from threading import Lock

        self._title = title
        self._lock = Lock()
        self._shown = False
        self._at_line_start = True

    def write(self, text: str) -> None:
        with self._lock:
            self._replace(text)

    def print(self, text: str, out: TextIO) -> None:
        """Print a line of the result, which may go to the same terminal."""
        with self._lock:
            self._replace("" if self._at_line_start else "\n")
            self._at_line_start = True
            print(text, file=out, flush=True)

    def update(self, lines: list[str], seconds: int) -> None:
        from ductile.cli.console.format import duration

        with self._lock:
            if lines:
                line_end = "" if self._at_line_start else "\n"
                self._replace(line_end + "".join(f"{line}\n" for line in lines))
            # A line that a job has begun is not overwritten.
            if self._title is not None and self._at_line_start:
                sys.stderr.write(f"{_CLEAR}waiting for {self._title}, {duration(seconds * 1000)}")
                sys.stderr.flush()
                self._shown = True

    def end(self) -> None:
        with self._lock:
            self._replace("" if self._at_line_start else "\n")

    def _replace(self, text: str) -> None:
        sys.stderr.write(f"{_CLEAR if self._shown else ''}{text}")
        sys.stderr.flush()
        self._shown = False
        self._at_line_start = text.endswith("\n") if text else self._at_line_start


@contextmanager
def show_waiting(
    invocation: Invocation, title: str, poll: Callable[[], list[str]] | None = None
) -> Iterator[WaitingLine]:
    """Show on a terminal, in a line on standard error, what the block waits for (`title`), and how long.

    Lines that `poll` returns are printed meanwhile and stay, on a terminal or not.
    """
    terminal = sys.stderr.isatty() and not invocation.json
    line = WaitingLine(one_line(title) if terminal else None)
    if invocation.json or not (terminal or poll):
        yield line
        line.end()
        return
    from threading import Event, Thread

    ended = Event()

    def update() -> None:
        seconds = 0
        while not ended.wait(_INTERVAL_SECONDS):
            seconds += _INTERVAL_SECONDS
            line.update(poll() if poll else [], seconds)

    thread = Thread(target=update, name="ductile-progress", daemon=True)
    thread.start()
    try:
        yield line
    finally:
        ended.set()
        thread.join()
        line.end()


def progress_line(*, json: bool) -> Callable[[str, int, int], None]:
    """Return a function that shows the progress of a step: its name, the amount done and the whole amount.

    Shows nothing unless standard error is a terminal, and nothing beside JSON.
    """
    visible = not json and sys.stderr.isatty()

    def show(step: str, done: int, total: int) -> None:
        if not visible:
            return
        percentage = 100 if total == 0 else 100 * done // total
        sys.stderr.write(f"{_CLEAR}{step}: {percentage}%{_CLEAR if done >= total else ''}")
        sys.stderr.flush()

    return show
