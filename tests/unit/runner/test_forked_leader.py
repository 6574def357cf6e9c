"""The leader of a group whose parent is a fork server: its end is told, whenever somebody begins to watch."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from typing import cast

import pytest

from ductile.runner.port import ExitStatus
from ductile.runner.warm.client import ForkedHandle, ForkServerClient


class NoServer:
    """A leader needs its server only to be reaped."""

    def reap(self, pid: int) -> None:
        pass


NO_SERVER = cast("ForkServerClient", NoServer())


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "300"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


async def told(leader: ForkedHandle) -> ExitStatus | None:
    """How it ended, when that is told."""
    heard = asyncio.Event()
    leader.watch(heard.set)
    async with asyncio.timeout(20):
        await heard.wait()
    return leader.reap()


async def test_lost_before_it_is_watched(process: subprocess.Popen[bytes]) -> None:
    """The server is gone between the fork and the watching; nobody waits for ever for its word."""
    leader = ForkedHandle(process.pid, NO_SERVER)
    leader.lost()
    assert await told(leader) is None
    assert process.wait(20) == -9, "its group is ended with it"


async def test_lost_while_it_is_watched(process: subprocess.Popen[bytes]) -> None:
    leader = ForkedHandle(process.pid, NO_SERVER)
    asyncio.get_running_loop().call_soon(leader.lost)
    assert await told(leader) is None


async def test_ended_before_it_is_watched(process: subprocess.Popen[bytes]) -> None:
    """A quick plugin has ended before we know that it began."""
    leader = ForkedHandle(process.pid, NO_SERVER)
    leader.ended(ExitStatus(exit_code=3))
    leader.lost()
    assert await told(leader) == ExitStatus(exit_code=3)
