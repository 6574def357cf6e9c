"""Hints contain complete commands, with the configuration that the user named."""

from __future__ import annotations

import pytest

from ductile.cli.console.console import add_daemon_options
from ductile.cli.parser import find_daemon_options


@pytest.mark.parametrize(
    ("hint", "completed"),
    [
        ("Start it with `ductile system start`.", "Start it with `ductile system start --config my\\ demo`."),
        ("mend it, then: ductile job retry 01a", "mend it, then: ductile job retry 01a --config my\\ demo"),
        ("ductile job wait 01a comes back.", "ductile --config my\\ demo job wait 01a comes back."),
        (
            "ductile system stop, then ductile system start",
            "ductile --config my\\ demo system stop, then ductile system start --config my\\ demo",
        ),
        (
            "its stderr (ductile job logs 01a) tells",
            "its stderr (ductile --config my\\ demo job logs 01a) tells",
        ),
        ("ductile reload", "ductile reload --config my\\ demo"),
        ("see `ductile run --help`", None),
        ("or see `ductile init`", None),
        ("ductile init DIR", None),
        ("run `ductile config lock --config demo`", None),
        ("the file /usr/bin/ductile is gone", None),
        ("Run the ductile daemon", None),
        ("nothing to run", None),
    ],
)
def test_a_hint_with_the_configuration_that_was_named(hint: str, completed: str | None) -> None:
    """The option is appended where the end of the command is known, and otherwise inserted at its
    beginning.
    """
    expected = hint if completed is None else completed.replace("my\\ demo", "'my demo'")
    assert add_daemon_options(hint, "--config 'my demo'") == expected
    assert add_daemon_options(hint, None) == hint


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("job list --config demo", "--config demo"),
        ("--config=demo job list", "--config demo"),
        ("--config a job list --config b", "--config b"),
        ("--url https://a job list --token-env T", "--url https://a --token-env T"),
        ("job list", None),
        ("job list --config", None),
        ("run echo -- --config demo", None),
    ],
)
def test_where_the_daemon_is_is_found_anywhere_on_the_line(words: str, options: str | None) -> None:
    assert find_daemon_options(words.split()) == options
