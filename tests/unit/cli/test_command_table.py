"""The table of commands names actions that exist."""

from __future__ import annotations

from importlib import import_module

import pytest

from ductile.cli.command_table import NOUNS, SHORT_FORMS, Noun, find_noun
from ductile.cli.console import format as fmt
from ductile.cli.parser import parse
from ductile.cli.spec import Action
from ductile.errors import UsageError

ACTIONS = {f"{noun.name} {action.name}": action for noun in NOUNS for action in noun.actions}
#: Commands that change something. Each of them has --dry-run.
MUTATIONS = [
    "system start",
    "system stop",
    "system reload",
    "system reset",
    "system backup",
    "system restore",
    "config apply",
    "config rollback",
    "config lock",
    "config set",
    "config init",
    "plugin run",
    "plugin new",
    "plugin lock",
    "job cancel",
    "job retry",
    "queue purge",
    "schedule pause",
    "schedule resume",
    "schedule run",
]


@pytest.mark.parametrize("noun", NOUNS, ids=lambda noun: noun.name)
def test_the_table_lists_every_action_that_a_module_declares(noun: Noun) -> None:
    """The order is that of the declarations, as in the help."""
    for module in dict.fromkeys(noun.modules.values()):
        members = vars(import_module(f"ductile.cli.commands.{module}")).values()
        declared = [member.name for member in members if isinstance(member, Action)]
        assert [name for name, module_name in noun.modules.items() if module_name == module] == declared


@pytest.mark.parametrize("name", ACTIONS)
def test_every_action_is_run_by_a_function(name: str) -> None:
    assert callable(ACTIONS[name].run)


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_can_be_tried(name: str) -> None:
    """The option is `--dry-run`."""
    assert any("--dry-run" in option.flags for option in ACTIONS[name].options)


def test_every_short_form_stands_for_something() -> None:
    for form in SHORT_FORMS:
        noun = find_noun(form.noun)
        assert noun is not None
        assert noun.action(form.action) is not None


@pytest.mark.parametrize(
    ("words", "action"),
    [
        ("queue", "list"),
        ("queue --json", "list"),
        ("queue --plugin echo", "list"),
        ("queue status", "status"),
        ("queue --config x status", "status"),
        ("--json queue purge echo", "purge"),
    ],
)
def test_queue_is_a_noun_and_a_short_form(words: str, action: str) -> None:
    """`queue` alone lists jobs; with an action it is the noun."""
    request = parse(words.split())
    assert request.action is not None
    assert request.action.name == action


def test_a_misspelt_action_of_queue_is_not_taken_for_something_else() -> None:
    with pytest.raises(UsageError, match="queue has no action 'statsu'"):
        parse(["queue", "statsu"])


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (None, "-"),
        (0, "0ms"),
        (0.4, "<1ms"),
        (999, "999ms"),
        (1500, "1.5s"),
        (61_000, "1m01s"),
        (3_660_000, "1h01m"),
    ],
)
def test_spans_read_as_people_say_them(milliseconds: float | None, text: str) -> None:
    assert fmt.duration(milliseconds) == text
