"""The program as the shell sees it: start-up, pipes, terminals."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from builders.terminal import DUCTILE, Terminal

HEAVY = ("asyncio", "msgspec", "yaml", "ruamel", "apsw", "argparse", "dataclasses", "json", "pathlib")


@pytest.mark.parametrize("words", [["--help"], ["config", "--help"], ["config", "set", "--help"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    """Help takes under 100 ms because of this; `make bench` measures the time."""
    code = (
        "import sys; sys.argv = ['ductile', *sys.argv[1:]]\n"
        "from ductile.cli.main import main; main()\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-I", "-c", code, *words], capture_output=True, text=True, check=True
    )
    assert result.stderr.strip() == "[]"


def test_an_mcp_server_without_standard_input_says_so() -> None:
    result = subprocess.run(
        ["/bin/sh", "-c", f"exec {DUCTILE} mcp serve <&-"], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert "standard input is closed" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_reader_that_stops_reading_is_no_error() -> None:
    """`ductile config schema | head -1` ends without an error message."""
    process = subprocess.Popen(
        [DUCTILE, "config", "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 141
    assert errors == ""


def on_a_terminal(directory: Path, *words: str, **variables: str) -> str:
    """Return the output of a command on a terminal."""
    controller, terminal = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "TERM": "xterm", **variables}
    process = subprocess.Popen([DUCTILE, *words], stdout=terminal, cwd=directory, env=environment)
    os.close(terminal)
    output = b""
    try:
        while chunk := os.read(controller, 65536):
            output += chunk
    except OSError:  # Linux reports the end of a terminal as an input/output error
        pass
    os.close(controller)
    process.wait()
    return output.decode()


def test_colour_on_a_terminal_only(tmp_path: Path) -> None:
    """A terminal gets a table with colours unless NO_COLOR is set; a pipe gets plain text."""
    terminal = Terminal(directory=tmp_path)
    assert terminal.ductile("init", "demo").status == 0
    words = ("plugin", "list", "--config", "demo")
    assert "\x1b[1mNAME" in on_a_terminal(tmp_path, *words)
    assert "\x1b" not in on_a_terminal(tmp_path, *words, NO_COLOR="1")
    piped = terminal.ductile(*words).out
    assert "\x1b" not in piped
    assert "\t" not in piped


@pytest.mark.parametrize(
    "words",
    [
        ("plugin", "show", "echo"),
        ("plugin", "test", "echo"),
        ("pipeline", "check", "hello", "--payload", '{"name": "Ada"}'),
        ("system", "doctor", "--verbose"),
    ],
    ids=" ".join,
)
def test_the_main_column_is_not_cut_on_a_terminal(words: tuple[str, ...], tmp_path: Path) -> None:
    """Even the narrowest terminal shows the whole column."""
    assert Terminal(directory=tmp_path).ductile("init", "demo").status == 0
    output = on_a_terminal(tmp_path, *words, "--config", "demo", NO_COLOR="1")
    table = [line for line in output.splitlines() if "  " in line]
    assert table
    assert not any(line.endswith("…") for line in table), output


def test_python_dash_m_is_the_same_program(tmp_path: Path) -> None:
    """`python -m ductile` needs no script on the path."""
    result = subprocess.run(
        [sys.executable, "-m", "ductile", "--version"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert result.stdout == Terminal(directory=tmp_path).ductile("version").out


def test_the_environment_names_the_configuration(tmp_path: Path) -> None:
    """--config comes first, then DUCTILE_CONFIG_DIR, then the configuration of the user."""
    default = Terminal(directory=tmp_path)
    assert default.ductile("init", "one").status == 0
    assert default.ductile("init", "home/.config/ductile").status == 0
    assert "home/.config/ductile/config.yaml" in default.ductile("config", "check").out
    named = Terminal(directory=tmp_path, variables={"DUCTILE_CONFIG_DIR": str(tmp_path / "one")})
    assert "one/config.yaml" in named.ductile("config", "check").out
    assert "ductile/config.yaml" in named.ductile("--config", "home/.config/ductile", "config", "check").out
