"""A plugin starts to fail at night; in the morning an operator finds the cause at a real terminal.

The operator knows only what the commands themselves print.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.daemons import Workspace
from builders.screens import TMUX, Pane, TmuxSession, a_tmux_session, plain

pytestmark = pytest.mark.skipif(TMUX is None, reason="there is no tmux here")
#: A plugin that reads a file, which another program keeps up to date.
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


def fail_at_night(daemon: Pane, workspace: Workspace) -> None:
    """Start the daemon, remove the input of the plugin, and wait until two jobs failed and the breaker
    opened.
    """
    daemon.start("ductile system start --config demo")
    daemon.wait_for('"signal":"job.succeeded"')
    (workspace.directory / "demo" / "reading").unlink()
    daemon.wait_for('"signal":"job.retrying"')
    daemon.wait_for('"state":"open","reason":"failure_threshold"')
    # The log says why nothing runs any more.
    daemon.wait_for('"schedule":"often","count":1,"reason":"breaker_open"')


def test_an_incident_and_its_end(session: TmuxSession, workspace: Workspace) -> None:
    """The doctor names the fault, its time, its cause and its fix; then the operator mends it."""
    with session.a_pane("daemon") as daemon, session.a_pane("you") as user:
        fail_at_night(daemon, workspace)
        job_id = diagnose(user)
        mend(daemon, user, workspace, job_id)


def diagnose(user: Pane) -> str:
    """Follow the commands that the outputs name, and return the id of the job that failed last."""
    assert re.search(r"^meter +active +failed .* poll open$", output_of(user, "status"), re.MULTILINE)
    doctor = user.type("ductile system doctor --config demo")
    assert "the breaker of meter poll is open after 2 failures" in plain(doctor)
    assert "\x1b[31merror" in doctor
    # The printed command can be copied: it names the configuration.
    next_step = r"\), then: ductile system reset meter --config demo"
    unwrapped = " ".join(plain(doctor).split())
    (explain_command,) = re.findall(rf"\((ductile --config demo job explain \S+){next_step}", unwrapped)
    explanation = output_of(user, "schedule explain meter")
    assert explanation.startswith("meter often: The circuit breaker is open")
    assert f"ductile job explain {explain_command.split()[-1]} --config demo" in explanation
    explained_job = plain(user.type(explain_command)).rstrip()
    assert "no reading" in explained_job
    assert "reading: No such file or directory" in explained_job
    assert "What differs from the last good run" in explained_job
    assert "the meter does not answer" in output_of(user, f"job logs {explain_command.split()[-1]}")
    # The first runs succeeded, then each attempt failed.
    logs = [line for line in output_of(user, "logs meter").splitlines() if "meter poll" in line]
    assert ["succeeded" in line for line in logs] == [*[True] * (len(logs) - 4), *[False] * 4]
    assert logs[-1].endswith("plugin_error: no reading")
    return str(explain_command).split()[-1]


def mend(daemon: Pane, user: Pane, workspace: Workspace, job_id: str) -> None:
    """Restore the input, close the breaker and retry the job; afterwards everything is well."""
    (workspace.directory / "demo" / "reading").write_text("43")
    assert output_of(user, "system reset meter --dry-run") == "Would close poll."
    position = len(daemon.flow)
    assert output_of(user, "system reset meter") == "Closed 1 breaker."
    assert output_of(user, f"job retry {job_id}") == f"{job_id} is on the queue again."
    assert f"{job_id} succeeded" in output_of(user, f"job wait {job_id}")
    # The scheduler continues by itself.
    daemon.wait_for('"signal":"schedule.fired"', after=position)
    assert re.search(r"^meter +active +succeeded .* closed$", output_of(user, "status"), re.MULTILINE)
    assert "43 kWh" in output_of(user, f"job show {job_id}")
    assert "breakers" not in output_of(user, "system doctor")


def output_of(user: Pane, words: str) -> str:
    return plain(user.type(f"ductile {words} --config demo")).rstrip()
