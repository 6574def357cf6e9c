"""Word wrap. Help needs it, so it does without `textwrap`, which is slow to import."""

from __future__ import annotations


def wrap(text: str, width: int) -> list[str]:
    """The text in lines of at most `width`, broken at spaces; a word that is longer is broken, too."""
    lines = [""]
    for word in text.split():
        room = width - len(lines[-1]) - 1
        if lines[-1] and len(word) <= room:
            lines[-1] += f" {word}"
            continue
        pieces = [word[start : start + width] for start in range(0, len(word), width)]
        lines = [*lines, *pieces] if lines[-1] else pieces
    return lines


def wrap_hanging(left: str, text: str, width: int) -> list[str]:
    """The text beside `left`, its further lines aligned below its first."""
    first, *others = wrap(text, width - len(left))
    return [f"{left}{first}".rstrip(), *(" " * len(left) + line for line in others)]
