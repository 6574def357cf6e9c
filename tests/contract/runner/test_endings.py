"""Every way a plugin can end, over every runner: no plugin can hang, crash or leak (SPEC 3.3, 3.4)."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from builders.zoo import AMPLE, ANIMALS, a_run, an_animal, start, wait_until_gone
from ductile.core.jobs import Reason
from ductile.core.outcomes import Completed, Failed, Interrupted, Outcome, TimedOut
from ductile.runner.judgement import Judgement, Remark, judge
from ductile.runner.port import (
    MAX_STDERR,
    MAX_STDOUT,
    CouldNotStart,
    Ending,
    Exited,
    Patience,
    Process,
    Runner,
    RunnerLost,
    StartedBy,
    Stopped,
)
from ductile.runner.spawn import SpawnRunner
from ductile.runner.warm.pool import WarmRunner

SHORT = timedelta(seconds=0.2)
LARGE_REQUEST = b'{"padding": "' + b"x" * (1024 * 1024) + b'"}'


async def meet(
    runner: Runner,
    kind: StartedBy,
    place: Path,
    name: str,
    *,
    ends_after: timedelta = AMPLE,
    request: bytes = b"{}",
) -> Ending:
    process = await start(runner, a_run(an_animal(place, name), timeout=ends_after, request=request))
    assert process.started_by is kind
    return await process.wait()


async def judged(runner: Runner, kind: StartedBy, place: Path, name: str) -> Judgement:
    return judge(await meet(runner, kind, place, name))


def told(outcome: Outcome) -> tuple[Reason, bool]:
    assert isinstance(outcome, Failed), outcome
    return outcome.reason, outcome.permanent


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in ANIMALS
        if name.startswith("prints") and name not in {"prints 11 MiB", "prints without end"}
    ],
)
async def test_what_is_not_one_json_object_is_a_protocol_error(
    runner: Runner, kind: StartedBy, tmp_path: Path, name: str
) -> None:
    """SPEC 3.3: whatever a plugin prints, the attempt fails, may be retried, and its output is kept."""
    judgement = await judged(runner, kind, tmp_path, name)
    assert told(judgement.outcome) == (Reason.PROTOCOL_ERROR, False)
    stdout = judgement.outcome.evidence.stdout
    assert stdout is not None
    stdout.encode()  # storable: no lone surrogates
    assert bool(stdout) == (name != "prints nothing")


@pytest.mark.parametrize("name", ["answers", "closes stdin", "never reads"])
async def test_a_large_request_is_not_forced_on_anybody(
    runner: Runner, kind: StartedBy, tmp_path: Path, name: str
) -> None:
    """SPEC 3.3, 3.4: a plugin may read its request, ignore it or close the pipe."""
    ending = await meet(runner, kind, tmp_path, name, request=LARGE_REQUEST)
    assert isinstance(judge(ending).outcome, Completed)


async def test_the_request_arrives_whole_and_ends(runner: Runner, tmp_path: Path) -> None:
    """SPEC 3.3: the plugin sees every byte, then end of file."""
    plugin = tmp_path / "run.sh"
    plugin.write_text('#!/bin/sh\nn=$(wc -c)\necho "{\\"status\\": \\"ok\\", \\"result\\": $((n))}"\n')
    plugin.chmod(0o755)
    outcome = judge(await (await start(runner, a_run(plugin, request=LARGE_REQUEST))).wait()).outcome
    assert isinstance(outcome, Completed)
    assert outcome.response.result == len(LARGE_REQUEST)


@pytest.mark.parametrize("name", ["prints 11 MiB", "prints without end"])
async def test_stdout_over_the_cap_fails_and_the_beginning_is_kept(
    runner: Runner, kind: StartedBy, tmp_path: Path, name: str
) -> None:
    """SPEC 3.4: 10 MiB of stdout, not a byte more; a plugin that goes on printing is ended."""
    outcome = (await judged(runner, kind, tmp_path, name)).outcome
    assert told(outcome) == (Reason.OUTPUT_TOO_LARGE, False)
    assert outcome.evidence.stdout == "x" * MAX_STDOUT


async def test_long_stderr_is_cut_and_the_job_is_unaffected(
    runner: Runner, kind: StartedBy, tmp_path: Path
) -> None:
    """SPEC 3.4: 64 KiB are kept, the rest is drained, and the log is to warn."""
    judgement = await judged(runner, kind, tmp_path, "complains 1 MiB")
    assert isinstance(judgement.outcome, Completed)
    assert judgement.outcome.evidence.stderr == "e" * MAX_STDERR
    assert judgement.remarks == (Remark.STDERR_CUT,)


@pytest.mark.parametrize("name", ["complains without end", "answers and sleeps", "sleeps"])
async def test_the_deadline_ends_it_whatever_it_has_printed(
    runner: Runner, kind: StartedBy, tmp_path: Path, name: str
) -> None:
    """SPEC 3.4: at the deadline the attempt is timed out, even with a valid answer on stdout."""
    os.mkfifo(tmp_path / "ready")
    outcome = judge(await meet(runner, kind, tmp_path, name, ends_after=SHORT)).outcome
    assert isinstance(outcome, TimedOut)


@pytest.mark.parametrize(
    ("name", "reason", "permanent"),
    [
        ("tells an error", Reason.PLUGIN_ERROR, False),
        ("tells a lasting error", Reason.PLUGIN_ERROR, True),
        ("exits 78", Reason.BAD_EXIT, True),
        ("exits 78 with an error", Reason.PLUGIN_ERROR, True),
        ("exits 3 without an answer", Reason.BAD_EXIT, False),
        ("kills itself", Reason.KILLED, False),
        ("dumps core", Reason.KILLED, False),
    ],
)
async def test_failures_have_a_reason(
    runner: Runner, kind: StartedBy, tmp_path: Path, name: str, reason: Reason, permanent: bool
) -> None:
    """SPEC 3.3, 4.6: exit 78 and `retry: false` are permanent, everything else is tried again."""
    assert told((await judged(runner, kind, tmp_path, name)).outcome) == (reason, permanent)


@pytest.mark.parametrize(
    ("name", "code", "number"),
    [("exits 3 without an answer", 3, None), ("kills itself", None, 9), ("dumps core", None, 6)],
)
async def test_exit_code_and_signal_are_kept(
    runner: Runner, kind: StartedBy, tmp_path: Path, name: str, code: int | None, number: int | None
) -> None:
    """SPEC 4.2: the log row says how the process ended."""
    evidence = (await judged(runner, kind, tmp_path, name)).outcome.evidence
    assert (evidence.exit_code, evidence.signal) == (code, number)


@pytest.mark.parametrize("name", ["exits 3 after an answer", "exits 78 with an ok"])
async def test_a_valid_ok_wins_over_the_exit_code(
    runner: Runner, kind: StartedBy, tmp_path: Path, name: str
) -> None:
    """SPEC 3.3: the answer counts, and that the exit code was ignored is remarked upon."""
    judgement = await judged(runner, kind, tmp_path, name)
    assert isinstance(judgement.outcome, Completed)
    assert Remark.EXIT_IGNORED in judgement.remarks


async def ready(place: Path) -> None:
    await asyncio.to_thread((place / "ready").read_bytes)


async def started(runner: Runner, place: Path, name: str) -> Process:
    """A plugin that has come as far as its `ready()`."""
    os.mkfifo(place / "ready")
    process = await start(runner, a_run(an_animal(place, name)))
    await ready(place)
    return process


async def test_stop_is_a_request_first_and_then_force(runner: Runner, tmp_path: Path) -> None:
    """SPEC 3.4: SIGTERM to the group, and SIGKILL to one that ignores it."""
    process = await started(runner, tmp_path, "ignores SIGTERM")
    process.stop()
    ending = await process.wait()
    assert isinstance(ending, Stopped)
    assert ending.remains.status.signal == signal.SIGKILL
    assert isinstance(judge(ending).outcome, Interrupted)


async def test_stop_at_once_does_not_ask(runner: Runner, tmp_path: Path) -> None:
    """SPEC 4.8: a second SIGTERM to the daemon ends everything at once."""
    process = await started(runner, tmp_path, "answers at SIGTERM")
    process.stop(at_once=True)
    ending = await process.wait()
    assert isinstance(ending, Stopped)
    assert ending.remains.status.signal == signal.SIGKILL


async def test_an_answer_given_while_stopping_counts(runner: Runner, tmp_path: Path) -> None:
    """ENGINE 3: a valid answer during the grace after SIGTERM is a result."""
    process = await started(runner, tmp_path, "answers at SIGTERM")
    process.stop()
    assert isinstance(judge(await process.wait()).outcome, Completed)


async def test_an_answer_counts_while_a_thread_of_the_plugin_goes_on(runner: Runner, tmp_path: Path) -> None:
    """ENGINE 3: it was given when the script had run to its end; what is stopped is only the thread."""
    process = await started(runner, tmp_path, "answers and leaves a thread")
    process.stop()
    assert isinstance(judge(await process.wait()).outcome, Completed)


async def test_stopping_what_has_ended_changes_nothing(runner: Runner, tmp_path: Path) -> None:
    """ENGINE 3: a cancel that comes too late finds the process gone."""
    process = await start(runner, a_run(an_animal(tmp_path, "answers")))
    first = await process.wait()
    process.stop()
    process.stop(at_once=True)
    assert await process.wait() is first
    assert isinstance(first, Exited)


async def test_a_cancelled_waiter_does_not_touch_the_process(runner: Runner, tmp_path: Path) -> None:
    """The process is ended by `stop`, never by whoever happened to wait for it."""
    process = await started(runner, tmp_path, "answers at SIGTERM")
    waiter = asyncio.ensure_future(process.wait())
    await asyncio.wait((waiter,), timeout=0)
    waiter.cancel()
    process.stop()
    assert isinstance(judge(await process.wait()).outcome, Completed)


@pytest.mark.parametrize("name", ["leaves a child with its pipes", "leaves a child without pipes"])
async def test_what_is_left_of_the_group_is_ended(
    runner: Runner, kind: StartedBy, tmp_path: Path, name: str
) -> None:
    """SPEC 3.4: the result stands, nobody of the group outlives the job, and it is told."""
    judgement = await judged(runner, kind, tmp_path, name)
    assert isinstance(judgement.outcome, Completed)
    assert Remark.LEFTOVERS in judgement.remarks
    wait_until_gone(int((tmp_path / "child").read_text()))


async def test_what_is_left_of_the_group_may_finish(kind: StartedBy, tmp_path: Path) -> None:
    """SPEC 3.4: it has a short grace, and nobody waits for the rest of that when it has ended."""
    patient = Patience(for_leftovers=3600)
    runner: Runner = SpawnRunner(patient) if kind is StartedBy.SPAWN else WarmRunner(patient)
    judgement = await judged(runner, kind, tmp_path, "leaves a child that finishes by itself")
    assert isinstance(judgement.outcome, Completed)
    assert judgement.remarks == ()
    assert (tmp_path / "child-done").exists()
    await runner.close()


@pytest.mark.parametrize("name", ["leaves a daemon", "leaves a child in another group"])
async def test_who_left_the_group_cannot_hang_the_job(
    runner: Runner, kind: StartedBy, tmp_path: Path, name: str
) -> None:
    """SPEC 3.4: a pipe held open by a stranger is not waited for."""
    judgement = await judged(runner, kind, tmp_path, name)
    assert isinstance(judgement.outcome, Completed)
    assert Remark.LEFTOVERS in judgement.remarks
    os.kill(int((tmp_path / "child").read_text()), 0)


async def test_force_reaches_the_whole_group(runner: Runner, tmp_path: Path) -> None:
    """SPEC 3.4: a child that ignores SIGTERM gets its SIGKILL although its leader has died of the SIGTERM."""
    process = await started(runner, tmp_path, "leaves a child that ignores SIGTERM")
    process.stop()
    assert isinstance(await process.wait(), Stopped)
    wait_until_gone(int((tmp_path / "child").read_text()))


async def test_closing_the_runner_ends_everything(runner: Runner, tmp_path: Path) -> None:
    """SPEC 4.8: nothing that a runner started outlives it."""
    process = await started(runner, tmp_path, "ignores SIGTERM")
    await runner.close()
    assert isinstance(await process.wait(), Stopped)
    wait_until_gone(process.pid)


async def test_closing_the_runner_ends_what_is_just_being_started(runner: Runner, tmp_path: Path) -> None:
    """Nobody is left behind who came to be meanwhile. Only a lost server may not know how it ended."""
    starting = asyncio.create_task(runner.start(a_run(an_animal(tmp_path, "ignores SIGTERM"))))
    await asyncio.sleep(0)
    await runner.close()
    process = await starting
    assert not isinstance(process, CouldNotStart)
    if not isinstance(process, RunnerLost):
        ending = await process.wait()
        assert isinstance(ending, Stopped | RunnerLost)
        assert isinstance(ending, Stopped) or process.started_by is StartedBy.WARM


async def test_a_caller_that_gives_up_while_starting_leaves_no_process(
    runner: Runner, tmp_path: Path
) -> None:
    """Cancelled in the middle of `start`, the process that comes to be is ended (checked by the fixture)."""
    run = a_run(an_animal(tmp_path, "sleeps"))
    for _ in range(5):
        starting = asyncio.ensure_future(runner.start(run))
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait((starting,))
