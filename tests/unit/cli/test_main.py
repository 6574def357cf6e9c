"""How an invocation ends, whatever happens in it."""

from __future__ import annotations

import io
import json

import pytest

from ductile.cli.main import run


class Failing(io.StringIO):
    """An output on which the first write goes wrong."""

    def __init__(self, fault: BaseException) -> None:
        super().__init__()
        self._fault: BaseException | None = fault

    def write(self, text: str) -> int:
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault
        return super().write(text)


def test_an_interrupt_ends_with_130_and_without_a_word() -> None:
    """Exit status 130; a user who pressed Ctrl-C needs no message."""
    err = io.StringIO()
    assert run(["version"], {}, Failing(KeyboardInterrupt()), err) == 130
    assert err.getvalue() == ""


def test_a_bug_is_reported_in_one_line_without_its_values() -> None:
    """No traceback, and an exception's own text may hold a secret."""
    err = io.StringIO()
    assert run(["version"], {}, Failing(ValueError("canary")), err) == 1
    assert err.getvalue().splitlines() == [
        "error: internal_error: an unexpected error in Ductile (ValueError)",
        "hint: run with -v for the traceback",
    ]


def test_a_bug_with_v_shows_where_it_is() -> None:
    """For the report."""
    err = io.StringIO()
    assert run(["version", "-v"], {}, Failing(ValueError("why")), err) == 1
    assert "Traceback" in err.getvalue()


def test_a_bug_is_json_where_json_was_asked_for() -> None:
    """Errors as JSON too, on stdout, alone."""
    out, err = Failing(ValueError("canary")), io.StringIO()
    assert run(["version", "--json"], {}, out, err) == 1
    body = json.loads(out.getvalue())
    assert body["error"]["code"] == "internal_error"
    assert body["message"] == body["error"]["message"]
    assert err.getvalue() == ""


@pytest.mark.parametrize("words", [[], ["config"], ["plugin", "-v"]])
def test_an_incomplete_line_shows_help_and_is_a_usage_error(words: list[str]) -> None:
    """Exit 2, and nothing on stdout that a script could take for an answer."""
    out, err = io.StringIO(), io.StringIO()
    assert run(words, {}, out, err) == 2
    assert out.getvalue() == ""
    assert err.getvalue().startswith("Usage: ductile")


@pytest.mark.parametrize("words", [["--json"], ["config", "--json"]])
def test_an_incomplete_line_with_json_is_an_error_in_json(words: list[str]) -> None:
    out = io.StringIO()
    assert run(words, {}, out, io.StringIO()) == 2
    assert json.loads(out.getvalue())["error"]["code"] == "usage"
