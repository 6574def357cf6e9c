"""No bytes can make the decoder, or the judge after it, raise (SPEC 3.3)."""

from __future__ import annotations

import json
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from ductile.core.jobs import Reason
from ductile.core.outcomes import Completed, Failed, Interrupted, Outcome, TimedOut
from ductile.protocol.response import Answer, ProtocolFault, decode_response
from ductile.runner.judgement import EXIT_CONFIG, judge, storable_text
from ductile.runner.port import (
    CouldNotStart,
    DeadlinePassed,
    Ending,
    Exited,
    ExitStatus,
    PrintedTooMuch,
    Remains,
    RunnerLost,
    Stopped,
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
    {"status": st.sampled_from(["ok", "error"])}, optional=dict.fromkeys(NAMES[1:8], VALUES)
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
REMAINS = st.builds(
    Remains,
    status=STATUSES,
    stdout=OUTPUTS,
    stderr=st.binary(max_size=100),
    stdout_cut=st.booleans(),
    stderr_cut=st.booleans(),
    leftovers=st.booleans(),
)
ENDINGS: st.SearchStrategy[Ending] = st.one_of(
    st.builds(Exited, remains=REMAINS),
    st.builds(DeadlinePassed, remains=REMAINS, timeout=st.just(timedelta(seconds=60))),
    st.builds(PrintedTooMuch, remains=REMAINS),
    st.builds(Stopped, remains=REMAINS),
    st.builds(RunnerLost, error=st.just("lost"), remains=st.none() | REMAINS),
    st.builds(CouldNotStart, error=st.just("no"), permanent=st.booleans(), shortage=st.booleans()),
)


@given(OUTPUTS)
def test_decoding_always_gives_a_value(stdout: bytes) -> None:
    """SPEC 3.3: an answer that holds to its promises, or a fault with a message."""
    match decode_response(stdout):
        case ProtocolFault(message=message):
            assert message
            message.encode()
        case Answer(response=response):
            assert (response.error is None) == response.ok
            assert not response.ok or response.result not in (None, "")
            json.dumps(response.result, ensure_ascii=False).encode()


@given(st.binary())
def test_kept_text_can_be_stored(output: bytes) -> None:
    """SPEC 3.3: what was printed is kept, as text that every store takes."""
    text = storable_text(output)
    text.encode()
    assert "\0" not in text


@given(ENDINGS)
def test_every_ending_has_one_outcome(ending: Ending) -> None:
    """SPEC 3.3, 3.4, 4.6: which one, by the rules written out once more."""
    outcome = judge(ending).outcome
    match ending:
        case CouldNotStart(shortage=True):
            assert outcome == Interrupted(reason=Reason.NO_RESOURCES, error=ending.error)
        case CouldNotStart(permanent=permanent):
            assert told(outcome) == (Reason.COULD_NOT_START, permanent)
        case RunnerLost():
            assert told(outcome) == (Reason.RUNNER_LOST, False)
        case DeadlinePassed():
            assert isinstance(outcome, TimedOut)
        case PrintedTooMuch():
            assert told(outcome) == (Reason.OUTPUT_TOO_LARGE, False)
        case Exited(remains=remains) | Stopped(remains=remains):
            assert_judged_by_answer(outcome, remains, stopped=isinstance(ending, Stopped))


def assert_judged_by_answer(outcome: Outcome, remains: Remains, *, stopped: bool) -> None:
    answer = decode_response(remains.stdout)
    config_error = remains.status.exit_code == EXIT_CONFIG
    if isinstance(answer, Answer) and answer.response.ok:
        assert isinstance(outcome, Completed)
    elif isinstance(answer, Answer):
        assert told(outcome) == (Reason.PLUGIN_ERROR, config_error or not answer.response.retry)
    elif stopped:
        assert isinstance(outcome, Interrupted)
    else:
        reason, permanent = told(outcome)
        assert permanent == config_error
        assert (reason is Reason.KILLED) == (remains.status.signal is not None)
        assert (reason is Reason.PROTOCOL_ERROR) == (remains.status.exit_code == 0)


def told(outcome: Outcome) -> tuple[Reason, bool]:
    assert isinstance(outcome, Failed)
    return outcome.reason, outcome.permanent
