"""A real terminal: tmux with a shell in each pane. Tests type into it and read the screen.

The output of a pane also goes to a thread, which wakes waiting tests, so that they do not poll.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from builders.daemons import PATIENCE

WIDTH, HEIGHT = 132, 50
TMUX = shutil.which("tmux")
_STYLE = re.compile(r"\x1b\[[0-9;:?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]|[\x0e\x0f]")
#: The shell counts its commands in the prompt: the next number there means that the last one has ended.
_PROMPT = "[{number}] $ "


@dataclass(slots=True)
class Pane:
    """One shell. `flow` is its whole output, `screen()` the visible text."""

    session: TmuxSession
    target: str
    pipe: Path
    flow: str = ""
    number: int = 1
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _ended: bool = False

    def read(self) -> None:
        """Read the output until the pane is closed. Runs in a thread of its own."""
        with self.pipe.open("rb", buffering=0) as stream:
            while piece := stream.read(65536):
                with self._changed:
                    self.flow += piece.decode(errors="replace")
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_for(self, text: str, *, after: int = 0) -> None:
        """Wait for this text, after so many characters of the output."""

        def has_arrived() -> bool:
            return text in _STYLE.sub("", self.flow[after:])

        with self._changed:
            self._changed.wait_for(lambda: has_arrived() or self._ended, timeout=PATIENCE)
            assert has_arrived(), f"waited for {text!r} in vain:\n{self.screen()}"

    def type(self, line: str) -> str:
        """Type a line, wait until the command has ended, and return its output with its colours."""
        mark = len(self.flow)
        self.start(line)
        return self.finish(mark)

    def finish(self, mark: int) -> str:
        """Wait until the command that was typed at this mark has ended, and return its output."""
        self.number += 1
        self.wait_for(_PROMPT.format(number=self.number), after=mark)
        return self.printed(self.number - 1)

    def start(self, line: str) -> None:
        """Type a line, and do not wait for the end of the command."""
        self.session.tmux("send-keys", "-t", self.target, "-l", line)
        self.session.tmux("send-keys", "-t", self.target, "Enter")

    def interrupt(self) -> None:
        """Press Ctrl-C, and wait for the prompt."""
        mark = len(self.flow)
        self.session.tmux("send-keys", "-t", self.target, "C-c")
        self.finish(mark)

    def printed(self, number: int) -> str:
        """Return the text between two prompts with its colours; wrapped lines are joined."""
        whole = self.session.tmux("capture-pane", "-p", "-e", "-J", "-S", "-", "-t", self.target)
        before = whole.partition(_PROMPT.format(number=number + 1))[0]
        return before.rpartition(_PROMPT.format(number=number))[2].partition("\n")[2]

    def screen(self) -> str:
        return self.session.tmux("capture-pane", "-p", "-t", self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class TmuxSession:
    """A tmux server of its own, without settings of the developer."""

    directory: Path

    def tmux(self, *words: str) -> str:
        assert TMUX is not None
        result = subprocess.run(
            [TMUX, "-S", str(self.directory / "tmux.sock"), "-f", "/dev/null", *words],
            capture_output=True,
            text=True,
            check=False,
            env=self.environment(),
            cwd=self.directory,
            timeout=PATIENCE,
        )
        assert result.returncode == 0, (words, result.stderr)
        return result.stdout

    def environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {"PATH": path, "HOME": str(self.directory), "LANG": "C.UTF-8", "TERM": "screen"}

    @contextmanager
    def a_pane(self, name: str) -> Iterator[Pane]:
        """Open a window with a shell, and wait for its prompt."""
        pipe = self.directory / f"{name}.pipe"
        os.mkfifo(pipe)
        pane = Pane(session=self, target=f"ductile:{name}", pipe=pipe)
        reader = threading.Thread(target=pane.read, daemon=True)
        reader.start()
        command = "read; exec env INPUTRC=/dev/null PS1='[\\#] $ ' bash --noprofile --norc"
        self.tmux("new-window", "-t", "ductile", "-n", name, f"/bin/sh -c {_quoted(command)}")
        # The shell starts after the pipe, so that its first prompt is not missed.
        self.tmux("pipe-pane", "-t", pane.target, f"exec cat > {pipe}")
        self.tmux("send-keys", "-t", pane.target, "Enter")
        pane.wait_for(_PROMPT.format(number=1))
        try:
            yield pane
        finally:
            # A daemon reloads when its terminal is closed, so it has to be killed.
            for pid in _session(int(self.tmux("display-message", "-p", "-t", pane.target, "#{pane_pid}"))):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            reader.join(PATIENCE)


def _session(leader: int) -> list[int]:
    """Return the processes of a terminal's session, the newest first."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:
                pids.append(int(stat.parent.name))
    return sorted(pids, reverse=True)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@contextmanager
def a_tmux_session(directory: Path) -> Iterator[TmuxSession]:
    """Start a tmux server, and end it with all its processes. An idle window keeps it alive."""
    session = TmuxSession(directory=directory)
    session.tmux(
        "new-session", "-d", "-s", "ductile", "-x", str(WIDTH), "-y", str(HEIGHT), "exec sleep infinity"
    )
    session.tmux("set-option", "-g", "history-limit", "20000")
    session.tmux("set-option", "-g", "default-terminal", "screen")
    try:
        yield session
    finally:
        session.tmux("kill-server")


def plain(text: str) -> str:
    """Return the text without colours."""
    return _STYLE.sub("", text)
