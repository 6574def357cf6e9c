"""Other members of a process group are waited for, however many there are."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from ductile.runner.process import handle
from ductile.runner.process.handle import GroupMembers, find_members

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="there are no pidfds here")

#: Leaves seven processes behind that read its stdin: they exit when it is closed, and not before.
LEAVING = "exec 4<&0; for i in 1 2 3 4 5 6 7; do cat >/dev/null <&4 & done"


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def is_alive(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    try:
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False


async def test_more_members_than_are_watched_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin may leave thousands behind, and each watched process costs a descriptor."""
    monkeypatch.setattr(handle, "MAX_WATCHED", 2)
    over = asyncio.Event()
    leader = subprocess.Popen(  # noqa: ASYNC220 - it ends at once
        ["/bin/sh", "-c", LEAVING], start_new_session=True, stdin=subprocess.PIPE
    )
    os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - at once, as said
    left = find_members(leader.pid)
    assert len(left) == 7
    before = descriptors()
    watching = GroupMembers(leader.pid, asyncio.get_running_loop(), over.set)
    assert watching.any_alive()
    assert descriptors() == before + 2
    assert leader.stdin is not None
    leader.stdin.close()
    async with asyncio.timeout(60):
        await over.wait()
    assert not any(map(is_alive, left))
    assert not watching.any_alive()
    assert descriptors() == before - 1  # the pipe
    leader.wait()
