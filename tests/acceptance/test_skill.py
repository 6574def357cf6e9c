"""`ductile skill export`: every command in the skill parses, and every example in it works."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from builders.daemons import a_workspace
from builders.http import api_section, token_for
from builders.pages import Reader
from ductile.cli.command_table import NOUNS
from ductile.cli.parser import parse
from ductile.operations.tools.table import TOOLS

START = """\
<!-- before: ductile init home -->
<!-- before: cd home -->
<!-- before: ductile config set api.listen localhost:18440 --lock -->
<!-- before: ductile system start > daemon.log 2>&1 & -->
<!-- before: until grep -qE 'service.ready|^error' daemon.log; do sleep 0.1; done -->
<!-- before: ductile run echo -->
"""
STOP = "<!-- before: ductile system stop -->\n"


@pytest.fixture(scope="module")
def skill(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the files of an exported skill by their names. The configuration has secrets."""
    directory = tmp_path_factory.mktemp("skill")
    workspace = a_workspace(directory, "  said: {uses: echo, config: {api_key: canary-key}}\n")
    workspace.config.write_text(api_section() + workspace.config.read_text())
    export = workspace.json("skill", "export", "out")
    second_export = workspace.json("skill", "export", "out")
    assert second_export == export
    error = workspace.json("skill", "export", "demo", status=2)["error"]
    assert "no exported skill" in error["message"]
    return {name: (directory / "out" / name).read_text() for name in export["files"]}


def test_the_first_page_is_short_and_names_the_others(skill: dict[str, str]) -> None:
    first = skill["SKILL.md"]
    assert first.startswith("---\nname: ductile\ndescription: ")
    assert "said.handle" in first.split("---")[1]
    assert len(first) < 10_000
    assert {name for name in skill if f"({name})" in first} == set(skill) - {"SKILL.md"}


def test_links_lead_somewhere(skill: dict[str, str]) -> None:
    for name, text in skill.items():
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if "://" not in target:
                assert os.path.normpath(Path(name).parent / target) in skill, (name, target)


def test_every_command_parses(skill: dict[str, str]) -> None:
    """Commands in the text, in examples and in the list of all commands parse."""
    lines = []
    for name in ("SKILL.md", "commands.md", "tools.md"):
        lines += re.findall(r"`(ductile [^`\n]+)`", skill[name])
        for block in re.findall(r"^```sh\n(.*?)^```$", skill[name], re.MULTILINE | re.DOTALL):
            lines += [line for line in block.splitlines() if line.startswith("ductile ")]
    assert len(lines) > 100
    for line in lines:
        words = shlex.split(line)[1:]
        # A command that is only mentioned lacks its arguments.
        parse([*words, "--help"] if len(words) <= 2 else words)


def test_every_command_and_tool_is_described(skill: dict[str, str]) -> None:
    described = set(re.findall(r"^### (ductile \S+ \S+)", skill["commands.md"], re.MULTILINE))
    assert described == {f"ductile {noun.name} {action.name}" for noun in NOUNS for action in noun.actions}
    assert re.findall(r"^## (\S+)$", skill["tools.md"], re.MULTILINE) == [*TOOLS]
    assert "POST /plugin/said/handle" in skill["http.md"]


def test_no_secret_is_in_the_skill(skill: dict[str, str]) -> None:
    for text in skill.values():
        assert "canary-key" not in text
        assert token_for("*") not in text


def test_the_examples_of_the_first_page_work(skill: dict[str, str], tmp_path: Path) -> None:
    """The examples are run one after the other beside a real daemon with the starter configuration."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    reader = Reader(directory=tmp_path, environment={"PATH": path, "HOME": str(tmp_path), "LANG": "C.UTF-8"})
    printed = reader.follow(START + skill["SKILL.md"] + STOP)
    assert any("1 job replayed with greet" in output for output in printed)
