"""The parser turns words into a command."""

from __future__ import annotations

import re

import pytest

from ductile.cli.command_table import NOUNS, SHORT_FORMS, VERSION_COMMAND, find_short_form, first_words
from ductile.cli.parser import ParsedCommand, parse, wants_json
from ductile.cli.suggestions import SYNONYMS
from ductile.errors import UsageError


def parse_error(*words: str) -> UsageError:
    with pytest.raises(UsageError) as excinfo:
        parse(words)
    return excinfo.value


def called_names(request: ParsedCommand) -> tuple[str, str]:
    assert request.action is not None
    return (request.noun.name if request.noun else "", request.action.name)


@pytest.mark.parametrize(
    "words",
    [
        ["--config", "here", "config", "check"],
        ["--config=here", "config", "check"],
        ["config", "--config", "here", "check"],
        ["config", "check", "--config", "here"],
        ["config", "check", "--config=here"],
        ["--config", "elsewhere", "config", "check", "--config", "here"],
    ],
)
def test_config_is_accepted_before_and_after_the_action(words: list[str]) -> None:
    """The last value counts."""
    request = parse(words)
    assert called_names(request) == ("config", "check")
    assert request.config == "here"


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("option", ["--json", "-v", "--verbose", "-h", "--help"])
def test_common_options_stand_anywhere(option: str, position: int) -> None:
    """Every command accepts the common options."""
    words = ["plugin", "list"]
    words.insert(position, option)
    request = parse(words)
    assert called_names(request) == ("plugin", "list")
    assert request.json == (option == "--json")
    assert request.verbose == (option in {"-v", "--verbose"})
    assert request.help == (option in {"-h", "--help"})


def test_every_row_of_the_table_can_be_called() -> None:
    """The required arguments are enough; no option is required."""
    for noun in NOUNS:
        for action in noun.actions:
            required = [argument.name for argument in action.arguments if argument.required]
            request = parse([noun.name, action.name, *required])
            assert called_names(request) == (noun.name, action.name)
            assert all(request.arguments[name] in (name, [name], (name,)) for name in required)
    assert (
        called_names(parse(["version"])) == called_names(parse(["--version"])) == ("", VERSION_COMMAND.name)
    )


def test_short_forms_mean_their_long_forms() -> None:
    for form in SHORT_FORMS:
        action = next(noun for noun in NOUNS if noun.name == form.noun).action(form.action)
        assert action is not None
        required = [argument.name for argument in action.arguments if argument.required]
        assert called_names(parse([form.name, *required])) == (form.noun, form.action)


def test_options_and_arguments_may_be_mixed() -> None:
    """Options and arguments may come in any order."""
    expected = {"KEY": "a.b", "VALUE": "1", "dry_run": True, "apply": False, "lock": False}
    for words in (["--dry-run", "a.b", "1"], ["a.b", "--dry-run", "1"], ["a.b", "1", "--dry-run"]):
        assert parse(["config", "set", *words]).arguments == expected
    assert parse(["plugin", "check", "--json", "echo"]).arguments == {"NAME|DIR": "echo"}


@pytest.mark.parametrize("value", ["-5", "-0.5"])
def test_a_negative_number_is_a_value(value: str) -> None:
    """`config set` accepts any value; after `--` also one that looks like an option."""
    assert parse(["config", "set", "k", value]).arguments["VALUE"] == value
    assert parse(["config", "set", "--", "k", "--json"]).arguments["VALUE"] == "--json"


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["confg"], "ductile config show"),
        (["plugn", "list"], "ductile plugin list"),
        (["plugin", "lst"], "ductile plugin list"),
        (["reset"], "ductile system reset"),
        (["resett"], "ductile system reset"),
        (["cancel"], "ductile job cancel"),
        (["schedules"], "ductile schedule list"),
        (["events"], "ductile event tail"),
        (["jobs", "show", "last"], "ductile job show"),
        (["plugins", "list"], "ductile plugin list"),
        (["job", "logz"], "ductile job logs"),
        (["job", "stop"], "ductile job cancel"),
        (["config", "reload"], "ductile reload"),
        (["ps"], "ductile queue list"),
        (["--jsn", "plugins"], "--json"),
        (["config", "check", "--jsno"], "--json"),
        (["config", "lock", "--dryrun"], "--dry-run"),
    ],
)
def test_near_misses_are_suggested(words: list[str], suggestion: str) -> None:
    """Misspelt nouns, actions and options are suggested, across levels and by the words of other tools."""
    assert f"did you mean `{suggestion}`?" in (parse_error(*words).hint or "")


def test_an_action_of_several_nouns_is_suggested_with_each() -> None:
    hint = parse_error("list").hint or ""
    assert all(f"`ductile {noun.name} list`" in hint for noun in NOUNS if "list" in noun.modules)


def test_every_suggested_command_exists() -> None:
    """Suggestions for words of other tools, plurals and single actions can be typed as they are."""
    words = [line.split() for line in SYNONYMS]
    words += [[f"{noun.name}s"] for noun in NOUNS if find_short_form(f"{noun.name}s") is None]
    words += [[action] for noun in NOUNS for action in noun.modules if action not in first_words()]
    for typed in words:
        suggested = re.findall(r"`ductile ([^`]*)`", (parse_error(*typed).hint or "").partition("? See ")[0])
        assert suggested, typed
        for line in suggested:
            assert parse([*line.split(), "--help"]).action is not None, (typed, line)


@pytest.mark.parametrize(
    "words",
    [
        ["--config"],
        ["config", "get"],
        ["config", "set", "k"],
        ["config", "check", "extra"],
        ["plugin", "list", "--config"],
        ["config", "check", "--conf", "x"],
        ["nonsense"],
    ],
)
def test_an_invalid_command_line_is_a_usage_error_with_a_hint(words: list[str]) -> None:
    """The exit status is 2. Options cannot be abbreviated, because a new option could change an old
    script.
    """
    error = parse_error(*words)
    assert error.exit_status == 2
    assert error.hint


@pytest.mark.parametrize("option", ["--config", "--url", "--token-env", "--ca"])
@pytest.mark.parametrize("separator", [("--",), ()])
def test_options_of_a_daemon_take_their_value_before_a_command(
    option: str, separator: tuple[str, ...]
) -> None:
    request = parse(["exec", option, "value", *separator, "ls", "-l"])
    assert request.arguments["COMMAND"] == ["ls", "-l"]
    assert getattr(request, option.removeprefix("--").replace("-", "_")) == "value"


def test_help_as_a_word() -> None:
    """`ductile help config` shows the same help as `ductile config --help`."""
    assert parse(["help"]).help
    assert parse(["help", "config"]) == parse(["config", "--help"])
    assert parse(["help", "config", "set"]).action == parse(["config", "set", "--help"]).action


def test_json_is_recognised_in_a_line_that_cannot_be_parsed() -> None:
    """Errors are JSON too; `--json` after `--` is a value."""
    assert wants_json(["nonsense", "--json"])
    assert not wants_json(["config", "set", "k", "--", "--json"])


@pytest.mark.parametrize(
    ("word", "noun", "action"),
    [
        ("start", "system", "start"),
        ("stop", "system", "stop"),
        ("watch", "system", "watch"),
        ("doctor", "system", "doctor"),
        ("reload", "system", "reload"),
    ],
)
def test_the_daemon_is_looked_after_by_short_forms(word: str, noun: str, action: str) -> None:
    assert called_names(parse([word])) == (noun, action)


@pytest.mark.parametrize("word", ["explain", "retry"])
def test_jobs_are_looked_after_by_short_forms(word: str) -> None:
    assert called_names(parse([word, "01a1"])) == ("job", word)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("lock", "did you mean `ductile config lock` or `ductile plugin lock`?"),
        ("cancel", "did you mean `ductile job cancel`?"),
        ("strat", "did you mean `ductile start`?"),
        ("jobs", "did you mean `ductile job list`?"),
    ],
)
def test_an_action_without_its_noun_is_completed(word: str, hint: str) -> None:
    assert hint in (parse_error(word).hint or "")
