"""Completion of commands, tested in the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from builders.terminal import Terminal
from ductile.cli.command_table import NOUNS


def completions(tmp_path: Path, *words: str) -> set[str]:
    """Return the completions of bash for the last of these words."""
    (tmp_path / "script").write_text(Terminal(directory=tmp_path).ductile("system", "completion", "bash").out)
    quoted = " ".join(f"'{word}'" for word in words)
    variables = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}"
    line = f'source ./script; {variables}; _ductile; echo "${{COMPREPLY[@]}}"'
    result = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=True)
    return set(result.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_nouns_actions_and_options(tmp_path: Path) -> None:
    assert {noun.name for noun in NOUNS} <= completions(tmp_path, "ductile", "")
    assert completions(tmp_path, "ductile", "sched") == {"schedule"}
    assert {"list", "show", "retry"} <= completions(tmp_path, "ductile", "job", "")
    for option in ("--config", "--url", "--token-env", "--ca"):
        assert completions(tmp_path, "ductile", option, "demo", "job", "ca") == {"cancel"}
    assert "--dry-run" in completions(tmp_path, "ductile", "job", "cancel", "--")
    assert "--payload" in completions(tmp_path, "ductile", "run", "echo", "--")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_names_every_command(tmp_path: Path, shell: str) -> None:
    script = Terminal(directory=tmp_path).ductile("system", "completion", shell).out
    for noun in NOUNS:
        for action in noun.actions:
            assert f"{noun.name} {action.name}" in script
    if (program := shutil.which(shell)) is not None:
        subprocess.run([program, "-n"], input=script, text=True, check=True, capture_output=True)


def test_another_shell_is_a_mistake(tmp_path: Path) -> None:
    result = Terminal(directory=tmp_path).ductile("system", "completion", "tcsh")
    assert (result.status, "bash, zsh, fish" in result.err) == (2, True)
