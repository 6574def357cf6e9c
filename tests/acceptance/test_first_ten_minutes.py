"""A new user's first ten minutes, at a real terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.daemons import a_daemon, a_workspace
from builders.screens import TMUX, WIDTH, Pane, TmuxSession, a_tmux_session, plain
from builders.terminal import Terminal

pytestmark = pytest.mark.skipif(TMUX is None, reason="there is no tmux here")
COLOUR = "\x1b["
JOB_ID = re.compile(r"\b[0-9a-f]{8}\b")


#: Continues when the test writes into its pipe.
WAITS_FOR_GATE = """#!/bin/sh
cat >/dev/null
read -r _ <"$(dirname "$0")/gate"
echo '{"status": "ok", "result": "gone on"}'
"""


@pytest.fixture
def session(tmp_path: Path) -> Iterator[TmuxSession]:
    with a_tmux_session(tmp_path) as session:
        yield session


def own_port(directory: Path) -> None:
    """Other daemons of this machine may listen where the starter would."""
    config = directory / "demo" / "config.yaml"
    text = config.read_text()
    assert "listen: localhost:8080" in text
    config.write_text(text.replace("listen: localhost:8080", "listen: localhost:0"))


def test_from_nothing_to_results(session: TmuxSession, tmp_path: Path) -> None:
    """`init`, `system start`, and everything that the next steps name; tables and colours on a
    terminal, plain text in a pipe; a slip is answered with what was meant.
    """
    with session.a_pane("daemon") as daemon, session.a_pane("you") as you:
        written = plain(you.type("ductile init demo"))
        assert "Next:" in written
        assert "ductile system start --config demo" in written
        own_port(tmp_path)
        # What `init` says to do next can be done as it stands, before there is a daemon.
        assert plain(you.type("ductile run echo --config demo")) == "hello from Ductile\n"
        daemon.start("ductile system start --config demo")
        daemon.wait_for(" service.ready ")
        assert plain(you.type("ductile run echo --config demo")) == "hello from Ductile\n"

        status = you.type("ductile status --config demo")
        assert "daemon: \x1b[32mrunning" in status
        assert re.search(r"^PLUGIN +STATUS +LAST RUN +NEXT RUN", plain(status), re.MULTILINE)
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

        logged = [plain(line) for line in you.type("ductile logs --config demo").splitlines()]
        assert len({line.index(" succeeded ") for line in logged}) == 1, "the columns are aligned"
        tail = [plain(line) for line in you.type("ductile event tail --config demo").splitlines()]
        assert len({JOB_ID.search(line).start() for line in tail if JOB_ID.search(line)}) == 1  # type: ignore[union-attr]  # as asked for

        assert "did you mean `ductile status --config demo`?" in plain(
            you.type("ductile statsu --config demo")
        )
        assert "did you mean echo?" in plain(you.type("ductile run ecko --config demo"))
        assert plain(you.type("ductile run ecko --config demo; echo $?")).rstrip().endswith("\n1")

        followed(session, you)
        assert "has stopped." in plain(you.type("ductile system stop --config demo"))
        assert "daemon: \x1b[33mnot running" in you.type("ductile status --config demo")


def followed(session: TmuxSession, you: Pane) -> None:
    """`logs -f` shows what ends while it is looked at, until Ctrl-C."""
    with session.a_pane("logs") as logs:
        logs.start("ductile logs -f --config demo")
        logs.wait_for("echo poll  succeeded")
        mark = len(logs.flow)
        you.type("""ductile run announce handle --payload '{"message": "now"}' --config demo""")
        logs.wait_for("announce handle  succeeded", after=mark)
        assert "announce handle  \x1b[32msucceeded" in logs.flow
        logs.interrupt()


def watch_a_run(you: Pane, gate: Path, expected: str) -> None:
    mark = len(you.flow)
    you.start("ductile run slow --config demo")
    you.wait_for(expected, after=mark)
    gate.write_text("go on\n")
    assert plain(you.finish(mark)) == "gone on\n"


def test_long_work_shows_that_it_goes_on(session: TmuxSession, tmp_path: Path) -> None:
    """A line that counts while a job is waited for, without a daemon and with one; it is gone when
    the result is there.
    """
    workspace = a_workspace(tmp_path, "  slow: {}\n")
    gate = workspace.plugin("slow", WAITS_FOR_GATE) / "gate"
    os.mkfifo(gate)
    with session.a_pane("you") as you:
        watch_a_run(you, gate, "waiting for slow, 1.0s")
        with a_daemon(workspace):
            watch_a_run(you, gate, "waiting for slow, job ")


def test_help_is_read_on_the_way(session: TmuxSession) -> None:
    """A command typed by guess is answered with the right one."""
    with session.a_pane("you") as you:
        assert "Start with `ductile init DIR`" in plain(you.type("ductile"))
        assert "ductile NOUN ACTION" in plain(you.type("ductile --help"))
        assert "retry [JOB]" in plain(you.type("ductile job --help"))
        refused = you.type("ductile status")
        assert "\x1b[31merror:" in refused
        assert "ductile init" in plain(refused)


def test_the_screen_is_for_a_terminal(tmp_path: Path) -> None:
    """Piped, or with --json, `system watch` would wait for keys that cannot be pressed."""
    terminal = Terminal(directory=tmp_path)
    for words in (("system", "watch"), ("system", "watch", "--json")):
        ran = terminal.ductile(*words)
        assert ran.status == 2
        assert "needs a terminal" in ran.out + ran.err
