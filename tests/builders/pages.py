"""Markdown pages as scripts: their examples are run in order.

A block of `sh` is run line by line. A comment before a block says what happens to its content:

    <!-- file: plugins/greet/run.py -->          the block is the content of this file
    <!-- insert: config.yaml after plugins: -->  the block goes into this file, below this line
    <!-- insert: config.yaml at the top -->
    <!-- before: ductile init home -->           a command that the page presupposes

Each port that a page chooses is replaced by a free one, so that several pages can be followed at once.
"""

from __future__ import annotations

import re
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom

_STEP = re.compile(
    r"<!-- (?P<action>file|insert|before): (?P<words>.+?) -->"
    r"|^```(?P<language>\w*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
#: A port that a page chooses, as an address or as an argument of `HTTPServer`.
_PORT = re.compile(r"""(?:localhost:|127\.0\.0\.1(?::|", ))(\d{4,5})\b""")
#: The defaults of `ductile init` and of Ollama, which a page does not choose.
_DEFAULT_PORTS = {"8080", "11434"}


def _with_free_ports(page: str) -> str:
    chosen = {port: str(_free_port()) for port in {*_PORT.findall(page)} - _DEFAULT_PORTS}
    return re.sub(r"\b\d{4,5}\b", lambda match: chosen.get(match[0], match[0]), page)


def _free_port() -> int:
    """Return a port below those that the system gives to connections, so that it stays free."""
    while True:
        port = SystemRandom().randrange(10_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@dataclass(slots=True)
class Reader:
    """Follows the instructions of a page in its own directory."""

    directory: Path
    environment: dict[str, str]

    def follow(self, page: str) -> list[str]:
        """Run all steps and return the output of the commands. The test fails at the first failed command."""
        pending, printed = None, []
        for step in _STEP.finditer(_with_free_ports(page)):
            if step["action"] == "before":
                printed.append(self._run(step["words"]))
            elif step["action"]:
                pending = step
            elif pending is not None:
                self._edit(pending["action"], pending["words"], step["body"])
                pending = None
            elif step["language"] == "sh":
                printed += [self._run(line) for line in step["body"].splitlines() if line]
        assert pending is None, "nothing follows the last comment"
        return printed

    def _run(self, line: str) -> str:
        if line.startswith("cd "):
            self.directory /= line.removeprefix("cd ")
            return ""
        if line.startswith("export "):
            return self._export(line)
        result = subprocess.run(
            ["/bin/sh", "-c", line],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert result.returncode == 0, f"$ {line}\n{result.stdout}{result.stderr}"
        return result.stdout + result.stderr

    def _export(self, line: str) -> str:
        """Set a variable for the later lines, with the value that the shell gives it."""
        result = subprocess.run(
            ["/bin/sh", "-c", f"{line}; env -0"],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        self.environment = dict(pair.split("=", 1) for pair in result.stdout.split("\0") if pair)
        return ""

    def _edit(self, action: str, words: str, body: str) -> None:
        if action == "file":
            path = self.directory / words
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body, encoding="utf-8")
            return
        name, _, where = words.partition(" ")
        path = self.directory / name
        text = path.read_text(encoding="utf-8")
        line = where.removeprefix("after ")
        at = 0 if where == "at the top" else text.index(f"{line}\n") + len(line) + 1
        path.write_text(text[:at] + body + text[at:], encoding="utf-8")
