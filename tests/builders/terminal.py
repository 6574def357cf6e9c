"""The real `ductile`, run in a process and a directory of its own."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shlex
import struct
import sys
import termios
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from builders.processes import run_command, start_command

DUCTILE = Path(sys.executable).parent / "ductile"
_TOKEN = re.compile(r"dtl_[A-Za-z0-9_-]{43}")
#: The number of parallel jobs depends on the machine.
_PARALLELISM = re.compile(r'(?<=parallelism {6})[0-9]+|(?<="parallelism": )[0-9]+')
_JOB_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_INSTANT = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
#: An instant with its distance from now, which depends on the speed of the machine.
_MOMENT = re.compile(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d \((now|in \d+ \w+|\d+ \w+ ago)\)")
_AGE = re.compile(r"now|\d+ (?:s|min) ago")
#: At the end of a row of `plugin list` and `status`.
_ENDED = re.compile(r"\b(succeeded|failed) (?:now|\d+ (?:s|min) ago)")
_CREATED = re.compile(r"(?<=  )CREATED(?: {2,}|$)")
_AHEAD = re.compile(r"\bin \d+ (?:s|min|h)\b")
_SHORT_ID = re.compile(r"^[0-9a-f]{8}(?=  )", re.MULTILINE)
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
#: A line that a command shows while it waits, and then clears.
_WAITING = re.compile(r"(\r\x1b\[Kwaiting for [^\r\n]*)+\r\x1b\[K")
_HASH = re.compile(r"blake3:[0-9a-f]{12,64}")
#: At the end of `plugin list`: the shipped plugins differ from version to version.
_SHIPPED = re.compile(r'(?<=^Shipped with Ductile, not in use: ).*|(?<="shipped": \[)[^]]*', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    status: int
    out: str
    err: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """A working directory and an environment without settings of the developer."""

    directory: Path
    variables: dict[str, str] = field(default_factory=dict)

    def ductile(self, *words: str, typed: str = "") -> CommandResult:
        """Run a command with `typed` on its standard input."""
        environment = self._environment() | {"TZ": "UTC"} | self.variables
        status, out, err = run_command(
            [DUCTILE, *words], directory=self.directory, environment=environment, typed=typed, seconds=60
        )
        return CommandResult(status=status, out=out, err=err)

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.directory / "home"), "LANG": "C.UTF-8"}

    def transcript(self, line: str) -> str:
        """Run a line. Return it with its output and exit status, with placeholders for ids and times."""
        result = self.ductile(*shlex.split(line)[1:])
        errors = "".join(f"stderr: {text}".rstrip() + "\n" for text in result.err.splitlines())
        out = result.out
        if "--json" in line and out.startswith("{"):  # on many lines, so that a difference can be read
            out = json.dumps(json.loads(out), indent=2, ensure_ascii=False) + "\n"
        text = f"$ {line}\n{out}{errors}exit status {result.status}\n"
        text = text.replace(str(self.directory), "/home/you")
        text = _MOMENT.sub("2026-01-02 03:04:05 (3 min ago)", text)
        text = _ENDED.sub(r"\1 1 s ago", _with_stable_ages(text))
        text = _SHORT_ID.sub("00000000", _AHEAD.sub("in 42 s", text))
        text = _SHIPPED.sub("<names>", _PARALLELISM.sub("<number>", text))
        # The placeholders have the width of the values, so that tables stay aligned.
        text = _INSTANT.sub("2026-01-02T03:04:05Z", _JOB_ID.sub("01a1e1b0-0000-7000-8000-000000000000", text))
        return _HASH.sub("blake3:<hash>", _TOKEN.sub("<the token>", text))

    def on_screen(
        self, *words: str, columns: int = 80, both: bool = False, waiting: bool = False
    ) -> list[str]:
        """Run a command on a terminal of this width, and return its lines without colours.

        With `both`, its errors are on the terminal too. With `waiting`, the lines include the one that is
        shown while the command waits.
        """
        controller, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        with Path(os.devnull).open("r+") as nothing:
            process = start_command(
                [DUCTILE, *words],
                directory=self.directory,
                environment=self._environment(),
                streams=(nothing.fileno(), terminal, terminal if both else nothing.fileno()),
            )
        os.close(terminal)
        output = b""
        with suppress(OSError):  # a terminal without a writer raises this
            while part := os.read(controller, 65536):
                output += part
        os.close(controller)
        process.wait(60)
        text = _STYLE.sub("", output.decode())
        return (text if waiting else _WAITING.sub("", text)).splitlines()


def _with_stable_ages(text: str) -> str:
    """Replace each age below CREATED by `1 s ago`, and make the column as wide as that."""
    lines: list[str] = []
    column: slice | None = None
    for line in text.splitlines():
        header = _CREATED.search(line)
        if header is not None:
            column = slice(header.start(), None if header.end() == len(line) else header.end())
        elif column is None or not _SHORT_ID.match(line):
            column = None
            lines.append(line)
            continue
        cell = line[column].rstrip()
        stable = "1 s ago" if _AGE.fullmatch(cell) else cell
        rest = "" if column.stop is None else line[column.stop :]
        lines.append(f"{line[: column.start]}{stable}  {rest}".rstrip())
    return "".join(f"{line}\n" for line in lines)
