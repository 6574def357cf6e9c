"""The handle waits for all other members of a process group, however many there are."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from ductile.runner.process import handle
from ductile.runner.process.handle import GroupMembers, find_members

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="there are no pidfds here")

#: A script that leaves seven processes behind. They exit when its stdin is closed.
LEAVES_PROCESSES = "exec 4<&0; for i in 1 2 3 4 5 6 7; do cat >/dev/null <&4 & done"


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def is_alive(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    try:
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False


async def test_more_members_than_are_watched_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin may leave thousands of processes, and each watched process needs a descriptor."""
    monkeypatch.setattr(handle, "MAX_WATCHED", 2)
    all_ended = asyncio.Event()
    leader = subprocess.Popen(  # noqa: ASYNC220 - the script ends at once
        ["/bin/sh", "-c", LEAVES_PROCESSES], start_new_session=True, stdin=subprocess.PIPE
    )
    os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - the script ends at once
    members = find_members(leader.pid)
    assert len(members) == 7
    before = count_descriptors()
    watching = GroupMembers(leader.pid, asyncio.get_running_loop(), all_ended.set)
    assert watching.any_alive()
    assert count_descriptors() == before + 2
    assert leader.stdin is not None
    leader.stdin.close()
    async with asyncio.timeout(60):
        await all_ended.wait()
    assert not any(map(is_alive, members))
    assert not watching.any_alive()
    assert count_descriptors() == before - 1  # the stdin pipe of the leader is closed
    leader.wait()
