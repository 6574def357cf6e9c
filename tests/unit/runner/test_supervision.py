"""The deadline and an end that is noticed late."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import timedelta
from typing import Any

import pytest

from ductile.runner.port import (
    DeadlinePassed,
    Exited,
    ExitStatus,
    GracePeriods,
    Launch,
    RunnerLost,
    StartedBy,
    StoppedOnRequest,
)
from ductile.runner.process import supervisor
from ductile.runner.process.handle import OnExit
from ductile.runner.process.pipes import PipeEnds, open_pipes, write_request
from ductile.runner.process.supervisor import SharedTimer, SupervisedProcess


class SlowWord:
    """A leader of which the test decides when it ends, and when that is told."""

    pid = 2**30

    def __init__(self) -> None:
        self.exited = False
        self.told: OnExit | None = None
        self.watched = asyncio.Event()
        self.signals: list[signal.Signals] = []
        self.killed = asyncio.Event()
        self.reaped = False
        self.status: ExitStatus | None = None

    def watch(self, on_exit: OnExit) -> None:
        self.told = on_exit
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

    def tell(self, status: ExitStatus) -> None:
        assert self.told is not None
        self.status = status
        self.told()


def supervised(
    leader: SlowWord,
    pipes: PipeEnds,
    patience: GracePeriods,
    *,
    timeout: timedelta = timedelta(0),
    moments: SharedTimer | None = None,
    among: set[SupervisedProcess] | None = None,
) -> SupervisedProcess:
    """A process whose deadline is now, unless told otherwise."""
    run = Launch(entrypoint="/x", request=b"", environment={}, directory="/", timeout=timeout)
    return SupervisedProcess(
        leader=leader,
        started_at=asyncio.get_running_loop().time(),
        ours=pipes.ours,
        run=run,
        rest=write_request(pipes.ours[0], run.request),
        patience=patience,
        moments=moments or SharedTimer(),
        started_by=StartedBy.SPAWN,
        among=set() if among is None else among,
    )


async def deadline_passes() -> None:
    """Let the loop run what is due."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_process_that_has_exited_at_the_deadline_is_judged_by_its_answer() -> None:
    """Its result counts, although we heard of its end after the deadline."""
    leader, pipes = SlowWord(), open_pipes()
    leader.exited = True
    process = supervised(leader, pipes, GracePeriods())
    await deadline_passes()
    os.write(pipes.theirs[1], b"answer")
    pipes.close_theirs()
    leader.tell(ExitStatus(exit_code=0))
    ending = await process.wait()
    assert isinstance(ending, Exited)
    assert ending.remains.stdout == b"answer"
    assert leader.reaped


async def test_a_process_that_runs_at_the_deadline_is_timed_out() -> None:
    """Even if it ends by itself a moment later."""
    leader, pipes = SlowWord(), open_pipes()
    process = supervised(leader, pipes, GracePeriods())
    await deadline_passes()
    assert leader.signals == [signal.SIGTERM]
    pipes.close_theirs()
    leader.tell(ExitStatus(exit_code=0))
    assert isinstance(await process.wait(), DeadlinePassed)
    assert leader.signals == [signal.SIGTERM, signal.SIGKILL]


async def test_an_end_that_nobody_tells_is_given_up() -> None:
    """A job cannot hang because whoever was to report its end does."""
    leader, pipes = SlowWord(), open_pipes()
    leader.exited = True
    process = supervised(leader, pipes, GracePeriods(after_terminate=0.0, for_leftovers=0.0))
    pipes.close_theirs()
    assert isinstance(await process.wait(), RunnerLost)
    leader.tell(ExitStatus(exit_code=0))
    assert isinstance(await process.wait(), RunnerLost)


async def test_a_deadline_that_passed_is_one_whoever_was_lost_afterwards() -> None:
    """It ran at its deadline and was ended for that; how it ended does not matter."""
    leader, pipes = SlowWord(), open_pipes()
    process = supervised(leader, pipes, GracePeriods(after_terminate=0.0, for_leftovers=0.0))
    await asyncio.wait_for(leader.killed.wait(), 20)
    leader.exited = True
    pipes.close_theirs()
    ending = await process.wait()
    assert isinstance(ending, DeadlinePassed)


async def test_pipes_are_read_when_the_leader_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most plugins end within a moment: until then only their end is watched."""
    monkeypatch.setattr(supervisor, "_QUICK_EXIT_SECONDS", 3600)
    leader, pipes = SlowWord(), open_pipes()
    process = supervised(leader, pipes, GracePeriods(), timeout=timedelta(hours=1))
    os.write(pipes.theirs[1], b"answer")
    os.write(pipes.theirs[2], b"words")
    pipes.close_theirs()
    await deadline_passes()
    leader.tell(ExitStatus(exit_code=0))
    ending = await process.wait()
    assert isinstance(ending, Exited)
    assert (ending.remains.stdout, ending.remains.stderr) == (b"answer", b"words")
    assert leader.signals == [signal.SIGKILL]  # once: after it was reaped the number is somebody else's


async def test_a_leader_that_goes_on_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever prints more than a pipe holds is not left blocked until its deadline."""
    monkeypatch.setattr(supervisor, "_QUICK_EXIT_SECONDS", 0)
    leader, pipes = SlowWord(), open_pipes()
    process = supervised(leader, pipes, GracePeriods(), timeout=timedelta(hours=1))
    printed = b"x" * 1_000_000
    await asyncio.to_thread(write_all, pipes.theirs[1], printed)
    pipes.close_theirs()
    leader.tell(ExitStatus(exit_code=0))
    assert (await process.wait()).remains.stdout == printed  # type: ignore[union-attr]  # nobody lost it


def write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


async def test_who_waits_may_be_cancelled() -> None:
    """The port: a caller that goes away touches neither the process nor whoever else waits for it."""
    leader, pipes = SlowWord(), open_pipes()
    process = supervised(leader, pipes, GracePeriods(), timeout=timedelta(hours=1))
    gone, stays = (asyncio.create_task(process.wait()) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    pipes.close_theirs()
    leader.tell(ExitStatus(exit_code=0))
    assert isinstance(await stays, Exited)
    assert isinstance(await process.wait(), Exited)
    assert gone.cancelled()


async def test_a_leader_that_goes_on_is_watched_though_its_pipes_are_open() -> None:
    """Whoever else holds a pipe cannot hide the leader's end."""
    leader, pipes = SlowWord(), open_pipes()
    process = supervised(leader, pipes, GracePeriods(for_leftovers=0), timeout=timedelta(hours=1))
    await asyncio.wait_for(leader.watched.wait(), 20)
    leader.tell(ExitStatus(exit_code=0))
    ending = await process.wait()
    assert isinstance(ending, Exited)
    assert ending.remains.leftovers
    pipes.close_theirs()


async def test_a_leader_that_is_stopped_is_watched_from_then_on() -> None:
    """Its end must be seen even if others keep its pipes open."""
    leader, pipes = SlowWord(), open_pipes()
    process = supervised(leader, pipes, GracePeriods(for_leftovers=0), timeout=timedelta(hours=1))
    process.stop()
    assert leader.told is not None
    leader.tell(ExitStatus(signal=signal.SIGTERM))
    assert isinstance(await process.wait(), StoppedOnRequest)
    pipes.close_theirs()


async def test_who_is_being_stopped_when_its_moment_is_over_is_still_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SIGTERM, then SIGKILL; that the process went on for a moment takes nothing of that back."""
    monkeypatch.setattr(supervisor, "_QUICK_EXIT_SECONDS", 0.001)
    leader, pipes = SlowWord(), open_pipes()
    moments = SharedTimer()
    process = supervised(
        leader, pipes, GracePeriods(after_terminate=0.01), timeout=timedelta(hours=1), moments=moments
    )
    process.stop()
    over = asyncio.Event()
    moments.after_one(asyncio.get_running_loop(), over.set)
    await asyncio.wait_for(over.wait(), 20)
    await asyncio.wait_for(leader.killed.wait(), 20)
    leader.tell(ExitStatus(signal=signal.SIGKILL))
    pipes.close_theirs()
    assert isinstance(await process.wait(), StoppedOnRequest)
    assert leader.signals[:2] == [signal.SIGTERM, signal.SIGKILL]


async def test_moments_pass_in_the_order_in_which_they_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """One timer for all, and armed again for who comes while it runs or after it has."""
    monkeypatch.setattr(supervisor, "_QUICK_EXIT_SECONDS", 0.001)
    loop, moments, passed = asyncio.get_running_loop(), SharedTimer(), asyncio.Queue[int]()
    for number in range(3):
        moments.after_one(loop, lambda number=number: passed.put_nowait(number))  # type: ignore[misc]
    assert [await asyncio.wait_for(passed.get(), 20) for _ in range(3)] == [0, 1, 2]
    moments.after_one(loop, lambda: passed.put_nowait(3))
    assert await asyncio.wait_for(passed.get(), 20) == 3


async def test_a_moment_that_fails_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_QUICK_EXIT_SECONDS", 0.001)
    loop, moments, passed = asyncio.get_running_loop(), SharedTimer(), asyncio.Event()
    complaints: list[object] = []
    loop.set_exception_handler(lambda _loop, context: complaints.append(context["exception"]))
    moments.after_one(loop, lambda: 1 / 0)  # type: ignore[arg-type]
    moments.after_one(loop, passed.set)
    await asyncio.wait_for(passed.wait(), 20)
    assert [type(each) for each in complaints] == [ZeroDivisionError]


class TurnedByHand:
    """A loop whose clock the test turns."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Any]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, then: Any, *args: Any) -> None:
        self.call_at(self.now + delay, then, *args)

    def call_at(self, when: float, then: Any, *args: Any) -> None:
        self.timers.append((when, lambda: then(*args)))

    def call_soon(self, then: Any) -> None:
        then()

    def turn_to(self, now: float) -> None:
        self.now = now
        due, self.timers = (
            [timer for timer in self.timers if timer[0] <= now],
            [timer for timer in self.timers if timer[0] > now],
        )
        for _, then in due:
            then()


def test_who_came_while_the_timer_ran_gets_a_whole_moment_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise whoever fills a pipe would be left blocked, and never meet its deadline."""
    monkeypatch.setattr(supervisor, "_QUICK_EXIT_SECONDS", 10)
    loop, moments, passed = TurnedByHand(), SharedTimer(), list[str]()
    moments.after_one(loop, lambda: passed.append("first"))  # type: ignore[arg-type]
    loop.turn_to(4)
    moments.after_one(loop, lambda: passed.append("second"))  # type: ignore[arg-type]
    assert len(loop.timers) == 1, "one timer for both"
    loop.turn_to(10)
    assert passed == ["first"]
    loop.turn_to(14)
    assert passed == ["first", "second"]
    assert loop.timers == [], "nobody waits, and nothing runs"


class HasEnded(SlowWord):
    """A leader that had ended before anybody asked."""

    def watch(self, on_exit: OnExit) -> None:
        self.status = ExitStatus(exit_code=0)
        on_exit()


async def test_a_process_that_has_ended_before_we_hear_of_it_is_over_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not among those that run, whose ends are waited for, and nothing more comes for it."""
    pipes, running, moments = open_pipes(), set[SupervisedProcess](), SharedTimer()
    monkeypatch.setattr(moments, "after_one", lambda *_: pytest.fail("it has no moment any more"))
    os.write(pipes.theirs[1], b"answer")
    pipes.close_theirs()
    leader = HasEnded()
    process = supervised(
        leader, pipes, GracePeriods(), timeout=timedelta(seconds=9), moments=moments, among=running
    )
    assert not running
    assert leader.reaped
    ending = await process.wait()
    assert isinstance(ending, Exited)
    assert ending.remains.stdout == b"answer"


async def test_a_process_is_among_those_that_run_until_it_has_ended() -> None:
    leader, pipes, running = SlowWord(), open_pipes(), set[SupervisedProcess]()
    process = supervised(leader, pipes, GracePeriods(), timeout=timedelta(seconds=9), among=running)
    assert running == {process}
    pipes.close_theirs()
    leader.tell(ExitStatus(exit_code=0))
    await process.wait()
    assert not running
