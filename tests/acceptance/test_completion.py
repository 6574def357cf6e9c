"""Completion of commands, tried in the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from builders.terminal import Terminal
from ductile.cli.command_table import NOUNS


def completed(tmp_path: Path, *words: str) -> set[str]:
    """The completions of bash for the last of these words."""
    (tmp_path / "script").write_text(Terminal(directory=tmp_path).ductile("system", "completion", "bash").out)
    said = " ".join(f"'{word}'" for word in words)
    where = f"COMP_WORDS=({said}); COMP_CWORD={len(words) - 1}"
    line = f'source ./script; {where}; _ductile; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_nouns_actions_and_options(tmp_path: Path) -> None:
    assert {noun.name for noun in NOUNS} <= completed(tmp_path, "ductile", "")
    assert completed(tmp_path, "ductile", "sched") == {"schedule"}
    assert {"list", "show", "retry"} <= completed(tmp_path, "ductile", "job", "")
    assert completed(tmp_path, "ductile", "--config", "demo", "job", "ca") == {"cancel"}
    assert "--dry-run" in completed(tmp_path, "ductile", "job", "cancel", "--")
    assert "--payload" in completed(tmp_path, "ductile", "run", "echo", "--")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_names_every_command(tmp_path: Path, shell: str) -> None:
    script = Terminal(directory=tmp_path).ductile("system", "completion", shell).out
    for noun in NOUNS:
        for action in noun.actions:
            assert f"{noun.name} {action.name}" in script
    if (program := shutil.which(shell)) is not None:
        subprocess.run([program, "-n"], input=script, text=True, check=True, capture_output=True)


def test_another_shell_is_a_mistake(tmp_path: Path) -> None:
    ran = Terminal(directory=tmp_path).ductile("system", "completion", "tcsh")
    assert (ran.status, "bash, zsh, fish" in ran.err) == (2, True)
