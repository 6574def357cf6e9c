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
    failed = workspace.json("run", "hostile", "--payload", json.dumps({"x": HOSTILE}), status=1)["job_id"]
    kept = workspace.json("run", "keeps")["job_id"]
    jobs = [["job", verb, job] for verb in ("show", "explain", "logs", "tree") for job in (failed, kept)]
    others = ["job list", "plugin state keeps", "plugin list", "system status", "event tail", "log show"]
    return [*jobs, ["run", "hostile"], ["run", "keeps"], *([*line.split()] for line in others)]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_nothing_hostile_reaches_a_terminal(workspace: Workspace, form: list[str]) -> None:
    seen = ""
    for words in commands(workspace):
        lines = workspace.terminal.on_screen(*words, "--config", "demo", *form, both=True, columns=300)
        shown = "\n".join(lines)
        assert UNSAFE.search(shown) is None, (words, shown)
        assert not any(line.startswith("FORGED") for line in lines), (words, shown)
        seen += shown
    assert ("\\u202e" if form else "\\x9b31mX\\u202e") in seen
    if form:
        assert "\\u009b31mX\\u202e" in seen


def test_the_json_means_what_it_meant(workspace: Workspace) -> None:
    job = workspace.json("run", "keeps")
    assert job["result"]["result"]["said"] == HOSTILE
    ran = workspace.ductile("plugin", "state", "keeps", "--json")
    assert "\x9b" not in ran.out
    assert json.loads(ran.out)["state"]["note"] == HOSTILE
