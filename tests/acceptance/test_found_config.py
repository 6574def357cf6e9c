"""A configuration in the working directory is used without --config, and it is said which one."""

from __future__ import annotations

from pathlib import Path

from builders.terminal import Terminal


def test_the_configuration_of_the_working_directory_is_used(tmp_path: Path) -> None:
    """`ductile init demo`, and from then on nothing has to be named: here, and inside of it."""
    terminal = Terminal(directory=tmp_path)
    assert terminal.ductile("init", "demo").status == 0
    assert "echo" in terminal.ductile("plugins").out
    inside = Terminal(directory=tmp_path / "demo")
    assert "echo" in inside.ductile("plugins").out
    told = terminal.ductile("plugins", "-v")
    assert told.err == "configuration: demo/config.yaml (found in ./demo)\n"
    assert (
        inside.ductile("plugins", "-v").err == "configuration: config.yaml (found in the working directory)\n"
    )
    named = terminal.ductile("plugins", "-v", "--config", "demo").err
    assert named == f"configuration: {tmp_path}/demo/config.yaml (named by --config)\n"


def test_an_error_says_which_configuration_was_used(tmp_path: Path) -> None:
    """Unless it was named with --config, or the command line itself is wrong."""
    terminal = Terminal(directory=tmp_path)
    terminal.ductile("init", "demo")
    wrong = terminal.ductile("run", "ecko")
    assert wrong.err.splitlines()[-1] == "configuration: demo/config.yaml (found in ./demo)"
    assert "configuration:" not in terminal.ductile("run", "ecko", "--config", "demo").err
    assert "configuration:" not in terminal.ductile("frobnicate").err
    assert "configuration:" not in terminal.ductile("init", "demo").err


def test_the_configuration_of_another_program_is_passed_over(tmp_path: Path) -> None:
    """Its keys are not reported as our mistakes; -v says why it is not used."""
    (tmp_path / "config.yaml").write_text("title: my site\nbaseURL: https://example.org\n")
    terminal = Terminal(directory=tmp_path)
    lost = terminal.ductile("status")
    assert lost.status == 78
    assert "config.yaml looks like the configuration of another program" in lost.err
    assert "--config" in lost.err
    terminal.ductile("init", "demo")
    told = terminal.ductile("plugins", "-v").err.splitlines()
    assert told[0] == "configuration: demo/config.yaml (found in ./demo)"
    assert "another program" in told[1]
