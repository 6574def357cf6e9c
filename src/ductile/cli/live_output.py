"""Show the output of running jobs while they print it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from ductile.cli.console.console import escape_controls
from ductile.cli.console.format import SHORT_ID

if TYPE_CHECKING:
    from ductile.cli.client import Document

#: Job, execution and stream.
StreamKey: TypeAlias = tuple[str, int, str]


class LiveOutputPrinter:
    """Prints pieces of output. A piece of another stream begins a new line."""

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        terminal: bool,
        label: Callable[[Document], str | None] = lambda _piece: None,
    ) -> None:
        """On a terminal, control characters are escaped. `label` returns how each line of a piece begins."""
        self._write = write
        self._terminal = terminal
        self._label = label
        self._at_line_start = True
        self._current_stream: StreamKey | None = None
        #: Number of bytes of each stream that were shown or lost.
        self._ends: dict[StreamKey, int] = {}
        #: Streams with lost output.
        self._incomplete: set[StreamKey] = set()
        #: Streams whose last piece ended with a carriage return: the next may begin with the line break.
        self._ends_with_return: set[StreamKey] = set()

    def has_shown(self, job_id: str, execution: int, stream: str = "stderr") -> bool:
        """Return whether any output of this stream was shown."""
        return (job_id, execution, stream) in self._ends

    def has_shown_all(self, job_id: str, execution: int, stream: str) -> bool:
        """Return whether all output of this stream was shown."""
        key = (job_id, execution, stream)
        return key in self._ends and key not in self._incomplete

    def show(self, pieces: Iterable[Document]) -> None:
        for piece in pieces:
            key = (piece["job_id"], piece["execution"], piece["stream"])
            if key != self._current_stream:
                self.end_line()
                self._current_stream = key
            lost_bytes = piece["offset"] - self._ends.get(key, 0)
            self._ends[key] = piece["end"]
            label = self._label(piece)
            prefix = "" if label is None else f"[{escape_controls(label)}] "
            if lost_bytes > 0:
                self._incomplete.add(key)
                self.end_line()
                self._write(f"{prefix}({lost_bytes} bytes of its {piece['stream']} are not shown)\n")
            text = piece["text"]
            if self._terminal:
                if key in self._ends_with_return:
                    self._ends_with_return.discard(key)
                    text = "\r" + text
                if text.endswith("\r"):
                    self._ends_with_return.add(key)
                    text = text[:-1]
                # A carriage return ends the line: on a terminal it would overwrite the line and its label.
                text = text.replace("\r\n", "\n").replace("\r", "\n")
                text = "\t".join(map(escape_controls, text.split("\t")))
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


def step_label(piece: Document) -> str | None:
    """Return the step whose job printed the piece; None outside of a pipeline run."""
    step: str | None = piece["step"]
    return step


def job_label(piece: Document) -> str:
    """Return plugin, command and the end of the job's id, which lists show."""
    return f"{piece['plugin']} {piece['command']} {piece['job_id'][-SHORT_ID:]}"
