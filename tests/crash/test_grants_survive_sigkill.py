"""An OAuth grant survives SIGKILL before every single line of the library that refreshes it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from builders.shipped import ROOT
from fakes.oauth_server import OAuthService, Rotation
from fakes.service import Call, Reply

WORKER = Path(__file__).with_name("oauth_worker.py")


class ThingsService(OAuthService):
    def respond(self, call: Call) -> Reply:
        if (reply := self.respond_oauth(call)) is not None:
            return reply
        return Reply({}, 401) if self.grant_of(call) is None else Reply({"things": []})


def run(service: ThingsService, directory: Path, last_line: int) -> dict[str, Any] | None:
    """Run one job and return its outcome; None if it was killed. As in Ductile, its state is stored."""
    state = directory / "state.json"
    result = subprocess.run(
        [sys.executable, str(WORKER), str(ROOT / "lib"), service.url, str(state), str(last_line)],
        env={"PATH": os.environ["PATH"], "DUCTILE_DATA_DIR": str(directory / "data")},
        capture_output=True,
        check=False,
    )
    if result.returncode == -signal.SIGKILL:
        return None
    assert result.returncode == 0, result.stderr
    outcome: dict[str, Any] = json.loads(result.stdout)
    if "state" in outcome:
        state.write_text(json.dumps(json.loads(state.read_text()) | outcome["state"]))
    return outcome


def connect(service: ThingsService, directory: Path) -> str:
    _, refresh = service.new_grant()
    directory.mkdir()
    grant = {"id": "g", "number": 1, "access_token": "x", "refresh_token": refresh, "token_expires_at": 0}
    (directory / "state.json").write_text(json.dumps({"oauth": {"grant": grant}}))
    return refresh


def kill_and_check(service: ThingsService, directory: Path, line: int) -> tuple[bool, bool, bool]:
    """Kill a job before a line, then run two more.

    Return whether it ended before that line, whether the account is still connected, and whether the new
    token was lost: the provider had replaced the stored one, and no file has the new one.
    """
    token = connect(service, directory)
    ended = run(service, directory, line) is not None
    file = directory / "data" / "oauth.json"
    replaced = token not in service.grants[-1].refresh_tokens
    lost_response = replaced and not file.exists()
    outcomes = [run(service, directory, 0), run(service, directory, 0)]
    for outcome in outcomes:
        assert outcome is not None
        if "error" in outcome:
            assert "ductile plugin authorize things" in outcome["error"]
            assert outcome["retry"] is False
    return ended, all(outcome is not None and "state" in outcome for outcome in outcomes), lost_response


def kill_before_lines(rotation: Rotation, directory: Path, *, first: int, step: int) -> None:
    lines_with_lost_response = []
    with ThingsService(rotation=rotation) as service:
        for line in range(first, 1000, step):
            ended, connected, lost_response = kill_and_check(service, directory / str(line), line)
            assert connected is not lost_response, f"killed before line {line}"
            if lost_response:
                lines_with_lost_response.append(line)
            if ended:
                break
        else:
            pytest.fail("the job never ended")
    assert not lines_with_lost_response or rotation is Rotation.STRICT


@pytest.mark.parametrize("rotation", list(Rotation))
def test_a_kill_during_a_refresh_does_not_lose_the_account(rotation: Rotation, tmp_path: Path) -> None:
    """Only before some lines: all of them take longer."""
    kill_before_lines(rotation, tmp_path, first=list(Rotation).index(rotation) + 10, step=29)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rotation", list(Rotation))
def test_a_job_may_be_killed_before_every_line(rotation: Rotation, tmp_path: Path) -> None:
    """Afterwards the account is still connected.

    The one exception is a provider that makes the old token invalid at once, and a kill between its response
    and the file: then no copy of the new token is left, and the next job says what to do. Withings keeps the
    old token until the new one is used, and Google does not replace it: with these there is no exception.
    """
    kill_before_lines(rotation, tmp_path, first=1, step=1)
