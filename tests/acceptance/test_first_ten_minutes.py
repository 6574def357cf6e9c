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


#: A plugin that continues when the test writes into its pipe.
WAITS_FOR_GATE = """#!/bin/sh
cat >/dev/null
read -r _ <"$(dirname "$0")/gate"
echo '{"status": "ok", "result": "gone on"}'
"""


@pytest.fixture
def session(tmp_path: Path) -> Iterator[TmuxSession]:
    with a_tmux_session(tmp_path) as session:
        yield session


def use_a_free_port(directory: Path) -> None:
    """Let the API listen at a free port: other daemons of this machine may use the port of the starter."""
    config = directory / "demo" / "config.yaml"
    text = config.read_text()
    assert "listen: localhost:8080" in text
    config.write_text(text.replace("listen: localhost:8080", "listen: localhost:0"))


def test_from_nothing_to_results(session: TmuxSession, tmp_path: Path) -> None:
    """`init`, `system start` and all printed next steps work. A terminal gets tables and colours, a pipe
    plain text, and a slip gets a hint.
    """
    with session.a_pane("daemon") as daemon, session.a_pane("you") as user:
        output = plain(user.type("ductile init demo"))
        assert "Next:" in output
        assert "ductile system start --config demo" in output
        use_a_free_port(tmp_path)
        # The next steps that `init` prints work before a daemon runs.
        assert plain(user.type("ductile run echo --config demo")) == "hello from Ductile\n"
        daemon.start("ductile system start --config demo")
        daemon.wait_for(" service.ready ")
        assert plain(user.type("ductile run echo --config demo")) == "hello from Ductile\n"

        status = user.type("ductile status --config demo")
        assert "daemon: \x1b[32mrunning" in status
        assert re.search(r"^PLUGIN +STATUS +LAST RUN +NEXT RUN", plain(status), re.MULTILINE)
        assert "\x1b[1mPLUGIN" in status
        assert COLOUR not in user.type("ductile status --config demo | cat").rstrip("\n")
        assert "announce (echo)" in plain(user.type("ductile plugins --config demo"))

        output = plain(user.type("""ductile pipeline run hello --payload '{"name": "Ada"}' --config demo"""))
        assert "· greet  announce handle  succeeded" in output
        assert output.rstrip().endswith("hello Ada, good to see you")

        jobs = plain(user.type("ductile job list --config demo"))
        run_id = next(JOB_ID.findall(line)[0] for line in jobs.splitlines() if " pipeline " in line)
        assert all(len(line) <= WIDTH for line in jobs.splitlines())
        job = plain(user.type(f"ductile job show {run_id} --config demo"))
        assert "pipeline hello: succeeded" in job
        assert re.search(r"greet +announce +succeeded", job)
        assert plain(user.type("ductile queue --config demo")).rstrip() == "The queue is empty."

        log_lines = [plain(line) for line in user.type("ductile logs --config demo").splitlines()]
        assert len({line.index(" succeeded ") for line in log_lines}) == 1, "the columns are aligned"
        event_lines = [plain(line) for line in user.type("ductile event tail --config demo").splitlines()]
        assert len({JOB_ID.search(line).start() for line in event_lines if JOB_ID.search(line)}) == 1  # type: ignore[union-attr]  # as asked for

        assert "did you mean `ductile status --config demo`?" in plain(
            user.type("ductile statsu --config demo")
        )
        assert "did you mean echo?" in plain(user.type("ductile run ecko --config demo"))
        assert plain(user.type("ductile run ecko --config demo; echo $?")).rstrip().endswith("\n1")

        follow_logs(session, user)
        assert "has stopped." in plain(user.type("ductile system stop --config demo"))
        assert "daemon: \x1b[33mnot running" in user.type("ductile status --config demo")


def follow_logs(session: TmuxSession, user: Pane) -> None:
    """Check that `logs -f` shows each execution as it ends, until Ctrl-C."""
    with session.a_pane("logs") as logs:
        logs.start("ductile logs -f --config demo")
        logs.wait_for("echo poll  succeeded")
        position = len(logs.flow)
        user.type("""ductile run announce handle --payload '{"message": "now"}' --config demo""")
        logs.wait_for("announce handle  succeeded", after=position)
        assert "announce handle  \x1b[32msucceeded" in logs.flow
        logs.interrupt()


def watch_a_run(user: Pane, gate: Path, expected: str) -> None:
    """Start a job, wait for the expected line, and let the job end."""
    position = len(user.flow)
    user.start("ductile run slow --config demo")
    user.wait_for(expected, after=position)
    gate.write_text("go on\n")
    assert plain(user.finish(position)) == "gone on\n"


def test_long_work_shows_that_it_goes_on(session: TmuxSession, tmp_path: Path) -> None:
    """A line counts the seconds while a command waits for a job, without a daemon and with one, and
    disappears with the result.
    """
    workspace = a_workspace(tmp_path, "  slow: {}\n")
    gate = workspace.plugin("slow", WAITS_FOR_GATE) / "gate"
    os.mkfifo(gate)
    with session.a_pane("you") as user:
        watch_a_run(user, gate, "waiting for slow, 1.0s")
        with a_daemon(workspace):
            watch_a_run(user, gate, "waiting for slow, job ")


def test_help_is_read_on_the_way(session: TmuxSession) -> None:
    """An incomplete command is answered with the right one."""
    with session.a_pane("you") as user:
        assert "Start with `ductile init DIR`" in plain(user.type("ductile"))
        assert "ductile NOUN ACTION" in plain(user.type("ductile --help"))
        assert "retry [JOB]" in plain(user.type("ductile job --help"))
        refused = user.type("ductile status")
        assert "\x1b[31merror:" in refused
        assert "ductile init" in plain(refused)


def test_the_screen_is_for_a_terminal(tmp_path: Path) -> None:
    """In a pipe, or with --json, `system watch` would wait for keys that cannot be pressed."""
    terminal = Terminal(directory=tmp_path)
    for words in (("system", "watch"), ("system", "watch", "--json")):
        result = terminal.ductile(*words)
        assert result.status == 2
        assert "needs a terminal" in result.out + result.err
