"""A configuration in the working directory is used without --config, and commands name it on request."""

from __future__ import annotations

from pathlib import Path

from builders.terminal import Terminal


def test_the_configuration_of_the_working_directory_is_used(tmp_path: Path) -> None:
    """After `ductile init demo` no command needs --config, neither in this directory nor in `demo`."""
    terminal = Terminal(directory=tmp_path)
    assert terminal.ductile("init", "demo").status == 0
    assert "echo" in terminal.ductile("plugins").out
    inside = Terminal(directory=tmp_path / "demo")
    assert "echo" in inside.ductile("plugins").out
    result = terminal.ductile("plugins", "-v")
    assert result.err == "configuration: demo/config.yaml (found in ./demo)\n"
    assert (
        inside.ductile("plugins", "-v").err == "configuration: config.yaml (found in the working directory)\n"
    )
    errors = terminal.ductile("plugins", "-v", "--config", "demo").err
    assert errors == f"configuration: {tmp_path}/demo/config.yaml (named by --config)\n"


def test_an_error_says_which_configuration_was_used(tmp_path: Path) -> None:
    """The error does not name it after --config, or if the command line itself is wrong."""
    terminal = Terminal(directory=tmp_path)
    terminal.ductile("init", "demo")
    result = terminal.ductile("run", "ecko")
    assert result.err.splitlines()[-1] == "configuration: demo/config.yaml (found in ./demo)"
    assert "configuration:" not in terminal.ductile("run", "ecko", "--config", "demo").err
    assert "configuration:" not in terminal.ductile("frobnicate").err
    assert "configuration:" not in terminal.ductile("init", "demo").err


def test_the_configuration_of_another_program_is_passed_over(tmp_path: Path) -> None:
    """The keys of the other program are not reported as mistakes; -v says why its file is not used."""
    (tmp_path / "config.yaml").write_text("title: my site\nbaseURL: https://example.org\n")
    terminal = Terminal(directory=tmp_path)
    result = terminal.ductile("status")
    assert result.status == 78
    assert "config.yaml looks like the configuration of another program" in result.err
    assert "--config" in result.err
    terminal.ductile("init", "demo")
    lines = terminal.ductile("plugins", "-v").err.splitlines()
    assert lines[0] == "configuration: demo/config.yaml (found in ./demo)"
    assert "another program" in lines[1]
