"""Install the packages of a lock file and this checkout into the environment of this interpreter.

`make` calls it, before there is anything but pip and the standard library. Shows how many packages have been
fetched: in one line on a terminal, in a line for each phase elsewhere. If pip fails, its output follows.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off")
# Modules are compiled when they are first imported; most of what is installed never is.
_PINNED = ("--require-hashes", "--no-compile", "--requirement")
# The build backend is in the lock file too, so that nothing is fetched unpinned.
_CHECKOUT = ("--no-deps", "--no-build-isolation", "--editable", ".")
_CLEAR = "\r\x1b[K"


class Progress:
    """The line about the current step. Off a terminal only the first line of a phase is printed."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._phase = ""

    def show(self, phase: str, detail: str = "") -> None:
        if self._terminal:
            sys.stdout.write(f"{_CLEAR}{phase}{detail}")
        elif phase != self._phase:
            sys.stdout.write(f"{phase}\n")
        self._phase = phase
        sys.stdout.flush()

    def end(self, text: str = "") -> None:
        sys.stdout.write(f"{_CLEAR if self._terminal else ''}{text}\n" if text else "\n" * self._terminal)
        sys.stdout.flush()


def main(lock: str) -> int:
    """Install everything. Returns the exit status of the pip that failed, or 0."""
    begin, progress = time.monotonic(), Progress()
    count = len(re.findall(r"^[A-Za-z0-9][\w.-]*==", Path(lock).read_text(encoding="utf-8"), re.MULTILINE))
    installed = 0
    for arguments in ((*_PINNED, lock), _CHECKOUT):
        status, fetched, output = _run_pip(arguments, count, progress)
        installed = max(installed, fetched)
        if status != 0:
            progress.end()
            sys.stderr.write(output)
            sys.stderr.write(f"pip failed (exit status {status}); its output is above.\n")
            return status
    progress.end(f"Installed {installed} packages and Ductile in {time.monotonic() - begin:.0f} s.")
    return 0


def _run_pip(arguments: tuple[str, ...], count: int, progress: Progress) -> tuple[int, int, str]:
    """Run pip and show what it does. Returns its exit status, the number of packages, its output."""
    fetched, lines = 0, list[str]()
    with subprocess.Popen(
        (*_PIP, *arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        for line in pip.stdout or ():
            lines.append(line)
            word, _, package = line.strip().partition(" ")
            if word == "Collecting" or line.startswith("Requirement already satisfied"):
                fetched += 1
                name = re.split(r"[=\s(]", package.removeprefix("already satisfied: "))[0]
                progress.show("Fetching packages", f": {fetched} of {count}, {name}")
            elif word == "Ignoring":  # a package for other systems
                count -= 1
            elif line.startswith("Installing collected packages"):
                progress.show(f"Installing {fetched} packages" if fetched > 1 else "Installing Ductile")
            elif line.startswith("Obtaining"):
                progress.show("Installing Ductile")
    return pip.returncode, fetched, "".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
