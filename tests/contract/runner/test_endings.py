"""Every way in which a plugin can end, with every runner: no plugin hangs, crashes or leaks."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from builders.bad_plugins import AMPLE, BAD_PLUGINS, a_bad_plugin, a_launch, start, wait_until_gone
from ductile.core.jobs.model import Completed, Failed, JobReason, Outcome, Requeued, TimedOut
from ductile.runner.interpret import ExecutionWarning, Interpretation, interpret
from ductile.runner.port import (
    MAX_STDERR,
    MAX_STDOUT,
    CouldNotStart,
    Exited,
    ForkServerLost,
    Process,
    ProcessResult,
    Runner,
    StartedBy,
    StoppedOnRequest,
)

SHORT = timedelta(seconds=0.2)
LARGE_REQUEST = b'{"padding": "' + b"x" * (1024 * 1024) + b'"}'


async def run(
    runner: Runner,
    kind: StartedBy,
    directory: Path,
    name: str,
    *,
    ends_after: timedelta = AMPLE,
    request: bytes = b"{}",
) -> ProcessResult:
    process = await start(
        runner, a_launch(a_bad_plugin(directory, name), timeout=ends_after, request=request)
    )
    assert process.started_by is kind
    return await process.wait()


async def interpreted(runner: Runner, kind: StartedBy, directory: Path, name: str) -> Interpretation:
    return interpret(await run(runner, kind, directory, name))


def reason_and_permanence(outcome: Outcome) -> tuple[JobReason, bool]:
    assert isinstance(outcome, Failed), outcome
    return outcome.reason, outcome.permanent


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in BAD_PLUGINS
        if name.startswith("prints") and name not in {"prints 11 MiB", "prints without end"}
    ],
)
async def test_output_other_than_one_json_object_is_a_protocol_error(
    runner: Runner, kind: StartedBy, tmp_path: Path, name: str
) -> None:
    """With any other output the attempt fails, may be retried, and its output is kept."""
    interpretation = await interpreted(runner, kind, tmp_path, name)
    assert reason_and_permanence(interpretation.outcome) == (JobReason.PROTOCOL_ERROR, False)
    stdout = interpretation.outcome.evidence.stdout
    assert stdout is not None
    stdout.encode()  # storable: no lone surrogates
    assert bool(stdout) == (name != "prints nothing")


@pytest.mark.parametrize("name", ["answers", "closes stdin", "never reads"])
async def test_a_plugin_need_not_read_a_large_request(
    runner: Runner, kind: StartedBy, tmp_path: Path, name: str
) -> None:
    """A plugin may read its request, ignore it or close the pipe."""
    ending = await run(runner, kind, tmp_path, name, request=LARGE_REQUEST)
    assert isinstance(interpret(ending).outcome, Completed)


async def test_the_request_arrives_whole_and_ends(runner: Runner, tmp_path: Path) -> None:
    """The plugin sees every byte, then end of file."""
    plugin = tmp_path / "run.sh"
    plugin.write_text('#!/bin/sh\nn=$(wc -c)\necho "{\\"status\\": \\"ok\\", \\"result\\": $((n))}"\n')
    plugin.chmod(0o755)
    outcome = interpret(await (await start(runner, a_launch(plugin, request=LARGE_REQUEST))).wait()).outcome
    assert isinstance(outcome, Completed)
    assert outcome.response.result == len(LARGE_REQUEST)


@pytest.mark.parametrize("name", ["prints 11 MiB", "prints without end"])
async def test_stdout_over_the_cap_fails_and_the_beginning_is_kept(
    runner: Runner, kind: StartedBy, tmp_path: Path, name: str
) -> None:
    """The cap is 10 MiB of stdout. A plugin that prints more is ended."""
    outcome = (await interpreted(runner, kind, tmp_path, name)).outcome
    assert reason_and_permanence(outcome) == (JobReason.OUTPUT_TOO_LARGE, False)
    assert outcome.evidence.stdout == "x" * MAX_STDOUT


async def test_long_stderr_is_cut_and_the_job_is_unaffected(
    runner: Runner, kind: StartedBy, tmp_path: Path
) -> None:
    """The first 64 KiB are kept, the rest is discarded with a warning."""
    interpretation = await interpreted(runner, kind, tmp_path, "complains 1 MiB")
    assert isinstance(interpretation.outcome, Completed)
    assert interpretation.outcome.evidence.stderr == "e" * MAX_STDERR
    assert interpretation.warnings == (ExecutionWarning.STDERR_CUT,)


@pytest.mark.parametrize("name", ["complains without end", "answers and sleeps", "sleeps"])
async def test_the_deadline_ends_it_whatever_it_has_printed(
    runner: Runner, kind: StartedBy, tmp_path: Path, name: str
) -> None:
    """At the deadline the attempt is timed out, even with a valid answer on stdout."""
    os.mkfifo(tmp_path / "ready")
    outcome = interpret(await run(runner, kind, tmp_path, name, ends_after=SHORT)).outcome
    assert isinstance(outcome, TimedOut)


@pytest.mark.parametrize(
    ("name", "reason", "permanent"),
    [
        ("tells an error", JobReason.PLUGIN_ERROR, False),
        ("tells a lasting error", JobReason.PLUGIN_ERROR, True),
        ("exits 78", JobReason.BAD_EXIT, True),
        ("exits 78 with an error", JobReason.PLUGIN_ERROR, True),
        ("exits 3 without an answer", JobReason.BAD_EXIT, False),
        ("kills itself", JobReason.KILLED, False),
        ("dumps core", JobReason.KILLED, False),
    ],
)
async def test_failures_have_a_reason(
    runner: Runner, kind: StartedBy, tmp_path: Path, name: str, reason: JobReason, permanent: bool
) -> None:
    """Exit 78 and `retry: false` are permanent; every other failure is retried."""
    assert reason_and_permanence((await interpreted(runner, kind, tmp_path, name)).outcome) == (
        reason,
        permanent,
    )


@pytest.mark.parametrize(
    ("name", "code", "number"),
    [("exits 3 without an answer", 3, None), ("kills itself", None, 9), ("dumps core", None, 6)],
)
async def test_exit_code_and_signal_are_kept(
    runner: Runner, kind: StartedBy, tmp_path: Path, name: str, code: int | None, number: int | None
) -> None:
    """The log row says how the process ended."""
    evidence = (await interpreted(runner, kind, tmp_path, name)).outcome.evidence
    assert (evidence.exit_code, evidence.signal) == (code, number)


@pytest.mark.parametrize("name", ["exits 3 after an answer", "exits 78 with an ok"])
async def test_a_valid_ok_wins_over_the_exit_code(
    runner: Runner, kind: StartedBy, tmp_path: Path, name: str
) -> None:
    """The response counts, and there is a warning that the exit code was ignored."""
    interpretation = await interpreted(runner, kind, tmp_path, name)
    assert isinstance(interpretation.outcome, Completed)
    assert ExecutionWarning.EXIT_IGNORED in interpretation.warnings


async def wait_until_ready(directory: Path) -> None:
    await asyncio.to_thread((directory / "ready").read_bytes)


async def start_and_wait(runner: Runner, directory: Path, name: str) -> Process:
    """Start a plugin and wait for its `ready()`."""
    os.mkfifo(directory / "ready")
    process = await start(runner, a_launch(a_bad_plugin(directory, name)))
    await wait_until_ready(directory)
    return process


async def test_stop_terminates_and_then_kills(runner: Runner, tmp_path: Path) -> None:
    """The group gets SIGTERM, and then SIGKILL if a process ignores it."""
    process = await start_and_wait(runner, tmp_path, "ignores SIGTERM")
    process.stop()
    ending = await process.wait()
    assert isinstance(ending, StoppedOnRequest)
    assert ending.output.status.signal == signal.SIGKILL
    assert isinstance(interpret(ending).outcome, Requeued)


async def test_stop_at_once_kills(runner: Runner, tmp_path: Path) -> None:
    """A second SIGTERM to the daemon ends everything at once."""
    process = await start_and_wait(runner, tmp_path, "answers at SIGTERM")
    process.stop(at_once=True)
    ending = await process.wait()
    assert isinstance(ending, StoppedOnRequest)
    assert ending.output.status.signal == signal.SIGKILL


async def test_an_answer_given_while_stopping_counts(patient_runner: Runner, tmp_path: Path) -> None:
    """A valid answer during the grace after SIGTERM is a result."""
    process = await start_and_wait(patient_runner, tmp_path, "answers at SIGTERM")
    process.stop()
    assert isinstance(interpret(await process.wait()).outcome, Completed)


async def test_an_answer_counts_while_a_thread_of_the_plugin_goes_on(runner: Runner, tmp_path: Path) -> None:
    """The script had run to its end before the stop, which ends only the thread."""
    process = await start_and_wait(runner, tmp_path, "answers and leaves a thread")
    process.stop()
    assert isinstance(interpret(await process.wait()).outcome, Completed)


async def test_stopping_what_has_ended_changes_nothing(runner: Runner, tmp_path: Path) -> None:
    """A late cancel finds the process ended."""
    process = await start(runner, a_launch(a_bad_plugin(tmp_path, "answers")))
    first = await process.wait()
    process.stop()
    process.stop(at_once=True)
    assert await process.wait() is first
    assert isinstance(first, Exited)


async def test_a_cancelled_waiter_does_not_touch_the_process(patient_runner: Runner, tmp_path: Path) -> None:
    """Only `stop` ends the process, not the cancellation of a caller of `wait`."""
    process = await start_and_wait(patient_runner, tmp_path, "answers at SIGTERM")
    waiter = asyncio.ensure_future(process.wait())
    await asyncio.wait((waiter,), timeout=0)
    waiter.cancel()
    process.stop()
    assert isinstance(interpret(await process.wait()).outcome, Completed)


@pytest.mark.parametrize("name", ["leaves a child with its pipes", "leaves a child without pipes"])
async def test_leftovers_of_the_group_are_killed(
    runner: Runner, kind: StartedBy, tmp_path: Path, name: str
) -> None:
    """The result counts, no member of the group outlives the job, and there is a warning."""
    interpretation = await interpreted(runner, kind, tmp_path, name)
    assert isinstance(interpretation.outcome, Completed)
    assert ExecutionWarning.LEFTOVERS in interpretation.warnings
    wait_until_gone(int((tmp_path / "child").read_text()))


async def test_leftovers_of_the_group_may_finish(
    patient_runner: Runner, kind: StartedBy, tmp_path: Path
) -> None:
    """Leftovers have a short grace period, which ends when the last of them exits."""
    name = "leaves a child that finishes by itself"
    interpretation = await interpreted(patient_runner, kind, tmp_path, name)
    assert isinstance(interpretation.outcome, Completed)
    assert interpretation.warnings == ()
    assert (tmp_path / "child-done").exists()


@pytest.mark.parametrize("name", ["leaves a daemon", "leaves a child in another group"])
async def test_a_process_that_left_the_group_cannot_hang_the_job(
    runner: Runner, kind: StartedBy, tmp_path: Path, name: str
) -> None:
    """The runner does not wait for a pipe that a process outside the group holds open."""
    interpretation = await interpreted(runner, kind, tmp_path, name)
    assert isinstance(interpretation.outcome, Completed)
    assert ExecutionWarning.LEFTOVERS in interpretation.warnings
    os.kill(int((tmp_path / "child").read_text()), 0)


async def test_a_kill_reaches_the_whole_group(runner: Runner, tmp_path: Path) -> None:
    """A child that ignores SIGTERM gets SIGKILL, although its leader has died of SIGTERM."""
    process = await start_and_wait(runner, tmp_path, "leaves a child that ignores SIGTERM")
    process.stop()
    assert isinstance(await process.wait(), StoppedOnRequest)
    wait_until_gone(int((tmp_path / "child").read_text()))


async def test_closing_the_runner_ends_everything(runner: Runner, tmp_path: Path) -> None:
    """Nothing that a runner started outlives it."""
    process = await start_and_wait(runner, tmp_path, "ignores SIGTERM")
    await runner.close()
    assert isinstance(await process.wait(), StoppedOnRequest)
    wait_until_gone(process.pid)


async def test_closing_the_runner_ends_what_is_just_being_started(runner: Runner, tmp_path: Path) -> None:
    """No process is left. Only the result of a lost server may be unknown."""
    starting = asyncio.create_task(runner.start(a_launch(a_bad_plugin(tmp_path, "ignores SIGTERM"))))
    await asyncio.sleep(0)
    await runner.close()
    process = await starting
    assert not isinstance(process, CouldNotStart)
    if not isinstance(process, ForkServerLost):
        ending = await process.wait()
        assert isinstance(ending, StoppedOnRequest | ForkServerLost)
        assert isinstance(ending, StoppedOnRequest) or process.started_by is StartedBy.WARM


async def test_a_cancelled_start_leaves_no_process(runner: Runner, tmp_path: Path) -> None:
    """A process whose `start` was cancelled is killed; the fixture checks this."""
    launch = a_launch(a_bad_plugin(tmp_path, "sleeps"))
    for _ in range(5):
        starting = asyncio.ensure_future(runner.start(launch))
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait((starting,))
