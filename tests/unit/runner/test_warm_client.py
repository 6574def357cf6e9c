"""The handle of a forked process reports the exit, whenever watching begins."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from typing import cast

import pytest

from ductile.runner.port import ExitStatus
from ductile.runner.warm.client import ForkedHandle, ForkServerClient


class NoServer:
    """A stub: a handle needs its server only to reap the process."""

    def reap(self, pid: int) -> None:
        pass


NO_SERVER = cast("ForkServerClient", NoServer())


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "300"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


async def exit_status(handle: ForkedHandle) -> ExitStatus | None:
    """Return the status when the exit is reported."""
    reported = asyncio.Event()
    handle.watch(reported.set)
    async with asyncio.timeout(60):
        await reported.wait()
    return handle.reap()


async def test_lost_before_it_is_watched(process: subprocess.Popen[bytes]) -> None:
    """The server is lost between the fork and the watching."""
    handle = ForkedHandle(process.pid, NO_SERVER)
    handle.mark_lost()
    assert await exit_status(handle) is None
    assert process.wait(60) == -9, "its group is killed"


async def test_lost_while_it_is_watched(process: subprocess.Popen[bytes]) -> None:
    handle = ForkedHandle(process.pid, NO_SERVER)
    asyncio.get_running_loop().call_soon(handle.mark_lost)
    assert await exit_status(handle) is None


async def test_ended_before_it_is_watched(process: subprocess.Popen[bytes]) -> None:
    """A quick plugin exits before it is supervised."""
    handle = ForkedHandle(process.pid, NO_SERVER)
    handle.mark_exited(ExitStatus(exit_code=3))
    handle.mark_lost()
    assert await exit_status(handle) == ExitStatus(exit_code=3)
