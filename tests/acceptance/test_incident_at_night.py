"""A plugin that worked starts failing at night; in the morning an operator finds out, at a real terminal.

Nothing is looked up but what the commands themselves say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.daemons import Workspace
from builders.screens import TMUX, Pane, TmuxSession, a_tmux_session, plain

pytestmark = pytest.mark.skipif(TMUX is None, reason="there is no tmux here")
#: Reads a file that something else keeps up to date.
METER = """#!/bin/sh
cat >/dev/null
cd "$(dirname "$0")/../.."
if ! value=$(cat reading); then
  echo "the meter does not answer" >&2
  echo '{"status": "error", "error": "no reading"}'
  exit
fi
printf '{"status": "ok", "result": "%s kWh"}\\n' "$value"
"""
CONFIG = """\
service: {max_workers: 2, log_level: debug, log_format: json}
plugins:
  meter:
    schedules: [{id: often, every: 1s}]
    retry: {max_attempts: 2, backoff_base: 50ms}
    circuit_breaker: {threshold: 2, reset_after: 1d}
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = Workspace(directory=tmp_path)
    workspace.plugin("meter", METER)
    workspace.config.write_text(CONFIG)
    workspace.config.chmod(0o600)
    workspace.config.parent.chmod(0o700)
    (tmp_path / "demo" / "reading").write_text("42")
    assert workspace.ductile("config", "lock").status == 0
    return workspace


@pytest.fixture
def session(tmp_path: Path) -> Iterator[TmuxSession]:
    with a_tmux_session(tmp_path) as session:
        yield session


def night(daemon: Pane, workspace: Workspace) -> None:
    """It runs well; then what it reads is gone. It is tried again, gives up twice, and the breaker opens."""
    daemon.start("ductile system start --config demo")
    daemon.wait_for('"signal":"job.succeeded"')
    (workspace.directory / "demo" / "reading").unlink()
    daemon.wait_for('"signal":"job.retrying"')
    daemon.wait_for('"state":"open","reason":"failure_threshold"')
    # The log says why nothing runs any more.
    daemon.wait_for('"schedule":"often","count":1,"reason":"breaker_open"')


def test_an_incident_and_its_end(session: TmuxSession, workspace: Workspace) -> None:
    """The doctor names the fault, its time, its cause and its fix; then it is fixed."""
    with session.a_pane("daemon") as daemon, session.a_pane("you") as you:
        night(daemon, workspace)
        found = find_out(you)
        mend(daemon, you, workspace, found)


def find_out(you: Pane) -> str:
    """Each command names the next one; the id of the job that gave up last."""
    assert re.search(r"^meter +active +failed .* poll open$", seen(you, "status"), re.MULTILINE)
    doctor = you.type("ductile system doctor --config demo")
    assert "the breaker of meter poll is open after 2 failures" in plain(doctor)
    assert "\x1b[31merror" in doctor
    # As it can be copied: with the configuration that was named.
    then = r"\), then: ductile system reset meter --config demo"
    unwrapped = " ".join(plain(doctor).split())
    (explain,) = re.findall(rf"\((ductile --config demo job explain \S+){then}", unwrapped)
    why = seen(you, "schedule explain meter")
    assert why.startswith("meter often: The circuit breaker is open")
    assert f"ductile job explain {explain.split()[-1]} --config demo" in why
    explained = plain(you.type(explain)).rstrip()
    assert "no reading" in explained
    assert "reading: No such file or directory" in explained
    assert "What differs from the last good run" in explained
    assert "the meter does not answer" in seen(you, f"job logs {explain.split()[-1]}")
    # From the ledger: first it went well, then each attempt failed.
    logs = [line for line in seen(you, "logs meter").splitlines() if "meter poll" in line]
    assert ["succeeded" in line for line in logs] == [*[True] * (len(logs) - 4), *[False] * 4]
    assert logs[-1].endswith("plugin_error: no reading")
    return str(explain).split()[-1]


def mend(daemon: Pane, you: Pane, workspace: Workspace, job: str) -> None:
    """The cause, the breaker, the job; then everything is well."""
    (workspace.directory / "demo" / "reading").write_text("43")
    assert seen(you, "system reset meter --dry-run") == "Would close poll."
    mark = len(daemon.flow)
    assert seen(you, "system reset meter") == "Closed 1 breaker."
    assert seen(you, f"job retry {job}") == f"{job} is on the queue again."
    assert f"{job} succeeded" in seen(you, f"job wait {job}")
    # The scheduler goes on by itself.
    daemon.wait_for('"signal":"schedule.fired"', after=mark)
    assert re.search(r"^meter +active +succeeded .* closed$", seen(you, "status"), re.MULTILINE)
    assert "43 kWh" in seen(you, f"job show {job}")
    assert "breakers" not in seen(you, "system doctor")


def seen(you: Pane, words: str) -> str:
    return plain(you.type(f"ductile {words} --config demo")).rstrip()
