"""How the loop hears of a process that a helper thread has started."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import time
from pathlib import Path

import pytest

from builders.zoo import OK, a_run, an_executable, children, open_descriptors
from ductile.runner.port import CouldNotStart, Exited
from ductile.runner.process import spawn, spawn_threads
from ductile.runner.process.exit_watcher import ExitWatcher
from ductile.runner.process.spawn import SpawnRunner
from ductile.runner.process.supervisor import SupervisedProcess

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="there are no pidfds here")


@pytest.fixture(autouse=True)
def _always_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawn, "_BUSY", 0)


@pytest.fixture
def _never_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawn_threads, "_UNTOLD", 10_000)


@pytest.mark.usefixtures("_never_looks")
async def test_the_end_of_a_process_is_enough_to_hear_of_its_start(tmp_path: Path) -> None:
    """However the two race: a thousand ends, and no other word to go by."""
    runner, run = SpawnRunner(), a_run(an_executable(tmp_path, f"#!/bin/sh\necho '{OK}'\n"))

    async def one_after_another() -> None:
        for _ in range(125):
            process = await runner.start(run)
            assert isinstance(process, SupervisedProcess)
            ending = await process.wait()
            assert isinstance(ending, Exited)
            assert ending.remains.stdout.decode().strip() == OK

    await asyncio.wait_for(asyncio.gather(*(one_after_another() for _ in range(8))), 90)
    await runner.close()


@pytest.mark.usefixtures("_never_looks")
async def test_what_could_not_be_started_is_told_at_once(tmp_path: Path) -> None:
    runner = SpawnRunner()
    made = await asyncio.wait_for(runner.start(a_run(tmp_path / "nothing")), 20)
    assert isinstance(made, CouldNotStart)
    await runner.close()


async def test_a_process_that_goes_on_is_known_while_it_runs(tmp_path: Path) -> None:
    """Somebody may want to cancel it, and its pipes must not fill up."""
    runner = SpawnRunner()
    made = await asyncio.wait_for(
        runner.start(a_run(an_executable(tmp_path, "#!/bin/sh\nexec sleep 600\n"))), 20
    )
    assert isinstance(made, SupervisedProcess)
    made.stop()
    await asyncio.wait_for(made.wait(), 20)
    await runner.close()


@pytest.mark.usefixtures("_never_looks")
async def test_a_process_is_timed_from_its_start_and_not_from_when_we_heard_of_it(tmp_path: Path) -> None:
    """The deadline is the plugin's, however busy we are. It begins when it has its request."""
    fifo = tmp_path / "go"
    os.mkfifo(fifo)

    def let_it_end() -> float:
        """How long it had run by then, at least."""
        with fifo.open("w") as go:  # waits until it has been opened on the other side
            began = time.monotonic()
            subprocess.run(["/bin/sh", "-c", ":"], check=True)  # takes a while
            ran = time.monotonic() - began
            go.write("go\n")
        return ran

    runner = SpawnRunner()
    starting = asyncio.create_task(
        runner.start(a_run(an_executable(tmp_path, f"#!/bin/sh\ncat\nread -r line <{fifo}\necho '{OK}'\n")))
    )
    ran = await asyncio.to_thread(let_it_end)
    made = await asyncio.wait_for(starting, 20)
    assert isinstance(made, SupervisedProcess)
    assert made.age >= ran
    ending = await made.wait()
    assert isinstance(ending, Exited)
    assert ending.remains.duration.total_seconds() >= ran
    await runner.close()


async def test_a_process_that_cannot_be_watched_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would run unseen until the next start. It has not been given its request."""

    def fail(_self: ExitWatcher, _descriptor: int) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(ExitWatcher, "arm", fail)
    runner, before = SpawnRunner(), open_descriptors().keys()
    made = await runner.start(a_run(an_executable(tmp_path, "#!/bin/sh\nexec sleep 600\n")))
    assert isinstance(made, CouldNotStart)
    assert not made.permanent
    assert not children()
    await runner.close()
    assert open_descriptors().keys() == before


async def test_who_comes_while_it_closes_is_ended_too(tmp_path: Path) -> None:
    """And watched to its end: what tells of ends is not closed before."""
    runner = SpawnRunner()
    lasting = an_executable(tmp_path, "#!/bin/sh\nexec sleep 600\n")
    first = await runner.start(a_run(lasting))
    assert isinstance(first, SupervisedProcess)
    closing = asyncio.create_task(runner.close())
    await asyncio.sleep(0)
    late = asyncio.create_task(runner.start(a_run(lasting)))
    await asyncio.wait_for(closing, 60)
    made = await asyncio.wait_for(late, 60)
    assert isinstance(made, SupervisedProcess)
    await asyncio.wait_for(made.wait(), 60)
    await runner.close()
    assert not children()
