"""Every invocation ends with an exit status and at most one message."""

from __future__ import annotations

import io
import json

import pytest

from ductile.cli.main import run


class FailingOutput(io.StringIO):
    """An output whose first write raises an error."""

    def __init__(self, fault: BaseException) -> None:
        super().__init__()
        self._fault: BaseException | None = fault

    def write(self, text: str) -> int:
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault
        return super().write(text)


def test_an_interrupt_ends_with_130_and_without_a_word() -> None:
    """The exit status is 130, without a message."""
    err = io.StringIO()
    assert run(["version"], {}, FailingOutput(KeyboardInterrupt()), err) == 130
    assert err.getvalue() == ""


def test_a_bug_is_reported_in_one_line_without_its_values() -> None:
    """No traceback is printed, because the text of an exception may contain a secret."""
    err = io.StringIO()
    assert run(["version"], {}, FailingOutput(ValueError("canary")), err) == 1
    assert err.getvalue().splitlines() == [
        "error: internal_error: an unexpected error in Ductile (ValueError)",
        "hint: run with -v for the traceback",
    ]


def test_a_bug_with_v_shows_where_it_is() -> None:
    """The traceback is for a bug report."""
    err = io.StringIO()
    assert run(["version", "-v"], {}, FailingOutput(ValueError("why")), err) == 1
    assert "Traceback" in err.getvalue()


def test_a_bug_is_json_where_json_was_asked_for() -> None:
    """With `--json`, an error is the only output on stdout."""
    out, err = FailingOutput(ValueError("canary")), io.StringIO()
    assert run(["version", "--json"], {}, out, err) == 1
    body = json.loads(out.getvalue())
    assert body["error"]["code"] == "internal_error"
    assert body["message"] == body["error"]["message"]
    assert err.getvalue() == ""


@pytest.mark.parametrize("words", [[], ["config"], ["plugin", "-v"]])
def test_an_incomplete_line_shows_help_and_is_a_usage_error(words: list[str]) -> None:
    """The exit status is 2, and stdout is empty."""
    out, err = io.StringIO(), io.StringIO()
    assert run(words, {}, out, err) == 2
    assert out.getvalue() == ""
    assert err.getvalue().startswith("Usage: ductile")


@pytest.mark.parametrize("words", [["--json"], ["config", "--json"]])
def test_an_incomplete_line_with_json_is_an_error_in_json(words: list[str]) -> None:
    out = io.StringIO()
    assert run(words, {}, out, io.StringIO()) == 2
    assert json.loads(out.getvalue())["error"]["code"] == "usage"
