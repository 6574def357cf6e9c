"""Text of plugins and callers cannot steer a terminal, reorder what it shows, or begin a line of its own."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from builders.daemons import Workspace, a_workspace, answering

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = "bad\x1b[2J\x07\r\x9b31mX\u202etxt\u2066y\u200f\u061c\nFORGED line"
UNSAFE = re.compile("[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = a_workspace(tmp_path, "  hostile: {max_attempts: 1}\n  keeps: {}\n")
    workspace.plugin("hostile", answering({"status": "error", "error": HOSTILE, "retry": False}))
    workspace.plugin(
        "keeps",
        answering({"status": "ok", "result": {"said": HOSTILE}, "state_updates": {"note": HOSTILE}}),
    )
    return workspace


def commands(workspace: Workspace) -> list[list[str]]:
    failed_id = workspace.json("run", "hostile", "--payload", json.dumps({"x": HOSTILE}), status=1)["job_id"]
    kept_id = workspace.json("run", "keeps")["job_id"]
    jobs = [
        ["job", action, job_id]
        for action in ("show", "explain", "logs", "tree")
        for job_id in (failed_id, kept_id)
    ]
    others = ["job list", "plugin state keeps", "plugin list", "system status", "event tail", "log show"]
    return [*jobs, ["run", "hostile"], ["run", "keeps"], *([*line.split()] for line in others)]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_nothing_hostile_reaches_a_terminal(workspace: Workspace, options: list[str]) -> None:
    output = ""
    for words in commands(workspace):
        lines = workspace.terminal.on_screen(*words, "--config", "demo", *options, both=True, columns=300)
        text = "\n".join(lines)
        assert UNSAFE.search(text) is None, (words, text)
        assert not any(line.startswith("FORGED") for line in lines), (words, text)
        output += text
    assert ("\\u202e" if options else "\\x9b31mX\\u202e") in output
    if options:
        assert "\\u009b31mX\\u202e" in output


def test_the_json_means_what_it_meant(workspace: Workspace) -> None:
    job = workspace.json("run", "keeps")
    assert job["result"]["result"]["said"] == HOSTILE
    result = workspace.ductile("plugin", "state", "keeps", "--json")
    assert "\x9b" not in result.out
    assert json.loads(result.out)["state"]["note"] == HOSTILE
