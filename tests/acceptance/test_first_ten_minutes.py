"""A new user's first ten minutes, at a real terminal (SPEC 11)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.screens import TMUX, WIDTH, Desk, a_desk, plain
from builders.terminal import Terminal

pytestmark = pytest.mark.skipif(TMUX is None, reason="there is no tmux here")
COLOUR = "\x1b["
JOB_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with a_desk(tmp_path) as desk:
        yield desk


def own_port(directory: Path) -> None:
    """Other daemons of this machine may listen where the starter would."""
    config = directory / "demo" / "config.yaml"
    text = config.read_text()
    assert "listen: localhost:8080" in text
    config.write_text(text.replace("listen: localhost:8080", "listen: localhost:0"))


def test_from_nothing_to_results(desk: Desk, tmp_path: Path) -> None:
    """SPEC 11: `init`, `system start`, and everything that the next steps name; tables and colours on a
    terminal, plain text in a pipe; a slip is answered with what was meant.
    """
    with desk.a_pane("daemon") as daemon, desk.a_pane("you") as you:
        written = plain(you.type("ductile init demo"))
        assert "Next:" in written
        assert "ductile system start --config demo" in written
        own_port(tmp_path)
        # What `init` says to do next can be done as it stands, before there is a daemon.
        assert plain(you.type("ductile run echo --config demo")) == "hello from Ductile\n"
        daemon.start("ductile system start --config demo")
        daemon.wait_for("service.ready")
        assert plain(you.type("ductile run echo --config demo")) == "hello from Ductile\n"

        status = you.type("ductile status --config demo")
        assert "daemon: \x1b[32mrunning" in status
        assert re.search(r"^PLUGIN +STATUS +LAST RUN +NEXT RUN +HEALTH +BREAKER$", plain(status), re.MULTILINE)
        assert "\x1b[1mPLUGIN" in status
        assert COLOUR not in you.type("ductile status --config demo | cat").rstrip("\n")
        assert "announce (echo)" in plain(you.type("ductile plugins --config demo"))

        ran = plain(you.type("""ductile pipeline run hello --payload '{"name": "Ada"}' --config demo"""))
        assert "· greet  announce handle  succeeded" in ran
        assert ran.rstrip().endswith("hello Ada, good to see you")

        listed = plain(you.type("ductile job list --config demo"))
        run_id = next(JOB_ID.findall(line)[0] for line in listed.splitlines() if " pipeline " in line)
        assert all(len(line) <= WIDTH for line in listed.splitlines())
        shown = plain(you.type(f"ductile job show {run_id} --config demo"))
        assert "pipeline hello: succeeded" in shown
        assert re.search(r"greet +announce +succeeded", shown)
        assert plain(you.type("ductile queue --config demo")).rstrip() == "The queue is empty."

        assert "did you mean `status`?" in plain(you.type("ductile statsu --config demo"))
        assert "did you mean echo?" in plain(you.type("ductile run ecko --config demo"))
        assert plain(you.type("ductile run ecko --config demo; echo $?")).rstrip().endswith("\n1")

        followed(desk, you)
        assert "has stopped." in plain(you.type("ductile system stop --config demo"))
        assert "daemon: \x1b[33mnot running" in you.type("ductile status --config demo")
