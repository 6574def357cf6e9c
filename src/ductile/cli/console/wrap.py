"""Breaking prose into lines. Help is made with it, so it does without `textwrap` and its expressions."""

from __future__ import annotations


def wrap(text: str, width: int) -> list[str]:
    """The text in lines no longer than `width`, broken at spaces; a word that has no room is broken too."""
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
    """The text beside `left`, its further lines below its first."""
    first, *others = wrap(text, width - len(left))
    return [f"{left}{first}".rstrip(), *(" " * len(left) + line for line in others)]
