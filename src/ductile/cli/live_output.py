"""Show what running jobs print, as it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from ductile.cli.console.console import printable
from ductile.cli.console.format import SHORT_ID

if TYPE_CHECKING:
    from ductile.cli.client import Document

#: Job, execution and stream.
StreamKey: TypeAlias = tuple[str, int, str]


class LiveOutputPrinter:
    """Prints pieces of output. A line of one stream is not continued by another one."""

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        terminal: bool,
        label: Callable[[Document], str | None] = lambda _piece: None,
    ) -> None:
        """On a terminal control characters are escaped. A label begins each line of its stream."""
        self._write = write
        self._terminal = terminal
        self._label = label
        self._at_line_start = True
        self._current: StreamKey | None = None
        #: Bytes of each stream that were shown, or were lost.
        self._ends: dict[StreamKey, int] = {}
        #: Streams of which something was not shown.
        self._incomplete: set[StreamKey] = set()
        #: Streams whose last character was a carriage return, which a line break may follow.
        self._returned: set[StreamKey] = set()

    def has_shown(self, job_id: str, execution: int, stream: str = "stderr") -> bool:
        """Whether something of this stream was shown."""
        return (job_id, execution, stream) in self._ends

    def has_shown_all(self, job_id: str, execution: int, stream: str) -> bool:
        """Whether this stream was shown, with nothing lost."""
        key = (job_id, execution, stream)
        return key in self._ends and key not in self._incomplete

    def show(self, pieces: Iterable[Document]) -> None:
        for piece in pieces:
            key = (piece["job_id"], piece["execution"], piece["stream"])
            if key != self._current:
                self.end_line()
                self._current = key
            lost = piece["offset"] - self._ends.get(key, 0)
            self._ends[key] = piece["end"]
            label = self._label(piece)
            prefix = "" if label is None else f"[{printable(label)}] "
            if lost > 0:
                self._incomplete.add(key)
                self.end_line()
                self._write(f"{prefix}({lost} bytes of its {piece['stream']} are not shown)\n")
            text = self._visible(key, piece["text"])
            if prefix and text:
                begin = prefix if self._at_line_start else ""
                text = begin + text[:-1].replace("\n", f"\n{prefix}") + text[-1]
            if text:
                self._write(text)
                self._at_line_start = text.endswith("\n")

    def end_line(self) -> None:
        """End the line that was begun, if any."""
        if not self._at_line_start:
            self._write("\n")
            self._at_line_start = True

    def _visible(self, key: StreamKey, text: str) -> str:
        if not self._terminal:
            return text
        if key in self._returned:
            self._returned.discard(key)
            text = "\r" + text
        if text.endswith("\r"):
            self._returned.add(key)
            text = text[:-1]
        # A carriage return would overwrite the line, with what is shown beside it: it ends the line instead.
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        return "\t".join(map(printable, text.split("\t")))


def step_label(piece: Document) -> str | None:
    """The step, of output of a pipeline run."""
    step: str | None = piece["step"]
    return step


def job_label(piece: Document) -> str:
    """Plugin, command and the end of the job's id, as lists show it."""
    return f"{piece['plugin']} {piece['command']} {piece['job_id'][-SHORT_ID:]}"
