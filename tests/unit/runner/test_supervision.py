"""The deadline and an end that is noticed late (SPEC 3.4)."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import timedelta

from ductile.runner.leader import OnExit
from ductile.runner.pipes import PipeEnds, open_pipes
from ductile.runner.port import (
    DeadlinePassed,
    Exited,
    ExitStatus,
    Patience,
    Run,
    RunnerLost,
    StartedBy,
)
from ductile.runner.supervision import Supervised


class SlowWord:
    """A leader of which the test decides when it ends, and when that is told."""

    pid = 2**30

    def __init__(self) -> None:
        self.exited = False
        self.told: OnExit | None = None
        self.signals: list[signal.Signals] = []
        self.reaped = False

    def watch(self, on_exit: OnExit) -> None:
        self.told = on_exit

    def has_exited(self) -> bool:
        return self.exited

    def signal_group(self, number: signal.Signals) -> None:
        self.signals.append(number)

    def reap(self) -> None:
        self.reaped = True

    def tell(self, status: ExitStatus) -> None:
        assert self.told is not None
        self.told(status)


def supervised(leader: SlowWord, pipes: PipeEnds, patience: Patience) -> Supervised:
    """A process whose deadline is now."""
    run = Run(entrypoint="/x", request=b"", environment={}, directory="/", timeout=timedelta(0))
    return Supervised(
        leader=leader,
        ours=pipes.ours,
        run=run,
        patience=patience,
        started_by=StartedBy.SPAWN,
        on_end=lambda _: None,
    )


async def deadline_passes() -> None:
    """Let the loop run what is due."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_process_that_has_exited_at_the_deadline_is_judged_by_its_answer() -> None:
    """SPEC 3.4: its result counts, although we heard of its end after the deadline."""
    leader, pipes = SlowWord(), open_pipes()
    leader.exited = True
    process = supervised(leader, pipes, Patience())
    await deadline_passes()
    os.write(pipes.theirs[1], b"answer")
    pipes.close_theirs()
    leader.tell(ExitStatus(exit_code=0))
    ending = await process.wait()
    assert isinstance(ending, Exited)
    assert ending.remains.stdout == b"answer"
    assert leader.reaped


async def test_a_process_that_runs_at_the_deadline_is_timed_out() -> None:
    """SPEC 3.4: even if it ends by itself a moment later."""
    leader, pipes = SlowWord(), open_pipes()
    process = supervised(leader, pipes, Patience())
    await deadline_passes()
    assert leader.signals == [signal.SIGTERM]
    pipes.close_theirs()
    leader.tell(ExitStatus(exit_code=0))
    assert isinstance(await process.wait(), DeadlinePassed)
    assert leader.signals == [signal.SIGTERM, signal.SIGKILL]


async def test_an_end_that_nobody_tells_is_given_up() -> None:
    """SPEC 3.4: a job cannot hang because whoever was to report its end does."""
    leader, pipes = SlowWord(), open_pipes()
    leader.exited = True
    process = supervised(leader, pipes, Patience(after_terminate=0.0, for_leftovers=0.0))
    pipes.close_theirs()
    assert isinstance(await process.wait(), RunnerLost)
    leader.tell(ExitStatus(exit_code=0))
    assert isinstance(await process.wait(), RunnerLost)
