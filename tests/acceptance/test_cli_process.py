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
    """Help in under 100 ms; this is what keeps it so, and `make bench` measures it."""
    code = (
        "import sys; sys.argv = ['ductile', *sys.argv[1:]]\n"
        "from ductile.cli.main import main; main()\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, *words], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"


def test_an_mcp_server_without_standard_input_says_so() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"exec {DUCTILE} mcp serve <&-"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "standard input is closed" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_stops_reading_is_no_error() -> None:
    """`ductile config schema | head -1` ends in silence."""
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
    """The output on a terminal."""
    ours, theirs = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "TERM": "xterm", **variables}
    process = subprocess.Popen([DUCTILE, *words], stdout=theirs, cwd=directory, env=environment)
    os.close(theirs)
    seen = b""
    try:
        while part := os.read(ours, 65536):
            seen += part
    except OSError:  # Linux reports the end of a terminal as an input/output error
        pass
    os.close(ours)
    process.wait()
    return seen.decode()


def test_colour_on_a_terminal_only(tmp_path: Path) -> None:
    """A table on a terminal, plain when piped, and NO_COLOR is respected."""
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
    """Even the narrowest terminal shows all of it."""
    assert Terminal(directory=tmp_path).ductile("init", "demo").status == 0
    seen = on_a_terminal(tmp_path, *words, "--config", "demo", NO_COLOR="1")
    table = [line for line in seen.splitlines() if "  " in line]
    assert table
    assert not any(line.endswith("…") for line in table), seen


def test_python_dash_m_is_the_same_program(tmp_path: Path) -> None:
    """The script is not on the path."""
    done = subprocess.run(
        [sys.executable, "-m", "ductile", "--version"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout == Terminal(directory=tmp_path).ductile("version").out


def test_the_environment_names_the_configuration(tmp_path: Path) -> None:
    """--config, else DUCTILE_CONFIG_DIR, else the user's own."""
    plain = Terminal(directory=tmp_path)
    assert plain.ductile("init", "one").status == 0
    assert plain.ductile("init", "home/.config/ductile").status == 0
    assert "home/.config/ductile/config.yaml" in plain.ductile("config", "check").out
    named = Terminal(directory=tmp_path, variables={"DUCTILE_CONFIG_DIR": str(tmp_path / "one")})
    assert "one/config.yaml" in named.ductile("config", "check").out
    assert "ductile/config.yaml" in named.ductile("--config", "home/.config/ductile", "config", "check").out
