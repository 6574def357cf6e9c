"""Processes are spawned in threads and handed over to the loop."""

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
    """A thousand processes have their own output, however spawn and exit race."""
    runner, launch = SpawnRunner(), a_launch(an_executable(tmp_path, f"#!/bin/sh\necho '{OK}'\n"))

    async def run_in_sequence() -> None:
        for _ in range(125):
            process = await runner.start(launch)
            assert isinstance(process, SupervisedProcess)
            ending = await process.wait()
            assert isinstance(ending, Exited)
            assert ending.output.stdout.decode().strip() == OK

    await asyncio.wait_for(asyncio.gather(*(run_in_sequence() for _ in range(8))), 90)
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
    """The loop is blocked while the process runs, so the time of the hand-over does not count."""
    fifo = tmp_path / "go"
    os.mkfifo(fifo)

    def let_it_end() -> float:
        """Let the process end, and return how long it ran at least."""
        with fifo.open("w") as go:  # blocks until the process has opened it
            started_at = time.monotonic()
            subprocess.run(["/bin/sh", "-c", ":"], check=True)  # takes some milliseconds
            run_time = time.monotonic() - started_at
            go.write("go\n")
        return run_time

    runner = SpawnRunner()
    starting = asyncio.create_task(
        runner.start(
            a_launch(an_executable(tmp_path, f"#!/bin/sh\ncat\nread -r line <{fifo}\necho '{OK}'\n"))
        )
    )
    await asyncio.sleep(0)
    run_time = let_it_end()
    started = await asyncio.wait_for(starting, 60)
    assert isinstance(started, SupervisedProcess)
    assert started.age >= run_time
    ending = await started.wait()
    assert isinstance(ending, Exited)
    assert ending.output.duration.total_seconds() >= run_time
    await runner.close()


async def test_a_process_that_cannot_be_watched_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would run until the next start of the daemon. It has not received its request."""

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
    late_start = asyncio.create_task(runner.start(a_launch(lasting)))
    await asyncio.wait_for(closing, 60)
    started = await asyncio.wait_for(late_start, 60)
    assert isinstance(started, SupervisedProcess)
    await asyncio.wait_for(started.wait(), 60)
    await runner.close()
    assert not children()


async def test_a_process_whose_caller_was_cancelled_is_killed(tmp_path: Path) -> None:
    """The caller is cancelled while the thread spawns; the runner waits for the process before it closes."""
    runner = SpawnRunner()
    starting = asyncio.create_task(runner.start(a_launch(an_executable(tmp_path, LASTING))))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await asyncio.wait_for(runner.close(), 60)
    assert not children()


async def test_a_process_whose_caller_is_cancelled_at_the_hand_over_is_killed(tmp_path: Path) -> None:
    """The caller is cancelled after the hand-over and before it takes the process."""
    runner = SpawnRunner()
    starting = asyncio.create_task(runner.start(a_launch(an_executable(tmp_path, LASTING))))
    async with asyncio.timeout(60):
        while not starting.done():
            if runner.active:  # this task runs before the caller, which the hand-over has woken
                starting.cancel()
            await asyncio.sleep(0)
    assert starting.cancelled()
    await asyncio.wait_for(runner.close(), 60)
    assert not children()


async def test_without_a_thread_nothing_is_started_then_or_later(tmp_path: Path) -> None:
    """A machine without processes has no threads either: the job goes back to the queue."""
    marker = tmp_path / "ran"
    launch = a_launch(an_executable(tmp_path, f"#!/bin/sh\necho once >>{marker}\n"))
    runner = SpawnRunner()
    default_size = threading.stack_size(NO_STACK)
    try:
        refused = await runner.start(launch)
    finally:
        threading.stack_size(default_size)
    assert isinstance(refused, CouldNotStart)
    assert refused.resources_exhausted
    started = await asyncio.wait_for(runner.start(launch), 60)
    assert isinstance(started, SupervisedProcess)
    await asyncio.wait_for(started.wait(), 60)
    await asyncio.wait_for(runner.close(), 60)
    assert not children()
    assert marker.read_text() == "once\n"
