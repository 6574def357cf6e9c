"""The help fits a terminal, and its examples are valid."""

from __future__ import annotations

import io
import json
import re
import shlex
from datetime import UTC
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.cli.command_table import NOUNS, SHORT_FORMS, find_noun
from ductile.cli.console.table import wrap, wrap_hanging
from ductile.cli.main import run
from ductile.cli.parser import parse
from ductile.cli.spec import Example
from ductile.config.validate.access import suggest_scope
from ductile.core.instants import parse_instant
from ductile.core.jobs.model import JobStatus, SubmittedBy
from ductile.core.timestamps import EPOCH
from ductile.operations.jobs.filters import STATUS_ALIASES

LINES = (
    "",
    *(noun.name for noun in NOUNS),
    *(f"{noun.name} {action.name}" for noun in NOUNS for action in noun.actions),
    *(form.name for form in SHORT_FORMS),
    "version",
)


def help_of(words: str) -> str:
    out = io.StringIO()
    assert run([*words.split(), "--help"], {}, out, out) == 0
    return out.getvalue()


@pytest.mark.parametrize("words", LINES)
def test_no_line_of_help_is_longer_than_a_terminal(words: str) -> None:
    """Every line has at most 80 columns, whatever the width of the terminal."""
    assert [line for line in help_of(words).splitlines() if len(line) > 80] == []


def test_text_without_room_continues_below_itself() -> None:
    """The left column stays free, so that names are easy to find."""
    assert "  backup FILE|DIR   write configuration, store and plugins to one archive, also\n" + (
        " " * 20 + "while the daemon runs\n"
    ) in help_of("system")


@given(st.text(), st.integers(1, 30))
def test_wrapping_keeps_every_word_and_its_width(text: str, width: int) -> None:
    """Only spaces are lost, and no line is longer than the width."""
    lines = wrap(text, width)
    assert "".join(lines).replace(" ", "") == "".join(text.split())
    assert all(len(line) <= width and line == line.strip() for line in lines)


@given(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1))
def test_words_that_have_room_are_not_broken(words: list[str]) -> None:
    """The wrapped lines have the same words in the same order."""
    assert " ".join(wrap(" ".join(words), 5)).split() == words


def test_hanging_text_is_below_its_first_line() -> None:
    """An empty text is allowed."""
    assert wrap_hanging("  -n  ", "one two three", 14) == ["  -n  one two", "      three"]
    assert wrap_hanging("  -n  ", "", 14) == ["  -n"]


ILLUSTRATED = {
    f"{noun.name} {action.name}": action.examples
    for noun in NOUNS
    for action in noun.actions
    if action.examples
}
#: The most used commands.
EXPECTED = (
    *("plugin run", "plugin test", "pipeline run", "pipeline check", "job list", "job explain", "job retry"),
    *("system logs", "system backup", "config set", "schedule next", "schedule explain", "event send"),
    *("event tail", "webhook send", "token create"),
)


@pytest.mark.parametrize("words", EXPECTED)
def test_the_most_used_commands_have_examples(words: str) -> None:
    """The examples follow the options, each with its purpose."""
    *_, examples = help_of(words).partition("\nExamples:\n")
    assert [line.strip() for line in examples.splitlines()] == [
        line for example in ILLUSTRATED[words] for line in (f"# {example.purpose}", example.line)
    ]


@pytest.mark.parametrize(
    ("words", "example"),
    [(words, example) for words, examples in ILLUSTRATED.items() for example in examples],
    ids=lambda value: value.line if isinstance(value, Example) else "",
)
def test_every_example_can_be_typed(words: str, example: Example) -> None:
    """The parser accepts the example as a call of this command, with valid values."""
    program, *typed = shlex.split(example.line)
    request = parse(typed)
    assert program == "ductile"
    assert request.noun is not None
    assert request.action is not None
    assert f"{request.noun.name} {request.action.name}" == words
    arguments = {name: str(value) for name, value in request.arguments.items() if value not in (None, False)}
    if not arguments.get("payload", "@").startswith("@"):
        assert isinstance(json.loads(arguments["payload"]), dict)
    assert not any(suggest_scope(scope, []) for scope in arguments.get("scopes", "*").split(","))
    if "since" in arguments:
        parse_instant(arguments["since"], now=EPOCH, zone=UTC)  # raises if it is refused


@pytest.mark.parametrize(
    ("option", "words"), [("--status", [*JobStatus, *STATUS_ALIASES]), ("--by", [*SubmittedBy])]
)
def test_help_names_every_value_that_is_accepted(option: str, words: list[str]) -> None:
    """The error for an invalid value lists the same values."""
    noun = find_noun("job")
    assert noun is not None
    action = noun.action("list")
    assert action is not None
    (help_text,) = [candidate.help for candidate in action.options if option in candidate.flags]
    _, _, values = help_text.partition(": ")
    assert set(re.findall(r"[a-z_]+", values)) - {"or"} == {str(word) for word in words}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--by nobody", "--by: unknown value 'nobody'"),
        ("--status=lost", "--status: unknown value 'lost'"),
        ("--from once", "--from: 'once' is not a time"),
        ("-n 0", "-n has to be a whole number from 1 to 200"),
        ("--limit 500", "--limit has to be a whole number from 1 to 200"),
    ],
)
def test_a_wrong_value_is_reported_with_the_option_that_was_typed(
    words: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text("plugins: {}\n")
    err = io.StringIO()
    line = [*["job", "list"], *words.split(), "--config", str(tmp_path)]
    assert run(line, {"HOME": str(tmp_path)}, io.StringIO(), err) == 2
    assert err.getvalue().startswith(f"error: {message}")
