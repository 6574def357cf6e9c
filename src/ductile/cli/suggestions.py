"""Hints for a mistyped command line: the command that was probably meant.

Imported only after a mistake. Every suggested command exists; a test parses all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.command_table import NOUNS, find_noun, first_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ductile.cli.command_table import Noun

#: Lower than for names in a configuration: commands and options are few and well apart.
_SIMILARITY = 0.6
#: For a word that may be an action of any noun: there are many of them.
_SIMILARITY_OF_ALL = 0.75
#: Words that other tools have for a command of ours; after a noun, and first on the line.
SYNONYMS = {
    "config reload": "reload",
    "config validate": "config check",
    "event list": "event tail",
    "event logs": "event tail",
    "job kill": "job cancel",
    "job run": "run",
    "job status": "job show",
    "job stop": "job cancel",
    "pipeline logs": "logs",
    "pipeline status": "pipeline list",
    "plugin logs": "logs",
    "plugin status": "status",
    "queue cancel": "job cancel",
    "queue retry": "job retry",
    "queue show": "queue list",
    "schedule cancel": "schedule pause",
    "schedule disable": "schedule pause",
    "schedule enable": "schedule resume",
    "schedule show": "schedule explain",
    "schedule start": "schedule resume",
    "schedule stop": "schedule pause",
    "token add": "token create",
    "token delete": "token revoke",
    "webhook logs": "webhook deliveries",
    "daemon": "start",
    "deploy": "apply",
    "down": "stop",
    "health": "doctor",
    "kill": "job cancel",
    "log": "logs",
    "ls": "job list",
    "ps": "queue list",
    "serve": "start",
    "trigger": "run",
    "up": "start",
    "validate": "config check",
}


def suggest_command(word: str, following: Sequence[str] = ()) -> str:
    """Return a hint for an unknown first word. `following` are the words after it."""
    if word.endswith("s") and (noun := find_noun(word.removesuffix("s"))) is not None:
        return _hint([_command_of(noun, following)])
    if commands := [f"{noun.name} {word}" for noun in NOUNS if word in noun.modules]:
        return _hint(commands)
    if word in SYNONYMS:
        return _hint([SYNONYMS[word]])
    if (closest := _closest(word, first_words(), _SIMILARITY_OF_ALL)) is None:
        actions = dict.fromkeys(action for noun in NOUNS for action in noun.modules)
        closest = _closest(word, actions, _SIMILARITY_OF_ALL) or _closest(word, first_words(), _SIMILARITY)
    if closest is None:
        return "see `ductile --help`"
    if closest not in first_words():
        return suggest_command(closest)
    noun = find_noun(closest)
    return _hint([closest if noun is None else _command_of(noun, following)])


def suggest_action(noun: Noun, word: str) -> str:
    """Return a hint for an action that a noun does not have."""
    see = f"ductile {noun.name} --help"
    if command := SYNONYMS.get(f"{noun.name} {word}"):
        return _hint([command], see)
    if closest := _closest(word, noun.modules, _SIMILARITY_OF_ALL):
        return _hint([f"{noun.name} {closest}"], see)
    # Actions of `system` are not suggested: they stop or reset everything, not one of its parts.
    others = [other for other in NOUNS if other.name not in ("system", noun.name)]
    if commands := [f"{other.name} {word}" for other in others if word in other.modules]:
        return _hint(commands, see)
    closest = _closest(word, noun.modules, _SIMILARITY)
    return f"see `{see}`" if closest is None else _hint([f"{noun.name} {closest}"], see)


def suggest_option(flag: str, flags: Sequence[str], see: str) -> str:
    """Return a hint for an unknown option."""
    if flag in flags:  # the option is right; something else about the line is wrong
        return f"see `{see}`"
    # Options are compared without their dashes, which would make any two of them similar.
    names = {known_flag.lstrip("-"): known_flag for known_flag in flags}
    closest = _closest(flag.lstrip("-").partition("=")[0], names, _SIMILARITY)
    return f"see `{see}`" if closest is None else f"did you mean `{names[closest]}`? See `{see}`"


def _command_of(noun: Noun, following: Sequence[str]) -> str:
    """Return the noun with the action that follows; without one, with the action that lists or shows."""
    actions = noun.modules
    if following and not following[0].startswith("-"):
        word = following[0]
        action = word if word in actions else _closest(word, actions, _SIMILARITY)
        if action:
            return f"{noun.name} {action}"
    default = next(iter(actions)) if len(actions) == 1 else "--help"
    showing = next((name for name in ("list", "tail", "show", "status") if name in actions), default)
    return f"{noun.name} {showing}"


def _hint(commands: Sequence[str], see: str = "ductile --help") -> str:
    *others, last = [f"`ductile {command}`" for command in commands]
    return f"did you mean {', '.join(others)}{' or ' if others else ''}{last}? See `{see}`"


def _closest(word: str, candidates: Iterable[str], similarity: float) -> str | None:
    from ductile.core.suggest import closest_match

    return closest_match(word, candidates, similarity=similarity)
