"""`status` fits on a screen, even if a plugin keeps a large state."""

from __future__ import annotations

from pathlib import Path

from builders.daemons import a_workspace, answering


def test_status_shows_the_beginning_of_a_long_state(tmp_path: Path) -> None:
    """The other lines are counted, and the printed command that shows them works."""
    workspace = a_workspace(tmp_path, "  large: {}\n  small: {}\n")
    for name, count in (("large", 500), ("small", 21)):
        state = {f"key{number:03}": number for number in range(count)}
        workspace.plugin(name, answering({"status": "ok", "result": "done", "state_updates": state}))
    assert workspace.ductile("config", "lock").status == 0
    assert workspace.ductile("run", "large").status == 0
    assert workspace.ductile("run", "small").status == 0
    output = workspace.ductile("status").out
    assert "key019: 19\n  … 480 more lines: ductile plugin state large --config demo\n" in output
    assert "key020: 20" in output
    assert output.count("more lines") == 1
    assert workspace.json("plugin", "state", "large")["state"]["key499"] == 499
