"""The supervision of a process whose exit the test controls."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import timedelta

import pytest

from ductile.runner.port import (
    DeadlinePassed,
    Exited,
    ExitStatus,
    ForkServerLost,
    GracePeriods,
    Launch,
    StartedBy,
    StoppedOnRequest,
)
from ductile.runner.process import supervisor
from ductile.runner.process.handle import OnExit
from ductile.runner.process.supervisor import PipeEnds, SupervisedProcess, open_pipes, write_request


class FakeHandle:
    """The handle of a process; the test decides when the process exits and when that is reported."""

    pid = 2**30

    def __init__(self) -> None:
        self.exited = False
        self.on_exit: OnExit | None = None
        self.watched = asyncio.Event()
        self.signals: list[signal.Signals] = []
        self.killed = asyncio.Event()
        self.reaped = False
        self.status: ExitStatus | None = None

    def watch(self, on_exit: OnExit) -> None:
        self.on_exit = on_exit
        self.watched.set()

    def has_exited(self) -> bool:
        return self.exited

    def signal_group(self, number: signal.Signals) -> None:
        self.signals.append(number)
        if number is signal.SIGKILL:
            self.killed.set()

    def reap(self) -> ExitStatus | None:
        self.reaped = True
        return self.status

    def exit(self, status: ExitStatus) -> None:
        """Report the exit to the supervisor."""
        assert self.on_exit is not None
        self.status = status
        self.on_exit()


def supervise(
    handle: FakeHandle,
    pipes: PipeEnds,
    grace: GracePeriods,
    *,
    timeout: timedelta = timedelta(0),
    active: set[SupervisedProcess] | None = None,
) -> SupervisedProcess:
    """Supervise a process whose deadline is now by default."""
    launch = Launch(entrypoint="/x", request=b"", environment={}, directory="/", timeout=timeout)
    return SupervisedProcess(
        handle=handle,
        started_at=asyncio.get_running_loop().time(),
        pipes=pipes.daemon_ends,
        launch=launch,
        unsent=write_request(pipes.daemon_ends[0], launch.request),
        grace=grace,
        started_by=StartedBy.SPAWN,
        active=set() if active is None else active,
    )


async def deadline_passes() -> None:
    """Let the loop run the callbacks that are due."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_an_exit_before_the_deadline_counts_although_it_is_noticed_later() -> None:
    """The response of the process decides."""
    handle, pipes = FakeHandle(), open_pipes()
    handle.exited = True
    process = supervise(handle, pipes, GracePeriods())
    await deadline_passes()
    os.write(pipes.plugin_ends[1], b"answer")
    pipes.close_plugin_ends()
    handle.exit(ExitStatus(exit_code=0))
    ending = await process.wait()
    assert isinstance(ending, Exited)
    assert ending.output.stdout == b"answer"
    assert handle.reaped


async def test_a_process_that_runs_at_the_deadline_is_timed_out() -> None:
    """The process may exit by itself a moment later."""
    handle, pipes = FakeHandle(), open_pipes()
    process = supervise(handle, pipes, GracePeriods())
    await deadline_passes()
    assert handle.signals == [signal.SIGTERM]
    pipes.close_plugin_ends()
    handle.exit(ExitStatus(exit_code=0))
    assert isinstance(await process.wait(), DeadlinePassed)
    assert handle.signals == [signal.SIGTERM, signal.SIGKILL]


async def test_a_lost_exit_event_is_found_by_polling() -> None:
    """A job does not hang if the fork server that should report its exit hangs."""
    handle, pipes = FakeHandle(), open_pipes()
    handle.exited = True
    process = supervise(handle, pipes, GracePeriods(after_terminate=0.0, for_group_members=0.0))
    pipes.close_plugin_ends()
    assert isinstance(await process.wait(), ForkServerLost)
    handle.exit(ExitStatus(exit_code=0))
    assert isinstance(await process.wait(), ForkServerLost)


async def test_a_passed_deadline_counts_although_the_status_is_lost() -> None:
    """The process was running at its deadline; its exit status does not matter."""
    handle, pipes = FakeHandle(), open_pipes()
    process = supervise(handle, pipes, GracePeriods(after_terminate=0.0, for_group_members=0.0))
    await asyncio.wait_for(handle.killed.wait(), 60)
    handle.exited = True
    pipes.close_plugin_ends()
    ending = await process.wait()
    assert isinstance(ending, DeadlinePassed)


async def test_pipes_are_read_when_the_leader_has_exited(monkeypatch: pytest.MonkeyPatch) -> None:
    """During the first moment only the exit is watched."""
    monkeypatch.setattr(supervisor, "QUICK_EXIT_SECONDS", 3600)
    handle, pipes = FakeHandle(), open_pipes()
    process = supervise(handle, pipes, GracePeriods(), timeout=timedelta(hours=1))
    os.write(pipes.plugin_ends[1], b"answer")
    os.write(pipes.plugin_ends[2], b"words")
    pipes.close_plugin_ends()
    await deadline_passes()
    handle.exit(ExitStatus(exit_code=0))
    ending = await process.wait()
    assert isinstance(ending, Exited)
    assert (ending.output.stdout, ending.output.stderr) == (b"answer", b"words")
    assert handle.signals == [signal.SIGKILL]  # once, because the pid of a reaped process may be reused


async def test_the_pipes_of_a_longer_process_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that prints more than a pipe can buffer does not block until its deadline."""
    monkeypatch.setattr(supervisor, "QUICK_EXIT_SECONDS", 0)
    handle, pipes = FakeHandle(), open_pipes()
    process = supervise(handle, pipes, GracePeriods(), timeout=timedelta(hours=1))
    printed = b"x" * 1_000_000
    await asyncio.to_thread(write_all, pipes.plugin_ends[1], printed)
    pipes.close_plugin_ends()
    handle.exit(ExitStatus(exit_code=0))
    assert (await process.wait()).output.stdout == printed  # type: ignore[union-attr]  # the process has exited


def write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


async def test_a_caller_of_wait_may_be_cancelled() -> None:
    """A cancelled caller affects neither the process nor the other callers."""
    handle, pipes = FakeHandle(), open_pipes()
    process = supervise(handle, pipes, GracePeriods(), timeout=timedelta(hours=1))
    cancelled_caller, other_caller = (asyncio.create_task(process.wait()) for _ in range(2))
    await asyncio.sleep(0)
    cancelled_caller.cancel()
    pipes.close_plugin_ends()
    handle.exit(ExitStatus(exit_code=0))
    assert isinstance(await other_caller, Exited)
    assert isinstance(await process.wait(), Exited)
    assert cancelled_caller.cancelled()


async def test_the_exit_is_noticed_while_others_hold_the_pipes() -> None:
    """Leftover processes cannot hide the exit of the handle."""
    handle, pipes = FakeHandle(), open_pipes()
    process = supervise(handle, pipes, GracePeriods(for_group_members=0), timeout=timedelta(hours=1))
    await asyncio.wait_for(handle.watched.wait(), 60)
    handle.exit(ExitStatus(exit_code=0))
    ending = await process.wait()
    assert isinstance(ending, Exited)
    assert ending.output.leftovers
    pipes.close_plugin_ends()


async def test_the_exit_of_a_stopped_process_is_noticed() -> None:
    """Other processes may hold the pipes."""
    handle, pipes = FakeHandle(), open_pipes()
    process = supervise(handle, pipes, GracePeriods(for_group_members=0), timeout=timedelta(hours=1))
    process.stop()
    assert handle.on_exit is not None
    handle.exit(ExitStatus(signal=signal.SIGTERM))
    assert isinstance(await process.wait(), StoppedOnRequest)
    pipes.close_plugin_ends()


async def test_a_stop_within_the_first_moment_is_still_followed_by_a_kill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The timer of the first moment does not replace the timer of SIGKILL after SIGTERM."""
    monkeypatch.setattr(supervisor, "QUICK_EXIT_SECONDS", 0.001)
    handle, pipes = FakeHandle(), open_pipes()
    process = supervise(handle, pipes, GracePeriods(after_terminate=0.01), timeout=timedelta(hours=1))
    process.stop()
    await asyncio.wait_for(handle.killed.wait(), 60)
    handle.exit(ExitStatus(signal=signal.SIGKILL))
    pipes.close_plugin_ends()
    assert isinstance(await process.wait(), StoppedOnRequest)
    assert handle.signals[:2] == [signal.SIGTERM, signal.SIGKILL]


class ExitedHandle(FakeHandle):
    """The handle of a process that has exited before it is watched."""

    def watch(self, on_exit: OnExit) -> None:
        self.status = ExitStatus(exit_code=0)
        on_exit()


async def test_a_process_that_has_exited_before_it_is_supervised_finishes_at_once() -> None:
    pipes, active = open_pipes(), set[SupervisedProcess]()
    os.write(pipes.plugin_ends[1], b"answer")
    pipes.close_plugin_ends()
    handle = ExitedHandle()
    process = supervise(handle, pipes, GracePeriods(), timeout=timedelta(seconds=9), active=active)
    assert not active
    assert handle.reaped
    ending = await process.wait()
    assert isinstance(ending, Exited)
    assert ending.output.stdout == b"answer"


async def test_a_process_is_active_until_it_has_finished() -> None:
    handle, pipes, active = FakeHandle(), open_pipes(), set[SupervisedProcess]()
    process = supervise(handle, pipes, GracePeriods(), timeout=timedelta(seconds=9), active=active)
    assert active == {process}
    pipes.close_plugin_ends()
    handle.exit(ExitStatus(exit_code=0))
    await process.wait()
    assert not active
