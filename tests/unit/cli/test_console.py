"""Output for people."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from ductile.cli.console.console import Console, console_for, escape_controls


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError


def test_columns_are_aligned_and_not_cut_when_piped() -> None:
    """Piped output is plain text without tabs, and no text is cut."""
    text = Console().table(["NAME", "WHAT"], [["a", "x" * 300], ["long-name", "y"]])
    assert text.splitlines() == ["NAME       WHAT", "a          " + "x" * 300, "long-name  y"]


def test_a_terminal_gets_lines_that_fit() -> None:
    """No line is longer than the terminal is wide."""
    text = Console(width=50).table(["NAME", "WHAT"], [["a", "x" * 300]])
    assert max(len(line) for line in text.splitlines()) == 50
    assert text.endswith("…")


def test_no_column_falls_off_the_edge_of_a_terminal() -> None:
    """A long cell is cut in its own column; the columns after it stay visible."""
    text = Console(width=50).table(
        ["NAME", "WHAT", "BREAKER"], [["a", "x" * 300, "open"], ["b", "y", "closed"]]
    )
    assert text.splitlines()[0].endswith("BREAKER")
    assert text.splitlines()[1].endswith("…  open")
    assert max(len(line) for line in text.splitlines()) == 50


@given(st.lists(st.lists(st.text(), min_size=2, max_size=2), max_size=4))
def test_cells_cannot_break_the_table_or_drive_the_terminal(rows: list[list[str]]) -> None:
    """Names and descriptions come from plugins, so their control characters are escaped."""
    text = Console().table(["A", "B"], rows)
    assert len(text.split("\n")) == 1 + len(rows)
    assert not any(ord(character) < 32 and character != "\n" for character in text)
    assert "\x9b" not in text


def test_escape_sequences_are_made_visible() -> None:
    assert escape_controls("a\x1b[31mb\tc\nd") == "a\\x1b[31mb\\x09c\nd"


def test_colour_only_for_a_terminal_that_wants_it() -> None:
    """Output has no colour if it is piped, if NO_COLOR is set, or on a dumb terminal."""
    assert console_for(Terminal(), {}).colour
    assert not console_for(Terminal(), {"NO_COLOR": "1"}).colour
    assert not console_for(Terminal(), {"TERM": "dumb"}).colour
    assert console_for(io.StringIO(), {}).width is None
    assert console_for(Terminal(), {}).style("red", "x") == "\x1b[31mx\x1b[0m"
    assert console_for(io.StringIO(), {}).style("red", "x") == "x"


def test_prose_at_the_end_of_a_row_goes_on_below_itself() -> None:
    """Prose is wrapped, not cut; the next row begins after its last line."""
    explanation = "payload.size is 3, and it would have to be greater than 5 for this step"
    text = Console(width=50).table(
        ["STEP", "RESULT", "BECAUSE"],
        [["make", "bypassed", explanation], ["send", "runs", ""]],
        wrap_last=True,
    )
    assert text.splitlines() == [
        "STEP  RESULT    BECAUSE",
        "make  bypassed  payload.size is 3, and it would",
        "                have to be greater than 5 for this",
        "                step",
        "send  runs",
    ]


def test_prose_is_one_line_when_piped() -> None:
    """A program that reads the output gets one line per row."""
    text = Console().table(["STEP", "BECAUSE"], [["make", "word " * 30 + "end"]], wrap_last=True)
    assert len(text.splitlines()) == 2


def test_a_remark_below_a_row_goes_on_below_itself_on_a_terminal_only() -> None:
    """An error message is wrapped at spaces."""
    assert Console(width=40).wrap_beside("    ", "word " * 10) == [
        "    " + "word " * 6 + "word",
        "    word word word",
    ]
    assert Console().wrap_beside("    ", "one\ntwo\x1b") == ["    one two\\x1b"]


def test_spare_columns_make_room_for_prose() -> None:
    """Optional columns are left out if prose would become narrow."""
    row = ["n" * 18, "c" * 20, "word " * 20]
    narrow = Console(width=62)
    assert "CREATED" in narrow.table(["NAME", "CREATED", "ABOUT"], [row], optional=["CREATED"])
    assert "CREATED" not in narrow.table(
        ["NAME", "CREATED", "ABOUT"], [row], optional=["CREATED"], wrap_last=True
    )
