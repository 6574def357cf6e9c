"""The real daemon in a process of its own, observed through its log."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from builders.plugins import a_plugin
from builders.processes import Process, start_with_output
from builders.terminal import DUCTILE, CommandResult, Terminal

#: Seconds that every wait may take; no test passes by waiting for it.
PATIENCE = 60.0
ANSWER = "#!/bin/sh\ncat >/dev/null\nprintf '%s\\n' '{answer}'\n"
#: Runs until it is killed.
SLOW = "#!/bin/sh\ncat >/dev/null\nexec sleep 300\n"
#: Fails until there is a file `mended` beside it, with a message on stderr.
BROKEN = (
    "#!/bin/sh\ncat >/dev/null\n"
    'if [ -e "$(dirname "$0")/mended" ]; then echo \'{"status": "ok", "result": "mended"}\'; exit; fi\n'
    'echo "no paper" >&2\n'
    'echo \'{"status": "error", "error": "it is broken"}\'\n'
)
CONFIG = """\
service:
  max_workers: 4
  log_level: debug
  shutdown_grace: 100ms
plugins:
  echo: {}
"""


def answering(response: Mapping[str, object]) -> str:
    """Return a script that gives this response."""
    return ANSWER.format(answer=json.dumps(response))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """A configuration in `demo`, and a terminal beside it."""

    directory: Path

    @property
    def config(self) -> Path:
        return self.directory / "demo" / "config.yaml"

    @property
    def terminal(self) -> Terminal:
        return Terminal(directory=self.directory)

    def plugin(self, name: str, script: str) -> Path:
        return a_plugin(self.directory / "demo" / "plugins", name, script=script)

    def ductile(self, *words: str) -> CommandResult:
        return self.terminal.ductile(*words, "--config", "demo")

    def json(self, *words: str, status: int = 0) -> dict[str, Any]:
        """Run a command that has to end with this status, and return its JSON output."""
        result = self.ductile(*words, "--json")
        assert result.status == status, result
        response: dict[str, Any] = json.loads(result.out)
        return response

    def append(self, text: str) -> None:
        """Append text to the configuration, whose last section is `plugins`."""
        self.config.write_text(self.config.read_text() + text)


def a_workspace(directory: Path, more: str = "") -> Workspace:
    """Return a workspace with the plugin `echo`; `more` is added below `plugins:`."""
    workspace = Workspace(directory=directory)
    workspace.plugin("echo", answering({"status": "ok", "result": "done"}))
    workspace.config.write_text(CONFIG + more)
    return workspace


@dataclass(slots=True)
class Daemon:
    process: Process
    output: BinaryIO
    lines: list[dict[str, Any]] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _ended: bool = False

    def read(self) -> None:
        """Read the log until the daemon closes its output. Runs in a thread of its own."""
        for line in self.output:
            with self._changed:
                self.lines.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_for(
        self, signal_name: str, when: Callable[[dict[str, Any]], bool] = lambda _: True
    ) -> dict[str, Any]:
        """Wait for a line of this signal, and return the first one."""
        return self.wait_for_any((signal_name,), when)

    def wait_for_any(
        self, signal_names: tuple[str, ...], when: Callable[[dict[str, Any]], bool] = lambda _: True
    ) -> dict[str, Any]:
        """Wait for a line of one of these signals, and return the first one."""

        def found() -> dict[str, Any] | None:
            return next((line for line in self.lines if line["signal"] in signal_names and when(line)), None)

        self.wait_until(lambda: found() is not None)
        line = found()
        assert line is not None, self.lines
        return line

    def wait_until(self, condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Wait until the condition on `lines` holds, the daemon has ended or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: condition() or self._ended, timeout=seconds)

    def wait_until_started(self, job_id: str) -> None:
        self.wait_for("job.started", lambda line: line["job_id"] == job_id)

    def whole_log(self) -> list[dict[str, Any]]:
        """Stop the daemon and return all lines of its log: a line may follow its cause a moment later."""
        if self.process.poll() is None:
            self.end()
        with self._changed:
            assert self._changed.wait_for(lambda: self._ended, timeout=PATIENCE)
        return self.lines

    def end(self, number: int = signal.SIGTERM) -> int:
        """Stop the daemon with a signal, and return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


def end_plugins_of(home: str) -> None:
    """Kill the plugins of a daemon: they outlive it if it was killed, and some would wait for ever."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended, or belongs to another user
            variables = (process / "environ").read_bytes().split(b"\0")
            has_home = f"HOME={home}".encode() in variables
            if has_home and any(variable.startswith(b"DUCTILE_STORE_ID=") for variable in variables):
                os.kill(int(process.name), signal.SIGKILL)


@contextmanager
def a_daemon(
    workspace: Workspace, variables: Mapping[str, str] | None = None, *, fresh: bool = False
) -> Iterator[Daemon]:
    """Start a daemon, wait until it is ready, and kill it at the end.

    With `fresh` it runs in a new interpreter instead of a forked one.
    """
    environment = {"PATH": os.environ["PATH"], "HOME": str(workspace.directory / "home"), "LANG": "C.UTF-8"}
    environment |= variables or {}
    words = (DUCTILE, "system", "start", "--config", "demo")
    process, output = start_with_output(
        words, directory=workspace.directory, environment=environment, fresh=fresh
    )
    daemon = Daemon(process, output)
    reader = threading.Thread(target=daemon.read, daemon=True)
    reader.start()
    try:
        daemon.wait_for("service.ready")
        yield daemon
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        end_plugins_of(environment["HOME"])
        reader.join(PATIENCE)
        daemon.output.close()
