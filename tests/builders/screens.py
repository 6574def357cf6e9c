"""A real terminal: tmux with a shell in each pane. Tests type into it and read the screen.

The output of a pane also goes through a pipe to a thread that wakes waiting tests, so that they do not poll.
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
    """One shell. `flow` is all that it ever wrote, `screen()` is what can be seen."""

    session: TmuxSession
    target: str
    pipe: Path
    flow: str = ""
    number: int = 1
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _ended: bool = False

    def read(self) -> None:
        """Runs in a thread of its own until the pane is gone."""
        with self.pipe.open("rb", buffering=0) as stream:
            while piece := stream.read(65536):
                with self._changed:
                    self.flow += piece.decode(errors="replace")
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_for(self, text: str, *, after: int = 0) -> None:
        """Until this text has come, after so many characters of the flow."""

        def has_come() -> bool:
            return text in _STYLE.sub("", self.flow[after:])

        with self._changed:
            self._changed.wait_for(lambda: has_come() or self._ended, timeout=PATIENCE)
            assert has_come(), f"waited for {text!r} in vain:\n{self.screen()}"

    def type(self, line: str) -> str:
        """Type a line, wait until it has ended; what it printed, with colours as they were."""
        mark = len(self.flow)
        self.start(line)
        return self.finish(mark)

    def finish(self, mark: int) -> str:
        """Wait until the line that was typed at this mark has ended; what it printed."""
        self.number += 1
        self.wait_for(_PROMPT.format(number=self.number), after=mark)
        return self.printed(self.number - 1)

    def start(self, line: str) -> None:
        """Type a line that goes on, such as a daemon."""
        self.session.tmux("send-keys", "-t", self.target, "-l", line)
        self.session.tmux("send-keys", "-t", self.target, "Enter")

    def interrupt(self) -> None:
        """Ctrl-C, and wait for the prompt."""
        mark = len(self.flow)
        self.session.tmux("send-keys", "-t", self.target, "C-c")
        self.finish(mark)

    def printed(self, number: int) -> str:
        """The text between two prompts, with its colours, and with wrapped lines joined."""
        whole = self.session.tmux("capture-pane", "-p", "-e", "-J", "-S", "-", "-t", self.target)
        before = whole.partition(_PROMPT.format(number=number + 1))[0]
        return before.rpartition(_PROMPT.format(number=number))[2].partition("\n")[2]

    def screen(self) -> str:
        return self.session.tmux("capture-pane", "-p", "-t", self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class TmuxSession:
    """A tmux server of its own, with nothing of the developer's in it."""

    directory: Path

    def tmux(self, *words: str) -> str:
        assert TMUX is not None
        done = subprocess.run(
            [TMUX, "-S", str(self.directory / "tmux.sock"), "-f", "/dev/null", *words],
            capture_output=True,
            text=True,
            check=False,
            env=self.environment(),
            cwd=self.directory,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    def environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {"PATH": path, "HOME": str(self.directory), "LANG": "C.UTF-8", "TERM": "screen"}

    @contextmanager
    def a_pane(self, name: str) -> Iterator[Pane]:
        """A window with a shell that is ready to be typed into."""
        pipe = self.directory / f"{name}.pipe"
        os.mkfifo(pipe)
        pane = Pane(session=self, target=f"ductile:{name}", pipe=pipe)
        reader = threading.Thread(target=pane.read, daemon=True)
        reader.start()
        gate = "read; exec env INPUTRC=/dev/null PS1='[\\#] $ ' bash --noprofile --norc"
        self.tmux("new-window", "-t", "ductile", "-n", name, f"/bin/sh -c {_quoted(gate)}")
        # The shell begins only when the pipe is there, so that its first prompt is not missed.
        self.tmux("pipe-pane", "-t", pane.target, f"exec cat > {pipe}")
        self.tmux("send-keys", "-t", pane.target, "Enter")
        pane.wait_for(_PROMPT.format(number=1))
        try:
            yield pane
        finally:
            # A daemon takes the closing of its terminal for a wish to reload: it has to be ended by hand.
            for pid in _session(int(self.tmux("display-message", "-p", "-t", pane.target, "#{pane_pid}"))):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            reader.join(PATIENCE)


def _session(leader: int) -> list[int]:
    """The processes of a terminal's session, those first that the shell has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:
                found.append(int(stat.parent.name))
    return sorted(found, reverse=True)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@contextmanager
def a_tmux_session(directory: Path) -> Iterator[TmuxSession]:
    """A server with one idle window, so that it lives to the end; then all that runs in it is gone."""
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
    """Without colours."""
    return _STYLE.sub("", text)
