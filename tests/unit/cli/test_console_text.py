"""Texts of responses on a terminal: local times, whole commands, short reasons and colours."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console

NOW = datetime(2026, 2, 8, 12, tzinfo=UTC)
NARROW = Console(width=60, now=NOW, zone=ZoneInfo("Europe/Berlin"), today="2026-02-08")
RETRY = "ductile job retry 01a1eeae-64fc-7cf5-948c-cd10cbeb32f0 --from-step greet"


def test_times_in_a_sentence_are_local() -> None:
    """A terminal shows times of today without the date, a pipe shows the date, and verbose output is
    unchanged.
    """
    text = "It waits since 2026-02-08T11:00:05.123456Z, and ran at 2026-02-07T23:30:00Z."
    assert fmt.local_times(text, NARROW) == "It waits since 12:00:05, and ran at 00:30:00."
    piped = NARROW._replace(width=None, today="")
    assert (
        fmt.local_times(text, piped) == "It waits since 2026-02-08 12:00:05, and ran at 2026-02-08 00:30:00."
    )
    assert fmt.local_times(text, NARROW._replace(verbose=True)) == text


@pytest.mark.parametrize(
    "command", [RETRY, f"`{RETRY}`", f"(see `{RETRY}`)", f"fix it ({RETRY}), then again"]
)
def test_a_command_is_never_broken(command: str) -> None:
    """A command can be copied from the terminal, also if it is longer than the line."""
    text = fmt.sentence(
        f"A retry would fail in the same way: correct the pipeline, then: {command}", NARROW, "  "
    )
    assert any(RETRY in line for line in text.split("\n"))
    assert all(len(line) <= 60 for line in text.split("\n") if RETRY not in line)


def test_a_text_in_a_pipe_is_one_line() -> None:
    text = "word " * 40
    assert fmt.sentence(text, NARROW._replace(width=None)) == text


@pytest.mark.parametrize(
    ("reason", "error", "text"),
    [
        ("attempts_exhausted", "exited with status 1; stderr ends with: no route", "exit 1: no route"),
        ("bad_exit", "exited with status 3", "exited with status 3"),
        ("step_failed", "greet: no name", "step_failed: greet: no name"),
        ("cancelled", None, "cancelled"),
    ],
)
def test_what_differs_from_job_to_job_comes_first(reason: str, error: str | None, text: str) -> None:
    assert fmt.brief_error(reason, error) == text


def test_statuses_have_colours_in_tables_and_the_columns_stay_aligned() -> None:
    """Only columns of statuses are coloured, because a plugin may be called `failed`."""
    rows = [("failed", "failed", "now"), ("echo", "succeeded", "later")]
    console = Console(colour=True, width=80)
    header, first, second = console.table(("PLUGIN", "STATUS", "WHEN"), rows).split("\n")
    assert first == "failed  \x1b[31mfailed\x1b[0m     now"
    assert second == "echo    \x1b[32msucceeded\x1b[0m  later"
    assert header == "\x1b[1mPLUGIN  STATUS     WHEN\x1b[0m"


def test_columns_without_a_value_make_room_on_a_terminal() -> None:
    """An empty last column is left out; a column of dashes is left out only if the terminal is too narrow."""
    rows = [("a" * 20, "-", "b" * 20, ""), ("c", "-", "d", "")]
    headers = ("NAME", "SINCE", "WHAT", "ABOUT")
    assert Console(width=80).table(headers, rows).split("\n")[0].split() == ["NAME", "SINCE", "WHAT"]
    assert Console(width=44).table(headers, rows).split("\n")[0].split() == ["NAME", "WHAT"]
    assert Console().table(headers, rows).split("\n")[0].split() == ["NAME", "SINCE", "WHAT", "ABOUT"]
