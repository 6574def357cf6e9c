"""Commands in hints, so that they can be copied: with the configuration that the reader has named.

Hints come from everywhere, and only the command line knows whether `--config` was given. So it is put into
every `ductile …` of a hint here, once.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from ductile.cli.command_table import CONFIG, first_words

if TYPE_CHECKING:
    from collections.abc import Sequence

_FLAG = CONFIG.flags[0]
#: Between backticks the whole command is known, and of one that a text ends with; of others where it begins.
_WORDS = "|".join(word for word in first_words() if word not in ("init", "version"))
_QUOTED = re.compile(rf"`ductile ((?:{_WORDS})\b[^`]*)`")
_LAST = re.compile(rf"(?<![`\w/-])ductile (?:{_WORDS})(?:\b[^`,;()]*[^`,;().])?$")
_BARE = re.compile(rf"(?<![`\w/-])ductile (?=(?:{_WORDS})\b)")


def add_config_option(text: str, config: str | None) -> str:
    """The text with `--config` in its commands; as it is if there is none, or it names one already."""
    if config is None or _FLAG in text:
        return text
    named = f"{_FLAG} {shlex.quote(config)}"
    text = _QUOTED.sub(lambda found: f"`ductile {_ended(found[1], named)}`", text)
    last = _LAST.search(text)
    begin, end = (text, "") if last is None else (text[: last.start()], f"{last[0]} {named}")
    return _BARE.sub(lambda _found: f"ductile {named} ", begin) + end


def _ended(command: str, named: str) -> str:
    return command if "--help" in command else f"{command} {named}"


def config_option(words: Sequence[str]) -> str | None:
    """Also for a line that cannot be parsed."""
    options = list(words[: list(words).index("--")] if "--" in words else words)
    found = None
    for word, after in zip(options, [*options[1:], None], strict=True):
        if word == _FLAG and after is not None:
            found = after
        elif word.startswith(f"{_FLAG}="):
            found = word.partition("=")[2]
    return found
