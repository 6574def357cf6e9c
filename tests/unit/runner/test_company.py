"""Who else is in a group whose leader has ended (SPEC 3.4)."""

from __future__ import annotations

import os
import subprocess

import pytest

from ductile.runner import company
from ductile.runner.company import others_in_group


@pytest.mark.parametrize("few", [0, 10**9])
def test_whoever_is_left_of_the_group_is_found(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    """Among the numbers that were given out since, or among all that live; and nobody of another group."""
    monkeypatch.setattr(company, "_FEW", few)
    script = "sleep 300 & echo $!; setsid sh -c 'echo $$; exec sleep 300' &"
    leader = subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    assert leader.stdout is not None
    with leader.stdout as told:
        left, gone = int(told.readline()), int(told.readline())
        os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
        try:
            assert others_in_group(leader.pid) == [left]
        finally:
            for pid in (left, gone):
                os.kill(pid, 9)
    leader.wait()


def test_most_leaders_are_alone() -> None:
    leader = subprocess.Popen(["true"], start_new_session=True)
    os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
    assert others_in_group(leader.pid) == []
    leader.wait()
