"""Processes that are spawned in threads and handed over to the loop."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from builders.bad_plugins import OK, a_launch, an_executable, children, open_descriptors
from ductile.runner.port import CouldNotStart, Exited
from ductile.runner.process.spawn import SpawnRunner
from ductile.runner.process.supervisor import SupervisedProcess

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="there are no pidfds here")

LASTING = "#!/bin/sh\nexec sleep 600\n"
#: More bytes than any address space has: no thread with such a stack can be started.
NO_STACK = 2**46


async def test_many_processes_at_once(tmp_path: Path) -> None:
    """However spawn and exit race: a thousand processes, each with its own output."""
    runner, launch = SpawnRunner(), a_launch(an_executable(tmp_path, f"#!/bin/sh\necho '{OK}'\n"))

    async def one_after_another() -> None:
        for _ in range(125):
            process = await runner.start(launch)
            assert isinstance(process, SupervisedProcess)
            ending = await process.wait()
            assert isinstance(ending, Exited)
            assert ending.output.stdout.decode().strip() == OK

    await asyncio.wait_for(asyncio.gather(*(one_after_another() for _ in range(8))), 90)
    await runner.close()


async def test_a_missing_program_is_reported(tmp_path: Path) -> None:
    runner = SpawnRunner()
    started = await asyncio.wait_for(runner.start(a_launch(tmp_path / "nothing")), 60)
    assert isinstance(started, CouldNotStart)
    await runner.close()


async def test_a_running_process_can_be_stopped(tmp_path: Path) -> None:
    runner = SpawnRunner()
    started = await asyncio.wait_for(runner.start(a_launch(an_executable(tmp_path, LASTING))), 60)
    assert isinstance(started, SupervisedProcess)
    started.stop()
    await asyncio.wait_for(started.wait(), 60)
    await runner.close()


async def test_a_process_is_timed_from_its_start(tmp_path: Path) -> None:
    """Not from when the loop had time for it: the loop is blocked while the process runs."""
    fifo = tmp_path / "go"
    os.mkfifo(fifo)

    def let_it_end() -> float:
        """Return how long the process had run by then, at least."""
        with fifo.open("w") as go:  # blocks until the process has opened it
            began = time.monotonic()
            subprocess.run(["/bin/sh", "-c", ":"], check=True)  # takes a while
            ran = time.monotonic() - began
            go.write("go\n")
        return ran

    runner = SpawnRunner()
    starting = asyncio.create_task(
        runner.start(
            a_launch(an_executable(tmp_path, f"#!/bin/sh\ncat\nread -r line <{fifo}\necho '{OK}'\n"))
        )
    )
    await asyncio.sleep(0)
    ran = let_it_end()
    started = await asyncio.wait_for(starting, 60)
    assert isinstance(started, SupervisedProcess)
    assert started.age >= ran
    ending = await started.wait()
    assert isinstance(ending, Exited)
    assert ending.output.duration.total_seconds() >= ran
    await runner.close()


async def test_a_process_that_cannot_be_watched_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would run unseen until the next start of the daemon. It has not received its request."""

    def fail(_pid: int) -> int:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(os, "pidfd_open", fail)
    runner, before = SpawnRunner(), open_descriptors().keys()
    started = await runner.start(a_launch(an_executable(tmp_path, LASTING)))
    assert isinstance(started, CouldNotStart)
    assert not started.permanent
    assert not children()
    await runner.close()
    assert open_descriptors().keys() == before


async def test_a_process_that_is_started_while_the_runner_closes_is_killed(tmp_path: Path) -> None:
    runner = SpawnRunner()
    lasting = an_executable(tmp_path, LASTING)
    first = await runner.start(a_launch(lasting))
    assert isinstance(first, SupervisedProcess)
    closing = asyncio.create_task(runner.close())
    await asyncio.sleep(0)
    late = asyncio.create_task(runner.start(a_launch(lasting)))
    await asyncio.wait_for(closing, 60)
    started = await asyncio.wait_for(late, 60)
    assert isinstance(started, SupervisedProcess)
    await asyncio.wait_for(started.wait(), 60)
    await runner.close()
    assert not children()


async def test_a_process_whose_caller_was_cancelled_is_killed(tmp_path: Path) -> None:
    """Cancelled while the thread spawns it: the runner does not close before it is gone."""
    runner = SpawnRunner()
    starting = asyncio.create_task(runner.start(a_launch(an_executable(tmp_path, LASTING))))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await asyncio.wait_for(runner.close(), 60)
    assert not children()


async def test_a_process_whose_caller_is_cancelled_at_the_hand_over_is_killed(tmp_path: Path) -> None:
    """Cancelled after the process was handed over and before the caller could take it."""
    runner = SpawnRunner()
    starting = asyncio.create_task(runner.start(a_launch(an_executable(tmp_path, LASTING))))
    async with asyncio.timeout(60):
        while not starting.done():
            if runner.active:  # this task runs before the caller, which was woken by the hand-over
                starting.cancel()
            await asyncio.sleep(0)
    assert starting.cancelled()
    await asyncio.wait_for(runner.close(), 60)
    assert not children()


async def test_without_a_thread_nothing_is_started_then_or_later(tmp_path: Path) -> None:
    """A machine that is short of processes is short of threads too: the job goes back to the queue."""
    ran = tmp_path / "ran"
    launch = a_launch(an_executable(tmp_path, f"#!/bin/sh\necho once >>{ran}\n"))
    runner = SpawnRunner()
    usual = threading.stack_size(NO_STACK)
    try:
        refused = await runner.start(launch)
    finally:
        threading.stack_size(usual)
    assert isinstance(refused, CouldNotStart)
    assert refused.resources_exhausted
    started = await asyncio.wait_for(runner.start(launch), 60)
    assert isinstance(started, SupervisedProcess)
    await asyncio.wait_for(started.wait(), 60)
    await asyncio.wait_for(runner.close(), 60)
    assert not children()
    assert ran.read_text() == "once\n"
