"""One change put into the text of a YAML file, with every other character left as it is.

The emitter that knows how to write a change writes the whole file, in a style of its own. What it makes of
the unchanged file tells which of the differences are its style and which are the change. Pure: text in, text
out; whether the result means what it should is for the caller to check.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from ductile.protocol.yaml import scalar_span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ductile.config.key_paths import KeyPath

_BREAK = re.compile(r"\r\n|\r|\n")
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
#: YAML 1.1 counts them as line breaks, and so do the places of its parsers.
_OTHER_BREAK = re.compile("[\x85\u2028\u2029]")
_COMMENT = re.compile(r"[ \t]+(?=#)")


def put_scalar(before: str, after: str, path: KeyPath) -> str | None:
    """The text with the characters of one value replaced by those it has in `after`.

    None if that is not all there is to the change: one of them is not a single line, or nothing at all.
    """
    old, new = scalar_span(before, path), scalar_span(after, path)
    if old is None or new is None or _OTHER_BREAK.search(before + after):
        return None
    written = _LINE.findall(after)[new.line][new.start : new.end]
    lines: list[str] = _LINE.findall(before)
    line = lines[old.line]
    rest = line[old.end :]
    if comment := _COMMENT.match(rest):  # it keeps its column, where there is room
        room = len(comment[0]) - (len(written) - (old.end - old.start))
        rest = " " * max(1, room) + rest[comment.end() :]
    lines[old.line] = line[: old.start] + written + rest
    return "".join(lines)


def keep_lines(before: str, unchanged: str, after: str, *, shift: int = 0) -> str:
    """The text with the lines that differ between two outputs of an emitter, and its own lines else.

    An emitter indents alike throughout, people may not: lines that are new are moved to the right by `shift`,
    others to where the line begins that they replace.
    """
    own: list[str] = _LINE.findall(before)
    styled, wanted = _BREAK.split(unchanged)[:-1], _BREAK.split(after)[:-1]
    starts = _alignment(own, styled)
    merged: list[str] = []
    done = 0
    for kind, start, end, new_start, new_end in _opcodes(styled, wanted):
        if kind == "equal":
            continue
        first, last = starts[start], starts[end] if end > start else starts[start]
        moved = shift if kind == "insert" else _indent(own[first]) - _indent(styled[start])
        merged += own[done:first]
        merged += [_moved(line, moved) for line in wanted[new_start:new_end]]
        done = max(done, last)
    return _ended(merged, before) + "".join(own[done:])


def _moved(line: str, shift: int) -> str:
    return " " * max(0, _indent(line) + shift) + line.lstrip(" ")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _alignment(own: Sequence[str], styled: Sequence[str]) -> list[int]:
    """For each line of the emitter's, and for their end, the line of ours that it stands for.

    Blanks are where the two differ most; without them nearly every line finds its own.
    """
    own, styled = (["".join(line.split()) for line in lines] for lines in (own, styled))
    starts = [0] * (len(styled) + 1)
    starts[-1] = len(own)
    for _, start, end, styled_start, styled_end in _opcodes(own, styled):
        for index in range(styled_start, styled_end):
            same = end - start == styled_end - styled_start
            starts[index] = start + (index - styled_start) if same else start
    return starts


def _opcodes(old: Sequence[str], new: Sequence[str]) -> list[tuple[str, int, int, int, int]]:
    return list(SequenceMatcher(None, old, new, autojunk=False).get_opcodes())


def _ended(lines: Sequence[str], like: str) -> str:
    """Lines that have no break yet get the one that the text has first."""
    found = _BREAK.search(like)
    line_break = found[0] if found else "\n"
    return "".join(line if _BREAK.search(line) else line + line_break for line in lines)
