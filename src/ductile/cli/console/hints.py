"""Commands in hints with the `--config` that the user gave, so that they can be copied and run.

Hints come from every layer, and only the command line knows whether `--config` was given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.command_table import first_words
from ductile.cli.spec import CONFIG

if TYPE_CHECKING:
    from collections.abc import Sequence

_FLAG = CONFIG.flags[0]


def add_config_option(text: str, config: str | None) -> str:
    """The text with `--config` in its commands; unchanged without a config, or if one is named already."""
    if config is None or _FLAG in text:
        return text
    import re
    import shlex

    words = "|".join(word for word in first_words() if word not in ("init", "version"))
    option = f"{_FLAG} {shlex.quote(config)}"

    def append(found: re.Match[str]) -> str:
        return found[0] if "--help" in found[1] else f"`ductile {found[1]} {option}`"

    # The end of a command is known in backticks and at the end of the text; elsewhere its beginning only.
    text = re.sub(rf"`ductile ((?:{words})\b[^`]*)`", append, text)
    last = re.search(rf"(?<![`\w/-])ductile (?:{words})(?:\b[^`,;()]*[^`,;().])?$", text)
    begin, end = (text, "") if last is None else (text[: last.start()], f"{last[0]} {option}")
    return re.sub(rf"(?<![`\w/-])ductile (?=(?:{words})\b)", lambda _: f"ductile {option} ", begin) + end


def config_option(words: Sequence[str]) -> str | None:
    """The value of --config; works for a line that cannot be parsed, too."""
    options = list(words[: list(words).index("--")] if "--" in words else words)
    found = None
    for word, after in zip(options, [*options[1:], None], strict=True):
        if word == _FLAG and after is not None:
            found = after
        elif word.startswith(f"{_FLAG}="):
            found = word.partition("=")[2]
    return found
