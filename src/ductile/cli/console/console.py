"""Text for people: aligned columns, and colour where the reader is a terminal.

Names and descriptions come out of files that others wrote, so nothing reaches a terminal that could
move its cursor or retitle its window.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple, TextIO

from ductile.cli.console.hints import add_config_option
from ductile.cli.console.table import GAP, Table, fit_table
from ductile.cli.console.wrap import wrap_hanging
from ductile.core.terminal_text import escape_controls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
_NARROWEST = 40


class Console(NamedTuple):
    """Where text will be shown. `width` is None when it is not a terminal: nothing is cut off then.
    Files under `directory`, where the reader is, are shown relative to it. What happened `today` (UTC) need
    not say the date where there is little room. `config` is what the reader has named as --config.
    """

    colour: bool = False
    width: int | None = None
    directory: str = ""
    today: str = ""
    config: str | None = None

    def place(self, path: str) -> str:
        inside = self.directory and path.startswith(f"{self.directory}/")
        return printable(path[len(self.directory) + 1 :] if inside else path).replace("\n", "\\n")

    def advice(self, text: str) -> str:
        """A hint whose commands the reader can copy as they are."""
        return add_config_option(printable(text), self.config)

    def style(self, name: str, text: str) -> str:
        return f"\x1b[{_STYLES[name]}m{text}\x1b[0m" if self.colour and text else text

    def beside(self, left: str, text: str) -> list[str]:
        """A text on a line that begins with `left`; on a terminal it goes on below itself."""
        line = printable(text).replace("\n", " ")
        return (
            [f"{left}{line}"] if self.width is None else wrap_hanging(left, line, max(self.width, _NARROWEST))
        )

    def table(
        self,
        headers: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        spare: Sequence[str] = (),
        prose: bool = False,
    ) -> str:
        """Columns as wide as their content. On a terminal they give way to its width, and those that the
        table can `spare` are left out if there is no room, the first one first. If the last column is
        `prose` that people came for, it goes on below itself instead of being cut.
        """
        table = Table(headers, [[printable(cell).replace("\n", " ") for cell in row] for row in rows])
        if self.width is not None:
            table = fit_table(table, max(self.width, _NARROWEST), spare, self.today, prose=prose)
        widths = table.widths
        lines = [self.style("bold", self._line(table.headers, widths))]
        return "\n".join([*lines, *(self._line(row, widths) for row in table.rows)])

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        line = GAP.join(padded).rstrip()
        if self.width is None or len(line) <= max(self.width, _NARROWEST):
            return line
        return line[: max(self.width, _NARROWEST) - 1] + "…"


def printable(text: str) -> str:
    """The text with every control character but the line break made visible."""
    return escape_controls(text)


def indent_continuation(text: str, indent: str = "  ") -> str:
    """The text with its further lines indented, so that none of them can be taken for one of ours."""
    return printable(text).rstrip("\n").replace("\n", f"\n{indent}")


def console_for(stream: TextIO, environ: Mapping[str, str], config: str | None = None) -> Console:
    directory = os.getcwd()  # noqa: PTH109 - as text, which is all that is needed
    if not stream.isatty():
        return Console(directory=directory, config=config)
    try:
        width = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        width = 80
    colour = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    today = time.strftime("%Y-%m-%d", time.gmtime())
    return Console(colour=colour, width=width, directory=directory, today=today, config=config)
