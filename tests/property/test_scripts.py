"""Scripts: their command lines, the variables of a payload, and the meaning of their end."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ductile.core.jobs.model import Completed, Failed, JobReason, OutputFormat, Requeued, TimedOut
from ductile.core.scripts import (
    MAX_VARIABLE,
    MAX_VARIABLES,
    ExecCommand,
    RetryRule,
    Script,
    payload_variables,
    read_command,
    script_environment,
)
from ductile.protocol.plugin_messages import encode_payload, stored_result
from ductile.runner.interpret import interpret
from ductile.runner.port import DeadlinePassed, Exited, ExitStatus, ProcessOutput, StoppedOnRequest

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
PAYLOADS = st.dictionaries(st.text(), SCALARS | st.lists(SCALARS), max_size=8)
RULES = st.none() | st.frozensets(st.integers(1, 255), max_size=3)


def a_script(output: OutputFormat = OutputFormat.TEXT, statuses: frozenset[int] | None = None) -> Script:
    return Script(
        argv=("x",), directory="/", output=output, retry=RetryRule(statuses=statuses), done_event="x.done"
    )


def process_output(
    stdout: bytes = b"", stderr: bytes = b"", *, exit_code: int | None = 0, signal: int | None = None
) -> ProcessOutput:
    return ProcessOutput(status=ExitStatus(exit_code=exit_code, signal=signal), stdout=stdout, stderr=stderr)


# ---------------------------------------------------------------------------------------- variables


@given(PAYLOADS)
@example({"a-b": 1, "A_B": 2, "a b": 3})
@example({"x": "a\0b", "y": "\ud800", "z": "\udc80"})
def test_every_variable_is_a_scalar_of_the_payload_and_can_be_one(payload: dict[str, object]) -> None:
    """Names have A-Z, 0-9 and _. If keys have the same name, the first one with a variable counts."""
    variables = payload_variables(payload)  # type: ignore[arg-type]
    for name, text in variables.items():
        assert re.fullmatch(r"PAYLOAD_[A-Z0-9_]*", name, re.ASCII)
        assert b"\0" not in text.encode()
    for key, value in payload.items():
        name = "PAYLOAD_" + re.sub(r"[^A-Z0-9_]", "_", key.upper(), flags=re.ASCII)
        same_keys = [
            other_key
            for other_key in payload
            if re.sub(r"[^A-Z0-9_]", "_", other_key.upper(), flags=re.ASCII) == name[8:]
        ]
        if same_keys != [key]:
            continue
        if isinstance(value, bool):
            assert variables[name] == ("true" if value else "false")
        elif isinstance(value, int | float):
            assert variables[name] == str(value)
        elif value is None or isinstance(value, list):
            assert name not in variables


def test_the_first_of_colliding_keys_counts() -> None:
    assert payload_variables({"a-b": 1, "A_B": 2}) == {"PAYLOAD_A_B": "1"}
    assert payload_variables({"a-b": None, "A_B": 2}) == {"PAYLOAD_A_B": "2"}


@given(st.lists(st.integers(0, 3 * MAX_VARIABLE), max_size=12))
def test_variables_never_exceed_what_a_process_can_have(sizes: list[int]) -> None:
    payload = {f"k{index}": "x" * size for index, size in enumerate(sizes)}
    encoded = encode_payload(payload)  # type: ignore[arg-type]
    variables = script_environment(payload, encoded)  # type: ignore[arg-type]
    assert all(len(text) <= MAX_VARIABLE for text in variables.values())
    assert sum(len(name) + len(text) for name, text in variables.items()) <= MAX_VARIABLES + 2 * MAX_VARIABLE
    assert ("DUCTILE_PAYLOAD" in variables) == (len(encoded) <= MAX_VARIABLE)


@given(PAYLOADS)
def test_stdin_is_the_payload_in_one_line(payload: dict[str, object]) -> None:
    encoded = encode_payload(payload)  # type: ignore[arg-type]
    assert encoded.count(b"\n") == 1
    assert encoded.endswith(b"\n")
    assert json.loads(encoded) == payload


# ------------------------------------------------------------------------------------ command lines


@pytest.mark.parametrize(
    ("run", "argv", "program"),
    [
        ("./backup.sh", ("./backup.sh",), "./backup.sh"),
        ("./backup.sh  --fast all", ("./backup.sh", "--fast", "all"), "./backup.sh"),
        ("rsync -a x y", ("rsync", "-a", "x", "y"), "rsync"),
        (["a b", "$x"], ("a b", "$x"), "a b"),
    ],
)
def test_without_a_shells_syntax_no_shell_runs(
    run: str | list[str], argv: tuple[str, ...], program: str
) -> None:
    line = read_command(run)
    assert (line.argv, line.program, line.needs_shell) == (argv, program, False)


@pytest.mark.parametrize(
    ("run", "program"),
    [
        ("./backup.sh | gzip > x", "./backup.sh"),
        ("A=1 B='2 3' /opt/x.sh $HOME", "/opt/x.sh"),
        ("'./my script.sh' && true", "./my script.sh"),
        ("./a.sh;./b.sh", "./a.sh"),
        ("echo $HOME", None),
        ("$HOME/x.sh a", None),
        ("cd /tmp", None),
        ("exit 3", None),
        ("echo 'open", None),
        ("(./x.sh)", None),
    ],
)
def test_a_shell_runs_a_text_with_its_syntax(run: str, program: str | None) -> None:
    line = read_command(run)
    assert line.argv == ("/bin/sh", "-c", run)
    assert line.needs_shell
    assert line.program == program


@pytest.mark.parametrize("run", ["", "  \n", [], [""], ["x", "a\0b"], "x\0"])
def test_what_cannot_be_executed_is_refused(run: str | list[str]) -> None:
    with pytest.raises(ValueError, match=r"program|NUL"):
        read_command(run)


@given(st.text())
def test_reading_a_command_never_fails_in_another_way(run: str) -> None:
    try:
        line = read_command(run)
    except ValueError:
        assert not run.strip() or "\0" in run
    else:
        assert line.argv == ("/bin/sh", "-c", run) if line.needs_shell else line.argv == tuple(run.split())


@given(st.lists(st.text(), min_size=1), st.text(), st.floats(min_value=0.1, max_value=1e6))
def test_a_stored_command_is_read_as_it_was(argv: list[str], cwd: str, timeout: float) -> None:
    command = ExecCommand(argv=tuple(argv), cwd=cwd, timeout=timeout)
    assert ExecCommand.from_payload(json.loads(json.dumps(command.as_payload()))) == command


@pytest.mark.parametrize(
    "payload", [None, {}, {"argv": [], "cwd": "/", "timeout": 1}, {"argv": [1], "cwd": "/"}]
)
def test_another_payload_is_no_command(payload: dict[str, object] | None) -> None:
    assert ExecCommand.from_payload(payload) is None  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------ endings


@given(st.binary(max_size=200), st.binary(max_size=200), st.integers(0, 255), RULES)
@example(b"out", b"", 78, None)
@example(b"", b"", 0, frozenset())
def test_the_exit_status_decides(
    stdout: bytes, stderr: bytes, exit_code: int, statuses: frozenset[int] | None
) -> None:
    """0 is a success; `retry_on` lists the statuses that are retried, otherwise all but 78 are."""
    output = process_output(stdout, stderr, exit_code=exit_code)
    outcome = interpret(Exited(output=output), a_script(statuses=statuses)).outcome
    assert outcome.evidence.output is OutputFormat.TEXT
    if exit_code == 0:
        assert isinstance(outcome, Completed)
        # The stored output gives the same result again.
        assert stored_result(outcome.evidence.stdout, OutputFormat.TEXT) == outcome.response.result
        (event,) = outcome.response.events
        assert (event.type, event.payload) == ("x.done", {"exit_code": 0})
        return
    assert isinstance(outcome, Failed)
    assert outcome.reason is JobReason.BAD_EXIT
    expected = exit_code in statuses if statuses is not None else exit_code != 78
    assert outcome.permanent is not expected
    assert f"exited with status {exit_code}" in outcome.error


@given(RULES)
def test_a_timeout_or_signal_is_retried_unless_only_exit_statuses_are(
    statuses: frozenset[int] | None,
) -> None:
    ended = process_output(b"as far as it came", exit_code=None, signal=9)
    late = interpret(DeadlinePassed(output=ended, timeout=timedelta(seconds=1)), a_script(statuses=statuses))
    killed = interpret(Exited(output=ended), a_script(statuses=statuses))
    assert isinstance(late.outcome, TimedOut)
    assert isinstance(killed.outcome, Failed)
    assert late.outcome.permanent is killed.outcome.permanent is (statuses is not None)
    assert late.outcome.evidence.stdout == "as far as it came"
    assert "killed by SIGKILL; stdout ends with: as far as it came" in killed.outcome.error


@given(st.integers(0, 255))
def test_a_script_that_was_told_to_stop_runs_again(exit_code: int) -> None:
    """Many programs exit with 0 on SIGTERM before their work is done."""
    stopped = StoppedOnRequest(output=process_output(b"bye", exit_code=exit_code))
    assert isinstance(interpret(stopped, a_script()).outcome, Requeued)


@given(st.recursive(SCALARS.filter(lambda x: not isinstance(x, str)) | st.just("t"), st.lists, max_leaves=5))
def test_json_is_parsed(value: object) -> None:
    output = process_output(json.dumps(value).encode() + b"\n")
    outcome = interpret(Exited(output=output), a_script(OutputFormat.JSON)).outcome
    assert isinstance(outcome, Completed)
    assert outcome.response.result == value
    assert stored_result(outcome.evidence.stdout, OutputFormat.JSON) == value


@pytest.mark.parametrize("stdout", [b"not json", b"{} {}", b"NaN", b"\xff", b"[" * 300 + b"]" * 300])
def test_json_that_cannot_be_parsed_is_a_protocol_error(stdout: bytes) -> None:
    outcome = interpret(Exited(output=process_output(stdout)), a_script(OutputFormat.JSON)).outcome
    assert isinstance(outcome, Failed)
    assert outcome.reason is JobReason.PROTOCOL_ERROR


@pytest.mark.parametrize(("output", "result"), [(OutputFormat.TEXT, ""), (OutputFormat.JSON, None)])
def test_an_empty_stdout_is_a_success(output: OutputFormat, result: object) -> None:
    outcome = interpret(Exited(output=process_output(b" \n")), a_script(output)).outcome
    assert isinstance(outcome, Completed)
    assert outcome.response.result == result


def test_the_error_has_the_last_lines() -> None:
    stderr = b"\n".join(b"line %d" % number for number in range(20)) + b"\n\n"
    outcome = interpret(Exited(output=process_output(b"out", stderr, exit_code=1)), a_script()).outcome
    assert isinstance(outcome, Failed)
    assert outcome.error.endswith("stderr ends with: line 15\nline 16\nline 17\nline 18\nline 19")
