"""Neither the decoder nor the interpretation raises for any bytes."""

from __future__ import annotations

import json
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from ductile.core.jobs.model import Completed, Failed, JobReason, Outcome, Requeued, TimedOut
from ductile.core.scripts import EXIT_CONFIG
from ductile.protocol.plugin_messages import (
    DecodedResponse,
    ProtocolViolation,
    decode_response,
    storable_text,
)
from ductile.runner.interpret import interpret
from ductile.runner.port import (
    CouldNotStart,
    DeadlinePassed,
    Exited,
    ExitStatus,
    ForkServerLost,
    OutputLimitExceeded,
    ProcessOutput,
    ProcessResult,
    StoppedOnRequest,
)

NAMES = [
    "status",
    "result",
    "error",
    "retry",
    "events",
    "state_updates",
    "logs",
    "artifacts",
    "cost",
    "type",
    "payload",
]
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["ok", "error"])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
LOOKALIKES = st.fixed_dictionaries(
    {"status": st.sampled_from(["ok", "error"])}, optional=dict.fromkeys(NAMES[1:9], VALUES)
).map(lambda value: json.dumps(value).encode("utf-8", errors="surrogatepass"))
OUTPUTS = st.one_of(
    st.binary(max_size=200),
    LOOKALIKES,
    st.just(b'{"status": "ok", "result": "r"}'),
    st.just(b'{"status": "error", "error": "e"}'),
)
STATUSES = st.integers(0, 255).map(lambda code: ExitStatus(exit_code=code)) | st.integers(1, 64).map(
    lambda number: ExitStatus(signal=number)
)
PROCESS_OUTPUTS = st.builds(
    ProcessOutput,
    status=STATUSES,
    stdout=OUTPUTS,
    stderr=st.binary(max_size=100),
    stderr_truncated=st.booleans(),
    leftovers=st.booleans(),
)
ENDINGS: st.SearchStrategy[ProcessResult] = st.one_of(
    st.builds(Exited, output=PROCESS_OUTPUTS),
    st.builds(DeadlinePassed, output=PROCESS_OUTPUTS, timeout=st.just(timedelta(seconds=60))),
    st.builds(OutputLimitExceeded, output=PROCESS_OUTPUTS),
    st.builds(StoppedOnRequest, output=PROCESS_OUTPUTS),
    st.builds(ForkServerLost, error=st.just("lost"), output=st.none() | PROCESS_OUTPUTS),
    st.builds(CouldNotStart, error=st.just("no"), permanent=st.booleans(), resources_exhausted=st.booleans()),
)


@given(OUTPUTS)
def test_decoding_always_gives_a_value(stdout: bytes) -> None:
    """The value is a valid response, or a violation with a message."""
    match decode_response(stdout):
        case ProtocolViolation(message=message):
            assert message
            message.encode()
        case DecodedResponse(response=response):
            assert (response.error is None) == response.ok
            assert not response.ok or response.result not in (None, "")
            json.dumps(response.result, ensure_ascii=False).encode()


@given(st.binary())
def test_printed_text_can_be_stored(output: bytes) -> None:
    """Every store accepts the text."""
    text = storable_text(output)
    text.encode()
    assert "\0" not in text


@given(ENDINGS)
def test_every_ending_has_one_outcome(ending: ProcessResult) -> None:
    """The expected outcome is written out a second time here."""
    outcome = interpret(ending).outcome
    match ending:
        case CouldNotStart(resources_exhausted=True):
            assert outcome == Requeued(reason=JobReason.NO_RESOURCES, error=ending.error)
        case CouldNotStart(permanent=permanent):
            assert reason_of(outcome) == (JobReason.COULD_NOT_START, permanent)
        case ForkServerLost():
            assert reason_of(outcome) == (JobReason.RUNNER_LOST, False)
        case DeadlinePassed():
            assert isinstance(outcome, TimedOut)
        case OutputLimitExceeded():
            assert reason_of(outcome) == (JobReason.OUTPUT_TOO_LARGE, False)
        case Exited(output=output) | StoppedOnRequest(output=output):
            assert_decided_by_response(outcome, output, stopped=isinstance(ending, StoppedOnRequest))


def assert_decided_by_response(outcome: Outcome, output: ProcessOutput, *, stopped: bool) -> None:
    decoded = decode_response(output.stdout)
    config_error = output.status.exit_code == EXIT_CONFIG
    if isinstance(decoded, DecodedResponse) and decoded.response.ok:
        assert isinstance(outcome, Completed)
    elif isinstance(decoded, DecodedResponse):
        assert reason_of(outcome) == (JobReason.PLUGIN_ERROR, config_error or not decoded.response.retry)
    elif stopped:
        assert isinstance(outcome, Requeued)
    else:
        reason, permanent = reason_of(outcome)
        assert permanent == config_error
        assert (reason is JobReason.KILLED) == (output.status.signal is not None)
        assert (reason is JobReason.PROTOCOL_ERROR) == (output.status.exit_code == 0)


def reason_of(outcome: Outcome) -> tuple[JobReason, bool]:
    assert isinstance(outcome, Failed)
    return outcome.reason, outcome.permanent
