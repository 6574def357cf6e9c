"""The outcome and the error text of an execution."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from ductile.core.jobs.model import Failed
from ductile.core.scripts import Script
from ductile.runner.interpret import ExecutionWarning, interpret, mask_state_secrets
from ductile.runner.port import Exited, ExitStatus, Launch, ProcessOutput


def failed(status: ExitStatus, stdout: bytes = b"", stderr: bytes = b"") -> Failed:
    outcome = interpret(Exited(output=ProcessOutput(status=status, stdout=stdout, stderr=stderr))).outcome
    assert isinstance(outcome, Failed)
    return outcome


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (ExitStatus(exit_code=3), "exited with status 3; stdout is empty"),
        (ExitStatus(exit_code=78), "exited with status 78, a configuration error"),
        (ExitStatus(signal=9), "killed by SIGKILL"),
        (ExitStatus(signal=63), "killed by signal 63"),
        (ExitStatus(exit_code=0), "stdout is empty"),
    ],
)
def test_the_error_says_how_it_ended(status: ExitStatus, words: str) -> None:
    """The text names the signal or the exit status."""
    assert failed(status).error.startswith(words)


def test_the_error_ends_with_the_last_line_of_stderr() -> None:
    """The message of a traceback is in its last line."""
    trace = b"Traceback (most recent call last):\n  ...\nModuleNotFoundError: No module named 'x'\n"
    error = failed(ExitStatus(exit_code=1), stderr=trace).error
    assert error.endswith("stderr ends with: ModuleNotFoundError: No module named 'x'")
    assert len(failed(ExitStatus(exit_code=1), stderr=b"x" * 10_000).error) < 400


def test_the_output_is_kept_with_what_cannot_be_read_replaced() -> None:
    """Stdout and stderr are kept, whatever their bytes."""
    evidence = failed(ExitStatus(exit_code=0), stdout=b"a\xffb\0c", stderr=b"\xed\xa0\x80").evidence
    assert evidence.stdout == "a\ufffdb\ufffdc"
    assert evidence.stderr == "\ufffd\ufffd\ufffd"


def test_cut_output_and_leftovers_are_warnings() -> None:
    """The warnings do not change the outcome."""
    output = ProcessOutput(
        status=ExitStatus(exit_code=0),
        stdout=b'{"status": "ok", "result": 1}',
        stderr=b"",
        stderr_truncated=True,
        leftovers=True,
    )
    assert interpret(Exited(output=output)).warnings == (
        ExecutionWarning.STDERR_CUT,
        ExecutionWarning.LEFTOVERS,
    )


def test_a_launch_does_not_show_its_environment() -> None:
    """The environment may contain secrets, and a launch may be logged by accident."""
    run = Launch(
        entrypoint="/bin/true",
        request=b"{}",
        environment={"TOKEN": "canary"},
        directory="/",
        timeout=timedelta(seconds=1),
    )
    assert "canary" not in repr(run)
    assert "/bin/true" in repr(run)


def logged_stdout(stdout: bytes, script: Script | None = None) -> str | None:
    """Return the output as the log stores it."""
    output = ProcessOutput(status=ExitStatus(exit_code=0), stdout=stdout, stderr=b"")
    return mask_state_secrets(interpret(Exited(output=output), script).outcome).evidence.stdout


@pytest.mark.parametrize("status", ['"ok", "result": 1', '"error", "error": "no"'])
def test_the_log_has_no_tokens_of_the_state(status: str) -> None:
    """Many users may read the log, so its copy of the state is masked like the state."""
    updates = '{"oauth": {"refresh_token": "canary", "token_expires_at": 12345678901234567890}}'
    stdout = logged_stdout(f'{{"status": {status}, "state_updates": {updates}}}'.encode())
    assert stdout is not None
    assert json.loads(stdout)["state_updates"] == {
        "oauth": {"refresh_token": "********", "token_expires_at": 12345678901234567890}
    }


@pytest.mark.parametrize(
    "stdout",
    [
        b'{"status": "ok",  "result": {"token": "a"}, "state_updates": {"seen": [1]}}',
        b'{"status": "ok", "result": 1, "state_updates": ["token"]}',
        b'not JSON with "state_updates"',
    ],
)
def test_other_output_is_kept_as_it_is(stdout: bytes) -> None:
    assert logged_stdout(stdout) == stdout.decode()


def test_the_output_of_a_script_is_kept_as_it_is() -> None:
    """A script has no state; its output is its result."""
    printed = b'{"status": "ok", "result": 1, "state_updates": {"token": "a"}}'
    assert logged_stdout(printed, Script(argv=("x",), directory="/")) == printed.decode()
